"""What carries messages between processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnasa.core import Array, RunError

Message = tuple[int, Array]  # the other process, and a contiguous buffer of bytes


class Transport(ABC):
    """Carries messages between processes.

    Attributes:
        rank: The number of this process.
        nodes: The nodes of each process, by their original numbers.
        carries_cuda: Whether buffers may be on a GPU.
        sharded: `sharded(ranks)` is a `duplicate` for messages of which each of these ranks has a shard; None: each has all.
        shards: How many processes have a shard of the node here; 1 if each has all of it.
        silent: Whether nothing is sent, so that nothing needs a mask.
    """

    carries_cuda = False
    sharded: "Callable[[Sequence[int]], Transport] | None" = None
    shards = 1
    silent = False

    def __init__(self, rank: int, nodes: Sequence[range]):
        self.rank, self.nodes = rank, nodes

    @abstractmethod
    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any:
        """Start these messages, and return what `finish` waits for."""

    @abstractmethod
    def finish(self, pending: Any) -> None:
        """Wait until the messages have been sent and received."""

    @abstractmethod
    def sum(self, buffer: Array) -> Array:
        """The sum of all processes' buffers, which may overwrite this one."""

    @abstractmethod
    def gather(self, own: np.ndarray) -> np.ndarray:
        """All processes' arrays, of equal size, as rows."""

    def copy(self, buffer: Array, source: int, targets: Sequence[int]) -> Array:
        """The buffer of one process at the targets; other processes may get it, too. It may overwrite this one."""
        if self.rank != source:
            buffer[...] = 0
        return self.sum(buffer)

    def all_reduce(self) -> Callable[[Array], Array] | None:
        """Another `sum` that may run at the same time; None where messages to the neighbors do that."""
        return None

    def duplicate(self) -> "Transport":
        """A transport between the same processes whose messages stay separate; all processes call this together."""
        return self

    def sum_shards(self, buffer: Array) -> Array:
        """The sum over the processes that have shards of this node, which may overwrite this one."""
        return buffer

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None:
        """Check the messages of another process before use, where this one sent `own`; raises an error that names it."""
        return

    def blamed(self, peer: int, reason: str) -> RunError:
        """The error that ends this process because of what another one sent."""
        return RunError(f"Rank {peer} is at fault: {reason}. This process stops.")

    def allgather_text(self, text: str) -> list[str]:
        """All processes' texts."""
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = self._gather_lengths(data.size)
        rows = self.gather(np.pad(data, (0, max(lengths) - data.size)))
        return [row[:length].tobytes().decode(errors="replace") for row, length in zip(rows, lengths, strict=True)]

    def _gather_lengths(self, own: int) -> list[int]:
        return self.gather(np.array([own])).ravel().tolist()


def as_numpy(buffer: Array) -> np.ndarray:
    return buffer if isinstance(buffer, np.ndarray) else buffer.numpy()
