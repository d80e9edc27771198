"""EDM: exact diffusion (D2) with momentum (Hu et al., 2025)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, assign

BETA = 0.9


class State(NamedTuple):
    x: Array
    psi: Array  # the last step before the correction and the exchange: mean(psi) == mean(x)
    m: Array  # momentum


def edm(eta: Schedule) -> Rule:
    """m <- beta m + (1 - beta) g; psi+ = x - eta m; x <- W[psi+ + x - psi]; psi <- psi+, which is x at the start

    beta = 0.9.

    Args:
        eta: The stepsize at t.
    """

    def init(x: Array) -> State:
        return State(x, psi=x, m=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = BETA * s.m + (1 - BETA) * g
        psi = s.x - eta(t) * m
        return (psi + s.x - s.psi,), State(s.x, psi, m)

    needs = Needs(smallest_eigenvalue=-1 / 3)
    return Rule(init, send, assign("x"), restart=lambda s: s._replace(psi=s.x), needs=needs)
