"""EXTRA: gradient descent with a sum of past disagreements that corrects it (Shi et al., 2015)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule, zeros
from dnasa.rules.registry import rule


class State(NamedTuple):
    x: Array
    c: Array  # sum of (W[x] - x) / 2 over all steps: mean(c) == 0
    move: tuple[Array, ...] = ()  # added to W[x] when it arrives; empty between steps


@rule(
    "extra",
    title="EXTRA",
    color="#00704f",
    paper="Shi et al., 2015, *EXTRA: An Exact First-Order Algorithm*, arXiv 1404.6264",
    equation=r"x' &= W[x] + c - \eta g \\ c &\leftarrow c + \tfrac{1}{2} (W[x] - x) \\ x &\leftarrow x'",
    checked="decent-bench: the same without noise; with noise it samples the old gradient again",
)
def extra(eta: Schedule) -> Rule:
    """x' = W[x] + c - eta g; c <- c + (W[x] - x) / 2: the form with a sum, from which the one with x_old follows

    x' = x + W[x] - (x_old + W[x_old]) / 2 - eta g + eta_old g_old, first step W[x] - eta g.

    The mixing matrices are W and (I + W) / 2. Push-sum is refused: on `directed_ring(8)` the iterates grow without bound for
    any stepsize.

    Args:
        eta: The stepsize at t.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        return (s.x,), s._replace(move=(s.c - eta(t) * g,))

    def receive(s: State, mixed: Messages) -> State:
        (x,), (move,) = mixed, s.move
        return State(x + move, c=s.c - s.x / 2 + x / 2)

    # With push-sum, complex eigenvalues of W make c grow without bound.
    needs = Needs(doubly_stochastic=True, fixed_graph=True)
    return Rule(zeros(State), send, receive, needs=needs, stepsize=lambda s, t: eta(t))
