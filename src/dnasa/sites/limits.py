"""How large the numbers of another site may be, compared with this site's own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnasa.core import Array

FIRST, EARLY, LATER = (
    1e10,
    20,
    1e6,
)  # some rules send squares of gradients, which differ by a factor of 1e5 between sites
FLOOR, DIVERGED = 1.0, 1e15


@dataclass
class Level:
    """The root mean squares of this site's own messages of one kind: the largest seen, and that before the first jump."""

    own: float = FLOOR
    calm: float = 0.0
    received: int = 0


class Limits:
    """Checks messages; those of one kind have the same place in an exchange, and the same shape.

    The root mean square of a message may be `later` times this site's own. Among the first `EARLY`, while trackers and step
    sizes grow from 0, it may be `FIRST` times what this site had before any larger one came. So what a site sends raises no
    limit, except as far as this site's own numbers follow: then the whole run diverges. Numbers up to `FLOOR` are never
    large, and while this site's own numbers diverge, nothing is said of the others'.

    Attributes:
        diverged: The first site whose numbers passed `DIVERGED`.
    """

    def __init__(self, later: float = LATER):
        self.later = later
        self.levels: dict[Any, Level] = {}  # by site and kind
        self.diverged: int | None = None

    def check(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> str:
        """What is wrong with these messages; empty if nothing is."""
        for place, (stack, mine) in enumerate(zip(arrived, own, strict=True)):
            if not is_floating(stack):
                continue
            pairs = zip(stack, mine, strict=True) if stack.ndim > 2 else [(stack, mine)]
            for number, (message, sent) in enumerate(pairs):
                level = self.levels.setdefault((peer, place, number, tuple(stack.shape)), Level())
                if wrong := self._check(peer, root_mean_square(message), sent, level):
                    return wrong
        return ""

    def _check(self, peer: int, size: float, own: Array, level: Level) -> str:
        level.received += 1
        if size > DIVERGED and self.diverged is None:
            self.diverged = peer
        if size <= self.later * level.own:
            return ""
        if not (mine := root_mean_square(own)) <= DIVERGED:
            return ""
        level.own = max(level.own, mine)
        if not math.isfinite(size):
            return "it sent numbers that are not finite"
        if size > self.later * level.own:
            level.calm = level.calm or level.own
            if level.received > EARLY or size > FIRST * level.calm:
                return f"it sent numbers of size {size:.1e}, those of this site have {level.own:.1e}"
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
