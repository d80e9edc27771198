"""D-ASAGT: gradient tracking with a moving average (Xiao et al., 2023, without the proximal term)."""

from typing import NamedTuple

from dnasa.core import Array, Averaged, Mix, Rule, Schedule


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers: mean(u) == mean(v)
    v: Array  # last stochastic gradients
    z: Array  # moving average of u


def dasagt(eta: Schedule, alpha: Schedule) -> Rule:
    """x, u, z <- W[x - eta z, u + g - v, (1 - alpha) z + alpha (u + g - v)]"""

    def init(x: Array) -> State:
        return State(x, u=0 * x, v=0 * x, z=0 * x)

    def move(s: State, t: int) -> Array:
        return s.x - eta(t) * s.z

    def track(s: State, g: Array, t: int) -> tuple[Array, Array]:
        u = s.u + g - s.v
        z = (1 - alpha(t)) * s.z + alpha(t) * u
        return u, z

    def step(s: State, g: Array, mix: Mix, t: int) -> State:
        x, u, z = mix(move(s, t), *track(s, g, t))
        return State(x, u, v=g, z=z)

    return Rule(init, step, move=move, track=track, averaged=Averaged(eta, alpha, normalised=False))
