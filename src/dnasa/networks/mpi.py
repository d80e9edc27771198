"""The exchange over MPI (mpi4py): NumPy and torch CPU arrays, sent from and into their own memory, never pickled.

If a process dies, mpirun ends the others.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dnasa.core import Array, InputError
from dnasa.networks.transport import Message, Transport, as_numpy

try:
    from mpi4py import MPI
except ImportError as error:
    raise InputError("MPI needs mpi4py and an MPI library: pip install 'dnasa[mpi]'.") from error

TAGS = itertools.count(1)  # one for each transport: all processes make theirs in the same order
yield_processor: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


def world_size() -> int:
    return MPI.COMM_WORLD.size


def abort(code: int) -> None:
    """End all processes: the others may be waiting for this one."""
    MPI.COMM_WORLD.Abort(code)


class MPITransport(Transport):
    """Messages between all processes that mpirun started."""

    def __init__(self, nodes: Sequence[range]):
        super().__init__(MPI.COMM_WORLD.rank, nodes)
        self.comm, self.tag = MPI.COMM_WORLD, next(TAGS)
        self.requests: dict[tuple[int, int], tuple[list[Any], object]] = {}  # by buffers, which they hold on to

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Any]:
        """The buffers are the same from step to step, so their requests are made once and started again."""
        key = (id(receives), id(sends))
        if key not in self.requests:
            requests = [self.comm.Recv_init(as_numpy(buffer), peer, self.tag) for peer, buffer in receives]
            requests += [self.comm.Send_init(as_numpy(buffer), peer, self.tag) for peer, buffer in sends]
            self.requests[key] = requests, (receives, sends)
        requests, _ = self.requests[key]
        MPI.Prequest.Startall(requests)
        return requests

    def finish(self, pending: list[Any]) -> None:
        while not MPI.Request.Testall(pending):
            yield_processor()  # where processes share a core, the others then have sent

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.comm, buffer)

    def all_reduce(self) -> Callable[[Array], Array]:
        return partial(self._sum, self.comm.Dup())

    def _sum(self, comm: Any, buffer: Array) -> Array:
        self.finish([comm.Iallreduce(MPI.IN_PLACE, as_numpy(buffer))])
        return buffer

    def gather(self, own: np.ndarray) -> np.ndarray:
        everyone = np.empty((self.comm.size, own.size), own.dtype)
        self.finish([self.comm.Iallgather(own, everyone)])
        return everyone

    def duplicate(self) -> "MPITransport":
        return MPITransport(self.nodes)
