"""D-SGD: a gradient step, then an average with the neighbours (Lian et al., 2017)."""

from typing import NamedTuple

from dnasa.core import Array, Mix, Rule, Schedule


class State(NamedTuple):
    x: Array


def dsgd(eta: Schedule) -> Rule:
    """x <- W[x - eta g]"""

    def init(x: Array) -> State:
        return State(x)

    def step(s: State, g: Array, mix: Mix, t: int) -> State:
        (x,) = mix(s.x - eta(t) * g)
        return State(x)

    return Rule(init, step)
