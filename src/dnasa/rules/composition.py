"""Any rule with changed gradients: clipping, momentum, Adam's direction, or a change of your own."""

from collections.abc import Callable
from inspect import signature
from math import inf
from typing import Any, NamedTuple

from dnasa.arrays import minimum, nonzero, norm
from dnasa.checks import choose, positive
from dnasa.core import Array, Exchange, Gradients, InputError, Messages, Rule
from dnasa.rules.schedules import constant
from dnasa.rules.weight_decay import check_weight_decay, with_weight_decay

Memory = tuple[Array, ...]
Change = Callable[[Memory, Array, int], tuple[Array, Memory]]


class State(NamedTuple):
    inner: Any
    memory: Memory  # of the change, such as moments

    @property
    def x(self) -> Array:
        return self.inner.x


def with_gradients(rule: Rule, change: Change, init: Callable[[Array], Memory] = lambda x: ()) -> Rule:
    """The rule with changed gradients. Trackers then follow these, and their mean is no longer the full gradient.

    Args:
        rule: The rule.
        change: `change(memory, g, t)` gives what the rule gets instead of a node's gradient g, and the next memory.
        init: `init(x)` gives the memory at the start, a tuple of arrays with a row for each node.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        if s.memory and len(gradients) > 1:
            raise InputError("Rules with two gradients per step take no momentum and no moments: use clipping.")
        changed, memories = zip(*(change(s.memory, g, t) for g in gradients), strict=True)
        messages, inner = rule.send(s.inner, changed, t)
        return messages, State(inner, memories[0])

    def receive(s: State, mixed: Messages) -> State:
        return s._replace(inner=rule.receive(s.inner, mixed))

    def further(exchange: Exchange) -> Exchange:
        def send(s: State, t: int) -> tuple[Messages, State]:
            messages, inner = exchange.send(s.inner, t)
            return messages, s._replace(inner=inner)

        return Exchange(send, lambda s, mixed: s._replace(inner=exchange.receive(s.inner, mixed)))

    stepsize = rule.stepsize
    return Rule(
        lambda x: State(rule.init(x), init(x)),
        send,
        receive,
        then=tuple(map(further, rule.then)),
        early=rule.early and (lambda s, t: rule.early_messages(s.inner, t)),
        points=rule.points and (lambda s, t: rule.gradient_points(s.inner, t)),
        answer=rule.answer and (lambda s: rule.result(s.inner)),
        restart=lambda s: s._replace(inner=rule.restarted(s.inner)),
        needs=rule.needs,
        fading=rule.fading,
        stepsize=stepsize and (lambda s, t: stepsize(s.inner, t)),
    )


def with_clipping(rule: Rule, length: float) -> Rule:
    """The rule with gradients of at most this Euclidean length: longer ones are scaled down, at each node.

    Args:
        rule: The rule.
        length: The largest norm of a node's gradient.
    """
    if length != inf:
        positive("The length of clip", length)
    return with_gradients(rule, lambda memory, g, t: (minimum(length / nonzero(norm(g)), 1) * g, memory))


def with_momentum(rule: Rule, beta: float = 0.9) -> Rule:
    """The rule with m <- beta m + g in the place of g.

    Args:
        rule: The rule.
        beta: The weight of the past.
    """
    _fraction("beta of momentum", beta)

    def change(memory: Memory, g: Array, t: int) -> tuple[Array, Memory]:
        (m,) = memory
        m = beta * m + g
        return m, (m,)

    return with_gradients(rule, change, lambda x: (0 * x,))


def with_adam(rule: Rule, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Rule:
    """The rule with Adam's direction m' / (sqrt(v') + eps) in the place of g, with the moments of each node.

    Args:
        rule: The rule.
        beta1: The weight of the past in the first moments m.
        beta2: The weight of the past in the second moments v.
        eps: Added to sqrt(v').
    """
    _fraction("beta1 of adam", beta1)
    _fraction("beta2 of adam", beta2)

    def change(memory: Memory, g: Array, t: int) -> tuple[Array, Memory]:
        m, v = memory
        m, v = moments(m, v, g, beta1, beta2)
        return m / (1 - beta1 ** (t + 1)) / ((v / (1 - beta2 ** (t + 1))) ** 0.5 + eps), (m, v)

    return with_gradients(rule, change, lambda x: (0 * x, 0 * x))


def moments(m: Array, v: Array, g: Array, beta1: float, beta2: float) -> tuple[Array, Array]:
    """Adam's first and second moments after the gradient g."""
    return beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2


def _with_decay(rule: Rule, decay: float) -> Rule:
    positive("The number of decay", decay)
    check_weight_decay(rule, "This rule")
    return with_weight_decay(rule, constant(decay))


BY_NAME: dict[str, Callable[..., Rule]] = {
    "clip": with_clipping,
    "momentum": with_momentum,
    "adam": with_adam,
    "decay": _with_decay,
}


def wrapper(text: str) -> Callable[[Rule], Rule]:
    """What a name such as "clip:1" or "adam:0.9:0.95" does to a rule."""
    name, *values = text.split(":")
    make = choose("change of gradients", name, BY_NAME)
    try:
        numbers = [float(value) for value in values]
        signature(make).bind(None, *numbers)
    except (TypeError, ValueError):
        raise InputError(f"'{text:.40}' cannot be used: write it as clip:1, momentum:0.9 or adam:0.9:0.99.") from None
    return lambda rule: make(rule, *numbers)


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1, not {value}.")
