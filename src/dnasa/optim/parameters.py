"""The parameters of a model: their names and checks, and the same ones at all nodes in the beginning."""

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.core import InputError, Network
from dnasa.networks.processes import agree

SHARDED = (
    "FSDP divides the parameters among the processes, and here each process needs all of them: use "
    "DistributedDataParallel inside a site, dnasa.connect(..., site=...)."
)
CHUNK = 1 << 20  # parameters that are sent at once when one process sends the others its values


def check_parameters(trained: Sequence[Tensor]) -> None:
    if not trained:
        raise InputError("There is no parameter to train: all are frozen.")
    if any(hasattr(p, "device_mesh") for p in trained):
        raise InputError(SHARDED)
    if len({p.data_ptr() for p in trained if p.numel()}) < sum(p.numel() > 0 for p in trained):
        raise InputError("Two parameters share their memory: tie weights by using one parameter in both places.")
    kinds = sorted({f"{p.dtype} on {p.device}" for p in trained})
    if len(kinds) > 1:
        raise InputError(f"All parameters must have one dtype and one device; here are {' and '.join(kinds)}.")
    if trained[0].dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"Parameters of {trained[0].dtype} are too coarse for small steps: store them in float32 and use torch.autocast."
        )


def parameter_names(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Of the trained parameters: those of `named_parameters()`, or else their numbers and shapes."""
    names = [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]
    parameters = [p for group in groups for p in group["params"]]
    return [
        f"parameter {i} of shape {tuple(p.shape)}" if name is None else f"'{name}'"
        for i, (name, p) in enumerate(zip(names, parameters, strict=True))
        if p.requires_grad
    ]


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat vector in the shapes of these tensors."""
    return list(torch._utils._unflatten_dense_tensors(flat.view(-1), list(like)))


def start_at_the_same_point(network: Network, arrays: Sequence[Tensor]) -> None:
    """Node 0's values are sent to all, and everyone checks that they arrived."""
    if network.nodes > 1:
        copy_from(network, 0, arrays)
        agree(network, {"the starting point": checksum(arrays)})


@torch.no_grad()
def copy_from(network: Network, rank: int, arrays: Sequence[Tensor]) -> None:
    """The values of that process become those of all, a chunk at a time."""
    for a in (a for a in arrays if a.numel()):
        row = a.detach().reshape(1, -1)
        sent = row if row.is_floating_point() else row.contiguous().view(torch.uint8)  # not all numbers can be added
        for piece in sent.split(CHUNK, dim=1):
            piece.copy_(network.gather(piece)[rank : rank + 1])
        a.copy_(sent.view(row.dtype).view_as(a))


def checksum(arrays: Iterable[Tensor]) -> int:
    total = 0
    for a in arrays:
        total = zlib.crc32(a.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().tobytes(), total)
    return total


def described(model: nn.Module | None) -> str:
    """Its modules as text, without addresses in memory."""
    return re.sub("0x[0-9a-f]+", "", repr(model))


def check_same_modules(network: Network, model: nn.Module) -> None:
    """Models of equal shapes may still differ, in an activation or in the order of two layers."""
    texts = network.allgather_text(described(model))
    for rank, text in enumerate(texts):
        for mine, theirs in zip_longest(texts[0].splitlines(), text.splitlines(), fillvalue="nothing"):
            if mine != theirs:
                raise InputError(
                    f"The processes have different models: {mine.strip()} at rank 0 and {theirs.strip()} at rank {rank}. "
                    "Make the same model in all."
                )
