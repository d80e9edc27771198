"""Checks of what the functions of a rule return, before its first step."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dnasa.checks import UserCode
from dnasa.core import Array, InputError, Messages, Rule, State, leaves
from dnasa.problems.problem import function_name


def check_state(state: State, x: Array) -> State:
    """Check that a state is a NamedTuple of arrays like x, the first of which is x."""
    arrays = leaves(state) if isinstance(state, tuple) and hasattr(state, "_fields") and hasattr(state, "x") else {}
    if not arrays or next(iter(arrays.values())) is not state.x:
        raise InputError("A rule's init must return a NamedTuple of arrays with x first.")
    for name, a in arrays.items():
        if not is_like(a, x) or (a is state.x and a.shape != x.shape):
            raise InputError(f"'{name}' of this rule's state is {kind_of(a)}; it must be like x: {kind_of(x)}, any width.")
    return state


def check_rule(rule: Rule, state: State) -> None:
    """Check a rule in a trial of step 0, with gradients 0 and no neighbors; only the schedules of one with a known form."""
    try:
        if rule.form is not None:
            for schedule in rule.form.schedules:
                schedule(0)
            return
        with np.errstate(all="ignore"):
            after = _trial_step(rule, state)
    except InputError:
        raise
    except Exception as error:
        if re.fullmatch(r"'(int|float|numpy\.\w+)' object is not callable", str(error)):
            raise InputError(
                "This rule calls a number: a schedule is a function of t, such as lambda t: 0.1, or schedules.constant(0.1)."
            ) from error
        error.add_note(f"In {function_name(rule.send)}, eta(t) may be an array: several stepsizes run side by side.")
        raise
    _check_next(after, state)


def _trial_step(rule: Rule, state: State) -> State:
    points = _check_points(rule.gradient_points(state, 0), state.x)
    early = _check_messages(rule.early_messages(state, 0), state.x)
    messages, after = _check_sent(rule.send(state, tuple(0 * point for point in points), 0), state)
    after = _received(rule.receive, after, (*early, *messages))
    for send, receive in rule.then:
        messages, after = _check_sent(send(after, 0), state)
        after = _received(receive, after, messages)
    return after


def _check_points(points: tuple[Array, ...], x: Array) -> tuple[Array, ...]:
    if not isinstance(points, tuple) or not points or any(getattr(p, "shape", None) != x.shape for p in points):
        raise InputError(f"A rule's points must return a tuple of arrays of the shape of x, {tuple(x.shape)}.")
    return points


def _check_sent(sent: Any, state: State) -> tuple[Messages, State]:
    pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], (tuple, list))
    if not pair or hasattr(sent[0], "_fields") or not isinstance(sent[1], type(state)):
        raise InputError("A rule's send must return two things: a tuple of messages, and the state until they arrive.")
    return _check_messages(tuple(sent[0]), state.x), sent[1]


def _check_messages(messages: Messages, x: Array) -> Messages:
    for number, message in enumerate(messages):
        if not is_like(message, x):
            raise InputError(
                f"Message {number} of this rule is {kind_of(message)}; it must be like x: {kind_of(x)}, any width. For several "
                "stepsizes, give a list of rules."
            )
    return messages


def _received(receive: Callable[[State, Messages], State], state: State, messages: Messages) -> State:
    with UserCode(lambda: f"This rule's receive, with the {len(messages)} messages sent,"):
        return receive(state, messages)


def _check_next(state: State, before: State) -> None:
    """Check that every array of the state has the shape and dtype it had before the step."""
    if type(state) is not type(before):
        raise InputError(f"A rule's receive must return its {type(before).__name__}, not {type(state).__name__}.")
    arrays, earlier = leaves(state), leaves(before)
    if [*arrays] != [*earlier]:
        missing = next(name for name in earlier if name not in arrays)
        raise InputError(f"A rule's receive must return an array as {missing}, not a tuple: one message is mixed[0].")
    for (name, a), old in zip(arrays.items(), earlier.values(), strict=True):
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
