"""What must be the same at all nodes: the settings, the modules of the model, and the values at the start."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.arrays import crc32
from dnasa.core import InputError, Network
from dnasa.networks.processes import agree
from dnasa.optim.node import Node

CHUNK = 1 << 20  # parameters that are sent at once when one process sends the others its values


def settings(node: Node, nonfinite: str) -> dict[str, Any]:
    """What every process must have been given."""
    parameters = node.parameters
    kinds = {"parameters": parameters.trained, "frozen parameters": parameters.frozen, "buffers": node.buffers.tensors}
    return {
        "the rule": node.recipe.name,
        "overlap": node.overlap,
        "nonfinite": nonfinite,
        "the weight decay": [group["weight_decay"] for group in parameters.groups],
    } | {f"the shape of the {name}": [[*p.shape, str(p.dtype)] for p in tensors] for name, tensors in kinds.items()}


def described(model: nn.Module | None) -> str:
    """Describes a model's modules as text, without addresses in memory."""
    return re.sub("0x[0-9a-f]+", "", repr(model))


def check_same_modules(network: Network, model: nn.Module) -> None:
    """Refuse different models: those of equal shapes may differ in an activation or in the order of two layers."""
    texts = network.allgather_text(described(model))
    for rank, text in enumerate(texts):
        for mine, theirs in zip_longest(texts[0].splitlines(), text.splitlines(), fillvalue="nothing"):
            if mine != theirs:
                raise InputError(
                    f"The processes have different models: {mine.strip()} at {network.process_name(0)} and "
                    f"{theirs.strip()} at {network.process_name(rank)}. Make the same model in all."
                )


def start_at_the_same_point(node: Node) -> None:
    """Send the values of rank 0 to all, and check that they arrived."""
    row = node.parameters.row()
    tensors = [row, *node.untrained]
    copy_from(node.network, 0, tensors)
    agree(node.network, {"the starting point": crc32(*tensors)})
    node.parameters.show(row)


@torch.no_grad()
def copy_from(network: Network, rank: int, arrays: Sequence[Tensor]) -> None:
    """Copy the values of one process to all, a chunk at a time."""
    for a in (a for a in arrays if a.numel()):
        row = a.detach().reshape(1, -1)
        sent = row if row.is_floating_point() else row.contiguous().view(torch.uint8)  # not all numbers can be added
        for piece in sent.split(CHUNK, dim=1):
            piece.copy_(network.gather(piece)[rank : rank + 1])
        a.copy_(sent.view(row.dtype).view_as(a))
