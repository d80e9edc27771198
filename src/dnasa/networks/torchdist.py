"""The exchange over torch.distributed: gloo between CPUs, NCCL where every process has a GPU of its own."""

import atexit
import contextlib
import datetime
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions

from dnasa.checks import first_line
from dnasa.core import Array, Channel, InputError, Network, RunError
from dnasa.networks import processes
from dnasa.networks.liveness import Liveness
from dnasa.networks.monitor import INTERVAL, Monitor, StoreBoard
from dnasa.networks.transport import Message, ProcessTransport
from dnasa.topology import Topology

UNLIMITED = datetime.timedelta(days=365)  # how long gloo waits: the monitor decides when a process is lost
LONGEST_EXIT = 30.0  # seconds of silence after which a process exits without the others


def connect(
    topology: Topology,
    rounds: int | str | None = None,
    timeout: float = 30.0,
    device: str | None = None,
    channel: Channel | None = None,
    every: int = 1,
) -> Network:
    """The network of all processes that `torchrun` started; each holds a block of the nodes."""
    transport = TorchTransport(processes.blocks(topology.nodes, world_size(timeout, device)), timeout)
    processes.agree_on_network(transport, topology, rounds, channel, every, site=None, timeout=timeout)
    return processes.connect(topology, transport, rounds, channel, every)


# ---------------------------------------------------------------- the process group


def world_size(timeout: float, device: str | None) -> int:
    if not dist.is_initialized():
        start_group(timeout, device or own_device())
    return dist.get_world_size()


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
    store, rank, size = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store still has the addresses of the last attempt
    store = dist.PrefixStore(f"attempt {attempt}", store)
    limit = None if device == "cuda" else UNLIMITED  # None: torch's own, since one slow compile must not end a run
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    atexit.register(end_group)


def end_group() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@cache
def start_monitor() -> Monitor:
    """One for all networks of this process."""
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    board = StoreBoard(dist.PrefixStore("dnasa reports", store), str(rank), [str(other) for other in range(size)])
    board.store.set(board.own, "")
    dist.all_reduce(torch.zeros(1))  # everyone has a report now
    monitor = Monitor(board, rank, size)
    atexit.register(monitor.close)
    atexit.register(exit_together, monitor)
    return monitor


def exit_together(monitor: Monitor) -> None:
    """Wait for the others before exiting: to them, a process that exits first looks lost."""
    monitor.end()
    if not dist.is_initialized():
        return
    if monitor.problem or monitor.failure:
        monitor.wait_for_ends(LONGEST_EXIT)
        end_waits()
        return
    try:
        work = dist.all_reduce(torch.zeros(1), async_op=True)
        Waiter().wait(work, lambda done: monitor.wait(done, LONGEST_EXIT, lambda _: RunError("The others do not exit")))
    except (InputError, RuntimeError) as error:
        print(f"Error: {first_line(error)}.", file=sys.stderr, flush=True)
        os._exit(1)


def end_waits() -> None:
    """End waits of other threads, which would abort the interpreter's exit: giving up one wait ends all of its group."""
    soon = datetime.timedelta(milliseconds=1)
    for group in [group for group in dist.distributed_c10d._world.pg_map if group.size() > 1]:
        with contextlib.suppress(RuntimeError):
            group.recv([torch.zeros(1)], (group.rank() + 1) % group.size(), next(TAGS)).wait(soon)
    for waiter in Waiter.everyone:
        waiter.works.put(None)
        waiter.thread.join(LONGEST_EXIT)


# ---------------------------------------------------------------- transports


