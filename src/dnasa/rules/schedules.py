"""Stepsizes: functions of the step t = 0, 1, 2, ...

`n` is the number of nodes, `T` the number of steps, `eta` the factor of the stepsize. None of D-NASA's depends on the
smoothness, the noise or the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import cos, pi, sqrt
from typing import Any

import numpy as np

from dnasa.arrays import like
from dnasa.checks import name_user_code
from dnasa.core import Array, InputError, Schedule

__all__ = [
    "adanasa",
    "adanasa_averaged",
    "averaging",
    "constant",
    "cosine",
    "diminishing",
    "fixed",
    "linear",
    "moments",
    "root_decay",
    "root_fixed",
    "warm_up",
]


def constant(value: Array) -> Schedule:
    """The same at every step."""
    return lambda t: value


def diminishing(n: int) -> tuple[Schedule, Schedule]:
    """D-NASA's default (Theorem 4.3): eta = n^(1/4) / t^(3/4) and alpha = min(1, sqrt(n/t)), both 0 at t = 0."""
    return lambda t: n**0.25 / t**0.75 if t else 0.0, lambda t: min(1.0, sqrt(n / t)) if t else 0.0


def fixed(n: int, T: int) -> tuple[Schedule, Schedule]:
    """D-NASA when the number of steps is known (Theorem 4.2): eta = n^(1/4) / T^(3/4), alpha = min(1, sqrt(n/T))."""
    return constant(n**0.25 / T**0.75), constant(min(1.0, sqrt(n / T)))


def root_decay(eta: float, n: int) -> Schedule:
    """eta sqrt(n / (t+1)): how the paper runs D-SGD, D2, D-SGT and D-ASAGT."""
    return lambda t: eta * sqrt(n / (t + 1))


def root_fixed(eta: float, n: int, T: int) -> Schedule:
    """eta sqrt(n / T) at every step."""
    return constant(eta * sqrt(n / T))


def cosine(eta: float, T: int) -> Schedule:
    """eta (1 + cos(pi t / T)) / 2, from eta to 0 at t = T and after, with a linear warm-up in the first tenth."""
    return lambda t: eta * warm_up(t, T / 10) * (1 + cos(pi * min(t, T) / T)) / 2


def linear(eta: float, T: int) -> Schedule:
    """Up to eta in a straight line over two fifths of the steps, then down to 0 at t = T; 0 after it."""
    return lambda t: eta * min(warm_up(t, 0.4 * T), (T - min(t, T)) / (0.6 * T))


def warm_up(t: int, length: float) -> float:
    """From 0 to 1 in a straight line over so many steps, then 1."""
    return min(1.0, (t + 1) / length)


def averaging(n: int) -> Schedule:
    """D-ASAGT's moving average: min(sqrt(n / (t+1)), 0.3)."""
    return lambda t: min(sqrt(n / (t + 1)), 0.3)


def adanasa(n: int, T: int) -> tuple[Schedule, ...]:
    """AdaNASA when the number of steps is known: `linear` up to 0.4 sqrt(n), and the weights of `moments`."""
    return linear(0.4 * sqrt(n), T), *moments()


def adanasa_averaged(n: int) -> tuple[Schedule, ...]:
    """AdaNASA when it is not: 0.4 sqrt(n) at step 100, then decaying as 1/sqrt(t); the answer is an average of the iterates."""
    return lambda t: 0.4 * sqrt(n) * min((t + 1) / 100, 10 / sqrt(t + 1)), *moments(), lambda t: 9 / (t + 9)


def moments() -> tuple[Schedule, Schedule]:
    """Weights of Adam's moving averages; at the start plain averages of what there is, so that there is no bias."""
    return lambda t: max(0.1, 1 / (t + 1)), lambda t: min(0.999, 1 - 1 / (t + 1))


@dataclass(frozen=True)
class ScheduleSpec:
    """What a rule's maker is called with: `make(n, T, eta)` gives the schedules for n nodes, T steps and the stepsize eta.

    `formula` is the stepsize at step t, for tables and help texts. `needs_steps` says whether the schedules depend on T; None:
    not declared. Where T is not known it is None, and schedules that compute with it are refused. `ends`: 0 from step T on.
    """

    make: Callable[[int, Any, Any], tuple[Schedule, ...]]
    formula: str = ""
    needs_steps: bool | None = False
    ends: bool = False

    def __call__(self, n: int, T: Any, eta: Any) -> tuple[Schedule, ...]:
        return self.make(n, T, eta)


ETA = {
    "diminishing": ScheduleSpec(lambda n, T, eta: (root_decay(eta, n),), "eta sqrt(n/(t+1))"),
    "fixed": ScheduleSpec(lambda n, T, eta: (root_fixed(eta, n, T),), "eta sqrt(n/T)", needs_steps=True),
    "constant": ScheduleSpec(lambda n, T, eta: (constant(eta),), "eta"),
    "cosine": ScheduleSpec(
        lambda n, T, eta: (cosine(eta, T),), "eta min(1, 10(t+1)/T) (1 + cos(pi t/T))/2", needs_steps=True, ends=True
    ),
}
COSINE_FIRST = {"cosine": ETA["cosine"]} | ETA


def with_second(specs: dict[str, ScheduleSpec], second: Callable[[int], Schedule]) -> dict[str, ScheduleSpec]:
    """For rules with a second schedule, which depends on n alone."""

    def both(spec: ScheduleSpec) -> ScheduleSpec:
        return replace(spec, make=lambda n, T, eta: (*spec(n, T, eta), second(n)))

    return {name: both(spec) for name, spec in specs.items()}


def side_by_side(schedules: Sequence[Schedule], x: Array, steps: int = 2**62) -> Schedule:
    """Several schedules as one whose value has shape (variants, 1, 1, 1) and the kind of x: a sweep in one array.

    The values of a single schedule remain numbers, which cost less than arrays of one.

    Values are tabulated a thousand steps at a time, so that a GPU receives one copy per thousand steps, but not beyond the
    last of the `steps`: a schedule need not have a value there.
    """
    if len(schedules) == 1:
        return lru_cache(maxsize=1)(lambda t: _number(schedules[0], min(t, steps - 1)))
    length = 1024
    tables: dict[int, Array] = {}

    def table(block: int) -> Array:
        rows = [[_number(schedule, t) for schedule in schedules] for t in range(block * length, steps)[:length]]
        values = np.array(rows, dtype=np.float64).reshape(len(rows), -1, 1, 1, 1)
        return like(values, x)

    @lru_cache(maxsize=1)  # a rule may call it twice in a step
    def value(t: int) -> Array:
        block, row = divmod(min(t, steps - 1), length)  # hidden exchanges begin a step that is never completed
        if block not in tables:
            tables.clear()
            tables[block] = table(block)
        return tables[block][row]

    return value


def _number(schedule: Schedule, t: int) -> float:
    try:
        value = schedule(t)
    except Exception as error:
        name_user_code(error, lambda: f"The stepsize at step {t}")
        raise
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"The stepsize at step {t} is {value!r:.40}: the function must return a number.") from None
