"""What must be known of all training rows before they can be encoded: counts, means, variances, categories and classes.

A node summarises its own rows, and summaries are merged: means and sums of squared deviations as in Chan, Golub and LeVeque
(1979). So nodes whose rows may not move agree on one encoding, the same as if the rows were in one place.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError, choose
from dnasa.data.columns import (
    IDENTIFIERS,
    MISSING,
    as_words,
    check_categories,
    check_text,
    kind_of,
    leave_out,
    nearly_all_different,
    numbers,
    place_of,
)
from dnasa.data.encoding import TASKS, Encoding, Feature

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.data.rows import Rows

MIN_COUNT = 5  # rows: nothing that is said of fewer leaves a site
MOST_CLASSES = 1000  # whole numbers with more values are a regression's target
RARE_CLASSES, RARE = 100, 5  # also a regression's target: more than 100 values with fewer than 5 rows each
MOST_FRACTIONS = 20  # numbers with a fraction and more values are a regression's target


class Moments(NamedTuple):
    """How many numbers, their mean, and the sum of their squared deviations from it."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        if not values.size:
            return cls()
        mean = float(values.mean(dtype=np.float64))
        return cls(values.size, mean, float(values.var(dtype=np.float64)) * values.size)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.squares / self.n)) if self.n else 0.0

    def merged(self, other: "Moments") -> "Moments":
        count, difference = self.n + other.n, other.mean - self.mean
        if not count:
            return self
        mean = self.mean + difference * other.n / count
        return Moments(count, mean, self.squares + other.squares + difference**2 * self.n * other.n / count)


class Column(NamedTuple):
    """Summary of an input column: `gaps` is whether values are missing in any row, `counts` are those of text categories."""

    name: str
    kind: str
    gaps: bool
    moments: Moments = Moments()
    counts: dict[str, int] = {}  # noqa: RUF012 (never changed)

    def merged(self, other: "Column") -> "Column":
        empty = [column for column in (self, other) if column.kind == "number" and not column.moments.n]
        if self.kind != other.kind and empty:
            full = other if empty[0] is self else self
            gaps = sum((column.counts.get(MISSING, 0) for column in (self, other)), 0)
            return full._replace(gaps=True, counts=full.counts | {MISSING: gaps})
        counts = {
            name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in {**self.counts, **other.counts}
        }
        return Column(self.name, self.kind, self.gaps or other.gaps, self.moments.merged(other.moments), counts)

    def without_rare(self) -> "Column":
        """What may leave the site: no category of few rows, which is encoded as an unknown one, and no mean of few numbers."""
        check_categories(self.name, self.counts, few=MIN_COUNT - 1)
        counts = {word: count for word, count in self.counts.items() if word == MISSING or count >= MIN_COUNT}
        return self._replace(counts=counts, moments=self.moments if self.moments.n >= MIN_COUNT else Moments())


class Target(NamedTuple):
    """Summary of a target column: its distinct values and their counts in the training rows; None for real numbers."""

    name: str
    moments: Moments
    values: tuple[Any, ...] | None
    counts: tuple[int, ...] = ()

    def merged(self, other: "Target") -> "Target":
        moments = self.moments.merged(other.moments)
        if self.values is None or other.values is None:
            return Target(self.name, moments, None)
        every = (*self.values, *other.values)
        words, counts = any(isinstance(value, str) for value in every), Counter[Any]()
        for value, count in zip(every, (*self.counts, *other.counts), strict=True):
            counts[str(value) if words else value] += count
        values = tuple(sorted(counts))  # text if some are
        return Target(self.name, moments, values, tuple(counts[value] for value in values))


