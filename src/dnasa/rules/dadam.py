"""D-Adam: a step of Adam (Kingma and Ba, 2015) at each node, then an average with the neighbours."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule

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
        m = BETA1 * s.m + (1 - BETA1) * g
        v = BETA2 * s.v + (1 - BETA2) * g**2
        unbiased_m, unbiased_v = m / (1 - BETA1 ** (t + 1)), v / (1 - BETA2 ** (t + 1))
        return (s.x - eta(t) * unbiased_m / (unbiased_v**0.5 + EPSILON),), State(s.x, m, v)

    def receive(s: State, mixed: Messages) -> State:
        (x,) = mixed
        return s._replace(x=x)

    return Rule(init, send, receive, restart=lambda s: s)  # moments must not start again at 0: t does not
