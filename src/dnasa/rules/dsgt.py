"""D-SGT: stochastic gradient tracking (the paper's Algorithm 1)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers, mixed: mean(u) == mean(v)
    v: Array  # last stochastic gradients


def dsgt(eta: Schedule) -> Rule:
    """u <- u + g - v; x, u <- W[x - eta u, u]: Algorithm 1 read from its line 6, the same iterates, one exchange."""

    def init(x: Array) -> State:
        return State(x, u=0 * x, v=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u = s.u + g - s.v
        return (s.x - eta(t) * u, u), s._replace(v=g)

    def receive(s: State, mixed: Messages) -> State:
        x, u = mixed
        return s._replace(x=x, u=u)

    def restart(s: State) -> State:
        return s._replace(u=s.v)  # then mean(u) = mean(v) over the nodes that are left

    return Rule(init, send, receive, restart=restart, estimate=lambda s: s.u)
