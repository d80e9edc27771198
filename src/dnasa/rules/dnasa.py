"""D-NASA: gradient tracking, moving average, normalized steps; no stepsize to tune (the paper's Algorithm 2)."""

from typing import NamedTuple

from dnasa.arrays import nonzero, norm, unit
from dnasa.core import Array, Gradients, Messages, Needs, Prox, Rule, Schedule, assign, zeros
from dnasa.rules.forms import Form, declare
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ScheduleSpec, diminishing, fixed


class State(NamedTuple):
    x: Array  # iterates; the next gradient is taken here
    u: Array  # gradient trackers: mean(u) == mean(v)
    v: Array  # last stochastic gradients
    z: Array  # moving average of u


ARRAYS = ("x", "u", "z", "v")  # of the form; v is not sent


DNASA = {
    "diminishing": ScheduleSpec(lambda n, T, eta: diminishing(n), "n^(1/4)/t^(3/4)"),
    "fixed": ScheduleSpec(lambda n, T, eta: fixed(n, T), "n^(1/4)/T^(3/4)", needs_steps=True),
}


@rule(
    "dnasa",
    title="D-NASA",
    color="#7f0010",
    schedules=DNASA,
    needs_eta=False,
    paper="Li et al., 2024, *Problem-Parameter-Free Decentralized Nonconvex Stochastic Optimization*, arXiv 2402.08821",
    equation=r"""
        u' &= u + g - v \\
        x, u, z &\leftarrow W\Big[x - \eta \frac{z}{\lVert z \rVert},\; u',\; (1 - \alpha) z + \alpha u'\Big] \\
        v &\leftarrow g
    """,
    checked="the paper's text; published code has another form",
)
def dnasa(eta: Schedule, alpha: Schedule, *, prox: Prox | None = None) -> Rule:
    """x, u, z <- W[x - eta z/|z|, u + g - v, (1 - alpha) z + alpha (u + g - v)]

    Args:
        eta: The length of the step at t.
        alpha: The weight of the newest trackers in the moving average z.
        prox: The proximal operator of h, to minimize f + h: x <- W[prox(x - gamma z, gamma)] for gamma = eta/|z|, 0 where
            z = 0. This is ours, without a theorem: a normalized step is a gradient step with this gamma, so scaling f + h
            changes nothing.
    """

    def early(s: State, t: int) -> Messages:
        x = s.x - eta(t) * unit(s.z)
        if prox is None:
            return (x,)
        length = norm(s.z)
        return (prox(x, eta(t) * (length > 0) / nonzero(length)),)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = s.u + g - s.v
        return (u, (1 - alpha(t)) * s.z + alpha(t) * u), s._replace(v=g)

    made = Rule(
        zeros(State),
        send,
        assign("x", "u", "z"),
        early=early,
        restart=lambda s: s._replace(u=s.v),
        estimate=lambda s: s.z,
        needs=Needs(late=True),
        stepsize=lambda s, t: eta(t),
        only_sums=True,
    )
    return made if prox else declare(made, Form(dnasa, (eta, alpha), ARRAYS, normalized=True))
