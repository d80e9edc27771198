"""What carries messages between processes, and what all transports need for it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dnasa.core import Array, RunError, named
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


def no_answer(ranks: Sequence[int], nodes: Sequence[range], why: str) -> RunError:
    """Names the processes that did not answer, and their nodes."""
    names = ", ".join(f"rank {rank} ({named(nodes[rank])})" for rank in sorted(set(ranks)))
    return RunError(f"No answer from {names}: {why}.")


def gather_texts(text: str, gather: Callable[[np.ndarray], np.ndarray]) -> list[str]:
    """All processes' texts, by a function that gathers arrays of equal size as rows."""
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = gather(np.array([data.size])).ravel()
    rows = gather(np.pad(data, (0, lengths.max() - data.size)))
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]
