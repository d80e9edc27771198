"""Processes as threads: the real exchange over queues, for tests that need many processes and no launcher."""

import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from dnasa.core import Array, Channel, ProcessLost
from dnasa.networks.liveness import Liveness
from dnasa.networks.monitor import Monitor
from dnasa.networks.processes import blocks, connect
from dnasa.networks.transport import Message
from dnasa.topology import Topology

TIMEOUT = 120  # seconds; only a deadlock takes so long


class ThreadTransport:
    """Every pair of ranks has its queues, collectives meet at a barrier; a thread that exits counts as a lost process."""

    carries_cuda = False

    def __init__(self, rank: int, nodes: Sequence[range], hub: "Hub", tag: Any = 0, liveness: Liveness | None = None):
        self.rank, self.nodes, self.hub, self.tag = rank, nodes, hub, tag
        self.liveness = liveness or Liveness()
        self.duplicates = 0

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None:
        """Nothing is checked, unless a test replaces this: an attribute that comes and goes confuses protocols."""

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any:
        for peer, buffer in sends:
            self.hub.queue(self.tag, self.rank, peer).put(torch.as_tensor(buffer).clone())
        return receives

    def finish(self, pending: Any) -> None:
        for peer, buffer in pending:
            torch.as_tensor(buffer).copy_(self.hub.receive(self.tag, peer, self.rank, self.liveness))

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.hub, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.hub.separate(self.tag))

    def _sum(self, hub: "Hub", buffer: Array) -> Array:
        total = sum(hub.allgather(self.rank, np.asarray(buffer)))
        return torch.as_tensor(total) if isinstance(buffer, torch.Tensor) else total

    def duplicate(self) -> "ThreadTransport":
        self.duplicates += 1
        return type(self)(self.rank, self.nodes, self.hub, (self.tag, self.duplicates), self.liveness)

    def allgather_text(self, text: str) -> list[str]:
        return self.hub.allgather(self.rank, text)


class SurvivingTransport(ThreadTransport):
    def shrink(self) -> "SurvivingTransport":
        alive, hub = self.hub.shrink(self.rank)
        return SurvivingTransport(alive.index(self.rank), [self.nodes[rank] for rank in alive], hub)


class Hub:
    """What the threads share."""

    def __init__(self, size: int):
        self.queues: dict[tuple[Any, ...], queue.SimpleQueue[torch.Tensor]] = defaultdict(queue.SimpleQueue)
        self.hubs: dict[Any, Hub] = {}
        self.lock = threading.Lock()
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.lost: set[int] = set()
        self.next: Hub | None = None
        self.reports = [""] * size

    def separate(self, tag: Any) -> "Hub":
        """A hub for the sums of one network."""
        with self.lock:
            return self.hubs.setdefault(tag, Hub(len(self.slots)))

    def queue(self, *address: Any) -> queue.SimpleQueue[torch.Tensor]:
        with self.lock:
            return self.queues[address]

    def receive(self, tag: Any, sender: int, receiver: int, liveness: Liveness) -> torch.Tensor:
        waited = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                return self.queue(tag, sender, receiver).get(timeout=0.02)
            assert not liveness.lost(waited, TIMEOUT)
            if self.lost:
                raise ProcessLost("a thread has exited")

    def allgather(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self._wait()
        values = list(self.slots)
        self._wait()
        return values

    def _wait(self) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            if self.lost:
                raise ProcessLost("a thread has exited") from None
            raise

    def lose(self, rank: int) -> None:
        """From here on this rank is gone, and all who wait are told."""
        with self.lock:
            self.lost.add(rank)
            self.next = self.next or Hub(len(self.slots) - 1)
        self.barrier.abort()

    def shrink(self, rank: int) -> tuple[list[int], Any]:
        return [other for other in range(len(self.slots)) if other not in self.lost], self.next


class HubBoard:
    def __init__(self, hub: Hub, rank: int):
        self.hub, self.rank = hub, rank

    def share(self, report: str) -> list[str]:
        self.hub.reports[self.rank] = report
        return list(self.hub.reports)


def run_threads(
    topology: Topology,
    work: Callable[..., Any],
    processes: int | None = None,
    channel: Channel | None = None,
    survive: bool = False,
    monitored: bool = False,
    rounds: int | str = 1,
) -> list[Any]:
    """Call `work(network)` in a thread for every process; the list of what each returned.

    With `survive`, one thread may raise SystemExit: it counts as a lost process and returns None. With `monitored`, every
    process has a monitor, which is told when it ends.
    """
    size = processes or topology.nodes
    hub = Hub(size)
    nodes = blocks(topology.nodes, size)

    def one(rank: int) -> Any:
        try:
            monitor = Monitor(HubBoard(hub, rank), rank, size, interval=0.02) if monitored else None
            make = SurvivingTransport if survive else ThreadTransport
            done = work(connect(topology, make(rank, nodes, hub, liveness=monitor), rounds, channel))
            if monitor is not None:
                monitor.end()
                monitor.close()
            return done
        except SystemExit:
            return hub.lose(rank)
        except BaseException:
            hub.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [e for f in futures if (e := f.exception()) and not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
