"""How a rule's steps are taken: what every stepper offers, and the plain one.

Sequential or overlapped, the iterates are the same, bit for bit; those of a fast path are the same to rounding.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from dnasa.arrays import copied
from dnasa.channels.exchange import exchange, row_bytes
from dnasa.core import Array, Exchange, Gradients, InputError, Messages, Network, Rule, Snapshot, State, leaves
from dnasa.engine.simulate import next_state
from dnasa.runs.timing import Timeline, now


class Stepper(Protocol):
    """`x` are the current iterates, `snapshots` the rules' states with nothing in flight, one for each rule."""

    @property
    def x(self) -> Array: ...

    @property
    def snapshots(self) -> list[Snapshot]: ...

    @property
    def complete(self) -> Snapshot:
        """The state of the last complete step, after a process was lost."""

    def points(self, t: int) -> tuple[Array, ...]:
        """The points to compute gradients at."""

    def step(self, gradients: Gradients, t: int) -> None: ...

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run another exchange after those in flight."""

    def finish(self) -> None:
        """Wait until nothing is in flight."""

    def close(self) -> None: ...


class Immediate:
    """The base of steppers without pending exchanges."""

    @property
    def snapshots(self) -> list[Snapshot]:
        raise NotImplementedError

    @property
    def complete(self) -> Snapshot:
        return self.snapshots[0]

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args))
        return future

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Sequential(Immediate):
    """Gradient, then exchange, then gradient, ..."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline):
        self.plain_rule = rule
        self.rule = with_checks(rule)  # in the first step
        self.network = network
        self.timeline = timeline
        self.state, self.memory, self.sent = snapshot

    @property
    def x(self) -> Array:
        return self.state.x

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.state, self.memory, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return self.rule.gradient_points(self.state, t)

    def step(self, gradients: Gradients, t: int) -> None:
        """Take the step. State and memory change only if all of it succeeds; messages count as soon as they are sent."""
        memory, first = dict(self.memory), 0
        self.sent.compute(self.network, len(gradients))

        def mix(messages: Messages, number: int) -> Messages:
            nonlocal first
            began = now()
            mixed, memory[number] = exchange(self.network, memory.get(number, ()), messages, t, first)
            self.timeline.exchanged(began)
            self.sent.add(self.network, row_bytes(self.network, messages, t, first), t)
            first += len(messages)
            return mixed

        state = next_state(self.rule, self.state, tuple(map(copied, gradients)), t, mix)
        if self.rule is not self.plain_rule:
            check_next(state, self.state)
        self.state, self.memory, self.rule = state, memory, self.plain_rule


# ---------------------------------------------------------------- checks of rules


def with_checks(rule: Rule) -> Rule:
    """The rule with a check of what its functions return. Engines use it in the first step, which ends with `check_next`."""

    def early(s: State, t: int) -> Messages:
        return check_messages(rule.early_messages(s, t), s.x)

    def points(s: State, t: int) -> tuple[Array, ...]:
        return check_points(rule.gradient_points(s, t), s.x)

    def checked(send: Callable[..., Any], receive: Callable[..., Any], senders: str) -> tuple[Any, Any]:
        def checked_send(s: State, *args: Any) -> tuple[Messages, State]:
            messages, after = check_sent(send(s, *args), s)
            return check_messages(messages, s.x), after

        def checked_receive(s: State, mixed: Messages) -> State:
            try:
                after = receive(s, mixed)
            except (ValueError, IndexError) as error:
                count = len(mixed)
                raise InputError(
                    f"This rule's receive fails on the {count} messages that {senders} gave: {error}."
                ) from error
            if not isinstance(after, type(s)):
                raise InputError(f"A rule's receive must return its {type(s).__name__}, not {type(after).__name__}.")
            return after

        return checked_send, checked_receive

    send, receive = checked(rule.send, rule.receive, "early and send")
    return rule._replace(
        send=send,
        receive=receive,
        then=tuple(Exchange(*checked(*pair, f"then[{number}].send")) for number, pair in enumerate(rule.then)),
        early=rule.early and early,
        points=rule.points and points,
        form=None,
    )


