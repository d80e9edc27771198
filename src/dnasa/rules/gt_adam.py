"""GTAdam: Adam on tracked gradients (Carnevale et al., 2023)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule
from dnasa.rules.dadam import EPSILON, moments


class State(NamedTuple):
    x: Array
    y: Array  # gradient trackers (the paper's s), mixed: mean(y) == mean(g)
    g: Array  # last stochastic gradients
    m: Array  # first moments of y; moments are not exchanged
    v: Array  # second moments of y


def gt_adam(eta: Schedule) -> Rule:
    """y <- y + g - g_old; m <- b1 m + (1 - b1) y; v <- b2 v + (1 - b2) y^2; x, y <- W[x] - eta m / sqrt(v + eps), W[y]

    b1 = 0.9, b2 = 0.999 and eps = 1e-8.

    Args:
        eta: The stepsize at t.
    """

    def init(x: Array) -> State:
        return State(x, y=0 * x, g=0 * x, m=0 * x, v=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        y = s.y + g - s.g
        m, v = moments(s.m, s.v, y)
        move = -eta(t) * m / (v + EPSILON) ** 0.5
        return (s.x, y), State(move, y, g, m, v)  # the average of x is added to the move

    def receive(s: State, mixed: Messages) -> State:
        x, y = mixed
        return s._replace(x=s.x + x, y=y)

    return Rule(init, send, receive, restart=lambda s: s._replace(y=s.g), estimate=lambda s: s.y)
