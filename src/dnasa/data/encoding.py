"""How the rows of a table become the inputs of a model, and its targets become labels.

A column of numbers is one input; if values are missing, they become the mean, and a second input says where. A column of text
is one input for each category (one-hot), all of them 0 for a category that the training rows do not have.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from dnasa.core import InputError
from dnasa.data.columns import MISSING, NUMERIC, as_frame, first_row, to_numbers, to_words
from dnasa.data.recoding import Recode
from dnasa.files import refusing_damage

FAR = 10  # standard deviations of a value
SHIFTED = 2.5  # and of the median of at least five
TASKS = ("classification", "regression")


class Feature(NamedTuple):
    """A column of the table.

    Attributes:
        name: The name of the column.
        kind: "number" or "text".
        fill: Replaces a missing number: the mean of the training rows. None if no number was missing.
        categories: The categories of a text column.
    """

    name: str
    kind: str
    fill: float | None = None
    categories: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        if self.kind == "number":
            return (self.name,) if self.fill is None else (self.name, f"{self.name} missing")
        labels = [" missing" if category == MISSING else f"={category}" for category in self.categories]
        return tuple(f"{self.name}{label}" for label in labels)


class Encoding(NamedTuple):
    """Turns rows into inputs, `(encoded - mean) / scale`, and targets into labels.

    Attributes:
        task: "classification" or "regression".
        features: The columns of a table; empty for images, texts and arrays of more than two axes.
        shape: The shape of one row of inputs.
        target: The name of the target column.
        classes: The names of the classes, of their own type.
        mean: The mean of each input. None: nothing is standardized.
        scale: The standard deviation of each input.
        target_mean: In a regression, `target = output * target_scale + target_mean`.
        target_scale: The standard deviation of the target.
        id_column: A column of a table that names its rows and is not an input.
        recode: What the user's tables were recoded with, and new ones are.
    """

    task: str
    features: tuple[Feature, ...]
    shape: tuple[int, ...]
    target: str
    classes: tuple[Any, ...] = ()
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None
    target_mean: np.ndarray | None = None
    target_scale: np.ndarray | None = None
    id_column: str | None = None
    recode: Recode | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, for a table."""
        return tuple(name for feature in self.features for name in feature.inputs)

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a row."""
        return len(self.classes) if self.task == "classification" else 1

    def encode(self, rows: Any) -> np.ndarray:
        """The rows of a frame or an array as numbers (float32), not standardized; bytes stay bytes."""
        return self._transformed(rows, np.array(0.0), np.array(1.0)) if self.features else self._checked_array(rows)

    def scaled(self, encoded: np.ndarray) -> np.ndarray:
        """The model's inputs, from what `encode` returns."""
        if self.mean is None:
            return encoded
        return ((encoded - self.mean) / self.scale).astype(np.float32)

    def transform(self, rows: Any) -> np.ndarray:
        """The model's inputs from a frame or an array: encoded and scaled, column by column in double precision."""
        if not self.features or self.mean is None or self.scale is None:
            return self.scaled(self.encode(rows))
        return self._transformed(rows, self.mean, self.scale)

    def _transformed(self, rows: Any, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        table = as_frame(rows)
        inputs = np.empty((len(table), *self.shape), np.float32)
        mean, scale = np.broadcast_to(mean, self.shape), np.broadcast_to(scale, self.shape)
        for j, values in enumerate(self._encoded_columns(table)):
            inputs[:, j] = (values - mean[j]) / scale[j]
        return inputs

    def doubts(self, rows: Any) -> list[str]:
        """A sentence for each column whose values the training rows did not have: missing, far away or of other categories."""
        if not self.features:
            return []
        table, found = as_frame(rows), list[tuple[np.ndarray, str]]()
        for feature, column, mean, scale in self._feature_columns(table):
            if feature.name not in map(str, table.columns) and column.isna().all():
                close = [name for name in map(str, table.columns) if name.strip().casefold() == feature.name.strip().casefold()]
                meant = f" (is it '{close[0]}'?)" if close else ""
                found.append(
                    (np.ones(len(column), bool), f"have no column '{feature.name}'{meant}: its values count as missing")
                )
            elif feature.kind == "text":
                words = np.array(to_words(column), dtype=object)
                unknown = np.array([word not in feature.categories for word in words], bool)
                examples = ", ".join(word[:30] or "a missing one" for word in list(dict.fromkeys(words[unknown]))[:3])
                found.append((unknown, f"have a value of '{feature.name}' that the model does not know: {examples}"))
            else:
                values = to_numbers(feature.name, column, allow_missing=True)
                far, missing = np.abs(values - mean) > FAR * scale, np.isnan(values) & (feature.fill is None)
                where = f"{FAR} standard deviations from the mean of the training rows"
                found.append((far, f"have a value of '{feature.name}' more than {where}"))
                present = values[~np.isnan(values)]
                shift = abs(np.median(present) - mean) / scale if len(present) >= 5 else 0
                what = f"have a median of '{feature.name}' {shift:.1f} standard deviations from the mean of the training rows"
                found.append((~np.isnan(values) & (shift > SHIFTED), f"{what} (another unit?)"))
                found.append((missing, f"have no value of '{feature.name}', which all training rows have: their mean is used"))
        return [
            f"{flags.sum():,} of {len(table):,} rows{'' if flags.all() else f' (first {first_row(table, flags)})'} {what}."
            for flags, what in found
            if flags.any()
        ]

    def _checked_array(self, rows: Any) -> np.ndarray:
        array = np.asarray(rows)
        if array.shape[1:] != self.shape or array.dtype.kind not in NUMERIC:
            raise InputError(f"Rows must be numbers of shape {self.shape}, not {array.dtype} of {array.shape[1:]}.")
        return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)

    def _encoded_columns(self, table: pd.DataFrame) -> Iterator[np.ndarray]:
        """The values of each input: one or two for a column of numbers, one for each category of a text column."""
        for feature, column, mean, _ in self._feature_columns(table):
            if feature.kind == "text":
                words = to_words(column)
                yield from (words == category for category in feature.categories)
                continue
            values = to_numbers(feature.name, column, allow_missing=True)
            missing = np.isnan(values)
            yield np.where(missing, mean if feature.fill is None else feature.fill, values)
            if feature.fill is not None:
                yield missing

    def _feature_columns(self, table: pd.DataFrame) -> Iterator[tuple[Feature, pd.Series, float, float]]:
        """The column of each feature, and mean and scale of its first input.

        By name, or by position where these rows or the training rows have no names. A column that is not there has missing
        values only.
        """
        names = [str(name) for name in table.columns]
        wanted = [feature.name for feature in self.features]
        by_position = len(names) == len(wanted) and (are_positions(names) or all(map(str.isdigit, wanted)))
        if not set(wanted) <= set(names) and by_position:
            names = wanted
        if not set(wanted) & set(names):
            raise InputError(f"There is no column '{wanted[0]}', which the model was trained with: add or rename it.")
        pairs, place = [np.broadcast_to(0.0 if part is None else part, self.shape) for part in (self.mean, self.scale)], 0
        for feature in self.features:
            column = table.iloc[:, names.index(feature.name)] if feature.name in names else pd.Series(np.nan, table.index)
            yield feature, column, pairs[0][place], pairs[1][place] or np.inf
            place += len(feature.inputs)

    def labels(self, column: pd.Series) -> np.ndarray:
        """Encode the target column as class numbers, or as standardized numbers `(rows, 1)` (float32)."""
        if self.task == "classification":
            return self._class_numbers(column)
        return ((to_numbers(self.target, column)[:, None] - self.target_mean) / self.target_scale).astype(np.float32)

    def target_values(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs or labels of a regression, in the target's own units."""
        if self.target_mean is None or self.target_scale is None:
            return outputs
        return outputs * self.target_scale + self.target_mean

    def _class_numbers(self, column: pd.Series) -> np.ndarray:
        are_words = all(isinstance(name, str) for name in self.classes)
        values = to_words(column) if are_words else column.to_numpy()
        numbers = {name: number for number, name in enumerate(self.classes)}
        try:
            return np.array([numbers[value] for value in values.tolist()], np.int64)
        except KeyError as error:
            raise InputError(f"Column '{self.target}' has the class {error}, which the model does not know.") from error

    def to_json(self) -> dict[str, Any]:
        """Everything as numbers, text and lists, for a file."""
        entries = self._asdict() | {"features": [feature._asdict() for feature in self.features]}
        entries["recode"] = self.recode and self.recode.model_dump()
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in entries.items()}

    @classmethod
    def from_json(cls, entries: Any) -> "Encoding":
        """The encoding that `to_json` wrote; anything else is an `InputError`."""
        with refusing_damage("The description of the model's inputs"):
            features = TypeAdapter(tuple[Feature, ...]).validate_python(entries["features"])
            tuples = {"shape": tuple(map(int, entries["shape"])), "classes": tuple(entries["classes"])}
            arrays = {name: np.asarray(entries[name], np.float64) for name in ARRAYS if entries[name] is not None}
            recode = TypeAdapter(Recode | None).validate_python(entries.get("recode"))
            encoding = cls(**entries | {"features": features, "recode": recode} | tuples | arrays)
            if not encoding._is_consistent():
                raise ValueError("its parts do not fit together")
        return encoding

    def _is_consistent(self) -> bool:
        is_classification = self.task == "classification"
        return (
            self.task in TASKS
            and bool(self.classes) == is_classification
            and (self.target_mean is None) == is_classification
            and (self.target_scale is None) == is_classification
            and (self.mean is None) == (self.scale is None)
            and all(array is None or array.shape in ((), self.shape) for array in (self.mean, self.scale))
            and (not self.features or self.shape == (len(self.inputs),))
        )


ARRAYS = ("mean", "scale", "target_mean", "target_scale")


def are_positions(names: Sequence[str]) -> bool:
    """Whether columns are called 0, 1, 2, ... in any order, as those without names are."""
    return set(names) == {str(place) for place in range(len(names))}
