"""GTAdam: Adam on tracked gradients (Carnevale et al., 2023)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, zeros
from dnasa.rules.composition import moments
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    y: Array  # gradient trackers (the paper's s), mixed: mean(y) == mean(g)
    g: Array  # last stochastic gradients
    m: Array  # first moments of y; moments are not exchanged
    v: Array  # second moments of y
    move: tuple[Array, ...] = ()  # added to W[x] when it arrives; empty between steps


@rule(
    "gt_adam",
    title="GTAdam",
    color="#e7ba52",
    schedules=COSINE_FIRST,
    paper="Carnevale et al., 2023, *GTAdam: Gradient Tracking with Adaptive Momentum*, arXiv 2009.01745",
    equation=r"""
        y' &= y + g - g_{\text{old}} \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) y' \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) y'^2 \\
        x &\leftarrow W[x] - \eta \frac{m}{\sqrt{v + \epsilon}} \\
        y &\leftarrow W[y'] \\
        g_{\text{old}} &\leftarrow g
    """,
    checked="the authors' code, OPT4SMART/disropt: the same, but for sqrt(v) + eps and a cap of 1e6 on v",
)
def gt_adam(eta: Schedule, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Rule:
    """y <- y + g - g_old; m <- b1 m + (1 - b1) y; v <- b2 v + (1 - b2) y^2; x, y <- W[x] - eta m / sqrt(v + eps), W[y]

    b1 and b2 are beta1 and beta2.

    The denominator is sqrt(v + eps), not sqrt(v) + eps: steps are shorter where gradients are below about 1e-4. Moments keep
    their bias: the first step is 3.2 eta long in every coordinate.

    Args:
        eta: The stepsize at t.
        beta1: The weight of the past in the first moments m.
        beta2: The weight of the past in the second moments v.
        eps: Added to v, so that the step stays finite where v is 0.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        y = s.y + g - s.g
        m, v = moments(s.m, s.v, y, beta1, beta2)
        move = -eta(t) * m / (v + eps) ** 0.5
        return (s.x, y), State(s.x, s.y, g, m, v, (move,))

    def receive(s: State, mixed: Messages) -> State:
        x, y = mixed
        (move,) = s.move
        return s._replace(x=x + move, y=y, move=())

    return Rule(
        zeros(State),
        send,
        receive,
        restart=lambda s: s._replace(y=s.g),
        estimate=lambda s: s.y,
        stepsize=lambda s, t: eta(t),
    )
