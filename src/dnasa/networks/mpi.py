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
from typing import Any, Self

import numpy as np

from dnasa.checks import nodes_text
from dnasa.core import Array, Channel, InputError, Network, ProcessLost, RunError
from dnasa.networks import processes
from dnasa.networks.liveness import Heartbeat, HostProcess, Liveness, this_process
from dnasa.networks.monitor import Monitor
from dnasa.networks.transport import Message, ProcessTransport
from dnasa.topology import Topology

try:
    from mpi4py import MPI
except ImportError as error:
    raise InputError("MPI needs mpi4py and an MPI library: pip install 'dnasa[mpi]'.") from error

PAUSE = 0.2  # seconds; Open MPI 5.0 crashes if it learns of a loss inside Shrink: those of the same moment come before
REPEATS = 3  # errors of MPI in a row, with nobody lost and nothing exchanged, that end the run
yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


def world_size() -> int:
    return MPI.COMM_WORLD.size


def abort(code: int) -> None:
    """End all processes: the others may be waiting for this one."""
    MPI.COMM_WORLD.Abort(code)


def connect(
    topology: Topology,
    rounds: int | str | None = None,
    timeout: float = 30.0,
    channel: Channel | None = None,
    survive: bool = False,
    every: int = 1,
) -> Network:
    """The network of all processes that `mpirun` started; each holds a block of the nodes.

    A process that died, or whose monitor is silent for `timeout` seconds, ends the run with an error that names it; with
    `survive`, the others continue without it.
    """
    nodes = processes.blocks(topology.nodes, world_size())
    plain = MPITransport(world_link(), nodes, timeout, Liveness())  # which makes no communicator
    processes.agree_on_network(plain, topology, rounds, channel, every, timeout=timeout, survive=survive)
    if not survive:
        return processes.connect(topology, MPITransport(world_link(), nodes, timeout), rounds, channel, every)
    transport = SurvivingTransport(world_link(), nodes, timeout)
    atexit.register(transport.leave)
    return processes.connect(topology, transport, rounds, channel, every)


@dataclass
class Link:
    """A communicator, and what the transports over it share."""

    comm: Any
    tags: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # each process takes them in the same order
    repeats: int = 0  # errors in a row that led to this communicator, with nobody lost and nothing exchanged
    exchanged: bool = False

    @functools.cached_property
    def liveness(self) -> Liveness:
        """One monitor for all networks of these processes."""
        if self.comm.size == 1:
            return Liveness()
        monitor = Monitor(MessageBoard(self.comm), self.comm.rank, self.comm.size)
        atexit.register(monitor.close)
        atexit.register(monitor.end)
        return monitor


@functools.cache
def world_link() -> Link:
    return Link(MPI.COMM_WORLD)


@functools.cache
def start_heartbeat(timeout: float) -> Heartbeat:
    """One for each process."""
    heartbeat = Heartbeat(MPI.COMM_SELF.Iprobe, MPI.COMM_WORLD.rank, timeout)
    atexit.register(heartbeat.close)
    return heartbeat


class MessageBoard:
    """Reports as small messages on a communicator of their own."""

    def __init__(self, comm: Any):
        self.comm = comm.Dup()
        self.reports = [""] * comm.size
        self.sends: dict[int, tuple[Any, Any]] = {}  # the last report to each process, and its buffer

    def share(self, report: str) -> list[str]:
        data = np.frombuffer(report.encode(), np.uint8)
        for peer in range(self.comm.size):
            sent = peer not in self.sends or self.sends[peer][0].Test()
            if peer != self.comm.rank and sent:
                self.sends[peer] = self.comm.Isend(data, peer), data
        status = MPI.Status()
        while self.comm.Iprobe(status=status):
            incoming = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.comm.Recv(incoming, status.source)
            self.reports[status.source] = incoming.tobytes().decode(errors="replace")
        return self.reports


