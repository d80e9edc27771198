"""D-SGT: stochastic gradient tracking (the paper's Algorithm 1)."""

from typing import NamedTuple

from dnasa.core import Array, Mix, Rule, Schedule


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers, mixed: mean(u) == mean(v)
    v: Array  # last stochastic gradients


def dsgt(eta: Schedule) -> Rule:
    """u <- u + g - v; x, u <- W[x - eta u, u]: Algorithm 1 read from its line 6, the same iterates, one exchange."""

    def init(x: Array) -> State:
        return State(x, u=0 * x, v=0 * x)

    def step(s: State, g: Array, mix: Mix, t: int) -> State:
        u = s.u + g - s.v
        x, u = mix(s.x - eta(t) * u, u)
        return State(x, u, v=g)

    return Rule(init, step)
