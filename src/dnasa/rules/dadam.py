"""D-Adam: a step of Adam (Kingma and Ba, 2015) at each node, then an average with the neighbours."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, assign

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class State(NamedTuple):
    x: Array
    m: Array  # first moments of the node's own gradients; moments are not exchanged
    v: Array  # second moments


def dadam(eta: Schedule) -> Rule:
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; x <- W[x - eta m' / (sqrt(v') + eps)], m' and v' without bias

    b1 = 0.9, b2 = 0.999 and eps = 1e-8.

    Args:
        eta: The stepsize at t.
    """

    def init(x: Array) -> State:
        return State(x, m=0 * x, v=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m, v = moments(s.m, s.v, g)
        unbiased_m, unbiased_v = m / (1 - BETA1 ** (t + 1)), v / (1 - BETA2 ** (t + 1))
        return (s.x - eta(t) * unbiased_m / (unbiased_v**0.5 + EPSILON),), State(s.x, m, v)

    return Rule(init, send, assign("x"), restart=lambda s: s)  # moments must not start again at 0: t does not


def moments(m: Array, v: Array, g: Array) -> tuple[Array, Array]:
    """Adam's first and second moments after the gradient g."""
    return BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
