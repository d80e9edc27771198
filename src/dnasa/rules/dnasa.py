"""D-NASA: gradient tracking, moving average, normalized steps; no stepsize to tune (the paper's Algorithm 2)."""

from typing import NamedTuple

from dnasa.arrays import nonzero, norm, unit
from dnasa.core import Array, Gradients, Messages, Prox, Rule, Schedule, assign
from dnasa.rules.forms import TrackedAverage, declare


class State(NamedTuple):
    x: Array  # iterates; the next gradient is taken here
    u: Array  # gradient trackers: mean(u) == mean(v)
    v: Array  # last stochastic gradients
    z: Array  # moving average of u


def dnasa(eta: Schedule, alpha: Schedule, *, prox: Prox | None = None) -> Rule:
    """x, u, z <- W[x - eta z/|z|, u + g - v, (1 - alpha) z + alpha (u + g - v)]

    Args:
        eta: The length of the step at t.
        alpha: The weight of the newest trackers in the moving average z.
        prox: The proximal operator of h, to minimise f + h: x <- W[prox(x - gamma z, gamma)] for gamma = eta/|z|, 0 where
            z = 0. This is ours, without a theorem: a normalized step is a gradient step with this gamma, so scaling f + h
            changes nothing.
    """

    def init(x: Array) -> State:
        return State(x, u=0 * x, v=0 * x, z=0 * x)

    def early(s: State, t: int) -> Messages:
        return (s.x - eta(t) * unit(s.z),)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = s.u + g - s.v
        return (u, (1 - alpha(t)) * s.z + alpha(t) * u), s._replace(v=g)

    rule = Rule(
        init,
        send,
        assign("x", "u", "z"),
        early=early,
        restart=lambda s: s._replace(u=s.v),
        estimate=lambda s: s.z,
    )
    if prox is None:
        return declare(rule, tracked_average(eta, alpha, normalized=True))

    def early_prox(s: State, t: int) -> Messages:
        length = norm(s.z)
        return (prox(s.x - eta(t) * unit(s.z), eta(t) * (length > 0) / nonzero(length)),)

    return rule._replace(early=early_prox)


def tracked_average(eta: Schedule, alpha: Schedule, normalized: bool) -> TrackedAverage:
    """The form of the rules with this state."""
    return TrackedAverage(
        eta,
        alpha,
        normalized,
        unpack=lambda s: (s.x, s.u, s.z, s.v),
        pack=lambda x, u, z, v: State(x, u, v, z),
    )
