"""D-ASAGT: gradient tracking with a moving average (Xiao et al., 2023, without the proximal term)."""

from dnasa.core import Messages, Rule, Schedule
from dnasa.rules.dnasa import State, dnasa


def dasagt(eta: Schedule, alpha: Schedule) -> Rule:
    """x, u, z <- W[x - eta z, u + g - v, (1 - alpha) z + alpha (u + g - v)]: D-NASA with steps that are not normalized."""
    normalized = dnasa(eta, alpha)

    def early(s: State, t: int) -> Messages:
        return (s.x - eta(t) * s.z,)

    return normalized._replace(early=early, form=normalized.form._replace(normalised=False))
