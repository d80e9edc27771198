"""D-NASA: gradient tracking, moving average, normalized steps; no stepsize to tune (the paper's Algorithm 2)."""

from dnasa.arrays import nonzero, norm, unit
from dnasa.core import Messages, Prox, Rule, Schedule
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ScheduleSpec, diminishing, fixed
from dnasa.rules.tracked_average import State, tracked_average, tracked_form

DNASA = {
    "diminishing": ScheduleSpec(lambda n, T, eta: diminishing(n), "n^(1/4)/t^(3/4)"),
    "fixed": ScheduleSpec(lambda n, T, eta: fixed(n, T), "n^(1/4)/T^(3/4)", needs_steps=True),
}


@rule(
    "dnasa",
    title="D-NASA",
    color="#d62728",
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
        return (s.x - eta(t) * unit(s.z),)

    if prox is None:
        return tracked_average(eta, alpha, early, tracked_form(dnasa, eta, alpha, normalized=True))

    def early_prox(s: State, t: int) -> Messages:
        length = norm(s.z)
        return (prox(s.x - eta(t) * unit(s.z), eta(t) * (length > 0) / nonzero(length)),)

    return tracked_average(eta, alpha, early_prox)
