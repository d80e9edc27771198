"""Known forms of rules that the engine has fast paths for. A rule declares its form; it is defined by its functions alone."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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

    def state_with(self, state: State, arrays: Iterable[Array]) -> State:
        return self.pack(*arrays)

    def values(self, state: State, g: Array, t: int) -> tuple[tuple[Any, ...], State]:
        """The numbers of step t, and what else the step changes in the state: here nothing."""
        return (self.eta(t), self.alpha(t)), state


class ScaledAverage(NamedTuple):
    """AdaNASA: x, y, m <- W[x - step y'/max(sqrt(m'), |y'|), y', m'] and z <- z', where

    z' = (1 - alpha) z + alpha g, y' = y + z' - z, m' = beta m + (1 - beta) g^2.

    `learn(state, g, t)` gives the step of each node, and the state with all that is not x, y, m and z as it is after the step.
    `unpack(state)` gives (x, y, m, z), and `pack(state, x, y, m, z)` the state with these arrays.
    """

    learn: Callable[[State, Array, int], tuple[Array, State]]
    alpha: Schedule
    beta: Schedule
    unpack: Callable[[State], tuple[Array, Array, Array, Array]]
    pack: Callable[[State, Array, Array, Array, Array], State]

    def state_with(self, state: State, arrays: Iterable[Array]) -> State:
        return self.pack(state, *arrays)

    def values(self, state: State, g: Array, t: int) -> tuple[tuple[Any, ...], State]:
        """The numbers of step t, and the state with the rest of it after the step."""
        step, state = self.learn(state, g, t)
        return (step, self.alpha(t), self.beta(t)), state
