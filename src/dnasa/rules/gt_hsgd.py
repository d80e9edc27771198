"""GT-HSGD: gradient tracking of a variance-reduced estimate (Xin, Khan and Kar, 2021).

With a proximal step: DEEPSTORM (Mancino-Ball, Miao, Xu and Chen, 2023).
"""

from typing import NamedTuple

from dnasa.core import Array, Exchange, Gradients, Messages, Needs, Prox, Rule, Schedule, assign, no_prox


class State(NamedTuple):
    x: Array
    x_old: Array
    y: Array  # trackers of v, mixed: mean(y) == mean(v)
    v: Array  # estimate of the node's own gradient


def gt_hsgd(eta: Schedule, beta: Schedule, *, prox: Prox = no_prox) -> Rule:
    """v' = g(x) + (1 - beta) (v - g(x_old)), both on one sample; y <- W[y + v' - v]; then x <- W[prox(x - eta y, eta)].

    v' = g(x) in the first step.

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
