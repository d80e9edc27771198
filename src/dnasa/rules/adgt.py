"""AdGT: gradient tracking whose stepsize follows from the gradients; for smooth problems with full gradients."""

from typing import NamedTuple

from dnasa.arrays import maximum, minimum, nonzero, norm
from dnasa.core import Array, Gradients, Messages, Needs, Prox, Rule, no_prox
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ScheduleSpec

FIRST = 1e-6  # the length of the first move, relative to 1 + |x|
GROWTH = 1.2  # of the stepsize in a step, at most: slow enough for the smoothness of distant nodes to arrive
REACH = 10  # a move is at most this many times the longest one before: curvature is known only where x has been


class State(NamedTuple):
    x: Array
    u: Array  # gradient trackers, mixed: mean(u) == mean(v)
    v: Array  # last gradients
    last: Array  # where they were taken
    L: Array  # smoothness, the inverse of the stepsize; its square is mixed; 0 while no gradient has changed
    longest: Array  # the length of the longest move


@rule(
    "adgt",
    title="AdGT",
    color="#5254a3",
    schedules={"adaptive": ScheduleSpec(lambda n, T, eta: (), "1/L")},
    needs_eta=False,
    paper="Ghaderyan and Werner, 2025, *AdGT: Decentralized Gradient Tracking with Tuning-free Per-Agent Stepsize*, "
    "arXiv 2504.15196",
    equation=r"""
        L' &= \max\Big(\frac{2 |g - v|}{|x - x^-|},\; \frac{L}{1.2}\Big), \quad u' = u + g - v, \quad
        \eta = \min\Big(\frac{1}{L'},\; \frac{10 \max_{s \le t} |x_s - x_{s-1}|}{|u'|}\Big) \\
        x, u, L^2 &\leftarrow W[x - \eta u',\; u',\; L'^2] \\
        v &\leftarrow g
    """,
    checked="the paper's text; ours are the slower growth, the mixed L and the bounded moves, without which Poisson "
    "regression and control problems diverged",
)
def adgt(*, prox: Prox = no_prox) -> Rule:
    """u <- u + g - v; x, u, L^2 <- W[prox(x - u / L, 1 / L), u, L^2] for L = max(2 |g - v| / |x - last|, L / 1.2).

    So the stepsize is at most half the inverse of the smoothness between the last two points. The first move is tiny, and each
    is at most ten times the longest before, so the smoothness of neighbors arrives before a long move. The average of L^2
    gives more weight to a large L than that of L.

    Args:
        prox: The proximal operator of h, to minimize f + h; by default h = 0.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        u, moved = s.u + g - s.v, norm(s.x - s.last)
        at_rest = moved == 0  # it learns nothing
        own = 2 * norm(g - s.v) * ~at_rest / nonzero(moved)
        L = maximum(own, s.L * ~at_rest / GROWTH + s.L * at_rest)
        longest = maximum(s.longest, moved)
        reach = maximum(FIRST * (1 + norm(s.x)), REACH * longest) / nonzero(norm(u))
        step = minimum(reach, (L > 0) / nonzero(L) + (L == 0) * reach)
        return (prox(s.x - step * u, step), u, L**2), s._replace(v=g, last=s.x, longest=longest)

    def receive(s: State, messages: Messages) -> State:
        x, u, squares = messages
        return s._replace(x=x, u=u, L=maximum(squares, 0) ** 0.5)  # rounded or compressed messages may make it negative

    return Rule(
        init=lambda x: State(x, 0 * x, 0 * x, x, 0 * norm(x), 0 * norm(x)),
        send=send,
        receive=receive,
        estimate=lambda s: s.u,
        needs=Needs(doubly_stochastic=True),
    )
