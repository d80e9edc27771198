"""Processes as threads: the real exchange over queues, for tests that need many processes and no launcher."""

import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from dnasa.communication import Channel, Membership, Network
from dnasa.core import Array, ProcessLost
from dnasa.networks.processes import ProcessNetwork, Traffic, blocks
from dnasa.networks.transport import Message, Transport
from dnasa.topology import Topology
from dnasa.topology.graphs import without

TIMEOUT = 120  # seconds; only a deadlock takes so long


class ThreadTransport(Transport):
    """Every pair of ranks has its queues, collectives meet at a barrier; a thread that exits counts as a lost process."""

    def __init__(self, rank: int, nodes: Sequence[range], hub: "Hub", tag: Any = 0):
        super().__init__(rank, nodes)
        self.hub, self.tag = hub, tag
        self.duplicates = 0

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any:
        for peer, buffer in sends:
            self.hub.queue(self.tag, self.rank, peer).put(torch.as_tensor(buffer).clone())
        return receives

    def finish(self, pending: Any) -> None:
        for peer, buffer in pending:
            torch.as_tensor(buffer).copy_(self.hub.receive(self.tag, peer, self.rank))

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.hub, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.hub.separate(self.tag))

    def _sum(self, hub: "Hub", buffer: Array) -> Array:
        total = sum(hub.allgather(self.rank, np.asarray(buffer)))
        return torch.as_tensor(total) if isinstance(buffer, torch.Tensor) else total

    def duplicate(self) -> "ThreadTransport":
        self.duplicates += 1
        return type(self)(self.rank, self.nodes, self.hub, (self.tag, self.duplicates))

    def gather(self, own: np.ndarray) -> np.ndarray:
        return np.stack(self.hub.allgather(self.rank, own))


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

    def separate(self, tag: Any) -> "Hub":
        """A hub for the sums of one network."""
        with self.lock:
            return self.hubs.setdefault(tag, Hub(len(self.slots)))

    def queue(self, *address: Any) -> queue.SimpleQueue[torch.Tensor]:
        with self.lock:
            return self.queues[address]

    def receive(self, tag: Any, sender: int, receiver: int) -> torch.Tensor:
        for _ in range(50 * TIMEOUT):
            with contextlib.suppress(queue.Empty):
                return self.queue(tag, sender, receiver).get(timeout=0.02)
            if self.lost:
                raise ProcessLost("a thread has exited")
            if self.barrier.broken:
                raise threading.BrokenBarrierError
        raise AssertionError("a thread does not answer")

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

    def left(self) -> list[int]:
        return [rank for rank in range(len(self.slots)) if rank not in self.lost]


def make(graph: Topology, transport: Transport, rounds: int | str = 1, channel: Channel | None = None) -> Network:
    return ProcessNetwork(graph, transport, rounds, channel, 1, Traffic()).network()


def surviving(network: Network, transport: ThreadTransport) -> Network:
    """The network whose threads go on without one that exits."""

    def survivors() -> Network:
        left, hub = transport.hub.left(), transport.hub.next
        assert hub is not None
        lost = [node for rank in transport.hub.lost for node in transport.nodes[rank]]
        next_transport = ThreadTransport(left.index(transport.rank), [transport.nodes[rank] for rank in left], hub)
        return surviving(make(without(network.topology, lost), next_transport), next_transport)

    processes = replace(network.processes, membership=Membership(survivors=survivors))
    return replace(network, processes=processes)


def run_threads(
    topology: Topology,
    work: Callable[..., Any],
    processes: int | None = None,
    channel: Channel | None = None,
    survive: bool = False,
    rounds: int | str = 1,
) -> list[Any]:
    """Call `work(network)` in a thread for every process; the list of what each returned.

    With `survive`, one thread may raise SystemExit: it counts as a lost process and returns None.
    """
    size = processes or topology.nodes
    hub = Hub(size)
    nodes = blocks(topology.nodes, size)

    def one(rank: int) -> Any:
        try:
            transport = ThreadTransport(rank, nodes, hub)
            network = make(topology, transport, rounds, channel)
            return work(surviving(network, transport) if survive else network)
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
