"""GT-NSGDm: tracked momentum, normalized steps, for heavy-tailed noise (Yu, Jakovetic and Kar, 2025)."""

from math import sqrt
from typing import NamedTuple

from dnasa.arrays import unit
from dnasa.core import Array, Exchange, Gradients, Messages, Rule, Schedule, assign, zeros
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST, ScheduleSpec, constant, with_second


class State(NamedTuple):
    x: Array
    v: Array  # momentum of the node's own gradients
    y: Array  # trackers, mixed: mean(y) == mean(v)


GT_NSGDM = with_second(COSINE_FIRST, lambda n: constant(0.9)) | {
    "theorem-fixed": ScheduleSpec(
        lambda n, T, eta: (constant(eta / T**0.75), constant(1 - 1 / sqrt(T))), "eta/T^(3/4)", needs_steps=True
    )
}


@rule(
    "gt_nsgdm",
    title="GT-NSGDm",
    color="#224455",
    schedules=GT_NSGDM,
    paper="Yu et al., 2025, *Decentralized Nonconvex Optimization under Heavy-Tailed Noise*, arXiv 2505.03736",
    equation=r"""
        v' &= \beta v + (1 - \beta) g \\
        y &\leftarrow W[y + v' - v] \\
        x &\leftarrow W\Big[x - \eta \frac{y}{\lVert y \rVert}\Big] \\
        v &\leftarrow v'
    """,
    checked="MozarTuring/DeMuon: the same, with one norm for the whole vector",
)
def gt_nsgdm(eta: Schedule, beta: Schedule) -> Rule:
    """v' = beta v + (1 - beta) g; y <- W[y + v' - v]; then x <- W[x - eta y/|y|] with this y: two exchanges in a step

    The whole vector is normalized, and not each tensor. The schedule `theorem-fixed` has the paper's beta = 1 - 1 / sqrt(T) for
    noise with unknown tails, and eta / T^(3/4). It needs a stepsize too: the constants of the bound depend on the problem.

    Args:
        eta: The length of the step at t.
        beta: The weight of the past in the momentum v.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        v = beta(t) * s.v + (1 - beta(t)) * g
        return (s.y + v - s.v,), s._replace(v=v)

    def send_x(s: State, t: int) -> tuple[Messages, State]:
        return (s.x - eta(t) * unit(s.y),), s

    return Rule(
        zeros(State),
        send,
        assign("y"),
        then=(Exchange(send_x, assign("x")),),
        restart=lambda s: s._replace(y=s.v),
        estimate=lambda s: s.y,
        stepsize=lambda s, t: eta(t),
    )
