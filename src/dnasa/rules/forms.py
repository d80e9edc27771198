"""Known forms of rules that the engine has fast paths for.

A rule is defined by its functions alone. `declare` says that they step as a form says; a rule whose functions were replaced
since then has no form.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnasa.core import Array, Rule, Schedule, State

Shrink = Callable[[State, int], Array | None]  # the factor of x before step t, for weight decay; None: 1


class Radius(NamedTuple):
    """How AdaNASA's steps follow from a radius r, which is learned from every k-th coordinate and a sum A that is sent too."""

    every: int  # k
    step: Callable[[State, int], Array]  # `step(state, t)` is the step of each node
    average: Callable[[State, int], Array]  # `average(state, t)` is the average of the iterates after step t
    sums: Callable[[State, Array, Array, int], tuple[Array, Array]]  # `sums(state, step, g, t)` are S, and A before it is sent
    receive: Callable[[State, Array], State]  # the state that receives A


class Form(NamedTuple):
    """A step of D-NASA's family or of AdaNASA, on four large arrays of the state.

    D-NASA: x, u, z <- W[x - eta z/|z| (or - eta z), u + g - v, (1 - alpha) z + alpha (u + g - v)], v <- g.

    AdaNASA: x, y, m <- W[x - step y'/max(sqrt(m'), |y'|), y', m'] and z <- z', where z' = (1 - alpha) z + alpha g,
    y' = y + z' - z, m' = beta m + (1 - beta) g^2.
    """

    make: Callable[..., Rule]  # makes the same rule from other schedules, through which alone its steps depend on t
    schedules: tuple[Schedule, ...]  # eta, alpha and, of AdaNASA, beta and, if the answer is an average, its weight
    arrays: tuple[str, str, str, str]  # the names of the large arrays; all but the last are sent
    normalized: bool = False  # whether a step of D-NASA's family is eta z/|z|; otherwise it is eta z
    radius: Radius | None = None  # of AdaNASA
    shrink: Shrink | None = None
    functions: tuple[Any, ...] = ()  # of the rule that was declared to have this form

    def unpack(self, s: State) -> list[Array]:
        return [getattr(s, name) for name in self.arrays]

    def pack(self, s: State, arrays: Sequence[Array]) -> State:
        return s._replace(**dict(zip(self.arrays, arrays, strict=True)))

    def width_sent(self, d: int) -> int:
        return 3 * d + (self.radius is not None)


def declare(rule: Rule, form: Form) -> Rule:
    """The rule, which steps as this form says."""
    return rule._replace(form=form._replace(functions=_functions(rule)))


def with_current_form(rule: Rule) -> Rule:
    """The rule without its form, if that was declared for other functions."""
    if rule.form is None or rule.form.functions == _functions(rule):
        return rule
    return rule._replace(form=None)


def _functions(rule: Rule) -> tuple[Any, ...]:
    return rule.init, rule.send, rule.receive, rule.then, rule.early, rule.points
