"""D-SGD with momentum at each node (for decentralized momentum see Yu et al., 2019)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, assign


class State(NamedTuple):
    x: Array
    m: Array  # momentum; it is not exchanged


def dmsgd(eta: Schedule, *, beta: float = 0.9) -> Rule:
    """m <- beta m + g; x <- W[x - eta m]

    Args:
        eta: The stepsize at t.
        beta: The weight of the past in the momentum m.
    """

    def init(x: Array) -> State:
        return State(x, m=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = beta * s.m + g
        return (s.x - eta(t) * m,), s._replace(m=m)

    return Rule(
        init,
        send,
        assign("x"),
        restart=lambda s: s,  # a node's momentum does not depend on the others
        stepsize=lambda s, t: eta(t),
    )
