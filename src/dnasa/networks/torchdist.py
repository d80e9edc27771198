"""The exchange over torch.distributed: gloo between CPUs, NCCL where every process has a GPU of its own."""

import atexit
import contextlib
import datetime
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from dnasa.core import Array, Channel, InputError, Network, RunError
from dnasa.networks.monitor import INTERVAL, Monitor, StoreBoard
from dnasa.networks.processes import Message, ProcessExchange, blocks, missing
from dnasa.topology import Changing, Topology

UNLIMITED = datetime.timedelta(days=365)  # how long gloo waits: the monitor decides when a process is lost
POLL = datetime.timedelta(seconds=INTERVAL / 2)
LONGEST_EXIT = 30.0  # seconds of silence after which a process exits without the others


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
    transport = Transport(blocks(topology.nodes, processes(timeout, device)), timeout)
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
    limit = wait if device == "cuda" else UNLIMITED
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    atexit.register(end_group)


def end_group() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@cache
def monitor() -> Monitor:
    """One for all networks of this process."""
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    board = StoreBoard(dist.PrefixStore("dnasa reports", store), str(rank), [str(other) for other in range(size)])
    board.store.set(board.own, "")
    dist.all_reduce(torch.zeros(1))  # everyone has a report now
    made = Monitor(board, rank, size)
    atexit.register(made.close)
    atexit.register(exit_together, made)
    return made


def exit_together(made: Monitor) -> None:
    """To processes still communicating, one that exits first looks like a lost one."""
    made.end()
    if not dist.is_initialized():
        return
    began = time.monotonic()

    def check() -> None:
        if made.check(began, LONGEST_EXIT):
            raise RunError("The others do not exit")

    try:
        wait_for(dist.all_reduce(torch.zeros(1), async_op=True), check)
    except (InputError, RuntimeError) as error:
        print(f"Error: {first_line(error)}.", file=sys.stderr, flush=True)
        os._exit(1)


def wait_for(work: Any, check: Callable[[], None]) -> None:
    """Until a collective is done; `check` is called from time to time, and may raise."""
    while not work.is_completed():
        with contextlib.suppress(RuntimeError):  # it is not done yet, or has an error, which is raised below
            work.wait(POLL)
        check()
    work.wait()


class Waiter:
    """Waits in a thread of its own, since a wait of gloo that is given up breaks the connection."""

    waiting: ClassVar[set["Waiter"]] = set()

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="waiter", daemon=True).start()

    @classmethod
    def stuck(cls) -> bool:
        """Whether a wait was given up and has not ended since."""
        return bool(cls.waiting)

    def _run(self) -> None:
        while True:
            work, result = self.works.get(), None
            try:
                work.wait(UNLIMITED)
            except RuntimeError as error:
                result = error
            del work
            self.waiting.discard(self)
            self.results.put(result)

    def wait(self, work: Any, check: Callable[[], None]) -> RuntimeError | None:
        """The error of a message once it is done; `check` is called from time to time, and may raise."""
        self.waiting.add(self)
        self.works.put(work)
        while True:
            try:
                return self.results.get(timeout=POLL.total_seconds())
            except queue.Empty:
                check()


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer


TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


class Transport:
    """Messages travel between the processes `ranks`, by default all; sums and texts are those of all processes."""

    survives = False  # torchrun restarts all processes instead

    def __init__(self, shares: Sequence[range], timeout: float, ranks: Sequence[int] | None = None):
        self.shares, self.timeout, self.tag = shares, timeout, next(TAGS)
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
        self.monitor = monitor() if self.size > 1 else None
        self.waiter = Waiter()

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
            self._diagnose()
            raise missing([peer for peer, _, _ in calls], self.shares, first_line(error)) from error

    def finish(self, pending: list[tuple[int, Any]]) -> None:
        began = time.monotonic()
        for peer, work in pending:
            if peer < 0:
                self._wait_for_gpu(work)
                continue
            error = self.waiter.wait(work, lambda: self._check(began))
            if error is not None:
                self._diagnose()
                raise missing([peer], self.shares, first_line(error)) from error

    def _wait_for_gpu(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise RunError(f"A neighbour of rank {self.rank} is gone: {first_line(error)}.") from error

    def _collective(self, start: Callable[[], Any], what: str, on_gpu: bool = False) -> None:
        began = time.monotonic()
        try:
            work = start()
            if on_gpu:  # a wait of NCCL that is given up ends the process group
                work.wait()
            else:
                wait_for(work, lambda: self._check(began))
        except RunError:
            raise
        except RuntimeError as error:
            self._diagnose()
            raise RunError(f"Rank {self.rank} could not {what} the others: {first_line(error)}.") from error

    def _check(self, began: float) -> None:
        late = self.monitor.check(began, self.timeout) if self.monitor else []
        if late:
            why = f"nothing came for {self.timeout:g} s"
            peers = [self.ranks.index(rank) for rank in late if rank in self.ranks]
            raise missing(peers, self.shares, why) if peers else RunError(f"No answer from rank {late[0]}: {why}.")

    def _diagnose(self) -> None:
        if self.monitor:
            self.monitor.diagnose()

    def sum(self, buffer: Array) -> Array:
        tensor = as_tensor(buffer)
        self._collective(lambda: dist.all_reduce(tensor, async_op=True), "average with", on_gpu=tensor.is_cuda)
        return buffer

    def duplicate(self) -> "Transport":
        return Transport(self.shares, self.timeout)

    def shrink(self) -> "tuple[list[int], Transport]":
        raise NotImplementedError

    def allgather_text(self, text: str) -> list[str]:
        def gather(parts: list[torch.Tensor], own: torch.Tensor) -> None:
            self._collective(lambda: dist.all_gather(parts, own, async_op=True), "reach")

        return gathered_texts(text, self.size, gather)


def gathered_texts(text: str, size: int, gather: Callable[[list[torch.Tensor], torch.Tensor], None]) -> list[str]:
    """The texts of all processes, by a function that gathers tensors of equal size."""
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length = torch.tensor([raw.numel()])
    lengths = [torch.empty_like(length) for _ in range(size)]
    gather(lengths, length)
    padded = torch.zeros(int(max(lengths).item()), dtype=torch.uint8)
    padded[: raw.numel()] = raw
    everyone = [torch.empty_like(padded) for _ in range(size)]
    gather(everyone, padded)
    return [bytes(part[: int(n)].tolist()).decode() for part, n in zip(everyone, lengths, strict=True)]


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
