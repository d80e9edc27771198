"""EDM: exact diffusion (D2) with momentum (Hu et al., 2025)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, assign
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    psi: Array  # the last step before the correction and the exchange: mean(psi) == mean(x)
    m: Array  # momentum


@rule(
    "edm",
    title="EDM",
    color="#c49c94",
    schedules=COSINE_FIRST,
    paper="Hu et al., 2025, *A Bias-Correction Decentralized Stochastic Gradient Algorithm with Momentum Acceleration*, "
    "arXiv 2501.19082",
    equation=r"""
        m &\leftarrow \beta m + (1 - \beta) g \\
        \psi' &= x - \eta m \\
        x &\leftarrow W[\psi' + x - \psi] \\
        \psi &\leftarrow \psi'
    """,
)
def edm(eta: Schedule, *, beta: float = 0.9) -> Rule:
    """m <- beta m + (1 - beta) g; psi' = x - eta m; x <- W[psi' + x - psi]; psi <- psi' (initially psi = x)

    Exact diffusion with the moving average m in place of the gradient; stable for eigenvalues of W above -1/3, like D2.
    With beta = 0 it is decent-bench's ED.

    Args:
        eta: The stepsize at t.
        beta: The weight of the past in the momentum m.
    """

    def init(x: Array) -> State:
        return State(x, psi=x, m=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = beta * s.m + (1 - beta) * g
        psi = s.x - eta(t) * m
        return (psi + s.x - s.psi,), State(s.x, psi, m)

    needs = Needs(smallest_eigenvalue=-1 / 3, fixed_graph=True)
    return Rule(init, send, assign("x"), restart=lambda s: s._replace(psi=s.x), needs=needs)
