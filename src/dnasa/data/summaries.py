"""What must be known of all training rows before they can be encoded: counts, means, variances, categories and classes.

A node summarizes its own rows, and summaries are merged: means and sums of squared deviations as in Chan, Golub and LeVeque
(1979). So nodes whose rows may not move agree on one encoding, the same as if the rows were in one place.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.checks import choose
from dnasa.core import InputError
from dnasa.data import columns
from dnasa.data.columns import MISSING, as_words, kind_of, leave_out, nearly_all_different, numbers
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

    @property
    def constant(self) -> bool:
        """Whether all numbers are equal, apart from rounding."""
        return self.squares <= self.n * (1e-10 * self.mean) ** 2

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
        if self.kind == "number" and self.moments.n:
            return Feature(self.name, "number", self.moments.mean if self.gaps else None)
        words = {*self.counts, *([MISSING] if self.gaps else [])}
        if self.kind == "number" or not words - {MISSING}:
            few = f"in at least {MIN_COUNT} training rows of a site"
            raise InputError(f"Column '{self.name}' has no value {few}: {leave_out(self.name)}.")
        columns.check_categories(self.name, self.counts)
        return Feature(self.name, "text", categories=tuple(sorted(words)))

    def inputs(self, feature: Feature, rows: int) -> list[Moments]:
        """The moments of a column's inputs: filled gaps add nothing to the squares; flags and categories are 0 or 1."""
        flags = [*([MISSING] if feature.fill is not None else []), *feature.categories]
        shares = [self.counts.get(flag, 0) / rows for flag in flags]
        ones = [Moments(rows, share, rows * share * (1 - share)) for share in shares]
        return [self.moments._replace(n=rows), *ones] if self.kind == "number" else ones


class Target(NamedTuple):
    """Summary of a target column: its distinct values and their counts in the training rows; None for real numbers."""

    name: str = ""
    moments: Moments = Moments()
    values: tuple[Any, ...] | None = None
    counts: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return "text" if any(isinstance(value, str) for value in self.values or ()) else "number"

    def merged(self, other: "Target") -> "Target":
        moments = self.moments.merged(other.moments)
        if self.values is None or other.values is None:
            return Target(self.name, moments, None)
        every, counts = (*self.values, *other.values), Counter[Any]()
        words = any(isinstance(value, str) for value in every)  # text if some are
        for value, count in zip(every, (*self.counts, *other.counts), strict=True):
            counts[str(value) if words else value] += count
        values = tuple(sorted(counts))
        return Target(self.name, moments, values, tuple(counts[value] for value in values))