class Waiter:
    """Waits in a thread of its own, since a wait of gloo that is given up breaks the connection."""

    everyone: ClassVar[list["Waiter"]] = []

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="waiter", daemon=True)
        self.thread.start()
        self.everyone.append(self)

    def _run(self) -> None:
        while (item := self.works.get()) is not None:
            work, result = item
            del item
            try:
                work.wait(UNLIMITED)
                error = None
            except RuntimeError as raised:
                error = raised
            del work
            result.put(error)

    def wait(self, work: Any, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        """Wait until this work of a process group is done; raises its error."""
        result: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()
        self.works.put((work, result))

        def done() -> bool:
            try:
                failure = result.get(timeout=INTERVAL / 2)
            except queue.Empty:
                return False
            if failure is not None:
                raise failure
            return True

        wait_until(done)


Pending = list[tuple[list[int], Callable[..., object]]]  # the other processes, and a function that waits


TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


class TorchTransport(ProcessTransport):
    """Messages travel between the processes `ranks`, by default all; sums and texts are those of all processes."""

    def __init__(self, nodes: Sequence[range], timeout: float, ranks: Sequence[int] | None = None):
        backends, size = str(dist.get_backend_config()), dist.get_world_size()
        if "gloo" not in backends:
            raise InputError(
                "Texts and metrics use gloo: start the process group with backend 'cpu:gloo,cuda:nccl', "
                "or leave that to dnasa.connect."
            )
        super().__init__(dist.get_rank(), nodes, timeout, start_monitor() if size > 1 else Liveness())
        self.group, self.number, self.waiter = dist.group.WORLD, next(TAGS), Waiter()
        self.tag = str(self.number)
        self.ranks = ranks or range(size)  # of the processes that exchange messages
        self.carries_cuda = "nccl" in backends
        processes.agree(self, {"the backend": backends})  # before they make a group that only some would make
        self.gpu_group = dist.new_group(list(self.ranks)) if self.carries_cuda else None  # NCCL has no tags

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Pending:
        if self.carries_cuda and any(is_cuda(buffer) for _, buffer in (*receives, *sends)):
            return self._start_on_gpu(receives, sends)
        self.check()
        group: Any = self.group
        calls = [(group.recv, *message) for message in receives] + [(group.send, *message) for message in sends]
        with self._errors([peer for _, peer, _ in calls]):
            works = [(peer, call([as_tensor(buffer)], self.ranks[peer], self.number)) for call, peer, buffer in calls]
        return [([peer], partial(self._wait, work)) for peer, work in works]

    def _start_on_gpu(self, receives: Sequence[Message], sends: Sequence[Message]) -> Pending:
        calls = [(dist.irecv, *message) for message in receives] + [(dist.isend, *message) for message in sends]
        with self._errors([peer for _, peer, _ in calls]):
            works = dist.batch_isend_irecv(
                [dist.P2POp(call, buffer, self.ranks[peer], self.gpu_group) for call, peer, buffer in calls]
            )
        return [([], work.wait) for work in works]  # giving up a wait of NCCL would end the process group

    def finish(self, pending: Pending) -> None:
        for peers, wait in pending:
            with self._errors(peers):
                wait()

    def _wait(self, work: Any) -> None:
        self.waiter.wait(work, self.wait_until)

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.group, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.gpu_group or dist.new_group(list(self.ranks)))

    def _sum(self, group: Any, buffer: Array) -> Array:
        if is_cuda(buffer):
            with self._errors([]):
                group.allreduce([buffer]).wait()
        else:
            self._collective(lambda: group.allreduce([as_tensor(buffer)], unlimited(AllreduceOptions())))
        return buffer

    def _gather(self, own: np.ndarray) -> np.ndarray:
        row, group = torch.from_numpy(own), self.group
        rows = [row.clone() for _ in range(group.size())]  # type: ignore[union-attr]
        self._collective(lambda: group.allgather([rows], [row], unlimited(AllgatherOptions())))  # type: ignore[union-attr]
        return torch.stack(rows).numpy()

    def _collective(self, start: Callable[[], Any]) -> None:
        self.check()
        with self._errors([]):
            self._wait(start())

    @contextlib.contextmanager
    def _errors(self, peers: Sequence[int]) -> Iterator[None]:
        """Turn errors of torch into `RunError`."""
        try:
            yield
        except RunError:
            raise
        except RuntimeError as error:
            self.liveness.diagnose()
            raise self._no_answer(peers, first_line(error)) from error

    def duplicate(self) -> "TorchTransport":
        return TorchTransport(self.nodes, self.timeout)

    def _lost(self, ranks: list[int]) -> RunError:
        if all(rank in self.ranks for rank in ranks):
            return super()._lost([self.ranks.index(rank) for rank in ranks])
        return RunError(f"No answer from rank {ranks[0]}: nothing came for {self.timeout:g} s.")


def unlimited(options: Any) -> Any:
    options.timeout = UNLIMITED
    return options


def is_cuda(buffer: Array) -> bool:
    return getattr(buffer, "is_cuda", False)


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer
