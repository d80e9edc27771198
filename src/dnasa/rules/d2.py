"""D2: D-SGD with the variance between the nodes' data removed (Tang et al., 2018)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, assign
from dnasa.rules.registry import rule


class State(NamedTuple):
    x: Array
    x_old: Array
    move: Array  # eta_old g_old


@rule(
    "d2",
    title="D2",
    color="#2272dc",
    paper="Tang et al., 2018, *D²: Decentralized Training over Decentralized Data*, arXiv 1803.07068",
    equation=r"x_1 &= W[x_0 - \eta_0 g_0] \\ x_{t+1} &= W[2 x_t - x_{t-1} - \eta_t g_t + \eta_{t-1} g_{t-1}]",
    checked="decent-bench, ED, and epfml/quasi-global-momentum, for a constant stepsize: the same",
)
def d2(eta: Schedule) -> Rule:
    """x <- W[2x - x_old - eta g + eta_old g_old]; the first step is D-SGD's, since x_old = x and g_old = 0 there.

    Args:
        eta: The stepsize at t.
    """

    def init(x: Array) -> State:
        return State(x, x_old=x, move=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        move = eta(t) * g
        return (2 * s.x - s.x_old - move + s.move,), State(s.x, x_old=s.x, move=move)

    return Rule(init, send, assign("x"), needs=Needs(smallest_eigenvalue=-1 / 3, fixed_graph=True))
