"""Known forms of rules that the engine has fast paths for.

A rule is defined by its functions alone. `Rule.form` declares that they step as the form says: if you replace one of these
functions, set `form=None`, or the form of the new rule.
"""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.core import Array, Rule, Schedule, State

Shrink = Callable[[State, int], Array | None]  # the factor of x before step t, for weight decay; None: 1
Four = tuple[Array, Array, Array, Array]


class TrackedAverage(NamedTuple):
    """D-NASA's family: x, u, z <- W[x - eta z/|z| (or - eta z), u + g - v, (1 - alpha) z + alpha (u + g - v)], v <- g."""

    make: Callable[..., Rule]  # makes the same rule from other schedules, through which alone its steps depend on t
    schedules: tuple[Schedule, Schedule]  # eta and alpha
    normalized: bool  # whether a step is eta z/|z|; otherwise it is eta z
    unpack: Callable[[State], Four]  # (x, u, z, v) of a state
    pack: Callable[..., State]  # `pack(state, x, u, z, v)` is the state with these arrays
    shrink: Shrink | None = None


class ScaledAverage(NamedTuple):
    """AdaNASA: x, y, m <- W[x - step y'/max(sqrt(m'), |y'|), y', m'] and z <- z', where

    z' = (1 - alpha) z + alpha g, y' = y + z' - z, m' = beta m + (1 - beta) g^2. The step of each node follows from a radius r,
    which is learned from every k-th coordinate.
    """

    make: Callable[..., Rule]  # makes the same rule from other schedules, through which alone its steps depend on t
    schedules: tuple[Schedule, ...]  # eta, alpha, beta and, if the answer is an average, its weight
    every: int  # k
    step: Callable[[State, int], Array]  # `step(state, t)` is the step of each node
    unpack: Callable[[State], Four]  # (x, y, m, z) of a state
    pack: Callable[..., State]  # `pack(state, x, y, m, z)` is the state with these arrays
    unpack_radius: Callable[[State], Four]  # (start, S, A, r) of a state
    pack_radius: Callable[..., State]  # `pack_radius(state, S, A, r, t)`: as they are after step t, with the average
    shrink: Shrink | None = None


Form = TrackedAverage | ScaledAverage
