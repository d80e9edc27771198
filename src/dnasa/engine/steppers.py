"""How a rule's steps are taken: what every stepper offers, and the plain one.

Sequential or overlapped, the iterates are the same, bit for bit; those of a fast path are the same to rounding.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from dnasa.arrays import copied
from dnasa.channels.exchange import exchange, row_bytes
from dnasa.core import Array, Gradients, InputError, Messages, Network, Rule, Snapshot, State, leaves
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
        self.rule = rule
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
        return check_points(self.rule.gradient_points(self.state, t), self.state.x)

    def step(self, gradients: Gradients, t: int) -> None:
        """Take the step. State and memory change only if all of it succeeds; messages count as soon as they are sent."""
        memory, first = dict(self.memory), 0
        self.sent.compute(self.network, len(gradients))

        def mix(messages: Messages, number: int) -> Messages:
            nonlocal first
            check_messages(messages, self.state.x)
            began = now()
            mixed, memory[number] = exchange(self.network, memory.get(number, ()), messages, t, first)
            self.timeline.exchanged(began, t)
            self.sent.add(self.network, row_bytes(self.network, messages, t, first), t)
            first += len(messages)
            return mixed

        state = next_state(self.rule, self.state, tuple(map(copied, gradients)), t, mix)
        self.state, self.memory = check_next(state, self.state), memory


def next_state(
    rule: Rule, state: State, gradients: Gradients, t: int, mix: Callable[[Messages, int], Messages]
) -> State:
    """The state after step t, the definition that every fast path is tested against.

    Args:
        rule: The rule.
        state: The state before the step.
        gradients: The gradients at the rule's points.
        t: The step.
        mix: `mix(messages, number)` gives the messages of exchange `number` as they arrive: multiplied by W.
    """
    early = rule.early_messages(state, t)
    messages, state = sending(rule.send, state, gradients, t)
    state = receiving(rule.receive, state, mix((*early, *messages), 0))
    for number, (send, receive) in enumerate(rule.then, start=1):
        messages, state = sending(send, state, t)
        state = receiving(receive, state, mix(messages, number), f"then[{number - 1}].send")
    return state


# ---------------------------------------------------------------- checks of rules


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


def sending(send: Callable[..., tuple[Messages, State]], state: State, *args: Any) -> tuple[Messages, State]:
    """Call `send`, and check that it returns messages and a state."""
    sent = send(state, *args)
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


def check_messages(messages: Messages, x: Array) -> None:
    """Check that messages have the library and dtype of x, and a row for each of its nodes."""
    for number, message in enumerate(messages):
        if type(message) is not type(x) or message.dtype != x.dtype or message.shape[:-1] != x.shape[:-1]:
            shape = tuple(getattr(message, "shape", ()))
            raise InputError(
                f"Message {number} of this rule is {type(message).__name__} of shape {shape} and dtype "
                f"{getattr(message, 'dtype', None)}; it must be like x: {type(x).__name__} of shape "
                f"{tuple(x.shape[:-1])} and any width, dtype {x.dtype}.{_several(shape, x)}"
            )


def receiving(receive: Callable[..., State], state: State, mixed: Messages, senders: str = "early and send") -> State:
    """Call `receive`, and check that it takes these messages and returns a state."""
    try:
        after = receive(state, mixed)
    except (ValueError, IndexError) as error:
        raise InputError(
            f"This rule's receive fails on the {len(mixed)} messages that {senders} gave: {error}."
        ) from error
    if not isinstance(after, type(state)):
        raise InputError(f"A rule's receive must return its {type(state).__name__}, not {type(after).__name__}.")
    return after


def check_next(state: State, before: State) -> State:
    """Check that every array of the state has the shape and dtype it had before the step."""
    if _same_kinds(state, before):
        return state
    for (name, a), old in zip(leaves(state).items(), leaves(before).values(), strict=True):
        if getattr(a, "shape", None) != old.shape or a.dtype != old.dtype:
            now_is = f"{tuple(a.shape)}, {a.dtype}" if hasattr(a, "shape") else type(a).__name__
            raise InputError(
                f"After a step {name} of this rule is {now_is}; it must stay {tuple(old.shape)}, {old.dtype}."
                f"{_several(tuple(getattr(a, 'shape', ())), old)}"
            )
    return state


def _same_kinds(state: State, before: State) -> bool:
    for a, old in zip(state, before, strict=True):
        if isinstance(old, tuple):
            if not isinstance(a, type(old)) or not _same_kinds(a, old):
                return False
        elif type(a) is not type(old) or a.shape != old.shape or a.dtype != old.dtype:
            return False
    return True


def _several(shape: tuple[int, ...], x: Array) -> str:
    """A hint where schedules that are arrays have added runs."""
    added = len(shape) == len(x.shape) > 2 and shape[1:-1] == tuple(x.shape[1:-1]) and shape[0] != x.shape[0]
    return " For several stepsizes, give a list of rules, or register the rule and give eta as a list." if added else ""
