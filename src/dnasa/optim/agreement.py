"""What must be the same at all nodes: the settings, the model, and the values at the start."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.arrays import crc32
from dnasa.communication import Network
from dnasa.networks.processes import agree
from dnasa.optim.node import Node


def settings(node: Node, model: nn.Module | None) -> dict[str, Any]:
    """What every process must have been given."""
    parameters = node.parameters
    kinds = {"parameters": parameters.trained, "frozen_parameters": parameters.frozen, "buffers": node.buffers.tensors}
    return {
        "rule": node.recipe.name,
        "overlap": node.overlap,
        "weight_decay": parameters.decays,
        **{f"shape_of_{name}": [[*p.shape, str(p.dtype)] for p in each] for name, each in kinds.items()},
        "name_of_a_parameter": parameters.names,
        "model": described(model),
    }


def described(model: nn.Module | None) -> list[str]:
    """The modules of a model: models of equal shapes may differ in an activation."""
    return [line.strip() for line in re.sub("0x[0-9a-f]+", "", repr(model)).splitlines()]


def start_at_the_same_point(node: Node) -> None:
    """Send the values of rank 0 to all, and check that they arrived."""
    row = node.parameters.row()
    sent = copy_from(node.network, 0, [row, *node.untrained])
    agree(node.network, {"starting_point": checksums(node.network, sent)})
    node.parameters.show(row)


@torch.no_grad()
def copy_from(network: Network, rank: int, arrays: Sequence[Tensor], targets: Sequence[int] | None = None) -> list[Tensor]:
    """Copy the values of one process to the targets, by default to all; returns the arrays that were sent.

    Arrays that are equal everywhere are not: sites that fine-tune a large model have its frozen weights.
    """
    own = checksums(network, arrays)
    everyone = network.processes.allgather_json(own, lambda given: [int(given[i]) for i in range(len(own))])
    different = [a for a, *sums in zip(arrays, *everyone, strict=True) if len({*sums}) > 1]
    for a in (a for a in different if a.numel()):
        data = a.detach().reshape(-1).contiguous().view(torch.uint8)  # not all numbers can be added
        copied = network.processes.copy(data, rank, targets)
        if targets is None or network.rank in targets:
            a.copy_(copied.view(a.dtype).view_as(a))
    return different


def checksums(network: Network, arrays: Sequence[Tensor]) -> list[int]:
    """Of each array, added up over its shards."""
    return network.processes.sum_shards(torch.tensor([crc32(a) for a in arrays])).tolist()
