"""Checks of what users give, and errors in their functions, as one line with the remedy."""

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from traceback import walk_stack
from typing import Any, TypeVar

import numpy as np

from dnasa.core import InputError, RunError

T = TypeVar("T")
WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "extra_forbidden": "is not known",
    "finite_number": "must be finite",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:,}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_type": "must be a table",
    "string_type": "must be text in quotes",
    "string_too_long": "must have at most {max_length} letters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
}


def name_user_code(error: BaseException | None, what: Callable[[], str]) -> None:
    """Raise an exception of a user's function again as one line that names the function, with the exception as its cause."""
    if isinstance(error, Exception) and not isinstance(error, (InputError, RunError, MemoryError)):
        text = ": ".join(filter(None, (type(error).__name__, str(error).rstrip("."))))
        raise InputError(f"{what()} raised {text}.") from error


class UserCode:
    """Wrap a call of the user's function with `name_user_code`; a call in every step has `try` instead, which costs nothing."""

    def __init__(self, what: Callable[[], str]):
        self.what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        name_user_code(error, self.what)


def warn(text: str) -> None:
    """Warn at the line of the user's code that led here."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe())]
    own = max(i for i, name in enumerate(names) if name.startswith("dnasa."))
    warnings.warn(text, stacklevel=own + 2)


def first_line(error: BaseException) -> str:
    """The first line of an error's message without its full stop; the kind of error if it has no message."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def nodes_text(nodes: Sequence[int]) -> str:
    """These consecutive nodes, in words."""
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]}"


def counted(count: int, what: str) -> str:
    """So many of a thing, in words: 1 row, 2,000 rows."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def digits(value: float, count: int) -> str:
    """A number with so many digits: 1,060 rather than 1.06e+03."""
    return f"{float(f'{value:.{count}g}'):,.15g}"


def whole(name: str, value: Any, low: int = 1, high: int = 2**62) -> int:
    """Refuse anything but a whole number in that range."""
    try:
        number = int(value)
        exact = not isinstance(value, bool) and number == value
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or not low <= number <= high:
        wanted = "a positive whole number" if low == 1 else f"a whole number from {low} on"
        raise InputError(f"{name} must be {wanted}, not {_quoted(value)}.")
    return number


def as_list(value: Any) -> list[Any]:
    """A list of the values: one thing becomes a list of one."""
    return [value] if value is None or isinstance(value, str) or callable(value) or np.ndim(value) == 0 else list(value)


def distinct(kind: str, values: list[T], how: str = "") -> list[T]:
    """Refuse the same value twice: its runs could not be told apart."""
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise InputError(f"The {kind} {repeated[0]} is given twice{how}: give each {kind} once.")
    return values


def seed_list(seed: int | Sequence[int]) -> list[int]:
    """The seeds of the runs, one or several."""
    seeds = distinct("seed", [whole("A seed", s, low=0) for s in as_list(seed)])
    if not seeds:
        raise InputError("No seed given: give one, or several as a list.")
    return seeds


def choose(kind: str, name: str, known: Any, place: str = "") -> Any:
    """The value of that name, or an error that lists the known names; `place` follows it, as in " for dsgd"."""
    if name not in known:
        raise InputError(f"Unknown {kind} '{name}'{place}. Choose from: {', '.join(known)}.{suggestion(name, known)}")
    return known[name]


def suggestion(name: Any, known: Iterable[Any]) -> str:
    """A sentence with the known name that this one resembles; empty if there is none."""
    close = get_close_matches(str(name).lower(), map(str, known), 1)
    return f" Did you mean {close[0]}?" if close else ""


def first_mistake(error: Any) -> Any:
    """The first of pydantic's errors; unknown keys precede those that are missing."""
    return min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")


def in_words(error: Mapping[str, Any]) -> str:
    """What an error of pydantic says about a value, such as "must be a whole number"."""
    words = WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    return words.format_map(error.get("ctx", {}))


def check_new_name(kind: str, name: Any, built_in: Collection[str]) -> None:
    """Refuse a name under which nothing can be registered."""
    if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
        raise InputError(f"A {kind}'s name consists of letters, digits, - and _; '{name}' does not.")
    if name in built_in:
        raise InputError(f"'{name}' is a built-in {kind}: choose another name.")


def positive(name: str, value: Any) -> None:
    """Refuse anything but a finite positive number."""
    try:
        good = not isinstance(value, str) and 0 < float(value) < float("inf")
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{name} must be a positive number, not {_quoted(value)}.")


def _quoted(value: Any) -> Any:
    """Quote text: '0.1' is not a number."""
    return repr(value) if isinstance(value, str) else value
