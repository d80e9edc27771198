"""What D-ASAGT and D-NASA share: gradient tracking and a moving average of the trackers, along which they step."""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, assign, zeros
from dnasa.rules.forms import TrackedAverage


class State(NamedTuple):
    x: Array  # iterates; the next gradient is taken here
    u: Array  # gradient trackers: mean(u) == mean(v)
    v: Array  # last stochastic gradients
    z: Array  # moving average of u


def tracked_average(
    eta: Schedule, alpha: Schedule, early: Callable[[State, int], Messages], form: TrackedAverage | None = None
) -> Rule:
    """x, u, z <- W[early(x, z), u + g - v, (1 - alpha) z + alpha (u + g - v)]; `early` takes the step."""

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = s.u + g - s.v
        return (u, (1 - alpha(t)) * s.z + alpha(t) * u), s._replace(v=g)

    return Rule(
        zeros(State),
        send,
        assign("x", "u", "z"),
        early=early,
        restart=lambda s: s._replace(u=s.v),
        estimate=lambda s: s.z,
        needs=Needs(late=True),
        form=form,
        stepsize=lambda s, t: eta(t),
    )


def tracked_form(make: Callable[..., Rule], eta: Schedule, alpha: Schedule, *, normalized: bool) -> TrackedAverage:
    """The form of a rule with steps of length eta along z if normalized, otherwise of eta z."""
    return TrackedAverage(
        make,
        (eta, alpha),
        normalized,
        unpack=lambda s: (s.x, s.u, s.z, s.v),
        pack=lambda s, x, u, z, v: State(x, u, v, z),
    )
