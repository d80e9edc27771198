"""AdGT: gradient tracking whose stepsize follows from the gradients; for smooth problems with full gradients."""

from typing import NamedTuple

from dnasa.arrays import maximum, nonzero, norm
from dnasa.core import Array, Gradients, Messages, Needs, Prox, Rule, no_prox
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ScheduleSpec

FIRST = 1e-6  # the length of the first move, relative to 1 + |x|


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers, mixed: mean(u) == mean(v)
    v: Array  # last gradients
    last: Array  # where they were taken
    L: Array  # smoothness, the inverse of the stepsize, mixed; 0 while nothing is known
    theta: Array  # ratio of the last two stepsizes; 0 while there is none


@rule(
    "adgt",
    title="AdGT",
    color="#17becf",
    schedules={"adaptive": ScheduleSpec(lambda n, T, eta: (), "1/L")},
    needs_eta=False,
    paper="Ghaderyan and Werner, 2025, *AdGT: Decentralized Gradient Tracking with Tuning-free Per-Agent Stepsize*, "
    "arXiv 2504.15196",
    equation=r"""
        L' &= \max\Big(\frac{2 |g - v|}{|x - x^-|},\; \frac{L}{\sqrt{1 + \theta}}\Big), \quad u' = u + g - v \\
        x^-, x, u, L, v &\leftarrow x, W[x - u' / L',\; u',\; L'], g \quad \theta \leftarrow \text{old } L / \text{new } L
    """,
    checked="the paper's text, except that L is mixed: with a stepsize of its own at each node, nodes of different scales diverge",
)
def adgt(*, prox: Prox = no_prox) -> Rule:
    """u <- u + g - v; x, u, L <- W[prox(x - u / L, 1 / L), u, L] for L = max(2 |g - v| / |x - last|, L / sqrt(1 + theta)).

    So the stepsize 1 / L is at most half the inverse of the smoothness seen between the last two points, and grows slowly, by
    the ratio of the last two (Malitsky and Mishchenko, 2020). The first move is tiny; after the second, each node knows the
    smoothness of its neighbors.

    Args:
        prox: The proximal operator of h, to minimize f + h; by default h = 0.
    """

    def init(x: Array) -> State:
        number = 0 * norm(x)
        return State(x, 0 * x, 0 * x, x, number, number)

    def smoothness(s: State, g: Array) -> tuple[Array, Array]:
        """L for the step, and what to send: after the first move, the node's own, since L is still a guess."""
        moved = norm(s.x - s.last)
        own = (moved > 0) * 2 * norm(g - s.v) / nonzero(moved)
        grown = s.L / (1 + (moved > 0) * s.theta) ** 0.5  # at rest nothing is learned
        L = maximum(own, grown) + (s.L == 0) * norm(g) / (FIRST * (1 + norm(s.x)))
        guess = (s.L > 0) & (s.theta == 0)
        return L, guess * own + ~guess * L

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        L, sent = smoothness(s, g)
        u, step = s.u + g - s.v, 1 / nonzero(L)
        return (prox(s.x - step * u, step), u, sent), s._replace(v=g, last=s.x)

    def receive(s: State, messages: Messages) -> State:
        x, u, L = messages
        L = maximum(L, 0)  # rounded or compressed messages may make it negative
        L = L + (L == 0) * s.L / 2  # no node nearby saw its gradient change
        theta = (s.theta > 0) * s.L / nonzero(L) + (s.theta == 0) * (s.L > 0)
        return s._replace(x=x, u=u, L=L, theta=theta)

    return Rule(init, send, receive, estimate=lambda s: s.u, needs=Needs(doubly_stochastic=True))
