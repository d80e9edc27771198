"""GT-HSGD: gradient tracking of a variance-reduced estimate (Xin, Khan and Kar, 2021).

With a proximal step: DEEPSTORM (Mancino-Ball, Miao, Xu and Chen, 2023).
"""

from typing import NamedTuple

from dnasa.core import Array, Exchange, Gradients, Messages, Needs, Prox, Rule, Schedule, assign, no_prox
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ETA, with_second


class State(NamedTuple):
    x: Array
    x_old: Array
    y: Array  # trackers of v, mixed: mean(y) == mean(v)
    v: Array  # estimate of the node's own gradient


@rule(
    "gt_hsgd",
    title="GT-HSGD",
    color="#ff5038",
    schedules=with_second(ETA, lambda n: lambda t: min(1.0, n ** (1 / 3) / (t + 1) ** (2 / 3))),
    paper="Xin et al., 2021, *A Hybrid Variance-Reduced Method for Decentralized Stochastic Non-Convex Optimization*, "
    "arXiv 2102.06752",
    equation=r"""
        v' &= g(x) + (1 - \beta) (v - g(x_{\text{old}})) \\
        y &\leftarrow W[y + v' - v] \\
        x &\leftarrow W[x - \eta y] \\
        v &\leftarrow v'
    """,
    checked="OscarYau525/docom: the same after the first estimate, for which it can use more batches",
)
def gt_hsgd(eta: Schedule, beta: Schedule, *, prox: Prox = no_prox) -> Rule:
    """v' = g(x) + (1 - beta) (v - g(x_old)), both on one sample; y <- W[y + v' - v]; then x <- W[prox(x - eta y, eta)].

    v' = g(x) in the first step.

    The optimizer needs `step(closure)` and calls the closure twice per step. In the first step the paper takes about
    T^(1/3) / n^(2/3) samples; here it is one batch. By default beta = min(1, n^(1/3) / (t + 1)^(2/3)); the paper has
    n^(1/3) / T^(2/3), up to constants. Push-sum is refused: it would divide x_old by the weight of x.

    Args:
        eta: The stepsize at t.
        beta: The weight of the plain gradient in the estimate v; 1: no variance reduction.
        prox: The proximal operator of h, to minimize f + h; by default h = 0.
    """

    def init(x: Array) -> State:
        return State(x, x_old=x, y=0 * x, v=0 * x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        g, g_old = gradients
        v = g + (1 - beta(t)) * (s.v - g_old) if t else g
        return (s.y + v - s.v,), s._replace(v=v)

    def send_x(s: State, t: int) -> tuple[Messages, State]:
        return (prox(s.x - eta(t) * s.y, eta(t)),), s._replace(x_old=s.x)

    return Rule(
        init,
        send,
        assign("y"),
        then=(Exchange(send_x, assign("x")),),
        points=lambda s, t: (s.x, s.x_old),
        restart=lambda s: s._replace(y=s.v),
        estimate=lambda s: s.y,
        needs=Needs(doubly_stochastic=True),  # push-sum would divide x_old by the weight of x
    )
