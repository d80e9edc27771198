"""Known forms of rules that the engine has fast paths for.

A rule is defined by its functions alone. `declare(rule, form)` says that they step as the form does; a rule made from it by
`_replace` of one of these functions has no form any more.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dnasa.core import Array, Rule, Schedule, State

Shrink = Callable[[State, int], Array | None]  # the factor of x before step t, for weight decay; None: 1
PLAIN, NORMALIZED, SCALED = range(3)  # kinds of a step, as `engine/kernels.c` numbers them


class TrackedAverage(NamedTuple):
    """D-NASA's family: x, u, z <- W[x - eta z/|z| (or - eta z), u + g - v, (1 - alpha) z + alpha (u + g - v)], v <- g.

    `unpack(state)` gives (x, u, z, v) and `pack(x, u, z, v)` the state. The step depends on t through eta and alpha alone.
    """

    eta: Schedule
    alpha: Schedule
    normalized: bool
    unpack: Callable[[State], tuple[Array, Array, Array, Array]]
    pack: Callable[[Array, Array, Array, Array], State]
    shrink: Shrink | None = None

    @property
    def kind(self) -> int:
        return NORMALIZED if self.normalized else PLAIN

    def state_with(self, state: State, arrays: Iterable[Array]) -> State:
        return self.pack(*arrays)

    def values(self, state: State, g: Array, t: int) -> tuple[tuple[Any, ...], State]:
        """The numbers of step t, and what else the step changes in the state: here nothing."""
        return (self.eta(t), self.alpha(t)), state


class Radius(NamedTuple):
    """What AdaNASA's `learn` does: it learns r from every k-th coordinate, as the rule says.

    `step(state, t)` gives the step of each node. `unpack(state)` gives (start, S, A, r), and `pack(state, S, A, r, t)` the
    state with the last three as they are after step t, and with all else that `learn` changes.
    """

    step: Callable[[State, int], Array]
    every: int
    unpack: Callable[[State], tuple[Array, Array, Array, Array]]
    pack: Callable[[State, Array, Array, Array, int], State]


class ScaledAverage(NamedTuple):
    """AdaNASA: x, y, m <- W[x - step y'/max(sqrt(m'), |y'|), y', m'] and z <- z', where

    z' = (1 - alpha) z + alpha g, y' = y + z' - z, m' = beta m + (1 - beta) g^2.

    `learn(state, g, t)` gives the step of each node, and the state with all that is not x, y, m and z as it is after the step;
    `radius` says the same by its parts.
    `unpack(state)` gives (x, y, m, z), and `pack(state, x, y, m, z)` the state with these arrays.
    """

    learn: Callable[[State, Array, int], tuple[Array, State]]
    radius: Radius
    alpha: Schedule
    beta: Schedule
    unpack: Callable[[State], tuple[Array, Array, Array, Array]]
    pack: Callable[[State, Array, Array, Array, Array], State]
    shrink: Shrink | None = None

    @property
    def kind(self) -> int:
        return SCALED

    def state_with(self, state: State, arrays: Iterable[Array]) -> State:
        return self.pack(state, *arrays)

    def values(self, state: State, g: Array, t: int) -> tuple[tuple[Any, ...], State]:
        """The numbers of step t, and the state with the rest of it after the step."""
        step, state = self.learn(state, g, t)
        return (step, self.alpha(t), self.beta(t)), state


Form = TrackedAverage | ScaledAverage
STEP = ("init", "send", "receive", "then", "early", "points")  # the fields of a rule that define its steps


class Declared(NamedTuple):
    """A form, and the functions that it stands for."""

    form: Form
    functions: tuple[Any, ...]


def declare(rule: Rule, form: Form) -> Rule:
    """The rule with its form."""
    return rule._replace(form=Declared(form, step_functions(rule)))


def form_of(rule: Rule) -> Form | None:
    """The form that the rule declares, unless one of the functions that it stands for was replaced."""
    declared = rule.form
    return declared.form if isinstance(declared, Declared) and declared.functions == step_functions(rule) else None


def step_functions(rule: Rule) -> tuple[Any, ...]:
    return tuple(getattr(rule, field) for field in STEP)
