"""The exchange over torch.distributed: gloo between CPUs, NCCL where every process has a GPU of its own.

If a process dies or does not answer within torch's timeout, torch raises an error at the others, which ends the run.
"""

import atexit
import contextlib
import datetime
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dnasa.core import Array, InputError, RunError, first_line, nodes_text
from dnasa.networks import processes
from dnasa.networks.transport import Message, Transport

TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order
Pending = list[tuple[list[int], Any]]  # the other processes, and the work of torch


def world_size(timeout: float | None, device: str | None) -> int:
    """The number of processes; starts their group if nobody has."""
    if not dist.is_initialized():
        start_group(timeout, device or own_device())
    return dist.get_world_size()


def own_device() -> str:
    """cuda where every process of this machine can have a GPU of its own."""
    return "cuda" if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)) else "cpu"


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
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store still has the addresses of the last attempt
    store = dist.PrefixStore(f"attempt {attempt}", store)
    limit = None if timeout is None else datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    atexit.register(end_group)


def end_group() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


class TorchTransport(Transport):
    """Messages travel between the processes `ranks`, by default all; sums and texts are those of all processes."""

    def __init__(self, nodes: Sequence[range], ranks: Sequence[int] | None = None):
        backends = str(dist.get_backend_config())
        if "gloo" not in backends:
            raise InputError(
                "Texts and metrics use gloo: start the process group with backend 'cpu:gloo,cuda:nccl', "
                "or leave that to dnasa.connect."
            )
        super().__init__(dist.get_rank(), nodes)
        self.group, self.tag = dist.group.WORLD, next(TAGS)
        self.ranks = ranks or range(dist.get_world_size())  # of the processes that exchange messages
        self.carries_cuda = "nccl" in backends
        processes.agree(self, {"the backend": backends})  # before they make a group that only some would make
        self.gpu_group = dist.new_group(list(self.ranks)) if self.carries_cuda else None  # NCCL has no tags

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Pending:
        if self.carries_cuda and any(is_cuda(buffer) for _, buffer in (*receives, *sends)):
            return self._start_on_gpu(receives, sends)
        group: Any = self.group
        calls = [(group.recv, *message) for message in receives] + [(group.send, *message) for message in sends]
        with self._errors([peer for _, peer, _ in calls]):
            return [([peer], call([as_tensor(buffer)], self.ranks[peer], self.tag)) for call, peer, buffer in calls]

    def _start_on_gpu(self, receives: Sequence[Message], sends: Sequence[Message]) -> Pending:
        calls = [(dist.irecv, *message) for message in receives] + [(dist.isend, *message) for message in sends]
        with self._errors([peer for _, peer, _ in calls]):
            works = dist.batch_isend_irecv(
                [dist.P2POp(call, buffer, self.ranks[peer], self.gpu_group) for call, peer, buffer in calls]
            )
        return [([], work) for work in works]

    def finish(self, pending: Pending) -> None:
        for peers, work in pending:
            with self._errors(peers):
                work.wait()

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.group, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.gpu_group or dist.new_group(list(self.ranks)))

    def _sum(self, group: Any, buffer: Array) -> Array:
        with self._errors([]):
            group.allreduce([as_tensor(buffer)]).wait()
        return buffer

    def gather(self, own: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(own)
        rows = [row.clone() for _ in range(dist.get_world_size())]
        with self._errors([]):
            self.group.allgather([rows], [row]).wait()  # type: ignore[union-attr]
        return torch.stack(rows).numpy()

    @contextlib.contextmanager
    def _errors(self, peers: Sequence[int]) -> Iterator[None]:
        """Turn errors of torch into `RunError`."""
        try:
            yield
        except RuntimeError as error:
            known = [f"rank {self.ranks[peer]} ({nodes_text(self.nodes[peer])})" for peer in sorted(set(peers))]
            raise RunError(
                f"No answer from {', '.join(known) or 'the other processes'}: {first_line(error)}."
            ) from error

    def duplicate(self) -> "TorchTransport":
        return TorchTransport(self.nodes)


def is_cuda(buffer: Array) -> bool:
    return getattr(buffer, "is_cuda", False)


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer
