"""The exchange over MPI (mpi4py): NumPy and torch CPU arrays, sent from and into their own memory, never pickled."""

import atexit
import functools
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import Array, Channel, InputError, Network, ProcessLost, RunError, nodes_text
from dnasa.networks.liveness import Heartbeat, Place, here
from dnasa.networks.monitor import Monitor
from dnasa.networks.processes import Message, ProcessExchange, blocks, missing
from dnasa.topology import Changing, Topology

try:
    from mpi4py import MPI
except ImportError as error:
    raise InputError("MPI needs mpi4py and an MPI library: pip install 'dnasa[mpi]'.") from error

PAUSE = 0.2  # seconds; Open MPI 5.0 crashes if it learns of a loss inside Shrink: those of the same moment come before
REPEATS = 3  # errors of MPI in a row, with nobody lost and nothing exchanged, that end the run


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
    `survive`, the others continue without it.
    """
    comm = comm or MPI.COMM_WORLD
    heartbeat = start_heartbeat(timeout) if survive else None
    transport = Transport(link_of(comm), timeout, blocks(topology.nodes, comm.size), heartbeat)
    if survive:
        atexit.register(transport.leave)
    elif comm.size > 1:
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
            self.reports[status.source] = incoming.tobytes().decode(errors="replace")
        return self.reports


MONITORS: dict[int, Monitor] = {}  # by the handle of the communicator


def monitor_of(comm: Any) -> Monitor:
    """One for all networks of these processes."""
    if comm.handle not in MONITORS:
        monitor = MONITORS[comm.handle] = Monitor(Board(comm), comm.rank, comm.size)
        atexit.register(monitor.close)
        atexit.register(monitor.end)
    return MONITORS[comm.handle]


@functools.cache
def start_heartbeat(timeout: float) -> Heartbeat:
    """One for each process."""
    heartbeat = Heartbeat(MPI.COMM_SELF.Iprobe, MPI.COMM_WORLD.rank, timeout)
    atexit.register(heartbeat.close)
    return heartbeat


@dataclass
class Link:
    """A communicator, and what the transports over it share."""

    comm: Any
    tags: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # each process takes them in the same order
    repeats: int = 0  # errors in a row that led to this communicator, with nobody lost and nothing exchanged
    exchanged: bool = False


LINKS: dict[int, Link] = {}  # by the handle of the communicator


def link_of(comm: Any) -> Link:
    return LINKS.setdefault(comm.handle, Link(comm))


class Transport:
    carries_cuda = False

    def __init__(self, link: Link, timeout: float, shares: Sequence[range], heartbeat: Heartbeat | None):
        self.link, self.timeout, self.shares, self.heartbeat = link, timeout, shares, heartbeat
        self.comm, self.tag, self.survives = link.comm, next(link.tags), heartbeat is not None
        self.rank, self.size = self.comm.rank, self.comm.size
        self.monitor: Monitor | None = None
        self.posted: dict[tuple[int, int], Posted] = {}
        self.places = self._exchange_places()
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
        self._called(MPI.Prequest.Startall, pending.requests)
        return pending

    def _exchange_places(self) -> list[Place]:
        return [Place.parse(text) for text in self.allgather_text(str(here(MPI.Get_processor_name())))]

    def _same_machine(self) -> list[int]:
        """The ranks of this machine; none where the system does not show its processes."""
        own = self.places[self.rank]
        return [rank for rank, place in enumerate(self.places) if place.machine == own.machine and own.started]

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A process that died or hangs shows as an error of MPI."""
        if self.heartbeat is not None:
            self.heartbeat.check()
        try:
            return function(*arguments)
        except MPI.Exception as error:
            if self.survives:
                raise ProcessLost(f"Rank {self.rank} lost a process: {error}.") from error
            raise RunError(f"Rank {self.rank} cannot reach the others: {error}.") from error

    def finish(self, pending: "Posted") -> None:
        requests = pending.requests
        began = time.monotonic()
        yield_processor()  # where processes share a core, the others then have sent
        while not self._all_done(requests):
            yield_processor()
            if self._overdue(began):
                late = [peer for peer, request in zip(pending.peers, requests, strict=True) if not request.Test()]
                raise missing(self.dead() or late, self.shares, f"nothing came for {self.timeout:g} s")
        self.link.exchanged = True

    def _overdue(self, began: float) -> bool:
        """Whether the timeout has passed since then, where neither reports nor heartbeats tell slow from lost."""
        if self.monitor is not None:
            late = self.monitor.check(began, self.timeout)
            if late:
                raise missing(self.dead() or late, self.shares, f"nothing came for {self.timeout:g} s")
            return False
        overdue = time.monotonic() > began + self.timeout
        if overdue and self.heartbeat is not None:
            self.heartbeat.warn()
        return overdue and self.heartbeat is None

    def _all_done(self, requests: list[Any]) -> bool:
        done: bool = self._called(MPI.Request.Testall, requests)
        return done

    def _wait(self, start: Callable[[], Any], what: str) -> None:
        began = time.monotonic()
        request = self._called(start)
        while not self._all_done([request]):
            yield_processor()
            if self._overdue(began):
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
        again = Transport(self.link, self.timeout, self.shares, self.heartbeat)
        again.monitor = self.monitor
        return again

    def shrink(self) -> "tuple[list[int], Transport]":
        """All remaining processes agree on who they are: their ranks here, and a transport between them."""
        comm = self.comm
        while True:
            comm.Revoke()
            time.sleep(PAUSE)
            comm = comm.Shrink()
            alive = comm.group.Translate_ranks(group=self.comm.group)
            link = Link(comm, repeats=self._repeats(alive))
            self._end_hanging(alive)
            with suppress(ProcessLost):  # another one was lost: then this communicator is shrunk in turn
                left = Transport(link, self.timeout, [self.shares[rank] for rank in alive], self.heartbeat)
                atexit.unregister(self.leave)
                atexit.register(left.leave)
                return alive, left

    def _repeats(self, alive: list[int]) -> int:
        """An error with nobody lost, such as a revoked communicator: all continue, but not if it comes again at once."""
        repeats = 0 if len(alive) < self.size or self.link.exchanged else self.link.repeats + 1
        if repeats == REPEATS:
            raise RunError(f"Rank {self.rank} had {REPEATS} errors of MPI in a row although all processes are running.")
        return repeats

    def _end_hanging(self, alive: list[int]) -> None:
        """A process that was left behind must not run on, nor keep mpirun from ending."""
        local = self._same_machine()
        reports = self.rank == min(set(local) & set(alive), default=None)
        for rank in sorted(set(local) - set(alive)):
            if self.places[rank].runs():
                self.places[rank].kill(self.timeout)
                if reports:
                    nodes = nodes_text(self.shares[rank])
                    os.write(2, f"No answer from {nodes} for {self.timeout:g} s: the process was ended.\n".encode())

    def leave(self) -> None:
        """Exit together; without MPI_Finalize if processes are missing, since it may wait for them."""
        sys.stdout.flush()
        sys.stderr.flush()
        if not self._all_leave() or self.size < MPI.COMM_WORLD.size:
            os._exit(0)

    def _all_leave(self) -> bool:
        """Within the timeout: a process that still waits for an exchange with this one then continues without it."""
        began = time.monotonic()
        with suppress(MPI.Exception):
            request = self.comm.Ibarrier()
            while time.monotonic() < began + self.timeout:
                if request.Test():
                    return True
                yield_processor()
        return False

    def dead(self) -> list[int]:
        """The processes of this machine that no longer run."""
        return [rank for rank in self._same_machine() if not self.places[rank].runs()]

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """mpirun ends all processes when one has died: report which one before that."""
        gone = [f"rank {rank} ({nodes_text(self.shares[rank])})" for rank in self.dead()]
        if gone:
            os.write(2, f"Error: {', '.join(gone)} is gone; rank {self.rank} stops.\n".encode())
        os._exit(1)


yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


def abort(code: int) -> None:
    """End all processes: the others may be waiting for this one."""
    MPI.COMM_WORLD.Abort(code)
