"""How the rows of a table become the inputs of a model, and its targets become labels.

A column of numbers is one input; if values are missing, they become the mean, and a second input says where. A column of text
is one input for each category (one-hot), all of them 0 for a category that the training rows do not have.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data.columns import MISSING, NUMERIC, as_frame, first_row, to_numbers, to_words
from dnasa.files import refusing_damage

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
        return self._replace(mean=None, scale=None).transform(rows)

    def scaled(self, encoded: np.ndarray) -> np.ndarray:
        """The model's inputs, from what `encode` returns."""
        if self.mean is None:
            return encoded
        return ((encoded - self.mean) / self.scale).astype(np.float32)

    def transform(self, rows: Any) -> np.ndarray:
        """The model's inputs from a frame or an array: encoded and scaled, column by column in double precision."""
        if not self.features:
            return self.scaled(self._checked_array(rows))
        table = as_frame(rows)
        inputs = np.empty((len(table), *self.shape), np.float32)
        mean = np.broadcast_to(0.0 if self.mean is None else self.mean, self.shape)
        scale = np.broadcast_to(1.0 if self.scale is None else self.scale, self.shape)
        for j, values in enumerate(self._encoded_columns(table)):
            inputs[:, j] = (values - mean[j]) / scale[j]
        return inputs

    def unknown_categories(self, rows: Any) -> list[str]:
        """A sentence for each text column with values that the training rows did not have; their inputs are all 0."""
        if not self.features:
            return []
        sentences = []
        for feature, column in self._feature_columns(as_frame(rows)):
            if feature.kind != "text":
                continue
            words = to_words(column)
            unknown = [word for word in words if word not in feature.categories]
            if unknown:
                examples = ", ".join(word[:30] or "a missing one" for word in list(dict.fromkeys(unknown))[:3])
                sentences.append(
                    f"{len(unknown):,} of {len(words):,} rows have a value of '{feature.name}' that the model does not know: "
                    f"{examples}."
                )
        return sentences

    def _checked_array(self, rows: Any) -> np.ndarray:
        array = np.asarray(rows)
        if array.shape[1:] != self.shape or array.dtype.kind not in NUMERIC:
            raise InputError(f"Rows must be numbers of shape {self.shape}, not {array.dtype} of {array.shape[1:]}.")
        return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)

    def _encoded_columns(self, table: pd.DataFrame) -> Iterator[np.ndarray]:
        """The values of each input: one or two for a column of numbers, one for each category of a text column."""
        for feature, column in self._feature_columns(table):
            if feature.kind == "text":
                words = to_words(column)
                yield from (words == category for category in feature.categories)
                continue
            values = to_numbers(feature.name, column, allow_missing=True)
            missing = np.isnan(values)
            if feature.fill is not None:
                yield np.where(missing, feature.fill, values)
                yield missing
            elif missing.any():
                where = f"Column '{feature.name}' has a missing value ({first_row(column, missing)})"
                raise InputError(f"{where}, and the training rows had none: fill it or drop the row.")
            else:
                yield values

    def _feature_columns(self, table: pd.DataFrame) -> Iterator[tuple[Feature, pd.Series]]:
        """The column of each feature: by name, or by position where these rows or the training rows have no names."""
        names = [str(name) for name in table.columns]
        wanted = [feature.name for feature in self.features]
        absent = [name for name in wanted if name not in names]
        if not absent:
            places = [names.index(name) for name in wanted]
        elif len(names) == len(wanted) and (are_positions(names) or all(map(str.isdigit, wanted))):
            places = list(range(len(wanted)))
        else:
            raise InputError(f"There is no column '{absent[0]}', which the model was trained with: add or rename it.")
        for feature, place in zip(self.features, places, strict=True):
            yield feature, table.iloc[:, place]

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
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in entries.items()}

    @classmethod
    def from_json(cls, entries: Any) -> "Encoding":
        """The encoding that `to_json` wrote; anything else is an `InputError`."""
        from pydantic import TypeAdapter

        with refusing_damage("The description of the model's inputs"):
            features = TypeAdapter(tuple[Feature, ...]).validate_python(entries["features"])
            tuples = {"shape": tuple(map(int, entries["shape"])), "classes": tuple(entries["classes"])}
            arrays = {name: np.asarray(entries[name], np.float64) for name in ARRAYS if entries[name] is not None}
            encoding = cls(**entries | {"features": features} | tuples | arrays)
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
