"""D-SGT: stochastic gradient tracking (the paper's Algorithm 1).

With a proximal step: NEXT with a linear surrogate (Di Lorenzo and Scutari, 2016).
"""

from math import sqrt
from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Prox, Rule, Schedule, assign, no_prox, zeros
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ETA, ScheduleSpec, constant


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers, mixed: mean(u) == mean(v)
    v: Array  # last stochastic gradients


PARAMETER_FREE = {  # Theorem 4.1
    "parameter-free": ScheduleSpec(lambda n, T, eta: (lambda t: eta / sqrt(t) if t else 0.0,), "eta/sqrt(t)"),
    "parameter-free-fixed": ScheduleSpec(lambda n, T, eta: (constant(eta / sqrt(T)),), "eta/sqrt(T)", needs_steps=True),
}


@rule(
    "dsgt",
    title="D-SGT",
    color="#41ab5d",
    schedules=ETA | PARAMETER_FREE,
    paper="Li et al., 2024, *Problem-Parameter-Free Decentralized Nonconvex Stochastic Optimization*, arXiv 2402.08821",
    equation=r"u' &= u + g - v \\ x, u &\leftarrow W[x - \eta u',\; u'] \\ v &\leftarrow g",
    checked="the paper's text; decent-bench, ATC-Tracking: the same. Others mix x or u before the step: `mt`, `gt_hsgd`",
)
def dsgt(eta: Schedule, *, prox: Prox = no_prox) -> Rule:
    """u <- u + g - v; x, u <- W[prox(x - eta u, eta), u]: Algorithm 1 read from its line 6, the same iterates, one exchange.

    Args:
        eta: The stepsize at t.
        prox: The proximal operator of h, to minimize f + h; by default h = 0.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = s.u + g - s.v
        return (prox(s.x - eta(t) * u, eta(t)), u), s._replace(v=g)

    return Rule(
        zeros(State),
        send,
        assign("x", "u"),
        restart=lambda s: s._replace(u=s.v),
        estimate=lambda s: s.u,
        needs=Needs(late=True),
        stepsize=lambda s, t: eta(t),
        only_sums=prox is no_prox,
    )
