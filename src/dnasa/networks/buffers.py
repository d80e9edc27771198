"""The memory of an exchange between processes, the same at every step.

Payloads of equal shape and dtype are stacked; the stacks for one neighbour lie one after the other in one buffer of bytes.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import Array, Messages

ALIGNMENT = 16  # bytes; every stack begins at a multiple of it


class Stack(NamedTuple):
    """Consecutive payloads of the same shape and dtype."""

    first: int
    size: int  # how many
    runs: tuple[int, ...]
    width: int
    dtype: Any

    def shape(self, rows: int) -> tuple[int, ...]:
        return (self.size, *self.runs, rows, self.width)

    def nbytes(self, rows: int) -> int:
        return math.prod(self.shape(rows)) * self.dtype.itemsize


class Area(NamedTuple):
    """A buffer of bytes, and the stacks in it as arrays `(count, *runs, rows, width)`."""

    data: Array
    stacks: list[Array]


class Buffers:
    """`own` are this process' rows, `receives` and `sends` the buffers of its neighbours."""

    def __init__(self, stacks: list[Stack], own: Area, incoming: Any, outgoing: Any, device: Any):
        self.layout, self.mine, self.incoming, self.device = stacks, own, incoming, device
        self.receives = [(peer, area.data) for peer, area in incoming]
        self.sends = [(peer, area.data) for peer, _, area in outgoing]
        self.bytes = sum(area.data.nbytes for _, _, area in outgoing)
        self.own: list[Array] = own.stacks
        self.selections = [(rows, area) for _, rows, area in outgoing if area is not own]

    def fill(self, payloads: Messages) -> None:
        """Copy this process' rows in, and what each neighbour needs of them."""
        for stack, place in zip(self.layout, self.mine.stacks, strict=True):
            stack_into(place, payloads[stack.first : stack.first + stack.size], staged=self.device is not None)
        if self.device is not None:
            self.own = [place.to(self.device) for place in self.mine.stacks]
        for rows, area in self.selections:
            for place, source in zip(area.stacks, self.mine.stacks, strict=True):
                place[:] = source[..., rows, :]

    def received(self) -> list[list[Array]]:
        """The stacks of every neighbour, where the payloads are."""
        if self.device is None:
            return [area.stacks for _, area in self.incoming]
        return [[place.to(self.device) for place in area.stacks] for _, area in self.incoming]


def make_buffers(
    payloads: Messages,
    incoming: Sequence[tuple[int, int]],
    outgoing: Sequence[tuple[int, np.ndarray | slice]],
    carries_cuda: bool,
) -> Buffers:
    """For these payloads: the number of rows from each peer, and the rows to each peer."""
    stacks, first = [], 0
    for (shape, dtype), same in groupby(payloads, key=lambda p: (tuple(p.shape), p.dtype)):
        count = len(list(same))
        stacks.append(Stack(first, count, shape[:-2], shape[-1], dtype))
        first += count
    example, k = payloads[0], payloads[0].shape[-2]
    on_gpu = getattr(example, "is_cuda", False)
    staged = on_gpu and not carries_cuda  # through main memory

    def area(rows: int) -> Area:
        starts = _starts([stack.nbytes(rows) for stack in stacks])
        size = starts[-1] + stacks[-1].nbytes(rows)
        if isinstance(example, np.ndarray):
            data: Array = np.empty(size, np.uint8)
        else:
            import torch

            device = "cpu" if staged else example.device
            data = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=bool(staged))
        places = [
            data[start : start + stack.nbytes(rows)].view(stack.dtype).reshape(stack.shape(rows))
            for start, stack in zip(starts, stacks, strict=True)
        ]
        return Area(data, places)

    own = area(k)
    return Buffers(
        stacks,
        own,
        [(peer, area(rows)) for peer, rows in incoming],
        [(peer, rows, own if isinstance(rows, slice) else area(len(rows))) for peer, rows in outgoing],
        example.device if staged else None,
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each stack begins in its buffer."""
    aligned = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1])
    return [0, *accumulate(aligned)]


def stack_into(place: Array, arrays: Messages, staged: bool) -> None:
    if isinstance(place, np.ndarray):
        for row, array in zip(place, arrays, strict=True):  # half the time of np.stack
            row[...] = array
        return
    import torch

    if staged:
        place.copy_(torch.stack(arrays))
    else:
        torch.stack(arrays, out=place)
