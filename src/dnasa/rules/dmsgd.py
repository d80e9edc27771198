"""D-SGD with momentum at each node (for decentralized momentum see Yu et al., 2019)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, assign, zeros
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    m: Array  # momentum; it is not exchanged


@rule(
    "dmsgd",
    title="D-SGDm",
    color="#008b9e",
    schedules=COSINE_FIRST,
    paper="Yu et al., 2019, *On the Linear Speedup Analysis of Communication Efficient Momentum SGD*, arXiv 1905.03817",
    equation=r"m &\leftarrow \beta m + g \\ x &\leftarrow W[x - \eta m]",
    checked="epfml/quasi-global-momentum, decentralized_sgd with momentum: the same",
)
def dmsgd(eta: Schedule, *, beta: float = 0.9) -> Rule:
    """m <- beta m + g; x <- W[x - eta m]

    Args:
        eta: The stepsize at t.
        beta: The weight of the past in the momentum m.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = beta * s.m + g
        return (s.x - eta(t) * m,), s._replace(m=m)

    return Rule(
        zeros(State),
        send,
        assign("x"),
        restart=lambda s: s,  # a node's momentum does not depend on the others
        stepsize=lambda s, t: eta(t),
    )
