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
    """D-NASA's family: x, u, z <- W[x - eta z/|z| (or - eta z), u + g - v, (1 - alpha) z + alpha (u + g - v)], v <- g.

    Attributes:
        make: Makes the same rule from other schedules. Its steps depend on t through the schedules alone.
        schedules: eta and alpha.
        normalized: Whether a step is eta z/|z|; otherwise it is eta z.
        unpack: `unpack(state)` gives (x, u, z, v).
        pack: `pack(state, x, u, z, v)` gives the state with these arrays.
        shrink: The factor of x before step t, for weight decay.
    """

    make: Callable[..., Rule]
    schedules: tuple[Schedule, Schedule]
    normalized: bool
    unpack: Callable[[State], Four]
    pack: Callable[..., State]
    shrink: Shrink | None = None


class ScaledAverage(NamedTuple):
    """AdaNASA: x, y, m <- W[x - step y'/max(sqrt(m'), |y'|), y', m'] and z <- z', where

    z' = (1 - alpha) z + alpha g, y' = y + z' - z, m' = beta m + (1 - beta) g^2. The step of each node follows from a radius r,
    which is learned from every k-th coordinate.

    Attributes:
        make: Makes the same rule from other schedules. Its steps depend on t through the schedules alone.
        schedules: eta, alpha, beta and, if the answer is an average, its weight.
        every: k.
        step: `step(state, t)` gives the step of each node.
        unpack: `unpack(state)` gives (x, y, m, z).
        pack: `pack(state, x, y, m, z)` gives the state with these arrays.
        unpack_radius: `unpack_radius(state)` gives (start, S, A, r).
        pack_radius: `pack_radius(state, S, A, r, t)` gives the state with these as they are after step t, and with its average.
        shrink: The factor of x before step t, for weight decay.
    """

    make: Callable[..., Rule]
    schedules: tuple[Schedule, ...]
    every: int
    step: Callable[[State, int], Array]
    unpack: Callable[[State], Four]
    pack: Callable[..., State]
    unpack_radius: Callable[[State], Four]
    pack_radius: Callable[..., State]
    shrink: Shrink | None = None


Form = TrackedAverage | ScaledAverage
