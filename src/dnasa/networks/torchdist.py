"""The exchange over torch.distributed: gloo between CPUs, NCCL where every process has a GPU of its own."""

import atexit
import contextlib
import datetime
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dnasa.core import Array, Channel, InputError, Network, RunError
from dnasa.networks.processes import Message, ProcessExchange, blocks, missing
from dnasa.topology import Changing, Topology


def processes(timeout: float, device: str | None) -> int:
    if not dist.is_initialized():
        start_group(timeout, device or own_device())
    return dist.get_world_size()


def connect(
    topology: Topology | Changing,
    rounds: int = 1,
    timeout: float = 30.0,
    device: str | None = None,
    channel: Channel | None = None,
) -> Network:
    """The network of all processes that `torchrun` started; each holds a block of the nodes."""
    transport = Transport(blocks(topology.nodes, processes(timeout, device)))
    return ProcessExchange(topology, transport, rounds, channel).network()


def own_device() -> str:
    """cuda where every process of this machine can have a GPU of its own."""
    return "cuda" if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)) else "cpu"


def start_group(timeout: float, device: str) -> None:
    if "MASTER_ADDR" not in os.environ:
        raise InputError("torch.distributed needs its launcher: torchrun --nproc-per-node 8 -m dnasa train ...")
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", 0))
        if local >= torch.cuda.device_count():
            raise InputError(f"Every process needs a GPU of its own; this machine has {torch.cuda.device_count()}.")
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"  # metrics and texts use gloo in any case
    wait = datetime.timedelta(seconds=timeout)
    store, rank, size = next(dist.rendezvous("env://", timeout=wait))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store still has the addresses of the last attempt
    store = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    atexit.register(end_group)


def end_group() -> None:
    """Exit together: to processes still communicating, one that exits first looks like a lost one."""
    if not dist.is_initialized():
        return
    with contextlib.suppress(RuntimeError):
        dist.barrier()
        dist.destroy_process_group()


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer


TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


class Transport:
    """Messages travel between the processes `ranks`, by default all; sums and texts are those of all processes."""

    survives = False  # torchrun restarts all processes instead

    def __init__(self, shares: Sequence[range], ranks: Sequence[int] | None = None):
        self.shares, self.tag = shares, next(TAGS)
        self.ranks = ranks or range(dist.get_world_size())
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        backends = str(dist.get_backend_config())
        if "gloo" not in backends:
            raise InputError(
                "Texts and metrics use gloo: start the process group with backend 'cpu:gloo,cuda:nccl', "
                "or leave that to dnasa.connect."
            )
        self.carries_cuda = "nccl" in backends
        self.group = dist.new_group(list(self.ranks)) if self.carries_cuda else None  # NCCL has no tags

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[int, Any]]:
        calls: list[Any] = [(peer, dist.irecv, as_tensor(buffer)) for peer, buffer in receives]
        calls += [(peer, dist.isend, as_tensor(buffer)) for peer, buffer in sends]
        try:
            if calls and calls[0][2].is_cuda:
                works = dist.batch_isend_irecv(
                    [dist.P2POp(call, tensor, self.ranks[peer], self.group) for peer, call, tensor in calls]
                )
                return [(-1, work) for work in works]
            return [(peer, call(tensor, self.ranks[peer], tag=self.tag)) for peer, call, tensor in calls]
        except RuntimeError as error:
            raise missing([peer for peer, _, _ in calls], self.shares, first_line(error)) from error

    def finish(self, pending: list[tuple[int, Any]]) -> None:
        for peer, work in pending:
            try:
                work.wait()
            except RuntimeError as error:
                if peer < 0:
                    raise RunError(f"A neighbour of rank {self.rank} is gone: {first_line(error)}.") from error
                raise missing([peer], self.shares, first_line(error)) from error

    def sum(self, buffer: Array) -> Array:
        try:
            dist.all_reduce(as_tensor(buffer))
        except RuntimeError as error:
            raise RunError(f"Rank {self.rank} could not average with the others: {first_line(error)}.") from error
        return buffer

    def duplicate(self) -> "Transport":
        return Transport(self.shares)

    def shrink(self) -> "tuple[list[int], Transport]":
        raise NotImplementedError

    def allgather_text(self, text: str) -> list[str]:
        raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
        size = torch.tensor([raw.numel()])
        try:
            sizes = [torch.empty_like(size) for _ in range(self.size)]
            dist.all_gather(sizes, size)
            longest = int(max(sizes).item())
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: raw.numel()] = raw
            everyone = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(everyone, padded)
        except RuntimeError as error:
            raise RunError(f"Rank {self.rank} could not reach the others: {first_line(error)}.") from error
        return [bytes(part[: int(n)].tolist()).decode() for part, n in zip(everyone, sizes, strict=True)]


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
