"""The memory of an exchange between processes, the same at every step. Padding is zero: no other memory leaves the process.

Payloads of equal shape and dtype are stacked; the stacks for one neighbor lie one after the other in one buffer of bytes.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from dnasa.arrays import dtype_name, on_gpu
from dnasa.core import Array, Messages

ALIGNMENT = 16  # bytes; every stack begins at a multiple of it
Arrays = tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes


class Routes(NamedTuple):
    """Which rows travel between this process and its neighbors.

    Attributes:
        incoming: The processes that this one receives from, and the columns of W that are theirs.
        outgoing: The processes that this one sends to, and the rows they need; all of them as a slice.
    """

    incoming: list[tuple[int, np.ndarray]]
    outgoing: list[tuple[int, np.ndarray | slice]]


class Stack(NamedTuple):
    """Consecutive payloads of the same shape and dtype."""

    payloads: slice
    runs: tuple[int, ...]
    width: int
    dtype: Any

    def shape(self, rows: int) -> tuple[int, ...]:
        return (self.payloads.stop - self.payloads.start, *self.runs, rows, self.width)

    def nbytes(self, rows: int) -> int:
        return math.prod(self.shape(rows)) * self.dtype.itemsize


class Area(NamedTuple):
    """A buffer of bytes, and the stacks in it as arrays `(count, *runs, rows, width)`."""

    data: Array
    stacks: list[Array]


class Buffers:
    """Memory for payloads like these: a buffer for each neighbor in `receives` and `sends`, and `own` rows in stacks."""

    def __init__(self, payloads: Messages, routes: Routes, carries_cuda: bool):
        example = payloads[0]
        staged = on_gpu(example) and not carries_cuda  # GPU arrays go through main memory
        self.device = example.device if staged else None
        self.layout = find_stacks(payloads)
        self.packed = self._allocate(example, example.shape[-2])
        self.incoming = [self._allocate(example, len(columns)) for _, columns in routes.incoming]
        outgoing = [
            (peer, rows, self.packed if isinstance(rows, slice) else self._allocate(example, len(rows)))
            for peer, rows in routes.outgoing
        ]
        self.selections = [(rows, area) for _, rows, area in outgoing if area is not self.packed]
        self.receives = [(peer, area.data) for (peer, _), area in zip(routes.incoming, self.incoming, strict=True)]
        self.sends = [(peer, area.data) for peer, _, area in outgoing]
        self.arrays = [described(area.stacks) for _, _, area in outgoing]
        self.own = self.packed.stacks

    def _allocate(self, example: Array, rows: int) -> Area:
        sizes = [stack.nbytes(rows) for stack in self.layout]
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1])]
        total = starts[-1] + sizes[-1]
        if isinstance(example, np.ndarray):
            data: Array = np.zeros(total, np.uint8)
        else:
            import torch

            staged = self.device is not None
            data = torch.zeros(total, dtype=torch.uint8, device="cpu" if staged else example.device, pin_memory=staged)
        views = [
            data[start : start + size].view(stack.dtype).reshape(stack.shape(rows))
            for start, size, stack in zip(starts, sizes, self.layout, strict=True)
        ]
        return Area(data, views)

    def fill(self, payloads: Messages) -> None:
        """Copy this process's rows in, and what each neighbor needs of them."""
        for stack, target in zip(self.layout, self.packed.stacks, strict=True):
            stack_into(target, payloads[stack.payloads], staged=self.device is not None)
        self.own = self._on_device(self.packed)
        for rows, area in self.selections:
            for target, source in zip(area.stacks, self.packed.stacks, strict=True):
                target[:] = source[..., rows, :]

    def received(self) -> list[list[Array]]:
        """The stacks of every neighbor, where the payloads are."""
        return [self._on_device(area) for area in self.incoming]

    def _on_device(self, area: Area) -> list[Array]:
        return area.stacks if self.device is None else [stack.to(self.device) for stack in area.stacks]


def described(arrays: Sequence[Array]) -> Arrays:
    """The shapes and dtypes of arrays."""
    return tuple((tuple(a.shape), dtype_name(a)) for a in arrays)


def find_stacks(payloads: Messages) -> list[Stack]:
    stacks, first = [], 0
    for (shape, dtype), same in groupby(payloads, key=lambda p: (tuple(p.shape), p.dtype)):
        end = first + len(list(same))
        stacks.append(Stack(slice(first, end), shape[:-2], shape[-1], dtype))
        first = end
    return stacks


def stack_into(target: Array, arrays: Messages, staged: bool) -> None:
    if isinstance(target, np.ndarray):
        for row, array in zip(target, arrays, strict=True):  # half the time of np.stack
            row[...] = array
        return
    import torch

    if staged:
        target.copy_(torch.stack(arrays))
    else:
        torch.stack(arrays, out=target)