def check_state(state: State, x: Array) -> State:
    """Check that a state is a NamedTuple of arrays like x, the first of which is x."""
    if not (isinstance(state, tuple) and hasattr(state, "_fields") and hasattr(state, "x")):
        raise InputError("A rule's init must return a NamedTuple of arrays with x first.")
    arrays = leaves(state)
    if next(iter(arrays.values())) is not state.x:
        raise InputError("A rule's init must return a NamedTuple of arrays with x first.")
    for number, (name, a) in enumerate(arrays.items()):
        rows = x.shape if number == 0 else (*x.shape[:-1], *tuple(getattr(a, "shape", ()))[-1:])
        if type(a) is not type(x) or a.dtype != x.dtype or tuple(a.shape) != tuple(rows):
            raise InputError(
                f"'{name}' of this rule's state must be an array like x ({tuple(x.shape)}, {x.dtype}), with any width; it is "
                f"{tuple(getattr(a, 'shape', ())) or type(a).__name__}, {getattr(a, 'dtype', None)}."
            )
    return state


def check_sent(sent: Any, state: State) -> tuple[Messages, State]:
    """Check that `send` gave messages and a state."""
    pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], (tuple, list))
    if not pair or hasattr(sent[0], "_fields") or not isinstance(sent[1], type(state)):
        raise InputError("A rule's send must return two things: a tuple of messages, and the state until they arrive.")
    messages, after = sent
    return tuple(messages), after


def explained(error: Any) -> Any:
    """Replace the TypeError of a rule that was made from a number in place of a schedule by an error that says so."""
    if isinstance(error, TypeError) and re.fullmatch(r"'(int|float|numpy\.\w+)' object is not callable", str(error)):
        clear = InputError(
            "This rule calls a number: a schedule is a function of t, such as lambda t: 0.1, or schedules.constant(0.1)."
        )
        clear.__cause__ = error
        return clear
    return error


def check_points(points: Any, x: Array) -> tuple[Array, ...]:
    if not isinstance(points, tuple) or any(getattr(point, "shape", None) != x.shape for point in points) or not points:
        raise InputError(f"A rule's points must return a tuple of arrays of the shape of x, {tuple(x.shape)}.")
    return points


def check_messages(messages: Messages, x: Array) -> Messages:
    """Check that messages have the library and dtype of x, and a row for each of its nodes."""
    for number, message in enumerate(messages):
        if type(message) is not type(x) or message.dtype != x.dtype or message.shape[:-1] != x.shape[:-1]:
            shape = tuple(getattr(message, "shape", ()))
            raise InputError(
                f"Message {number} of this rule is {type(message).__name__} of shape {shape} and dtype "
                f"{getattr(message, 'dtype', None)}; it must be like x: {type(x).__name__} of shape "
                f"{tuple(x.shape[:-1])} and any width, dtype {x.dtype}.{_several(shape, x)}"
            )
    return messages


def check_next(state: State, before: State) -> State:
    """Check that every array of the state has the shape and dtype it had before the step."""
    for (name, a), old in zip(leaves(state).items(), leaves(before).values(), strict=True):
        if type(a) is not type(old) or a.shape != old.shape or a.dtype != old.dtype:
            now_is = f"{tuple(a.shape)}, {a.dtype}" if hasattr(a, "shape") else type(a).__name__
            raise InputError(
                f"After a step {name} of this rule is {now_is}; it must stay {tuple(old.shape)}, {old.dtype}."
                f"{_several(tuple(getattr(a, 'shape', ())), old)}"
            )
    return state


def _several(shape: tuple[int, ...], x: Array) -> str:
    """A hint where schedules that are arrays have added runs."""
    added = len(shape) == len(x.shape) > 2 and shape[1:-1] == tuple(x.shape[1:-1]) and shape[0] != x.shape[0]
    return " For several stepsizes, give a list of rules, or register the rule and give eta as a list." if added else ""
