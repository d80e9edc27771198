"""EDM: exact diffusion (D2) with momentum (Hu et al., 2025)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule

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

    def receive(s: State, mixed: Messages) -> State:
        (x,) = mixed
        return s._replace(x=x)

    def restart(s: State) -> State:
        return s._replace(psi=s.x)  # then mean(psi) = mean(x) over the nodes that are left

    return Rule(init, send, receive, restart=restart, needs=Needs(smallest_eigenvalue=-1 / 3))
