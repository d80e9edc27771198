"""What must be known of all training rows before they can be encoded: counts, means, variances, categories and classes.

A node summarizes its own rows, and summaries are merged: means and sums of squared deviations as in Chan, Golub and LeVeque
(1979). So nodes whose rows may not move agree on one encoding, the same as if the rows were in one place.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from dnasa.checks import choose, counted
from dnasa.core import InputError
from dnasa.data import columns
from dnasa.data.columns import MISSING, drop_remedy, kind_of, nearly_all_different, to_numbers, to_words
from dnasa.data.encoding import TASKS, Encoding, Feature
from dnasa.data.rows import Rows

T = TypeVar("T")
MIN_COUNT = 5  # rows: by default, no statistic of fewer leaves a site
SENTINEL = re.compile(r"0|-1|-9|-?(99+|88+|77+)(\.9+)?")  # a number that often stands for a missing one
FREQUENT = 5  # times as many rows as of any other number
FAR, NEAR, FEW_VALUES = 3, 0.2, 10  # a number is far by so many times the range of the others, if these are more than a few
SOLVABLE = 3  # values whose counts follow from the moments
MOST_CLASSES = 1000  # whole numbers with more values are a regression's target
RARE_CLASSES, RARE = 100, 5  # also a regression's target: more than 100 values with fewer than 5 rows each
MOST_NAMED = 8  # classes in a message
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

    def rounded(self, rows: int, binary: bool) -> "Moments":
        """To what so many rows change, so that two summaries do not give the value of a row that only one of them has."""
        unit = 2.0 ** np.ceil(np.log2(rows * self.deviation)) if not self.constant else 0.0
        if not unit:
            return self
        unit = max(unit, rows) if binary else unit
        mean = float(round(self.mean * self.n / unit) * unit / self.n)
        if binary:
            least = rows / self.n
            mean = min(max(mean, least), 1 - least) if least <= 0.5 else float(round(mean))
            return Moments(self.n, mean, self.n * mean * (1 - mean))
        square = 2.0 ** np.ceil(np.log2(rows * self.deviation**2))  # a power of 2 too, or it would tell the exact deviation
        return Moments(self.n, mean, float(max(1, round(self.squares / square)) * square))

    def merged(self, other: "Moments") -> "Moments":
        n, difference = self.n + other.n, other.mean - self.mean
        if not n:
            return self
        squares = self.squares + other.squares + difference**2 * self.n * other.n / n
        return Moments(n, self.mean + difference * other.n / n, squares)


class Column(NamedTuple):
    """Summary of an input column."""

    name: str
    kind: Literal["number", "text"]
    moments: Moments = Moments()
    counts: dict[str, int] = {}  # noqa: RUF012 (rows of each category, and of missing values; never changed)

    @property
    def gaps(self) -> bool:
        """Whether values are missing in any training row."""
        return MISSING in self.counts

    @property
    def is_empty(self) -> bool:
        return self.kind == "number" and not self.moments.n

    def merged(self, other: "Column") -> "Column":
        kind = other.kind if self.is_empty else self.kind  # a column without values fits any
        counts = dict(Counter(self.counts) + Counter(other.counts))
        return Column(self.name, kind, self.moments.merged(other.moments), counts)

    def feature(self) -> Feature:
        if self.kind == "number" and not self.is_empty:
            return Feature(self.name, "number", self.moments.mean if self.gaps else None)
        if self.is_empty or not self.counts.keys() - {MISSING}:
            reason = "no value, or none in enough training rows of a site to leave it"
            raise InputError(f"Column '{self.name}' has {reason}: {drop_remedy(self.name)}.")
        columns.check_categories(self.name, self.counts)
        return Feature(self.name, "text", categories=tuple(sorted(self.counts)))

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
        values = self.values if self.values == other.values else tuple(sorted(rows))
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
    name: str = ""  # of the site: that of its file or folder
    min_count: int = 1

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

    def to_json(self) -> dict[str, Any]:
        """What is sent, with a name for every part."""
        columns = [column._asdict() | {"moments": column.moments._asdict()} for column in self.columns]
        target = self.target._asdict() | {"moments": self.target.moments._asdict()}
        return self._asdict() | {"columns": columns, "target": target}

    @classmethod
    def from_json(cls, entries: Any) -> "Summary":
        """Rebuild a summary that another process sent; a `ValueError` if there can be no such rows."""
        from pydantic import TypeAdapter

        summary = TypeAdapter(cls).validate_python(entries)
        moments = [*(column.moments for column in summary.columns), summary.target.moments, summary.array or Moments()]
        counts = [summary.rows, summary.tests, *summary.target.counts, *(m.n for m in moments)]
        counts += [count for column in summary.columns for count in column.counts.values()]
        finite = all(abs(m.mean) <= columns.FLOAT32 and 0 <= m.squares < np.inf for m in moments)
        if not finite or not all(0 <= count < 2**53 for count in counts):
            raise ValueError("no rows have these numbers")
        return summary


def check_columns(rows: Rows) -> None:
    """Refuse columns that cannot be inputs, and rows without a label."""
    for name in rows.features:
        column = rows.inputs[name]
        if kind_of(name, column) == "number":
            to_numbers(name, column, allow_missing=True)
        else:
            columns.check_text(name, column)
    check_labels(rows.labels)


def check_identifiers(rows: Rows) -> None:
    """Refuse dates, and columns that seem to name the rows, unless they are numbers of which the user gave the unit."""
    measured = rows.recode.units if rows.recode else {}

    def check(name: str, column: pd.Series) -> None:
        if kind_of(name, column) == "text":
            columns.check_text(name, column)
            if len(column) > 5 * columns.FEW:  # of smaller tables, the training rows decide
                columns.check_categories(name, Counter(to_words(column).tolist()))
        elif name not in measured:
            columns.check_codes(name, to_numbers(name, column, allow_missing=True))

    of_columns(rows, check)


def of_columns(rows: Rows, read: Callable[[str, pd.Series], T]) -> tuple[T, ...]:
    """What is read of each column; an error also names the others that would have one, and those that are not there to drop."""
    found, refused = [], dict[str, InputError]()
    for name in rows.features:
        try:
            found.append(read(name, rows.inputs[name]))
        except InputError as error:
            refused[name] = error
    if refused:
        first, others = next(iter(refused.values())), ", ".join(map(repr, [*refused][1:]))
        absent = ", ".join(map(repr, rows.absent))
        lines = f"{others and f' Nor can these be inputs: {others}.'}{absent and f' There is no column {absent} to leave out.'}"
        raise InputError(f"{first}{lines}", first.kind)
    return tuple(found)


def check_rare_numbers(rows: Rows, min_count: int) -> None:
    """Refuse columns of numbers of which sums of products would tell about fewer rows than `min_count`."""
    for name in rows.features:
        if kind_of(name, rows.inputs[name]) == "number":
            values = to_numbers(name, rows.inputs[name])
            if (without_rare(values, min_count) != values).any():
                few = f"fewer than {min_count} rows"
                raise InputError(
                    f"Column '{name}' has one value in all but {few}, or at most {SOLVABLE} values, one of them in {few}: "
                    f"{drop_remedy(name)}.",
                    f"a number that {few} have",
                )


def check_labels(labels: pd.Series) -> None:
    missing = labels.isna().to_numpy()
    if missing.any():
        first = columns.first_row(labels, missing)
        raise InputError(f"Column '{labels.name}' has rows without a label, first {first}: fill or drop them.")


def sentinel_warnings(rows: Rows, where: str = "") -> list[str]:
    """A sentence, for the owner of the rows, on numbers such as -999, or 2650 for 26.5, that are far from all others."""
    sentences = []
    for name in (name for name in rows.features if kind_of(name, rows.inputs[name]) == "number"):
        values = to_numbers(name, rows.inputs[name], allow_missing=True)
        for value in {np.nanmin(values), np.nanmax(values)} if np.isfinite(values).any() else ():
            others = values[(values != value) & ~np.isnan(values)]
            if others.size and np.abs(others - value).min() > _usual_gap(value, others, int((values == value).sum())):
                remedy = "is it wrong, or in other units?"
                if SENTINEL.fullmatch(f"{value:.10g}"):
                    remedy = "if this is a missing value, say so under [missing] in a file of --recode."
                rows_text = counted((values == value).sum(), "row")
                sentences += [f"Column '{name}'{where} has {value:g} in {rows_text}, unlike its other numbers: {remedy}"]
    return sentences


def _usual_gap(value: float, others: np.ndarray, rows: int) -> float:
    """The largest gap between the least or largest number of a column and the others that is no surprise."""
    counts, is_code = np.unique(others, return_counts=True)[1], SENTINEL.fullmatch(f"{value:.10g}")
    width, several = float(np.ptp(others)) or np.inf, len(counts) > FEW_VALUES
    if several and value <= 0 <= others.min() and (rows > 1 or is_code):
        return NEAR * width if value == 0 else 0
    if is_code and value not in (0, -1):
        return 0 if several and rows > FREQUENT * counts.max() else width
    return FAR * width if several or np.isin(others, (0, 1)).all() else np.inf  # 3 may be a count


def summarize(train: Rows, test: Rows, task: str | None, min_count: int = 1) -> Summary:
    """Summarize training rows; the test rows add only classes. Nothing is said of fewer than `min_count`."""
    if task is not None:
        choose("task", task, dict.fromkeys(TASKS))
    if len(train.labels) < min_count:
        raise InputError(f"There are {len(train.labels)} training rows: a site needs at least {min_count}.")
    features = of_columns(train, partial(_summarize_column, min_count=min_count))
    array = None if features or train.inputs.dtype == np.uint8 else Moments.of(train.inputs)
    if array and min_count > 1:
        array = array.rounded(min_count * train.inputs[0].size, binary=False)
    target = _summarize_target(train, test.labels, task, min_count)
    shape = tuple(train.inputs.shape[1:])
    return Summary(len(train.labels), shape, features, array, target, len(test.labels), train.absent, min_count=min_count)


def _summarize_column(name: str, train: pd.Series, min_count: int) -> Column:
    if kind_of(name, train) == "number":
        moments = _moments(to_numbers(name, train, allow_missing=True), min_count)
        missing = len(train) - moments.n
        return Column(name, "number", moments, {MISSING: missing} if missing else {})
    counts = Counter(to_words(train).tolist())
    columns.check_categories(name, counts, few=min_count - 1 if min_count > 1 else columns.FEW)
    return Column(name, "text", counts=hide_rare(counts, min_count, kept=[MISSING]))


def _moments(values: np.ndarray, min_count: int) -> Moments:
    """None of a few numbers; missing ones count as a multiple of `min_count`."""
    present = values[~np.isnan(values)]
    n = len(values) - rounded(len(values) - len(present), min_count)
    if n < min_count:
        return Moments()
    values = without_rare(present, min_count)
    moments = Moments.of(values)
    moments = moments._replace(n=n, squares=moments.squares * (n / len(present)))
    if min_count <= 1:
        return moments
    low, high = values.min(), values.max()
    is_flag = np.isin(values, (0, 1)).all()  # whose values are known; others are if enough rows have them
    is_pair = (
        low < high and np.isin(values, (low, high)).all() and min((values == low).sum(), (values == high).sum()) >= min_count
    )
    if not (is_flag or is_pair) or low == high:
        return moments.rounded(min_count, binary=False)
    shares = Moments.of((values - low) / (high - low))._replace(n=n).rounded(min_count, binary=True)  # of one of two values
    return Moments(n, float(low + (high - low) * shares.mean), float((high - low) ** 2 * shares.squares))


def without_rare(values: np.ndarray, min_count: int) -> np.ndarray:
    """Numbers whose moments do not tell of few rows: if all but a few are equal, all are.

    Counts of up to three values follow from n, mean and variance, so the most frequent takes the place of rare ones.
    """
    distinct, counts = np.unique(values, return_counts=True)
    most = int(counts.argmax())
    if counts[most] > max(len(values) - min_count, len(values) / 2):
        return np.full_like(values, distinct[most])
    if len(distinct) > SOLVABLE or counts[most] < min_count:
        return values
    return np.where(np.isin(values, distinct[counts < min_count]), distinct[most], values)


def hide_rare(counts: Mapping[T, int], min_count: int, kept: Collection[T]) -> dict[T, int]:
    """Rounded counts, of which none is below `min_count`: rare values that are `kept` count so many rows, others are left out.

    What one count lacks could be found from the exact total, so the most frequent value makes up for what the others lack.
    """
    shown = {value: rounded(count, min_count) for value, count in counts.items() if count >= min_count or value in kept}
    if shown:
        left_out = sum(count for value, count in counts.items() if value not in shown)
        most = max(shown, key=lambda value: counts[value])
        others = sum(shown.values()) - shown[most] + (rounded(left_out, min_count) if left_out >= min_count else 0)
        shown[most] = max(min_count, sum(counts.values()) - others)
    return shown


def rounded(count: int, unit: int) -> int:
    """The nearest multiple of `unit`, so that two counts do not tell of the few rows by which they differ; 0 only for 0."""
    return max(unit, round(count / unit) * unit) if count else 0


def _summarize_target(rows: Rows, test: pd.Series, task: str | None, min_count: int) -> Target:
    """All different values, with the classes that the user named, and how often each is in the training rows."""
    train, name, total = rows.labels, str(rows.labels.name), len(rows.labels) + len(test)
    named = rows.recode.classes if rows.recode else ()
    is_text = kind_of(name, train) == "text"
    if task == "regression" and (is_text or named):
        raise InputError(f"Column '{name}' holds text or has --labels: a regression needs numbers.")
    both = [to_words(column).astype(str) if is_text else to_numbers(name, column) for column in (train, test)]
    values, places = np.unique(np.concatenate([*both, np.array(named, str if is_text else float)]), return_inverse=True)
    all_different = nearly_all_different(len(values), total)
    looks_real = not is_text and not named and are_real(values, len(train) if all_different else np.inf)
    if task == "regression" or (task is None and looks_real):
        return Target(name, _moments(both[0], min_count))
    if all_different or (is_text and len(values) > MOST_CLASSES):
        line = f"Column '{name}' has {len(values):,} values, too many for classes: give another --target or --task."
        raise InputError(line, columns.IDENTIFIERS)
    booleans = train.dtype.kind == "b"
    classes = tuple(_class_name(value, booleans) for value in values.tolist())
    rare = np.bincount(places[:total], minlength=len(values)) < min_count
    if rare.any() and not named:
        word, few = f"{classes[int(rare.argmax())]!s:.40}", f"fewer than {min_count} rows"
        usual = [str(each) for each, is_rare in zip(classes, rare, strict=True) if not is_rare][:MOST_NAMED]
        pair = f"{word}={[*get_close_matches(word, usual if is_text else [], 1), 'OTHER'][0]}"
        raise InputError(
            f"Column '{name}' has the class '{word}' in {few}: correct it, or name all classes, with it or mapping it, as in "
            f"--labels {shlex.quote(','.join([*usual, pair]))}. Numbers to predict need a regression.",
            f"a class of {few}",
        )
    counts = np.bincount(places[: len(train)], minlength=len(values))
    shown = tuple(hide_rare(dict(enumerate(counts.tolist())), min_count, kept=range(len(values))).values())
    moments = Moments(len(train)) if is_text else Moments.of(np.repeat(values, shown))
    if order := rows.recode.order if rows.recode else ():
        if unnamed := sorted({*map(str, classes)} - {*order}):
            line = (
                f"Column '{name}' has the class '{unnamed[0]:.40}', which order in the file of --recode does not name: add it."
            )
            raise InputError(line, "a class that it did not name")
        shown = tuple(dict(zip(map(str, classes), shown, strict=True))[word] for word in order)
        classes = tuple({str(each): each for each in classes}[word] for word in order)
    return Target(name, moments, classes, shown)


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
