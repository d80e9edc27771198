"""MT: momentum tracking, DIGing with the momentum of the gradients in their place (Takezawa et al., 2023)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, zeros
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    u: Array  # momentum of the node's own gradients
    c: Array  # u minus the average momentum: mean(c) == 0
    move: tuple[Array, ...] = ()  # added to W[x] when it arrives; empty between steps


@rule(
    "mt",
    title="Momentum tracking",
    color="#7f7f7f",
    schedules=COSINE_FIRST,
    paper="Takezawa et al., 2023, *Momentum Tracking*, arXiv 2209.15505",
    equation=r"u &\leftarrow \beta u + g \\ x &\leftarrow W[x] - \eta (u - c) \\ c &\leftarrow W[c - u] + u",
    checked="the authors' code, yukiTakezawa/MomentumTracking, which starts with a sum over all nodes: the same from u = c = 0",
)
def mt(eta: Schedule, *, beta: float = 0.9) -> Rule:
    """u <- beta u + g; x <- W[x] - eta (u - c); c <- W[c - u] + u

    Without momentum the rule is DIGing, not D-SGT.

    Args:
        eta: The stepsize at t.
        beta: The weight of the past in the momentum u.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = beta * s.u + g
        move = -eta(t) * (u - s.c)
        return (s.x, s.c - u), s._replace(u=u, move=(move,))

    def receive(s: State, mixed: Messages) -> State:
        x, c = mixed
        (move,) = s.move
        return State(x + move, s.u, c + s.u)

    return Rule(
        zeros(State),
        send,
        receive,
        restart=lambda s: s._replace(c=0 * s.c),
        estimate=lambda s: (1 - beta) * (s.u - s.c),
        stepsize=lambda s, t: eta(t),
    )