class MPITransport(ProcessTransport):
    """Messages between the processes of a communicator; a lost one ends the run."""

    carries_cuda = False

    def __init__(self, link: Link, nodes: Sequence[range], timeout: float, liveness: Liveness | None = None):
        super().__init__(link.comm.rank, nodes, timeout, liveness or Liveness())  # nobody reports before all have come
        self.link = link
        self.comm = link.comm
        self.tag = next(link.tags)
        self.requests: dict[tuple[int, int], tuple[list[Any], object]] = {}  # by buffers, which they hold on to
        self.processes = self._gather_processes()
        self.liveness = liveness or link.liveness
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Any]:
        """The buffers are the same from step to step, so their requests are made once and started again."""
        key = (id(receives), id(sends))
        if key not in self.requests:
            requests = [self.comm.Recv_init(as_numpy(buffer), peer, self.tag) for peer, buffer in receives]
            requests += [self.comm.Send_init(as_numpy(buffer), peer, self.tag) for peer, buffer in sends]
            self.requests[key] = requests, (receives, sends)
        requests, _ = self.requests[key]
        self._call(MPI.Prequest.Startall, requests)
        return requests

    def finish(self, pending: list[Any]) -> None:
        self._wait(pending)
        self.link.exchanged = True

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.comm, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        comm, request = self._call(self.comm.Idup)
        self._wait([request])
        return functools.partial(self._sum, comm)

    def _sum(self, comm: Any, buffer: Array) -> Array:
        self._wait([self._call(comm.Iallreduce, MPI.IN_PLACE, as_numpy(buffer))])
        return buffer

    def _gather(self, own: np.ndarray) -> np.ndarray:
        everyone = np.empty((self.comm.size, own.size), own.dtype)
        self._wait([self._call(self.comm.Iallgather, own, everyone)])
        return everyone

    def duplicate(self) -> Self:
        return type(self)(self.link, self.nodes, self.timeout)

    def _wait(self, requests: list[Any]) -> None:
        def done() -> bool:
            yield_processor()  # where processes share a core, the others then have sent
            return self._call(MPI.Request.Testall, requests)

        self.wait_until(done)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A process that died or hangs shows as an error of MPI."""
        try:
            return function(*arguments)
        except MPI.Exception as error:
            raise self._no_answer([], error) from error

    def _lost(self, ranks: list[int]) -> RunError:
        return super()._lost(self._dead() or ranks)

    def _gather_processes(self) -> list[HostProcess]:
        own = str(this_process(MPI.Get_processor_name()))
        return [HostProcess.parse(text) for text in self.allgather_text(own)]

    def _same_machine(self) -> list[int]:
        """The ranks of this machine; none where the system does not show its processes."""
        own = self.processes[self.rank]
        return [rank for rank, other in enumerate(self.processes) if other.host == own.host and own.started]

    def _dead(self) -> list[int]:
        """The processes of this machine that no longer run."""
        return [rank for rank in self._same_machine() if not self.processes[rank].runs()]

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """mpirun ends all processes when one has died: report which one before that."""
        dead = [f"rank {rank} ({nodes_text(self.nodes[rank])})" for rank in self._dead()]
        if dead:
            os.write(2, f"Error: {', '.join(dead)} is gone; rank {self.rank} stops.\n".encode())
        os._exit(1)


class SurvivingTransport(MPITransport):
    """The processes that are left after a loss continue over a new communicator."""

    error = ProcessLost

    def __init__(self, link: Link, nodes: Sequence[range], timeout: float):
        self.heartbeat = start_heartbeat(timeout)
        super().__init__(link, nodes, timeout, self.heartbeat)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.heartbeat.end_if_silent()
        return super()._call(function, *arguments)

    def shrink(self) -> "SurvivingTransport":
        """Agree with the remaining processes on who remains."""
        comm = self.comm
        while True:
            comm.Revoke()
            time.sleep(PAUSE)
            comm = comm.Shrink()
            alive = comm.group.Translate_ranks(group=self.comm.group)
            link = Link(comm, repeats=self._repeats(alive))
            self._end_hanging(alive)
            with suppress(ProcessLost):  # another one was lost: then this communicator is shrunk in turn
                left = SurvivingTransport(link, [self.nodes[rank] for rank in alive], self.timeout)
                atexit.unregister(self.leave)
                atexit.register(left.leave)
                return left

    def _repeats(self, alive: list[int]) -> int:
        """An error with nobody lost, such as a revoked communicator: all continue, but not if it comes again at once."""
        repeats = 0 if len(alive) < self.comm.size or self.link.exchanged else self.link.repeats + 1
        if repeats == REPEATS:
            raise RunError(f"Rank {self.rank} had {REPEATS} errors of MPI in a row although all processes are running.")
        return repeats

    def _end_hanging(self, alive: list[int]) -> None:
        """A process that was left behind must not run on, nor keep mpirun from ending."""
        local = self._same_machine()
        reports = self.rank == min(set(local) & set(alive), default=None)
        for rank in sorted(set(local) - set(alive)):
            if self.processes[rank].runs():
                self.processes[rank].kill(self.timeout)
                if reports:
                    nodes = nodes_text(self.nodes[rank])
                    os.write(2, f"No answer from {nodes} for {self.timeout:g} s: the process was ended.\n".encode())

    def leave(self) -> None:
        """Exit together; without MPI_Finalize if processes are missing, since it may wait for them."""
        sys.stdout.flush()
        sys.stderr.flush()
        if not self._all_leave() or self.comm.size < MPI.COMM_WORLD.size:
            os._exit(0)

    def _all_leave(self) -> bool:
        """Whether all leave within the timeout; one that still waits for an exchange then continues without this process."""
        deadline = time.monotonic() + self.timeout
        with suppress(MPI.Exception):
            request = self.comm.Ibarrier()
            while time.monotonic() < deadline:
                if request.Test():
                    return True
                yield_processor()
        return False


def as_numpy(buffer: Array) -> np.ndarray:
    return buffer if isinstance(buffer, np.ndarray) else buffer.numpy()