class Summary(NamedTuple):
    """Summary of training rows: `array` for standardized inputs of more than two axes, `tests` counts the test rows.

    `absent` are columns that were to be left out and are not there, `site` is the name of the node's file or folder.
    """

    rows: int = 0
    shape: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    array: Moments | None = None
    target: Target = Target()
    tests: int = 0
    absent: tuple[str, ...] = ()
    site: str = ""

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
    def from_json(cls, d: Any) -> "Summary":
        """Rebuild a summary that another process sent, in which tuples became lists."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(d)


# ---------------------------------------------------------------- of rows


def summarize(rows: "Rows", train: np.ndarray, test: "Rows", test_picked: np.ndarray, task: str | None) -> Summary:
    """Summarize the rows `train`; the test rows add only missing values and classes."""
    if task is not None:
        choose("task", task, dict.fromkeys(TASKS))
    features = tuple(_column(name, rows.column(name), train, test.column(name)) for name in rows.features)
    array = None if features or rows.inputs.dtype == np.uint8 else Moments.of(rows.inputs[train])
    for labels in (rows.labels, test.labels):
        if labels.isna().any():
            first = columns.row_of(labels, labels.isna().to_numpy())
            raise InputError(f"Column '{labels.name}' has rows without a label, first {first}: fill or drop them.")
    target = _target(str(rows.labels.name), rows.labels.iloc[train], test.labels.iloc[test_picked], task)
    shape = tuple(rows.inputs.shape[1:])
    return Summary(len(train), shape, features, array, target, len(test_picked), rows.absent)


def _column(name: str, column: "pd.Series", train: np.ndarray, tested: "pd.Series") -> Column:
    kind, gaps = kind_of(name, column), bool(column.isna().any() or tested.isna().any())
    if kind == "number":
        values = numbers(name, column, missing=True)[train]
        known = values[~np.isnan(values)] if gaps else values
        return Column(name, kind, gaps, Moments.of(known), {MISSING: len(values) - len(known)} if gaps else {})
    columns.check_text(name, column)
    counts = Counter(as_words(column.iloc[train]).astype(str).tolist())
    columns.check_categories(name, counts)
    return Column(name, kind, gaps, counts=dict(counts))


def _target(name: str, column: "pd.Series", tested: "pd.Series", task: str | None) -> Target:
    """All different values, and how often each is in the training rows; a node by itself may have few rows of each class."""
    text, rows = kind_of(name, column) == "text", len(column) + len(tested)
    if text and task == "regression":
        raise InputError(f"Column '{name}' holds text: a regression needs numbers.")
    trained, other = (as_words(c).astype(str) if text else numbers(name, c) for c in (column, tested))
    values, places = np.unique(np.concatenate([trained, other]), return_inverse=True)
    counts = tuple(np.bincount(places[: len(trained)], minlength=len(values)).tolist())
    different = nearly_all_different(len(values), rows)
    moments = Moments(len(column)) if text else Moments.of(trained)
    if not text and (task == "regression" or (task is None and are_real(values, len(column) if different else np.inf))):
        return Target(name, moments, None)
    if different or (text and len(values) > MOST_CLASSES):
        raise InputError(
            f"Column '{name}' has {len(values):,} different values in {rows:,} rows, too many for classes: give another "
            "--target, or for numbers --task regression.",
            columns.IDENTIFIERS,
        )
    booleans = column.dtype.kind == "b"
    return Target(name, moments, tuple(_plain(value, booleans) for value in values.tolist()), counts)


def _plain(value: Any, boolean: bool) -> Any:
    if isinstance(value, str):
        return value
    return bool(value) if boolean else int(value) if value.is_integer() else value


def are_real(different: np.ndarray, rows: float = np.inf) -> bool:
    """Whether numbers are a regression's target by themselves: many values, or many with a fraction or few rows each."""
    if (different % 1 != 0).any():
        return len(different) > MOST_FRACTIONS
    return len(different) > (RARE_CLASSES if rows < RARE * len(different) else MOST_CLASSES)


# ---------------------------------------------------------------- the encoding


def make_encoding(total: Summary, task: str | None = None) -> Encoding:
    """What all nodes agree on, from the summary of all training rows."""
    name, moments, values, _ = total.target
    if task is None:
        numeric = total.target.kind == "number"
        real = values is None or (numeric and are_real(np.array(values, float), moments.n))
        task = "regression" if real else "classification"
    features = tuple(column.feature() for column in total.columns)
    shape = (sum(len(feature.inputs) for feature in features),) if features else total.shape
    classes = values or () if task == "classification" else ()
    if (task == "classification" and len(classes) < 2) or (task == "regression" and moments.constant):
        raise InputError("All labels are the same: there is nothing to learn.")
    encoding = Encoding(task, features, shape, name, classes, *_scaling(total, features))
    if task == "classification":
        return encoding
    return encoding._replace(target_mean=np.array([moments.mean]), target_scale=np.array([moments.deviation]))


def _scaling(total: Summary, features: Sequence[Feature]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Mean and deviation of every input; one of both for arrays of more axes; none for images of bytes."""
    pairs = zip(total.columns, features, strict=True)
    each = [moments for column, feature in pairs for moments in column.inputs(feature, total.rows)]
    each += [total.array] if total.array else []
    if not each:
        return None, None
    mean = np.array([moments.mean for moments in each])
    scale = np.array([1.0 if moments.constant else moments.deviation for moments in each])
    return (mean, scale) if features else (mean[0], scale[0])
