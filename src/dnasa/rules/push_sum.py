"""Push-sum: any rule on a directed graph, with column-stochastic weights (Kempe et al., 2003; Assran et al., 2019)."""

from typing import Any, NamedTuple

from dnasa.core import Array, Exchange, Gradients, InputError, Messages, Rule


class State(NamedTuple):
    inner: Any
    w: Array  # how much of the total weight a node holds, (..., k, 1); 1 everywhere for doubly stochastic weights
    unsent: tuple[Array, ...] = ()  # w, within a step whose first exchange had nothing to send

    @property
    def x(self) -> Array:
        return self.inner.x


def push_sum(rule: Rule) -> Rule:
    """The rule's messages and w <- P[w]; gradients are taken at x/w, which is also the answer.

    In a step that sends anything, w travels once, with the first messages: the rule's x may be mixed once in a step.

    Args:
        rule: A rule for undirected graphs, such as `rules.dsgd(eta)`, whose `needs` allow it.
    """
    if not isinstance(rule, Rule):
        raise InputError("push_sum wraps a Rule, such as rules.dsgd(eta): call the rule's maker first.")
    if not rule.needs.allows_push_sum:
        raise InputError("This rule cannot be used with push-sum: use D-SGD, D-SGT or D-NASA on a directed graph.")

    def init(x: Array) -> State:
        return State(rule.init(x), x[..., :1] * 0 + 1)

    def points(s: State, t: int) -> tuple[Array, ...]:
        return tuple(point / s.w for point in rule.gradient_points(s.inner, t))

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        early = rule.early_messages(s.inner, t)
        messages, inner = rule.send(s.inner, gradients, t)
        sent = (*early, *messages)
        if sent:
            return (*sent, s.w), State(inner, s.w)
        return (), State(inner, s.w, unsent=(s.w,) if rule.then else ())

    def receive(s: State, mixed: Messages) -> State:
        *messages, w = mixed or (s.w,)
        return State(rule.receive(s.inner, tuple(messages)), w, s.unsent)

    def further(exchange: Exchange, last: bool) -> Exchange:
        def send(s: State, t: int) -> tuple[Messages, State]:
            messages, inner = exchange.send(s.inner, t)
            return ((*messages, *s.unsent) if messages else ()), s._replace(inner=inner)

        def receive(s: State, mixed: Messages) -> State:
            arrived = len(s.unsent) if mixed else 0
            inner = exchange.receive(s.inner, mixed[: len(mixed) - arrived])
            return State(inner, mixed[-1] if arrived else s.w, unsent=() if arrived or last else s.unsent)

        return Exchange(send, receive)

    stepsize = rule.stepsize
    return Rule(
        init,
        send,
        receive,
        then=tuple(further(exchange, number == len(rule.then)) for number, exchange in enumerate(rule.then, 1)),
        points=points,
        answer=lambda s: rule.result(s.inner) / s.w,
        restart=lambda s: init(s.x / s.w),
        estimate=lambda s: rule.gradient_estimate(s.inner),
        needs=rule.needs._replace(directed=True, late=False),
        stepsize=stepsize and (lambda s, t: stepsize(s.inner, t)),
    )
