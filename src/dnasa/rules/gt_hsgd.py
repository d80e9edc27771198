"""GT-HSGD: gradient tracking of a variance-reduced estimate (Xin, Khan and Kar, 2021, Algorithm 1).

With a proximal step: DEEPSTORM (Mancino-Ball, Miao, Xu and Chen, 2023).
"""

from typing import NamedTuple

from dnasa.core import Array, Exchange, Gradients, Messages, Needs, Prox, Rule, Schedule, no_prox


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
        prox: The proximal operator of h, to minimise f + h; by default h = 0.
    """

    def init(x: Array) -> State:
        return State(x, x_old=x, y=0 * x, v=0 * x)

    def points(s: State, t: int) -> tuple[Array, ...]:
        return s.x, s.x_old

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        g, g_old = gradients
        v = g + (1 - beta(t)) * (s.v - g_old) if t else g
        return (s.y + v - s.v,), s._replace(v=v)

    def receive(s: State, mixed: Messages) -> State:
        (y,) = mixed
        return s._replace(y=y)

    def send_x(s: State, t: int) -> tuple[Messages, State]:
        return (prox(s.x - eta(t) * s.y, eta(t)),), s._replace(x_old=s.x)

    def receive_x(s: State, mixed: Messages) -> State:
        (x,) = mixed
        return s._replace(x=x)

    def restart(s: State) -> State:
        return s._replace(y=s.v)  # then mean(y) = mean(v) over the nodes that are left

    return Rule(
        init,
        send,
        receive,
        then=(Exchange(send_x, receive_x),),
        points=points,
        restart=restart,
        estimate=lambda s: s.y,
        needs=Needs(doubly_stochastic=True),  # push-sum would divide x_old by the weight of x
    )
