"""MT: momentum tracking, D-SGT with the momentum of the gradients in their place (Takezawa et al., 2023)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule

BETA = 0.9


class State(NamedTuple):
    x: Array
    u: Array  # momentum of the node's own gradients
    c: Array  # what u has more than the average momentum: mean(c) == 0


def mt(eta: Schedule) -> Rule:
    """u <- beta u + g; x <- W[x] - eta (u - c); c <- W[c - u] + u, with beta = 0.9

    Args:
        eta: The stepsize at t.
    """

    def init(x: Array) -> State:
        return State(x, u=0 * x, c=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = BETA * s.u + g
        move = -eta(t) * (u - s.c)
        return (s.x, s.c - u), State(x=move, u=u, c=u)  # to which the averages are added

    def receive(s: State, mixed: Messages) -> State:
        x, c = mixed
        return State(s.x + x, s.u, s.c + c)

    def estimate(s: State) -> Array:
        return (1 - BETA) * (s.u - s.c)

    return Rule(init, send, receive, restart=lambda s: s._replace(c=0 * s.c), estimate=estimate)