class Summary(NamedTuple):
    """Summary of training rows: `array` for standardized inputs of more than two axes, `tests` counts the test rows.

    `absent` are columns that were to be left out and are not there, `site` is the name of the node's file or folder.
    """

    rows: int = 0
    shape: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    array: Moments | None = None
    targets: tuple[Target, ...] = ()
    tests: int = 0
    absent: tuple[str, ...] = ()
    site: str = ""

    def merged(self, other: "Summary") -> "Summary":
        """Merge with the summary of rows that have the same columns in the same order (`agreement.aligned`)."""
        pairs, targets = zip(self.columns, other.columns, strict=True), zip(self.targets, other.targets, strict=True)
        array = self.array.merged(other.array) if self.array and other.array else None
        return Summary(
            self.rows + other.rows,
            self.shape,
            tuple(one.merged(two) for one, two in pairs),
            array,
            tuple(one.merged(two) for one, two in targets),
            self.tests + other.tests,
        )

    def to_send(self, site: str) -> "Summary":
        """What leaves the site of this name."""
        if self.rows < MIN_COUNT:
            raise InputError(f"There are {self.rows} training rows: a site needs at least {MIN_COUNT}.")
        return self._replace(columns=tuple(column.without_rare() for column in self.columns), site=site)

    @classmethod
    def from_json(cls, d: Any) -> "Summary":
        """Rebuild a summary that another process sent, in which tuples became lists."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(d)


# ---------------------------------------------------------------- of rows


def summarise(rows: "Rows", train: np.ndarray, test: "Rows", test_picked: np.ndarray, task: str | None) -> Summary:
    """Summarise the rows `train`; the test rows add only missing values and classes."""
    columns: tuple[Column, ...] = ()
    array = None
    if task is not None:
        choose("task", task, dict.fromkeys(TASKS))
    if rows.features:
        columns = tuple(_column(name, rows.column(name), train, test.column(name)) for name in rows.features)
    elif rows.inputs.dtype != np.uint8:
        array = Moments.of(rows.inputs[train])
    targets = []
    for name in rows.targets:
        column, tested = rows.targets[name], test.targets[name]
        _check_labels(str(name), column, tested)
        targets.append(_target(str(name), column.iloc[train], tested.iloc[test_picked], task))
    return Summary(
        len(train), tuple(rows.inputs.shape[1:]), columns, array, tuple(targets), len(test_picked), rows.absent
    )


def _column(name: str, column: "pd.Series", train: np.ndarray, tested: "pd.Series") -> Column:
    kind, gaps = kind_of(name, column), bool(column.isna().any() or tested.isna().any())
    if kind == "number":
        values = numbers(name, column, missing=True)[train]
        known = values[~np.isnan(values)] if gaps else values
        return Column(name, kind, gaps, Moments.of(known), {MISSING: len(values) - len(known)} if gaps else {})
    check_text(name, column)
    counts = Counter(as_words(column.iloc[train]).astype(str).tolist())
    check_categories(name, counts)
    return Column(name, kind, gaps, counts=dict(counts))


def _check_labels(name: str, *columns: "pd.Series") -> None:
    for column in columns:
        if column.isna().any():
            first = place_of(column, int(np.argmax(column.isna().to_numpy())))
            raise InputError(
                f"Column '{name}' has rows without a label (the first is {first}): fill them or drop them. A line with too "
                "few values has none at its end."
            )


def _target(name: str, column: "pd.Series", tested: "pd.Series", task: str | None) -> Target:
    if kind_of(name, column) == "text":
        words, counts = _counted(as_words(column).astype(str), as_words(tested).astype(str))
        if task == "regression":
            raise InputError(f"Column '{name}' holds text, such as '{words[0]:.30}': a regression needs numbers.")
        _check_classes(name, len(words), len(column) + len(tested), MOST_CLASSES)
        return Target(name, Moments(len(column)), tuple(words.tolist()), counts)
    values = numbers(name, column)
    different, counts = _counted(values, numbers(name, tested))
    rows = len(column) if nearly_all_different(len(different), len(column) + len(tested)) else np.inf
    if task == "regression" or (task is None and are_real(different, rows)):
        return Target(name, Moments.of(values), None)
    _check_classes(name, len(different), len(column) + len(tested))
    booleans = column.dtype.kind == "b"
    return Target(name, Moments.of(values), tuple(_plain(value, booleans) for value in different.tolist()), counts)


def _check_classes(name: str, different: int, rows: int, most: float = np.inf) -> None:
    if different > most or nearly_all_different(different, rows):
        raise InputError(
            f"Column '{name}' has {different:,} different values in {rows:,} rows, too many for classes: give another "
            "--target, or for numbers --task regression.",
            IDENTIFIERS,
        )


def _counted(trained: np.ndarray, tested: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """All different values, and how often each is in the training rows."""
    values, places = np.unique(np.concatenate([trained, tested]), return_inverse=True)
    return values, tuple(np.bincount(places[: len(trained)], minlength=len(values)).tolist())


def are_real(different: np.ndarray, rows: float = np.inf) -> bool:
    """Whether numbers are a regression's target by themselves: many values, or many with a fraction or few rows each.

    A node by itself counts rows only if nearly all values are different: it may have few of each class.
    """
    if (different % 1 != 0).any():
        return len(different) > MOST_FRACTIONS
    return len(different) > (RARE_CLASSES if rows < RARE * len(different) else MOST_CLASSES)


def _plain(value: float, boolean: bool) -> Any:
    return bool(value) if boolean else int(value) if value.is_integer() else value


# ---------------------------------------------------------------- the encoding


def make_encoding(total: Summary, task: str | None = None, standardise: bool = True) -> Encoding:
    """What all nodes agree on, from the summary of all training rows."""
    task = _task(total.targets, task)
    features = tuple(_feature(column) for column in total.columns)
    shape = (sum(len(feature.inputs) for feature in features),) if features else total.shape
    mean, scale = _scaling(total, features) if standardise else (None, None)
    target, classes = tuple(target.name for target in total.targets), total.targets[0].values or ()
    if task == "classification" and len(classes) < 2:
        raise InputError("All labels are the same: there is nothing to learn.")
    encoding = Encoding(task, features, shape, target, classes if task == "classification" else (), mean, scale)
    if task != "regression":
        return encoding
    moments = total.targets[0].moments
    if constant(moments):
        raise InputError("All targets are the same: there is nothing to learn.")
    return encoding._replace(target_mean=np.array([moments.mean]), target_scale=np.array([moments.deviation]))


def _task(targets: Sequence[Target], task: str | None) -> str:
    if len(targets) > 1 and task not in (None, "multilabel"):
        raise InputError(f"A {task} has one target, not {len(targets)}: give one --target, or --task multilabel.")
    if len(targets) == 1 and task != "multilabel":
        values, rows = targets[0].values, targets[0].moments.n
        real = values is None or (task is None and are_real(_numeric(values), rows))
        return task or ("regression" if real else "classification")
    for target in targets:
        if target.values is None or not set(target.values) <= {0, 1}:
            raise InputError(f"Column '{target.name}' is one of several labels: it must hold 0 and 1 only.")
    return "multilabel"


def _numeric(values: Sequence[Any]) -> np.ndarray:
    return np.zeros(0) if any(isinstance(value, str) for value in values) else np.array(values, np.float64)


def _feature(column: Column) -> Feature:
    if column.kind == "text":
        check_categories(column.name, column.counts)
        names = set(column.counts) | ({MISSING} if column.gaps else set())
        if not names - {MISSING}:
            raise InputError(
                f"Column '{column.name}' has no text in at least {MIN_COUNT} rows of a site: {leave_out(column.name)}."
            )
        return Feature(column.name, "text", categories=tuple(sorted(names)))
    if not column.moments.n:
        raise InputError(f"Column '{column.name}' has no values in the training rows: {leave_out(column.name)}.")
    return Feature(column.name, "number", column.moments.mean if column.gaps else None)


def _scaling(total: Summary, features: Sequence[Feature]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Mean and deviation of every input; one of both for arrays of more axes; none for images of bytes."""
    if not features:
        each = [total.array] if total.array else []
    else:
        columns = zip(total.columns, features, strict=True)
        each = [moments for column, feature in columns for moments in _input_moments(column, feature, total.rows)]
    if not each:
        return None, None
    mean = np.array([moments.mean for moments in each])
    scale = np.array([1.0 if constant(moments) else moments.deviation for moments in each])
    return (mean, scale) if features else (mean[0], scale[0])


def _input_moments(column: Column, feature: Feature, rows: int) -> list[Moments]:
    """The moments of a column's inputs: filled gaps add nothing to the squares; flags and categories are 0 or 1."""
    flags = [*([MISSING] if feature.fill is not None else []), *feature.categories]
    shares = [column.counts.get(flag, 0) / rows for flag in flags]
    ones = [Moments(rows, share, rows * share * (1 - share)) for share in shares]
    return [column.moments._replace(n=rows), *ones] if column.kind == "number" else ones


def constant(moments: Moments) -> bool:
    """Whether all numbers are equal, apart from rounding."""
    return moments.squares <= moments.n * (1e-10 * moments.mean) ** 2
