"""Processes as threads: the real exchange over queues, for tests that need many processes and no launcher."""

import contextlib
import queue
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from dnasa.core import ProcessLost
from dnasa.networks.monitor import Monitor
from dnasa.networks.processes import ProcessExchange, blocks

TIMEOUT = 120  # seconds; only a deadlock takes so long


class ThreadTransport:
    """Every pair of ranks has its queues, collectives meet at a barrier; a thread that exits counts as a lost process."""

    carries_cuda = False

    def __init__(self, rank, size, hub, tag=0, survives=False, monitor=None):
        self.rank, self.size, self.hub, self.tag, self.survives = rank, size, hub, tag, survives
        self.monitor = monitor

    def start(self, receives, sends):
        for peer, buffer in sends:
            self.hub.queue(self.tag, self.rank, peer).put(torch.as_tensor(buffer).clone())
        return receives

    def finish(self, pending):
        for peer, buffer in pending:
            torch.as_tensor(buffer).copy_(self.hub.receive(self.tag, peer, self.rank, self.monitor))

    def sum(self, buffer):
        total = sum(self.hub.allgather(self.rank, np.asarray(buffer)))
        return torch.as_tensor(total) if isinstance(buffer, torch.Tensor) else total

    def duplicate(self):
        self.duplicates = getattr(self, "duplicates", 0) + 1
        return ThreadTransport(self.rank, self.size, self.hub, (self.tag, self.duplicates), self.survives, self.monitor)

    def shrink(self):
        alive, hub = self.hub.shrink(self.rank)
        return alive, ThreadTransport(alive.index(self.rank), len(alive), hub, survives=True)

    def allgather_text(self, text):
        return self.hub.allgather(self.rank, text)


class Hub:
    """What the threads share."""

    def __init__(self, size):
        self.queues = defaultdict(queue.Queue)
        self.lock = threading.Lock()
        self.slots = [None] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.lost, self.next = set(), None
        self.reports = [""] * size

    def queue(self, *address):
        with self.lock:
            return self.queues[address]

    def receive(self, tag, sender, receiver, monitor):
        waited = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                return self.queue(tag, sender, receiver).get(timeout=0.02)
            if monitor is not None:
                assert not monitor.check(waited, TIMEOUT)
            if self.lost:
                raise ProcessLost("a thread has exited")
            assert time.monotonic() < waited + TIMEOUT, "deadlock"

    def allgather(self, rank, value):
        self.slots[rank] = value
        self._wait()
        values = list(self.slots)
        self._wait()
        return values

    def _wait(self):
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            if self.lost:
                raise ProcessLost("a thread has exited") from None
            raise

    def lose(self, rank):
        """From here on this rank is gone, and all who wait are told."""
        with self.lock:
            self.lost.add(rank)
            self.next = self.next or Hub(len(self.slots) - 1)
        self.barrier.abort()

    def shrink(self, rank):
        return [other for other in range(len(self.slots)) if other not in self.lost], self.next


class HubBoard:
    def __init__(self, hub, rank):
        self.hub, self.rank = hub, rank

    def share(self, report):
        self.hub.reports[self.rank] = report
        return list(self.hub.reports)


def run_threads(topology, work, processes=None, channel=None, survive=False, monitored=False):
    """Call `work(network)` in a thread for every process; the list of what each returned.

    With `survive`, one thread may raise SystemExit: it counts as a lost process and returns None. With `monitored`, every
    process has a monitor, which is told when it ends.
    """
    size = processes or topology.nodes
    hub = Hub(size)
    assert len(blocks(topology.nodes, size)) == size

    def one(rank):
        try:
            monitor = Monitor(HubBoard(hub, rank), rank, size, interval=0.02) if monitored else None
            transport = ThreadTransport(rank, size, hub, survives=survive, monitor=monitor)
            done = work(ProcessExchange(topology, transport, channel=channel).network())
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
