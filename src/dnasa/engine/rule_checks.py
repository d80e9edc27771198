"""Checks of what the functions of a rule return: engines make them in its first step."""

import re
from collections.abc import Callable
from typing import Any

from dnasa.checks import UserCode
from dnasa.core import Array, Exchange, InputError, Messages, Rule, State, leaves

Send = Callable[..., tuple[Messages, State]]
Receive = Callable[[State, Messages], State]


def with_checks(rule: Rule) -> Rule:
    """The rule with a check of what its functions return. Engines use it in the first step, which ends with `check_next`."""

    def early(s: State, t: int) -> Messages:
        return check_messages(rule.early_messages(s, t), s.x)

    def points(s: State, t: int) -> tuple[Array, ...]:
        wanted = rule.gradient_points(s, t)
        if not isinstance(wanted, tuple) or not wanted or any(getattr(p, "shape", None) != s.x.shape for p in wanted):
            raise InputError(f"A rule's points must return a tuple of arrays of the shape of x, {tuple(s.x.shape)}.")
        return wanted

    return rule._replace(
        send=_checked_send(rule.send),
        receive=_checked_receive(rule.receive),
        then=tuple(Exchange(_checked_send(send), _checked_receive(receive)) for send, receive in rule.then),
        early=rule.early and early,
        points=rule.points and points,
        form=None,
    )


def _checked_send(send: Send) -> Send:
    def checked(s: State, *args: Any) -> tuple[Messages, State]:
        sent = send(s, *args)
        pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], (tuple, list))
        if not pair or hasattr(sent[0], "_fields") or not isinstance(sent[1], type(s)):
            raise InputError("A rule's send must return two things: a tuple of messages, and the state until they arrive.")
        return check_messages(tuple(sent[0]), s.x), sent[1]

    return checked


def _checked_receive(receive: Receive) -> Receive:
    def checked(s: State, mixed: Messages) -> State:
        with UserCode(lambda: f"This rule's receive, with the {len(mixed)} messages sent,"):
            return receive(s, mixed)

    return checked


def check_state(state: State, x: Array) -> State:
    """Check that a state is a NamedTuple of arrays like x, the first of which is x."""
    arrays = leaves(state) if isinstance(state, tuple) and hasattr(state, "_fields") and hasattr(state, "x") else {}
    if not arrays or next(iter(arrays.values())) is not state.x:
        raise InputError("A rule's init must return a NamedTuple of arrays with x first.")
    for name, a in arrays.items():
        if not is_like(a, x) or (a is state.x and a.shape != x.shape):
            raise InputError(f"'{name}' of this rule's state is {kind_of(a)}; it must be like x: {kind_of(x)}, any width.")
    return state


def check_messages(messages: Messages, x: Array) -> Messages:
    for number, message in enumerate(messages):
        if not is_like(message, x):
            raise InputError(
                f"Message {number} of this rule is {kind_of(message)}; it must be like x: {kind_of(x)}, any width. For several "
                "stepsizes, give a list of rules."
            )
    return messages


def check_next(state: State, before: State) -> None:
    """Check that every array of the state has the shape and dtype it had before the step."""
    if type(state) is not type(before):
        raise InputError(f"A rule's receive must return its {type(before).__name__}, not {type(state).__name__}.")
    for (name, a), old in zip(leaves(state).items(), leaves(before).values(), strict=True):
        if not is_like(a, old) or a.shape != old.shape:
            raise InputError(
                f"After a step {name} of this rule is {kind_of(a)}; it must stay {kind_of(old)}. For several stepsizes, give a "
                "list of rules."
            )


def is_like(a: Any, x: Array) -> bool:
    """Whether an array has the library and dtype of x, and a row for each of its nodes."""
    return type(a) is type(x) and a.dtype == x.dtype and a.shape[:-1] == x.shape[:-1]


def kind_of(a: Any) -> str:
    shape = f" of shape {tuple(a.shape)} and {a.dtype}" if hasattr(a, "shape") else ""
    return f"{type(a).__name__}{shape}"


def explained(error: Exception) -> Exception:
    """Replace the TypeError of a rule that was made from a number in place of a schedule by an error that says so."""
    if isinstance(error, TypeError) and re.fullmatch(r"'(int|float|numpy\.\w+)' object is not callable", str(error)):
        clear = InputError(
            "This rule calls a number: a schedule is a function of t, such as lambda t: 0.1, or schedules.constant(0.1)."
        )
        clear.__cause__ = error
        return clear
    return error
