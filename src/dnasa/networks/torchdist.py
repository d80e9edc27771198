"""The exchange over torch.distributed: gloo between CPUs, NCCL where every process has a GPU of its own.

If a process dies or does not answer within torch's timeout, torch raises an error at the others, which ends the run.
"""

import atexit
import contextlib
import datetime
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dnasa.arrays import on_gpu
from dnasa.checks import first_line
from dnasa.core import Array, InputError, RunError
from dnasa.networks import processes
from dnasa.networks.transport import Message, Transport

TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


def world_size(timeout: float | None, device: str | None) -> int:
    """The number of processes; starts their group if nobody has."""
    if not dist.is_initialized():
        enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # a GPU for every process here
        start_group(timeout, device or ("cuda" if enough else "cpu"))
    return dist.get_world_size()


def start_group(timeout: float | None, device: str) -> None:
    if "MASTER_ADDR" not in os.environ:
        raise InputError("torch.distributed needs its launcher: torchrun --nproc-per-node 8 -m dnasa train ...")
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", 0))
        if local >= torch.cuda.device_count():
            raise InputError(f"Every process needs a GPU of its own; this machine has {torch.cuda.device_count()}.")
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"  # metrics and texts use gloo in any case
    store, rank, size = next(dist.rendezvous("env://"))
    store = own_part(store, rank, size)
    limit = None if timeout is None else datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    atexit.register(end_group)


def own_part(store: dist.Store, rank: int, size: int) -> dist.Store:
    """The part of the store that no earlier processes of this job have used.

    torchrun keeps its store when it starts the processes again, with the addresses of those before. Its count of restarts does
    not tell the starts apart: each machine has its own, and machines that join or leave do not change it.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("start", own)
        store.set(f"{own} all", " ".join(store.get(f"{own} {other}").decode() for other in range(1, size)))
        return dist.PrefixStore(own, store)
    while True:
        start = store.get("start").decode()
        store.set(f"{start} {rank}", own)
        if store.check([f"{start} all"]) and own in store.get(f"{start} all").decode():
            return dist.PrefixStore(start, store)
        time.sleep(0.05)


def end_group() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


class TorchTransport(Transport):
    """Messages travel between the processes of a group, by default all; sums and texts are those of all processes."""

    def __init__(self, nodes: Sequence[range], groups: Sequence[Sequence[int]] = ()):
        backends = str(dist.get_backend_config())
        if "gloo" not in backends:
            raise InputError("Texts and metrics use gloo: start the group with 'cpu:gloo,cuda:nccl', or leave it to connect.")
        super().__init__(dist.get_rank(), nodes)
        self.group, self.tag = dist.group.WORLD, next(TAGS)
        self.groups = [list(ranks) for ranks in groups or [range(dist.get_world_size())]]
        self.ranks = next((ranks for ranks in self.groups if self.rank in ranks), [])  # that exchange messages with this one
        self.carries_cuda = "nccl" in backends
        processes.agree(self, {"the backend": backends})  # before they make a group that only some would make
        self.gpu_group = self.new_group() if self.carries_cuda else None  # NCCL has no tags

    def new_group(self) -> Any:
        return dist.new_subgroups_by_enumeration(self.groups)[0]

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[str, Any]]:
        group: Any = self.group
        by_nccl = self.carries_cuda and any(on_gpu(buffer) for _, buffer in (*receives, *sends))
        receive, send = (dist.irecv, dist.isend) if by_nccl else (group.recv, group.send)
        calls: list[tuple[Any, int, Array]] = [(receive, self.ranks[peer], data) for peer, data in receives]
        calls += [(send, self.ranks[peer], data) for peer, data in sends]
        with torch_errors():
            if by_nccl:
                operations = [dist.P2POp(call, data, rank, self.gpu_group) for call, rank, data in calls]
                return [("another process", work) for work in dist.batch_isend_irecv(operations)]
            return [(f"rank {rank}", call([as_tensor(data)], rank, self.tag)) for call, rank, data in calls]

    def finish(self, pending: list[tuple[str, Any]]) -> None:
        for peer, work in pending:
            with torch_errors(peer):
                work.wait()

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.group, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.gpu_group or self.new_group())

    def _sum(self, group: Any, buffer: Array) -> Array:
        with torch_errors():
            group.allreduce([as_tensor(buffer)]).wait()
        return buffer

    def gather(self, own: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(own)
        rows = [row.clone() for _ in range(dist.get_world_size())]
        with torch_errors():
            self.group.allgather([rows], [row]).wait()  # type: ignore[union-attr]
        return torch.stack(rows).numpy()

    def duplicate(self) -> "TorchTransport":
        return TorchTransport(self.nodes)


@contextlib.contextmanager
def torch_errors(peer: str = "another process") -> Iterator[None]:
    """Turn errors of torch into `RunError`."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"No answer from {peer}: {first_line(error)}.") from error


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer
