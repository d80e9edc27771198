"""How large the numbers of another site may be, learned from those before."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnasa.core import Array

FIRST, EARLY, LATER = 1e12, 20, 1e6  # some rules send squares of gradients, which differ by a factor of 1000
FLOOR, DIVERGED = 1.0, 1e15


class Limits:
    """Checks messages; those of one kind have the same place in an exchange, and the same shape.

    The root mean square of a message may be `FIRST` times the largest of its kind so far, this site's own included: at first
    trackers and step sizes grow from 0. After `EARLY` messages it may be `later` times as large. Numbers up to `FLOOR` are
    never large. While this site's own numbers diverge, nothing is said of the others'.
    """

    def __init__(self, later: float = LATER):
        self.later = later
        self.seen: dict[Any, tuple[int, float]] = {}  # by site and kind: how many, and the largest root mean square

    def check(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> str:
        """What is wrong with these messages; empty if nothing is."""
        for place, (stack, mine) in enumerate(zip(arrived, own, strict=True)):
            if not is_floating(stack):
                continue
            pairs = zip(stack, mine, strict=True) if stack.ndim > 2 else [(stack, mine)]
            for number, (message, sent) in enumerate(pairs):
                if wrong := self._check(message, sent, (peer, place, number, tuple(stack.shape))):
                    return wrong
        return ""

    def _check(self, message: Array, own: Array, kind: Any) -> str:
        count, largest = self.seen.get(kind, (0, FLOOR))
        size, growth = root_mean_square(message), FIRST if count < EARLY else self.later
        if not size <= growth * largest:
            mine = root_mean_square(own)
            if not mine <= DIVERGED:
                return ""
            largest = max(largest, mine)
            if not math.isfinite(size):
                return "it sent numbers that are not finite"
            if size > growth * largest:
                return f"it sent numbers of size {size:.1e}, the largest before had {largest:.1e}"
        self.seen[kind] = count + 1, max(largest, size)
        return ""


def is_floating(a: Array) -> bool:
    return a.dtype.kind == "f" if isinstance(a, np.ndarray) else bool(a.is_floating_point())


def root_mean_square(a: Array) -> float:
    """In one pass over memory; if squares overflow, once more in double precision."""
    flat = a.reshape(-1)
    count = max(1, flat.shape[0])
    if isinstance(flat, np.ndarray):
        square = float(np.vdot(flat, flat))
        return math.sqrt((square if math.isfinite(square) else float(np.square(flat, dtype=np.float64).sum())) / count)
    flat = flat.float() if flat.dtype.itemsize == 2 else flat
    square = float(flat.dot(flat))
    return math.sqrt((square if math.isfinite(square) else float(flat.double().square().sum())) / count)
