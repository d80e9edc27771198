"""What must be known of all training rows before they can be encoded: counts, means, variances, categories and classes.

A node summarizes its own rows, and summaries are merged: means and sums of squared deviations as in Chan, Golub and LeVeque
(1979). So nodes whose rows may not move agree on one encoding, the same as if the rows were in one place.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dnasa.checks import choose
from dnasa.core import InputError
from dnasa.data import columns
from dnasa.data.columns import MISSING, drop_remedy, kind_of, nearly_all_different, to_numbers, to_words
from dnasa.data.encoding import TASKS, Encoding, Feature
from dnasa.data.rows import Rows

MIN_COUNT = 5  # rows: no statistic of fewer leaves a site
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

    @property
    def constant(self) -> bool:
        """Whether all numbers are equal, apart from rounding."""
        return self.squares <= self.n * (1e-10 * self.mean) ** 2

    def merged(self, other: "Moments") -> "Moments":
        n, difference = self.n + other.n, other.mean - self.mean
        if not n:
            return self
        squares = self.squares + other.squares + difference**2 * self.n * other.n / n
        return Moments(n, self.mean + difference * other.n / n, squares)


class Column(NamedTuple):
    """Summary of an input column."""

    name: str
    kind: str
    gaps: bool  # whether values are missing in any row, for training or for testing
    moments: Moments = Moments()
    counts: dict[str, int] = {}  # noqa: RUF012 (rows of each category, and of missing values; never changed)

    @property
    def is_empty(self) -> bool:
        return self.kind == "number" and not self.moments.n

    def merged(self, other: "Column") -> "Column":
        kind = other.kind if self.is_empty else self.kind  # a column without values fits any
        counts = dict(Counter(self.counts) + Counter(other.counts))
        return Column(self.name, kind, self.gaps or other.gaps, self.moments.merged(other.moments), counts)

    def without_rare(self) -> "Column":
        """What may leave the site: no category of few rows, which is encoded as an unknown one, and no mean of few numbers."""
        columns.check_categories(self.name, self.counts, few=MIN_COUNT - 1)
        counts = {word: count for word, count in self.counts.items() if word == MISSING or count >= MIN_COUNT}
        return self._replace(counts=counts, moments=self.moments if self.moments.n >= MIN_COUNT else Moments())

    def feature(self) -> Feature:
        if self.kind == "number" and not self.is_empty:
            return Feature(self.name, "number", self.moments.mean if self.gaps else None)
        categories = {*self.counts, *([MISSING] if self.gaps else [])}
        if self.is_empty or not categories - {MISSING}:
            few = f"in at least {MIN_COUNT} training rows of a site"
            raise InputError(f"Column '{self.name}' has no value {few}: {drop_remedy(self.name)}.")
        columns.check_categories(self.name, self.counts)
        return Feature(self.name, "text", categories=tuple(sorted(categories)))

    def input_moments(self, feature: Feature, rows: int) -> list[Moments]:
        """The moments of a column's inputs: filled gaps add nothing to the squares; flags and categories are 0 or 1."""
        flags = [MISSING] if feature.fill is not None else feature.categories
        shares = [self.counts.get(flag, 0) / rows for flag in flags]
        binary = [Moments(rows, share, rows * share * (1 - share)) for share in shares]
        return [self.moments._replace(n=rows), *binary] if self.kind == "number" else binary


class Target(NamedTuple):
    """Summary of a target column: its distinct values and their counts in the training rows; None for real numbers."""

    name: str = ""
    moments: Moments = Moments()
    values: tuple[Any, ...] | None = None
    counts: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return "text" if any(isinstance(value, str) for value in self.values or ()) else "number"

    @property
    def rows_of_classes(self) -> dict[Any, int]:
        return dict(zip(self.values or (), self.counts, strict=True))

    def merged(self, other: "Target") -> "Target":
        """Merge with a target of the same kind (`agreement.aligned`)."""
        moments = self.moments.merged(other.moments)
        if self.values is None or other.values is None:
            return Target(self.name, moments)
        rows = Counter(self.rows_of_classes)
        rows.update(other.rows_of_classes)
        values = tuple(sorted(rows))
        return Target(self.name, moments, values, tuple(rows[value] for value in values))


