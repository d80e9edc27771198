"""Parameters that FSDP2 has divided among the processes of a site: each holds a shard of the node's vectors."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dnasa.arrays import on_shards
from dnasa.communication import Network
from dnasa.core import Exchange, InputError, Rule
from dnasa.optim.flat import Flat, local


def find_mesh(trained: Sequence[Any]) -> Any:
    """The mesh over which FSDP2 has divided the parameters; None if they are whole."""
    meshes: list[Any] = [getattr(p, "device_mesh", None) for p in trained]
    mesh = meshes[0]
    same = all(other == mesh for other in meshes)
    if same and (mesh is None or (mesh.ndim == 1 and all(p.placements[0].is_shard(0) for p in trained))):
        return mesh
    raise InputError("Divide all parameters by rows over one mesh: call fully_shard(..., mesh=mesh) on the whole model, too.")


def own_network(network: Network, parameters: Flat) -> Network:
    """The optimizer's own network; for shards, one between the processes of the same position in their sites."""
    mesh, processes = find_mesh(parameters.trained), network.processes
    ranks = [] if mesh is None else mesh.mesh.tolist()
    if processes.sharded is not None:
        network, empty = processes.sharded(ranks), not parameters.gradient.numel()
        return replace(network, settings=replace(network.settings, channel=None)) if empty else network
    if len(ranks) > 1:
        raise InputError(f"The model is sharded over {ranks}: make them a site, dnasa.connect(..., site=mesh.get_group()).")
    return processes.duplicate() if processes.duplicate else network


class Shards:
    """Where the numbers of this process are in the node's vectors: it may have all of them."""

    def __init__(self, trained: Sequence[Tensor], network: Network):
        self.mesh, self.count, self.sum = find_mesh(trained), network.processes.shards, network.processes.sum_shards
        position = 0 if self.mesh is None else self.mesh.get_local_rank()
        self.name = f"shard {position} of {self.count}"
        self.ranges: list[tuple[int, int, int]] = []  # for each shard its place in the whole vector, that here, and its size
        self.starts: list[int] = []  # of the parameters in the whole vector
        self.strides: dict[int, Tensor] = {}
        self.device, self.width, here = trained[0].device, 0, 0
        for p in trained:
            before = min(p.shape[0], position * -(-p.shape[0] // self.count)) * prod(p.shape[1:]) if p.ndim else 0
            self.ranges.append((self.width + before, here, local(p).numel()))
            self.starts.append(self.width)
            self.width, here = self.width + p.numel(), here + local(p).numel()

    def every(self, k: int) -> Tensor:
        return self._stride(k)[0]

    def find(self, place: slice) -> tuple[slice, slice]:
        """Where this process's part of the parameter at that place of the whole vector is: here, and in the parameter."""
        i = self.starts.index(place.start)
        there, here, size = self.ranges[i]
        inside = there - place.start
        return slice(here, here + size), slice(inside, inside + size)

    def _stride(self, k: int) -> Tensor:
        """Where every k-th number is: in the vector here, and among all numbers of that kind."""
        if k not in self.strides:
            pairs = [
                (i - there + here, i // k)
                for there, here, size in self.ranges
                for i in range(there + -there % k, there + size, k)
            ]
            self.strides[k] = torch.tensor(pairs, dtype=torch.int64, device=self.device).view(-1, 2).T.contiguous()
        return self.strides[k]

    def find_strides(self, arrays: Mapping[str, Tensor]) -> dict[str, int]:
        """1 for an array like x, k for one that has every k-th number of it, 0 for others, which all processes have alike."""
        widths = {1: sum(size for *_, size in self.ranges), **{k: places.shape[1] for k, places in self.strides.items()}}
        fits = [[a.shape[-1] == width for width in widths.values()] for a in arrays.values()]
        everywhere = (self.sum(torch.tensor(fits).long()) == self.count).tolist()  # a shard alone may be empty
        return {
            name: next((k for k, fit in zip(widths, row, strict=True) if fit), 0)
            for name, row in zip(arrays, everywhere, strict=True)
        }

    def whole_shape(self, a: Tensor, k: int) -> torch.Size:
        return torch.Size((1, -(-self.width // k))) if k else a.shape

    def whole(self, a: Tensor, k: int) -> Tensor:
        """An array with the stride k as a process that has the whole vector would have it."""
        if k == 0:
            return a
        out = a.new_zeros(self.whole_shape(a, k))
        out[:, self._stride(k)[1]] = a
        return self.sum(out)

    def part(self, a: Tensor, k: int) -> Tensor:
        """The inverse of `whole`."""
        return a if k == 0 else a[:, self._stride(k)[1]]

    def least(self, number: int) -> int:
        """The least number of all processes, over the mesh's own group: a thread may be in `sum`."""
        out = torch.tensor(number)
        if self.count > 1:
            dist.all_reduce(out, dist.ReduceOp.MIN, self.mesh.get_group())
        return int(out)


def on_whole_vectors(rule: Rule, shards: Shards) -> Rule:
    """The rule on shards, with the norms of the whole vectors. It has no fast form, whose norms would be those of the shard."""

    def whole(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with on_shards(shards):
                return function(*args)

        return call

    functions: dict[str, Any] = {name: whole(f) for name, f in rule._asdict().items() if callable(f)}
    return rule._replace(
        **functions, then=tuple(Exchange(whole(send), whole(receive)) for send, receive in rule.then), form=None
    )


def is_sharded(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where it was never imported, nothing is sharded
    return fsdp is not None and isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule))


def reshard(model: nn.Module | None) -> None:
    """Let the next pass gather the parameters again: FSDP2 may still have them, as they were, from the last one."""
    for module in [] if model is None else model.modules():
        if is_sharded(module) and hasattr(module, "reshard"):  # FullyShardedDataParallel has none
            module.reshard()  # type: ignore[operator]
