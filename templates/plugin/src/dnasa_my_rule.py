"""D-SGD with normalized momentum: replace it by your rule, its equation and its reference."""

from typing import NamedTuple

import dnasa
from dnasa.core import Array, Gradients, Messages, Rule, Schedule, assign


class State(NamedTuple):
    x: Array
    m: Array  # momentum; it is not exchanged


@dnasa.rules.rule("my_rule", title="My rule", color="#5b8ff9")
def my_rule(eta: Schedule, *, beta: float = 0.9) -> Rule:
    """m <- beta m + (1 - beta) g; x <- W[x - eta m/|m|]

    Args:
        eta: The stepsize at t.
        beta: The weight of the past in the momentum m.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = beta * s.m + (1 - beta) * g
        return (s.x - eta(t) * dnasa.unit(m),), s._replace(m=m)

    return Rule(
        init=lambda x: State(x, m=0 * x),
        send=send,
        receive=assign("x"),  # the averaged message is the next x
        restart=lambda s: s,  # when nodes leave or join, the state can stay
        stepsize=lambda s, t: eta(t),
    )
