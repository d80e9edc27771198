"""D-SGD: a gradient step, then an average with the neighbours (Lian et al., 2017)."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule


class State(NamedTuple):
    x: Array


def dsgd(eta: Schedule) -> Rule:
    """x <- W[x - eta g]"""

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        return (s.x - eta(t) * g,), s

    def receive(s: State, mixed: Messages) -> State:
        return State(*mixed)

    return Rule(State, send, receive)
