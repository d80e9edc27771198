"""Nodes as threads of one process: the real exchange over queues, for tests that need many nodes and no launcher."""

import queue
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from dnasa.networks.exchange import Exchange, blocks


class Mail:
    """A transport: every pair of ranks has its queues, collectives meet at a barrier."""

    carries_cuda = survives = False

    def __init__(self, rank, size, office, channel=0):
        self.rank, self.size, self.office, self.channel = rank, size, office, channel

    def start(self, receives, sends):
        for peer, buffer in sends:
            self.office.box(self.channel, self.rank, peer).put(torch.as_tensor(buffer).clone())
        return receives

    def finish(self, pending):
        for peer, buffer in pending:
            torch.as_tensor(buffer).copy_(self.office.box(self.channel, peer, self.rank).get(timeout=20))

    def sum(self, buffer):
        total = sum(self.office.everyone(self.rank, np.asarray(buffer)))
        return torch.as_tensor(total) if isinstance(buffer, torch.Tensor) else total

    def another(self):
        self.made = getattr(self, "made", 0) + 1
        return Mail(self.rank, self.size, self.office, (self.channel, self.made))

    def share(self, text):
        return self.office.everyone(self.rank, text)


class Office:
    def __init__(self, size):
        self.boxes = defaultdict(queue.Queue)
        self.lock = threading.Lock()
        self.desk = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def box(self, *address):
        with self.lock:
            return self.boxes[address]

    def everyone(self, rank, thing):
        self.desk[rank] = thing
        self.barrier.wait()
        things = list(self.desk)
        self.barrier.wait()
        return things


def crowd(topology, work, processes=None, wire=None):
    """Call `work(network)` in a thread for every process; the list of what each returned."""
    size = processes or topology.nodes
    office = Office(size)
    assert len(blocks(topology.nodes, size)) == size

    def one(rank):
        try:
            return work(Exchange(topology, Mail(rank, size, office), wire=wire).network())
        except BaseException:
            office.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [e for f in futures if (e := f.exception()) and not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
