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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions

from dnasa.core import Array, Channel, InputError, Network, RunError
from dnasa.networks import processes
from dnasa.networks.liveness import Liveness
from dnasa.networks.monitor import INTERVAL, Monitor, StoreBoard
from dnasa.networks.transport import Message, gather_texts, no_answer
from dnasa.topology import Changing, Topology

UNLIMITED = datetime.timedelta(days=365)  # how long gloo waits: the monitor decides when a process is lost
LONGEST_EXIT = 30.0  # seconds of silence after which a process exits without the others


def connect(
    topology: Topology | Changing,
    rounds: int = 1,
    timeout: float = 30.0,
    device: str | None = None,
    channel: Channel | None = None,
) -> Network:
    """The network of all processes that `torchrun` started; each holds a block of the nodes."""
    nodes = processes.blocks(topology.nodes, world_size(timeout, device))
    return processes.connect(topology, TorchTransport(nodes, timeout), rounds, channel)


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
    """To processes still communicating, one that exits first looks like a lost one."""
    monitor.end()
    if not dist.is_initialized():
        return
    try:
        work = dist.all_reduce(torch.zeros(1), async_op=True)
        Waiter().wait(work, monitor, LONGEST_EXIT, lambda lost: RunError("The others do not exit"))
    except (InputError, RuntimeError) as error:
        print(f"Error: {first_line(error)}.", file=sys.stderr, flush=True)
        os._exit(1)


# ---------------------------------------------------------------- transports


class Waiter:
    """Waits in a thread of its own, since a wait of gloo that is given up breaks the connection."""

    unfinished: ClassVar[set[Any]] = set()  # waits of all waiters

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="waiter", daemon=True).start()

    @classmethod
    def stuck(cls) -> bool:
        """Whether a wait was given up and has not ended since."""
        return bool(cls.unfinished)

    def _run(self) -> None:
        while True:
            work, result = self.works.get()
            try:
                work.wait(UNLIMITED)
                error = None
            except RuntimeError as raised:
                error = raised
            del work
            self.unfinished.discard(result)
            result.put(error)

    def wait(self, work: Any, liveness: Liveness, timeout: float, error: Callable[[list[int]], RunError]) -> None:
        """Until this work of a process group is done, unless processes are lost; raises the error of the work."""
        result: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()
        self.unfinished.add(result)
        self.works.put((work, result))

        def done() -> bool:
            try:
                failure = result.get(timeout=INTERVAL / 2)
            except queue.Empty:
                return False
            if failure is not None:
                raise failure
            return True

        liveness.wait(done, timeout, error)


class GlooTransport(ABC):
    """Messages over a process group of gloo, or none for a process alone."""

    carries_cuda = False

    def __init__(self, group: Any, rank: int, nodes: Sequence[range], timeout: float, liveness: Liveness, number: int):
        self.group, self.rank, self.nodes, self.timeout, self.liveness = group, rank, nodes, timeout, liveness
        self.number = number  # of the network, which its messages carry
        self.tag = str(number)
        self.ranks: Sequence[int] = range(len(nodes))  # in the group, of the processes that exchange messages
        self.waiter = Waiter()

    @abstractmethod
    def _lost(self, ranks: list[int]) -> RunError:
        """For processes that were lost."""

    @abstractmethod
    def _failed(self, peers: Sequence[int], why: str) -> RunError:
        """For an error of the process group, in messages with these processes."""

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[list[int], Any]]:
        self._check()
        with self._errors([peer for peer, _ in (*receives, *sends)]):
            works = [
                ([peer], self.group.recv([as_tensor(buffer)], self.ranks[peer], self.number))
                for peer, buffer in receives
            ]
            works += [
                ([peer], self.group.send([as_tensor(buffer)], self.ranks[peer], self.number)) for peer, buffer in sends
            ]
            return works

    def finish(self, pending: list[tuple[list[int], Any]]) -> None:
        for peers, work in pending:
            with self._errors(peers):
                self._wait(work)

    def _wait(self, work: Any) -> None:
        self.waiter.wait(work, self.liveness, self.timeout, self._lost)

    def sum(self, buffer: Array) -> Array:
        self._collective(lambda: self.group.allreduce([as_tensor(buffer)], unlimited(AllreduceOptions())))
        return buffer

    def allgather_text(self, text: str) -> list[str]:
        return gather_texts(text, self._gather)

    def _gather(self, array: np.ndarray) -> np.ndarray:
        own = torch.from_numpy(array)
        everyone = [own.clone() for _ in range(1 if self.group is None else self.group.size())]
        self._collective(lambda: self.group.allgather([everyone], [own], unlimited(AllgatherOptions())))
        return torch.stack(everyone).numpy()

    def _collective(self, start: Callable[[], Any]) -> None:
        self._check()
        if self.group is not None:
            with self._errors([]):
                self._wait(start())

    def _check(self) -> None:
        self.liveness.check(time.monotonic(), self.timeout, self._lost)

    @contextlib.contextmanager
    def _errors(self, peers: Sequence[int]) -> Iterator[None]:
        """Translates errors of torch; our own stay what they are."""
        try:
            yield
        except RunError:
            raise
        except RuntimeError as error:
            raise self._failed(peers, first_line(error)) from error


TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


class TorchTransport(GlooTransport):
    """Messages travel between the processes `ranks`, by default all; sums and texts are those of all processes."""

    def __init__(self, nodes: Sequence[range], timeout: float, ranks: Sequence[int] | None = None):
        backends, size = str(dist.get_backend_config()), dist.get_world_size()
        if "gloo" not in backends:
            raise InputError(
                "Texts and metrics use gloo: start the process group with backend 'cpu:gloo,cuda:nccl', "
                "or leave that to dnasa.connect."
            )
        liveness = start_monitor() if size > 1 else Liveness()
        super().__init__(dist.group.WORLD, dist.get_rank(), nodes, timeout, liveness, next(TAGS))
        self.ranks = ranks or range(size)
        self.carries_cuda = "nccl" in backends
        self.gpu_group = dist.new_group(list(self.ranks)) if self.carries_cuda else None  # NCCL has no tags

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[list[int], Any]]:
        if not self.carries_cuda or not any(buffer.is_cuda for _, buffer in (*receives, *sends)):
            return super().start(receives, sends)
        calls = [(dist.irecv, *message) for message in receives] + [(dist.isend, *message) for message in sends]
        with self._errors([peer for _, peer, _ in calls]):
            works = dist.batch_isend_irecv(
                [dist.P2POp(call, buffer, self.ranks[peer], self.gpu_group) for call, peer, buffer in calls]
            )
            return [([], work) for work in works]

    def finish(self, pending: list[tuple[list[int], Any]]) -> None:
        for peers, work in pending:
            with self._errors(peers):
                if peers:
                    self._wait(work)
                else:
                    work.wait()  # on the GPU: a wait of NCCL that is given up ends the process group

    def sum(self, buffer: Array) -> Array:
        if not as_tensor(buffer).is_cuda:
            return super().sum(buffer)
        with self._errors([]):
            self.group.allreduce([buffer]).wait()
        return buffer

    def duplicate(self) -> "TorchTransport":
        return TorchTransport(self.nodes, self.timeout)

    def _lost(self, ranks: list[int]) -> RunError:
        why = f"nothing came for {self.timeout:g} s"
        peers = [self.ranks.index(rank) for rank in ranks if rank in self.ranks]
        return no_answer(peers, self.nodes, why) if peers else RunError(f"No answer from rank {ranks[0]}: {why}.")

    def _failed(self, peers: Sequence[int], why: str) -> RunError:
        self.liveness.diagnose()
        return (
            no_answer(peers, self.nodes, why)
            if peers
            else RunError(f"Rank {self.rank} cannot reach the others: {why}.")
        )


def unlimited(options: Any) -> Any:
    options.timeout = UNLIMITED
    return options


def as_tensor(buffer: Array) -> torch.Tensor:
    return torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
