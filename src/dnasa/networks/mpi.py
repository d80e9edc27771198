"""The exchange over MPI (mpi4py): NumPy and torch CPU arrays, sent from and into their own memory, never pickled."""

import atexit
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import Array, Channel, InputError, Network, ProcessLost, RunError
from dnasa.networks import can_survive
from dnasa.networks.monitor import Monitor
from dnasa.networks.processes import Message, ProcessExchange, blocks, missing, named
from dnasa.topology import Changing, Topology

try:
    from mpi4py import MPI
except ImportError as error:
    raise InputError("MPI needs mpi4py and an MPI library: pip install 'dnasa[mpi]'.") from error

TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order


def processes() -> int:
    return MPI.COMM_WORLD.size


def connect(
    topology: Topology | Changing,
    rounds: int = 1,
    timeout: float = 30.0,
    channel: Channel | None = None,
    survive: bool = False,
    comm: Any = None,
) -> Network:
    """The network of all processes that `mpirun` started; each holds a block of the nodes.

    A process that died, or whose monitor is silent for `timeout` seconds, ends the run with an error that names it; with
    `survive`, the others continue without those that died, and one that does not answer in an exchange ends the run.
    """
    if survive and not can_survive():
        raise InputError("To survive lost processes, MPI must let them: start with mpirun --with-ft ulfm.")
    comm = comm or MPI.COMM_WORLD
    transport = Transport(comm, timeout, blocks(topology.nodes, comm.size), survive)
    if comm.size > 1 and not survive:
        transport.monitor = monitor_of(comm)
    return ProcessExchange(topology, transport, rounds, channel).network()


def as_numpy(buffer: Array) -> np.ndarray:
    return buffer if isinstance(buffer, np.ndarray) else buffer.numpy()


class Posted(NamedTuple):
    """Persistent requests, and the buffers they hold on to."""

    peers: list[int]
    requests: list[Any]
    buffers: Any


class Board:
    """Reports as small messages on a communicator of their own."""

    def __init__(self, comm: Any):
        self.comm = comm.Dup()
        self.reports = [""] * comm.size
        self.sends: dict[int, tuple[Any, Any]] = {}  # the last report to each process, and its buffer

    def share(self, report: str) -> list[str]:
        raw = np.frombuffer(report.encode(), np.uint8)
        for peer in range(self.comm.size):
            taken = peer not in self.sends or self.sends[peer][0].Test()
            if peer != self.comm.rank and taken:
                self.sends[peer] = self.comm.Isend(raw, peer), raw
        status = MPI.Status()
        while self.comm.Iprobe(status=status):
            incoming = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.comm.Recv(incoming, status.source)
            self.reports[status.source] = incoming.tobytes().decode()
        return self.reports


MONITORS: dict[int, Monitor] = {}  # by the handle of the communicator


def monitor_of(comm: Any) -> Monitor:
    """One for all networks of these processes."""
    if comm.handle not in MONITORS:
        monitor = MONITORS[comm.handle] = Monitor(Board(comm), comm.rank, comm.size)
        atexit.register(monitor.close)
        atexit.register(monitor.end)
    return MONITORS[comm.handle]


class Transport:
    carries_cuda = False

    def __init__(self, comm: Any, timeout: float, shares: Sequence[range], survives: bool):
        self.comm, self.timeout, self.shares, self.survives = comm, timeout, shares, survives
        self.tag = next(TAGS)
        self.rank, self.size = comm.rank, comm.size
        self.monitor: Monitor | None = None
        self.posted: dict[tuple[int, int], Posted] = {}
        self.where = [text.rsplit(" ", 1) for text in self.allgather_text(f"{MPI.Get_processor_name()} {os.getpid()}")]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> "Posted":
        """The buffers are the same from step to step, so their requests are made once and started again."""
        key = (id(receives), id(sends))
        if key not in self.posted:
            requests = [self.comm.Recv_init(as_numpy(buffer), peer, self.tag) for peer, buffer in receives]
            requests += [self.comm.Send_init(as_numpy(buffer), peer, self.tag) for peer, buffer in sends]
            self.posted[key] = Posted([peer for peer, _ in (*receives, *sends)], requests, (receives, sends))
        pending = self.posted[key]
        with self._losses():
            MPI.Prequest.Startall(pending.requests)
        return pending

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """A process that died shows as an error of MPI."""
        try:
            yield
        except MPI.Exception as error:
            if self.survives:
                raise ProcessLost(f"Rank {self.rank} lost a process: {error}.") from error
            raise RunError(f"Rank {self.rank} cannot reach the others: {error}.") from error

    def finish(self, pending: "Posted") -> None:
        requests = pending.requests
        began = time.monotonic()
        while not self._all_done(requests):
            yield_processor()
            if self.monitor is not None:
                self._check(began)
            elif time.monotonic() > began + self.timeout:
                late = [peer for peer, request in zip(pending.peers, requests, strict=True) if not request.Test()]
                raise missing(self.dead() or late, self.shares, f"nothing came for {self.timeout:g} s")

    def _check(self, began: float) -> None:
        late = self.monitor.check(began, self.timeout)  # type: ignore[union-attr]
        if late:
            raise missing(self.dead() or late, self.shares, f"nothing came for {self.timeout:g} s")

    def _all_done(self, requests: list[Any]) -> bool:
        with self._losses():
            return MPI.Request.Testall(requests)

    def _wait(self, start: Callable[[], Any], what: str) -> None:
        began = time.monotonic()
        with self._losses():
            request = start()
        while not self._all_done([request]):
            yield_processor()
            if self.monitor is not None:
                self._check(began)
            elif time.monotonic() > began + self.timeout:
                gone = self.dead()
                if gone:
                    raise missing(gone, self.shares, "the process is gone")
                raise RunError(
                    f"Rank {self.rank} waited {self.timeout:g} s for the others to {what}: one of them hangs."
                )

    def sum(self, buffer: Array) -> Array:
        self._wait(lambda: self.comm.Iallreduce(MPI.IN_PLACE, as_numpy(buffer)), "average")
        return buffer

    def allgather_text(self, text: str) -> list[str]:
        raw = np.frombuffer(text.encode(), np.uint8).copy()
        sizes = np.empty(self.size, np.int64)
        self._wait(lambda: self.comm.Iallgather(np.array([raw.size], np.int64), sizes), "exchange texts")
        everyone = np.empty(int(sizes.sum()), np.uint8)
        self._wait(lambda: self.comm.Iallgatherv(raw, [everyone, sizes]), "exchange texts")
        ends = sizes.cumsum()
        return [everyone[end - size : end].tobytes().decode() for size, end in zip(sizes, ends, strict=True)]

    def duplicate(self) -> "Transport":
        again = Transport(self.comm, self.timeout, self.shares, self.survives)
        again.monitor = self.monitor
        return again

    def shrink(self) -> "tuple[list[int], Transport]":
        """All remaining processes agree on who they are: their ranks here, and a transport between them."""
        self.comm.Revoke()
        smaller = self.comm.Shrink()
        alive = MPI.Group.Translate_ranks(smaller.group, list(range(smaller.size)), self.comm.group)
        if len(alive) == self.size:
            raise RunError(f"Rank {self.rank} had an error of MPI although all processes are running.")
        left = Transport(smaller, self.timeout, [self.shares[rank] for rank in alive], True)
        atexit.register(left.leave)
        return alive, left

    def leave(self) -> None:
        """Exit together and without MPI_Finalize, which may wait for the processes that died."""
        with suppress(RunError):
            self._wait(self.comm.Ibarrier, "exit")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def dead(self) -> list[int]:
        """The processes of this machine that no longer run."""
        name = MPI.Get_processor_name()
        return [rank for rank, (machine, pid) in enumerate(self.where) if machine == name and not running(int(pid))]

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """mpirun ends all processes when one has died: report which one before that."""
        gone = [f"rank {rank} ({named(self.shares[rank])})" for rank in self.dead()]
        if gone:
            os.write(2, f"Error: {', '.join(gone)} is gone; rank {self.rank} stops.\n".encode())
        os._exit(1)


yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


def running(pid: int) -> bool:
    """Whether a process of this machine runs; True on systems without /proc, where only its silence shows that it died."""
    if not os.path.exists("/proc/self/stat"):
        return True
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def abort(code: int) -> None:
    """End all processes: the others may be waiting for this one."""
    MPI.COMM_WORLD.Abort(code)
