"""D-ASAGT: gradient tracking with a moving average; with a proximal step, it is Prox-DASA-GT (Xiao et al., 2023)."""

from dnasa.core import Messages, Prox, Rule, Schedule
from dnasa.rules.tracked_average import State, declared, tracked_average


def dasagt(eta: Schedule, alpha: Schedule, *, prox: Prox | None = None) -> Rule:
    """x, u, z <- W[x - eta z, u + g - v, (1 - alpha) z + alpha (u + g - v)]: D-NASA with steps that are not normalized.

    Args:
        eta: The stepsize at t.
        alpha: The weight of the newest trackers in the moving average z.
        prox: The proximal operator of h, to minimize f + h: x <- W[(1 - alpha) x + alpha prox(x - gamma z, gamma)] for
            gamma = eta/alpha.
    """

    def early(s: State, t: int) -> Messages:
        return (s.x - eta(t) * s.z,)

    if prox is None:
        return declared(tracked_average(eta, alpha, early), eta, alpha, normalized=False)

    def early_prox(s: State, t: int) -> Messages:
        gamma = eta(t) / alpha(t)
        return ((1 - alpha(t)) * s.x + alpha(t) * prox(s.x - gamma * s.z, gamma),)

    return tracked_average(eta, alpha, early_prox)
