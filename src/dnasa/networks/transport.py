"""What carries messages between processes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dnasa.checks import nodes_text
from dnasa.core import Array, RunError
from dnasa.networks.liveness import Liveness

Message = tuple[int, Array]  # the other process, and a contiguous buffer of bytes


class Transport(Protocol):
    """What every transport has.

    Attributes:
        rank: The number of this process.
        nodes: The nodes of each process, by their original numbers.
        carries_cuda: Whether buffers may be on a GPU.
        tag: Which of the networks of these processes this is.
        liveness: Says which of these processes are lost.
    """

    rank: int
    nodes: Sequence[range]
    carries_cuda: bool
    tag: Any
    liveness: Liveness

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any:
        """Start these messages, and return what `finish` waits for."""

    def finish(self, pending: Any) -> None:
        """Wait until the messages have been sent and received."""

    def sum(self, buffer: Array) -> Array:
        """The sum of all processes' buffers."""

    def allgather_text(self, text: str) -> list[str]:
        """All processes' texts."""


@runtime_checkable
class SupportsDuplicate(Protocol):
    """A transport that can be made again for the same processes, with messages that stay separate."""

    def duplicate(self) -> Transport: ...


@runtime_checkable
class SupportsShrink(Protocol):
    """A transport that can be made again for the processes that are left after a loss."""

    def shrink(self) -> Transport: ...


@runtime_checkable
class SupportsInspect(Protocol):
    """A transport that does not trust the other processes."""

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None:
        """Check the messages of another process before use, where this one sent `own`; raises an error that names it."""


@runtime_checkable
class SupportsAllReduce(Protocol):
    """A transport over a library that has an all-reduce."""

    def all_reduce(self) -> Callable[[Array], Array]:
        """Make another `sum`, which may run at the same time as the first; all processes call this together."""


class ProcessTransport(ABC):
    """How the transports over MPI and torch wait for other processes, and what they raise when some are lost."""

    error: type[RunError] = RunError

    def __init__(self, rank: int, nodes: Sequence[range], timeout: float, liveness: Liveness):
        self.rank = rank
        self.nodes = nodes
        self.timeout = timeout
        self.liveness = liveness

    def wait_until(self, done: Callable[[], bool]) -> None:
        self.liveness.wait(done, self.timeout, self._lost)

    def check(self) -> None:
        """Raise known problems before a wait."""
        self.liveness.check(time.monotonic(), self.timeout, self._lost)

    def _lost(self, ranks: list[int]) -> RunError:
        return self._no_answer(ranks, f"nothing came for {self.timeout:g} s")

    def _no_answer(self, ranks: Sequence[int], why: object) -> RunError:
        """The error that names these processes and their nodes, if they are known."""
        names = ", ".join(f"rank {rank} ({nodes_text(self.nodes[rank])})" for rank in sorted(set(ranks)))
        return self.error(f"No answer from {names}: {why}." if names else f"Rank {self.rank} lost the others: {why}.")

    def allgather_text(self, text: str) -> list[str]:
        """All processes' texts."""
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = self._lengths(data.size)
        rows = self._gather(np.pad(data, (0, max(lengths) - data.size)))
        return [self._text(peer, row[:length]) for peer, (row, length) in enumerate(zip(rows, lengths, strict=True))]

    def _lengths(self, own: int) -> list[int]:
        return self._gather(np.array([own])).ravel().tolist()

    def _text(self, peer: int, row: np.ndarray) -> str:
        return row.tobytes().decode()

    @abstractmethod
    def _gather(self, own: np.ndarray) -> np.ndarray:
        """All processes' arrays, of equal size, as rows."""
