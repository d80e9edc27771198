"""Known forms of rules that the engine has fast paths for. A rule declares its form; it is defined by its functions alone."""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.core import Array, Schedule, State


class TrackedAverage(NamedTuple):
    """D-NASA's family: x, u, z <- W[x - eta z/|z| (or - eta z), u + g - v, (1 - alpha) z + alpha (u + g - v)], v <- g.

    `unpack(state)` gives (x, u, z, v) and `pack(x, u, z, v)` the state. The step depends on t through eta and alpha alone.
    A rule made with `_replace` of `early`, `send` or `receive` must also set `form=None`: the fast path reads the form.
    """

    eta: Schedule
    alpha: Schedule
    normalised: bool
    unpack: Callable[[State], tuple[Array, Array, Array, Array]]
    pack: Callable[[Array, Array, Array, Array], State]


class ThroughSchedules(NamedTuple):
    """No fast path of its own: the step depends on t through the rule's schedules alone, so it can be compiled once."""
