"""D-ASAGT: gradient tracking with a moving average; with a proximal step, it is Prox-DASA-GT (Xiao et al., 2023)."""

from dnasa.core import Messages, Prox, Rule, Schedule
from dnasa.rules.dnasa import ARRAYS, State, dnasa
from dnasa.rules.forms import Form, declare
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ETA, averaging, with_second


@rule(
    "dasagt",
    title="D-ASAGT",
    color="#6f4bab",
    schedules=with_second(ETA, averaging),
    paper="Xiao et al., 2023, *A One-Sample Decentralized Proximal Algorithm*, arXiv 2302.09766",
    equation=r"u' &= u + g - v \\ x, u, z &\leftarrow W[x - \eta z,\; u',\; (1 - \alpha) z + \alpha u'] \\ v &\leftarrow g",
    checked="the authors' code, tesixiao/ProxDASA: the same, but for z, which averages g there and not the tracker u",
)
def dasagt(eta: Schedule, alpha: Schedule, *, prox: Prox | None = None) -> Rule:
    """x, u, z <- W[x - eta z, u + g - v, (1 - alpha) z + alpha (u + g - v)]: D-NASA with steps that are not normalized.

    Args:
        eta: The stepsize at t.
        alpha: The weight of the newest trackers in the moving average z.
        prox: The proximal operator of h, to minimize f + h: x <- W[(1 - alpha) x + alpha prox(x - gamma z, gamma)] for
            gamma = eta/alpha.
    """

    def early(s: State, t: int) -> Messages:
        if prox is None:
            return (s.x - eta(t) * s.z,)
        gamma = eta(t) / alpha(t)
        return ((1 - alpha(t)) * s.x + alpha(t) * prox(s.x - gamma * s.z, gamma),)

    made = dnasa(eta, alpha)._replace(early=early, form=None)
    return made if prox else declare(made, Form(dasagt, (eta, alpha), ARRAYS))
