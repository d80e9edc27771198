"""D-SGD: a gradient step, then an average with the neighbors (Lian et al., 2017).

With a projection: Bianchi and Jakubowicz (2013).
"""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Prox, Rule, Schedule, assign, no_prox
from dnasa.rules.registry import rule


class State(NamedTuple):
    x: Array


@rule(
    "dsgd",
    title="D-SGD",
    color="#7cc0ee",
    paper="Lian et al., 2017, *Can Decentralized Algorithms Outperform Centralized Algorithms?*, arXiv 1705.09056",
    equation=r"x \leftarrow W[x - \eta g]",
    checked="epfml/quasi-global-momentum, decentralized_sgd: the same",
)
def dsgd(eta: Schedule, *, prox: Prox = no_prox) -> Rule:
    """x <- W[prox(x - eta g, eta)]

    Args:
        eta: The stepsize at t.
        prox: The proximal operator of h, to minimize f + h; by default h = 0.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        return (prox(s.x - eta(t) * g, eta(t)),), s

    return Rule(State, send, assign("x"), stepsize=lambda s, t: eta(t), only_sums=prox is no_prox)
