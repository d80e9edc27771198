"""K-GT: gradient tracking with K local steps between exchanges (Liu, Lin, Koloskova and Stich, 2023)."""

from typing import NamedTuple

from dnasa.checks import whole
from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, zeros
from dnasa.rules.registry import rule


class State(NamedTuple):
    x: Array
    c: Array  # corrections of the node's gradients: mean(c) == 0
    z: Array  # sum of the corrected gradients since the last exchange, divided by K


@rule(
    "kgt",
    title="K-GT",
    color="#7b4173",
    paper="Liu et al., 2023, *Decentralized Gradient Tracking with Local Steps*, arXiv 2301.01313",
    equation=r"""
        x &\leftarrow x - \eta (g + c) && \text{in each of } K \text{ steps} \\
        z &= \text{mean of these } g + c && \text{after the } K\text{-th} \\
        c &\leftarrow c - z + W[z] \\
        x &\leftarrow W[x]
    """,
    checked="decent-bench with eta_s = 1 (its default is 0.01): the same",
)
def kgt(eta: Schedule, *, local_steps: int = 10) -> Rule:
    """K times x <- x - eta (g + c); then c <- c - z + W[z], x <- W[x], where z is the mean of the K (g + c).

    A step is one gradient; the exchange is part of every K-th step. K = 1 is D-SGT.

    eta_s = 1: nodes exchange their local iterates. With a constant stepsize, z is the paper's (x - y) / (K eta_c); c = 0 at the
    start, without an extra exchange. Use a multiple of K as the number of steps, so that the run ends with an exchange.

    Args:
        eta: The stepsize at t.
        local_steps: K, the number of steps from one exchange to the next.
    """
    K = whole("local_steps", local_steps)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        x = s.x - eta(t) * (g + s.c)
        z = s.z + (g + s.c) / K
        return () if (t + 1) % K else (x, z), State(x, s.c, z)

    def receive(s: State, mixed: Messages) -> State:
        if not mixed:
            return s
        x, z = mixed
        return State(x, c=s.c - s.z + z, z=0 * z)

    # The steps with an exchange may all have the same graph of a changing one.
    return Rule(zeros(State), send, receive, needs=Needs(fixed_graph=K > 1), stepsize=lambda s, t: eta(t))