class Summary(NamedTuple):
    """Summary of the training rows of a node, or of all nodes."""

    rows: int = 0
    shape: tuple[int, ...] = ()  # of one row of inputs
    columns: tuple[Column, ...] = ()
    array: Moments | None = None  # of standardized inputs with more than two axes
    target: Target = Target()
    tests: int = 0  # how many test rows there are
    absent: tuple[str, ...] = ()  # columns that were to be left out and are not there
    site: str = ""  # the name of the node's file or folder

    def merged(self, other: "Summary") -> "Summary":
        """Merge with the summary of rows that have the same columns in the same order (`agreement.aligned`)."""
        return Summary(
            self.rows + other.rows,
            self.shape,
            tuple(one.merged(two) for one, two in zip(self.columns, other.columns, strict=True)),
            self.array.merged(other.array) if self.array and other.array else None,
            self.target.merged(other.target),
            self.tests + other.tests,
        )

    def to_send(self, site: str) -> "Summary":
        """What leaves the site of this name."""
        if self.rows < MIN_COUNT:
            raise InputError(f"There are {self.rows} training rows: a site needs at least {MIN_COUNT}.")
        return self._replace(columns=tuple(column.without_rare() for column in self.columns), site=site)

    @classmethod
    def from_json(cls, entries: Any) -> "Summary":
        """Rebuild a summary that another process sent, in which tuples became lists."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(entries)


def check_columns(rows: Rows) -> None:
    """Refuse columns that cannot be inputs, and rows without a label."""
    for name in rows.features:
        column = rows.inputs[name]
        if kind_of(name, column) == "number":
            to_numbers(name, column, allow_missing=True)
        else:
            columns.check_text(name, column)
    check_labels(rows.labels)


def check_labels(labels: pd.Series) -> None:
    missing = labels.isna().to_numpy()
    if missing.any():
        first = columns.first_row(labels, missing)
        raise InputError(f"Column '{labels.name}' has rows without a label, first {first}: fill or drop them.")


def summarize(train: Rows, test: Rows, task: str | None) -> Summary:
    """Summarize training rows; the test rows add only missing values and classes."""
    if task is not None:
        choose("task", task, dict.fromkeys(TASKS))
    features = tuple(_summarize_column(name, train.column(name), test.column(name)) for name in train.features)
    array = None if features or train.inputs.dtype == np.uint8 else Moments.of(train.inputs)
    target = _summarize_target(train.labels, test.labels, task)
    shape = tuple(train.inputs.shape[1:])
    return Summary(len(train.labels), shape, features, array, target, len(test.labels), train.absent)


def _summarize_column(name: str, train: pd.Series, test: pd.Series) -> Column:
    gaps = bool(train.isna().any() or test.isna().any())
    if kind_of(name, train) == "number":
        values = to_numbers(name, train, allow_missing=True)
        present = values[~np.isnan(values)]
        return Column(name, "number", gaps, Moments.of(present), {MISSING: len(values) - len(present)} if gaps else {})
    counts = dict(Counter(to_words(train).tolist()))
    columns.check_categories(name, counts)
    return Column(name, "text", gaps, counts=counts)


def _summarize_target(train: pd.Series, test: pd.Series, task: str | None) -> Target:
    """All different values, and how often each is in the training rows; a node by itself may have few rows of each class."""
    name, rows = str(train.name), len(train) + len(test)
    is_text = kind_of(name, train) == "text"
    if is_text and task == "regression":
        raise InputError(f"Column '{name}' holds text: a regression needs numbers.")
    if is_text:
        both = [to_words(column).astype(str) for column in (train, test)]
        moments = Moments(len(train))
    else:
        both = [to_numbers(name, column) for column in (train, test)]
        moments = Moments.of(both[0])
    values, places = np.unique(np.concatenate(both), return_inverse=True)
    all_different = nearly_all_different(len(values), rows)
    looks_real = not is_text and are_real(values, len(train) if all_different else np.inf)
    if task == "regression" or (task is None and looks_real):
        return Target(name, moments)
    if all_different or (is_text and len(values) > MOST_CLASSES):
        raise InputError(
            f"Column '{name}' has {len(values):,} different values in {rows:,} rows, too many for classes: give another "
            "--target, or for numbers --task regression.",
            columns.IDENTIFIERS,
        )
    counts = np.bincount(places[: len(train)], minlength=len(values))
    booleans = train.dtype.kind == "b"
    classes = tuple(_class_name(value, booleans) for value in values.tolist())
    return Target(name, moments, classes, tuple(counts.tolist()))


def _class_name(value: Any, boolean: bool) -> Any:
    """A class as the user wrote it: NumPy made all numbers real."""
    if boolean:
        return bool(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def are_real(values: np.ndarray, rows: float = np.inf) -> bool:
    """Whether numbers are a regression's target by themselves: many values, or many with a fraction or few rows each."""
    if (values % 1 != 0).any():
        return len(values) > MOST_FRACTIONS
    return len(values) > (RARE_CLASSES if rows < RARE * len(values) else MOST_CLASSES)


def make_encoding(total: Summary, task: str | None = None) -> Encoding:
    """What all nodes agree on, from the summary of all training rows."""
    target, moments = total.target, total.target.moments
    task = task or _likely_task(target)
    features = tuple(column.feature() for column in total.columns)
    shape = (sum(len(feature.inputs) for feature in features),) if features else total.shape
    classes = target.values or ()
    is_constant = len(classes) < 2 if task == "classification" else moments.constant
    if is_constant:
        raise InputError("All labels are the same: there is nothing to learn.")
    mean, scale = _scaling(total, features)
    encoding = Encoding(task, features, shape, target.name, mean=mean, scale=scale)
    if task == "classification":
        return encoding._replace(classes=classes)
    return encoding._replace(target_mean=np.array([moments.mean]), target_scale=np.array([moments.deviation]))


def _likely_task(target: Target) -> str:
    if target.values is None or (target.kind == "number" and are_real(np.array(target.values, float), target.moments.n)):
        return "regression"
    return "classification"


def _scaling(total: Summary, features: Sequence[Feature]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Mean and deviation of every input; one of both for arrays of more axes; none for images of bytes."""
    pairs = zip(total.columns, features, strict=True)
    inputs = [moments for column, feature in pairs for moments in column.input_moments(feature, total.rows)]
    if total.array:
        inputs = [total.array]
    if not inputs:
        return None, None
    mean = np.array([moments.mean for moments in inputs])
    scale = np.array([1.0 if moments.constant else moments.deviation for moments in inputs])
    return (mean, scale) if features else (mean.squeeze(), scale.squeeze())
