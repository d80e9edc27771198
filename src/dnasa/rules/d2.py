"""D2: D-SGD with the variance between the nodes' data removed (Tang et al., 2018)."""

from typing import NamedTuple

from dnasa.core import Array, Mix, Rule, Schedule


class State(NamedTuple):
    x: Array
    x_old: Array
    move: Array  # eta_old g_old


def d2(eta: Schedule) -> Rule:
    """x <- W[2x - x_old - eta g + eta_old g_old]; the first step is D-SGD's, since x_old = x and g_old = 0 there."""

    def init(x: Array) -> State:
        return State(x, x_old=x, move=0 * x)

    def step(s: State, g: Array, mix: Mix, t: int) -> State:
        move = eta(t) * g
        (x,) = mix(2 * s.x - s.x_old - move + s.move)
        return State(x, x_old=s.x, move=move)

    return Rule(init, step, smallest_eigenvalue=-1 / 3)
