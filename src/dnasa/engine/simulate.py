"""What a step is, and what a run is: the definition that every engine and every fast path is tested against."""

from collections.abc import Callable

import numpy as np

from dnasa.core import Array, Gradients, InputError, Messages, Rule, State
from dnasa.engine.rule_checks import check_rule


def simulate(rule: Rule, W: Array, gradient: Callable[[Array, int, int], Array], x0: Array, steps: int) -> Array:
    """Run a rule on all nodes. Returns what the nodes have after 0, 1, ..., `steps` steps, of shape `(steps + 1, n, d)`.

    Args:
        rule: The rule, such as `rules.dnasa(*schedules.diminishing(n))`.
        W: The mixing matrix, of shape `(n, n)`: `W[i, j]` is the weight of node j's messages at node i.
        gradient: `gradient(x, node, t)` is the stochastic gradient of that node at x, on its sample of step t.
        x0: The starting point of all nodes, of shape `(d,)`.
        steps: The number of steps.

    Example:
        >>> from dnasa import rules, schedules, topology
        >>> rule = rules.dnasa(*schedules.diminishing(8))
        >>> x = simulate(rule, topology.ring(8).weights, lambda x, node, t: x - node, np.zeros(1), steps=1000)
        >>> x[-1].mean().round(1)
        np.float64(3.5)
    """

    def mix(messages: Messages, number: int) -> Messages:
        return tuple(W @ message for message in messages)

    if not isinstance(rule, Rule):
        raise InputError(f"simulate takes a rule, such as rules.dsgd(schedules.constant(0.1)), not {rule!r:.40}.")
    if np.ndim(W) != 2:
        raise InputError("simulate takes a matrix W: graph.weights, or use solve, which takes graphs that change, too.")
    state = rule.init(np.tile(np.asarray(x0, dtype=float), (len(W), 1)))
    check_rule(rule, state)
    answers = [rule.result(state)]
    for t in range(steps):
        points = rule.gradient_points(state, t)
        gradients = tuple(np.stack([gradient(x, node, t) for node, x in enumerate(point)]) for point in points)
        state = next_state(rule, state, gradients, t, mix)
        answers.append(rule.result(state))
    return np.stack(answers)


def next_state(rule: Rule, state: State, gradients: Gradients, t: int, mix: Callable[[Messages, int], Messages]) -> State:
    """The state after step t; `mix(messages, number)` gives the messages of exchange `number` as they arrive."""
    early = rule.early_messages(state, t)
    messages, state = rule.send(state, gradients, t)
    state = rule.receive(state, mix((*early, *messages), 0))
    for number, (send, receive) in enumerate(rule.then, start=1):
        messages, state = send(state, t)
        state = receive(state, mix(messages, number))
    return state
