"""How the rows of a table become the inputs of a model, and its targets become labels.

A column of numbers is one input; if values are missing, they become the mean, and a second input says where. A column of text
is one input for each category (one-hot), all of them 0 for a category that the training rows do not have.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError
from dnasa.data.columns import MISSING, as_frame, as_words, numbers, row_of
from dnasa.files import refusing_damage

if TYPE_CHECKING:
    import pandas as pd

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
        return tuple(
            f"{self.name} missing" if category == MISSING else f"{self.name}={category}" for category in self.categories
        )


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

    # ------------------------------------------------------------ inputs

    def encode(self, rows: Any) -> np.ndarray:
        """The rows as numbers (float32), not standardized; bytes stay bytes.

        Args:
            rows: A frame or an array.
        """
        return self._replace(mean=None, scale=None).transform(rows)

    def scaled(self, encoded: np.ndarray) -> np.ndarray:
        """The model's inputs, from encoded rows.

        Args:
            encoded: What `encode` returns.
        """
        if self.mean is None:
            return encoded
        return ((encoded - self.mean) / self.scale).astype(np.float32)

    def transform(self, rows: Any, picked: np.ndarray | None = None) -> np.ndarray:
        """The model's inputs: encoded and scaled, column by column in double precision.

        Args:
            rows: A frame or an array.
            picked: The positions of the rows to use; by default all.
        """
        if not self.features:
            encoded = self._checked_array(rows)
            return self.scaled(encoded if picked is None else encoded[picked])
        table = as_frame(rows)
        out = np.empty((len(table) if picked is None else len(picked), *self.shape), np.float32)
        scaling = (0.0, 1.0) if self.mean is None or self.scale is None else (self.mean, self.scale)
        mean, scale = (np.broadcast_to(values, self.shape) for values in scaling)
        for j, column in enumerate(self._columns(table, picked)):
            out[:, j] = (column - mean[j]) / scale[j]
        return out

    def unknown_categories(self, rows: Any) -> list[str]:
        """A sentence for each text column with values that the training rows did not have; their inputs are all 0.

        Args:
            rows: A frame or an array.
        """
        sentences = []
        for feature, column in self._selected(as_frame(rows)) if self.features else ():
            words = as_words(column)
            unknown = [word for word in words if word not in feature.categories] if feature.kind == "text" else []
            if unknown:
                some = ", ".join(word[:30] or "a missing one" for word in [*dict.fromkeys(unknown)][:3])
                which = f"{len(unknown):,} of {len(words):,} rows have a value of '{feature.name}'"
                sentences.append(f"{which} that the model does not know: {some}.")
        return sentences

    def _checked_array(self, rows: Any) -> np.ndarray:
        array = np.asarray(rows)
        if array.shape[1:] != self.shape or array.dtype.kind not in "fiub":
            raise InputError(f"Rows must be numbers of shape {self.shape}, not {array.dtype} of {array.shape[1:]}.")
        return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)

    def _columns(self, table: "pd.DataFrame", picked: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Each input's values, for all rows or those that are picked."""
        for feature, whole in self._selected(table):
            column = whole if picked is None else whole.iloc[picked]
            if feature.kind == "text":
                words = as_words(column)
                yield from (words == category for category in feature.categories)
                continue
            values = numbers(feature.name, column, missing=True)
            gaps = np.isnan(values)
            if feature.fill is not None:
                yield np.where(gaps, feature.fill, values)
                yield gaps
            elif gaps.any():
                where = f"Column '{feature.name}' has a missing value ({row_of(column, gaps)})"
                raise InputError(f"{where}, and the training rows had none: fill it or drop the row.")
            else:
                yield values

    def _selected(self, table: "pd.DataFrame") -> Iterator[tuple[Feature, "pd.Series"]]:
        for feature, place in zip(self.features, self._places([str(name) for name in table.columns]), strict=True):
            yield feature, table.iloc[:, place]

    def _places(self, names: list[str]) -> list[int]:
        """The columns by name; by position where these rows or the training rows have no names."""
        wanted = [feature.name for feature in self.features]
        missing = [name for name in wanted if name not in names]
        if not missing:
            return [names.index(name) for name in wanted]
        if len(names) == len(wanted) and (are_positions(names) or all(map(str.isdigit, wanted))):
            return list(range(len(wanted)))
        raise InputError(f"There is no column '{missing[0]}', which the model was trained with: add or rename it.")

    # ------------------------------------------------------------ targets

    def labels(self, column: "pd.Series", picked: np.ndarray | None = None) -> np.ndarray:
        """Encode the target column as class numbers, or as standardized numbers `(rows, 1)` (float32).

        Args:
            column: The target column.
            picked: The positions of the rows to use; by default all.
        """
        rows = column if picked is None else column.iloc[picked]
        if self.task == "classification":
            return self._class_numbers(rows)
        return ((numbers(self.target, rows)[:, None] - self.target_mean) / self.target_scale).astype(np.float32)

    def target_values(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of a regression in the target's own units.

        Args:
            outputs: Outputs of the model, or labels.
        """
        if self.target_mean is None or self.target_scale is None:
            return outputs
        return outputs * self.target_scale + self.target_mean

    def _class_numbers(self, column: "pd.Series") -> np.ndarray:
        words = all(isinstance(name, str) for name in self.classes)
        number = {name: place for place, name in enumerate(self.classes)}
        values = as_words(column) if words else column.to_numpy()
        try:
            return np.array([number[value] for value in values.tolist()], np.int64)
        except KeyError as error:
            raise InputError(f"Column '{self.target}' has the class {error}, which the model does not know.") from error

    # ------------------------------------------------------------ on disk

    def to_json(self) -> dict[str, Any]:
        """Everything as numbers, text and lists, for a file."""
        arrays = {name: None if (array := getattr(self, name)) is None else array.tolist() for name in ARRAYS}
        features = [feature._asdict() for feature in self.features]
        return self._asdict() | {"features": features} | arrays

    @classmethod
    def from_json(cls, d: Any) -> "Encoding":
        """The encoding that `to_json` wrote; anything else is an `InputError`.

        Args:
            d: What `to_json` returned.
        """
        from pydantic import TypeAdapter

        with refusing_damage("The description of the model's inputs"):
            features = TypeAdapter(tuple[Feature, ...]).validate_python(d["features"])
            arrays = {name: None if d[name] is None else np.asarray(d[name], np.float64) for name in ARRAYS}
            tuples = {"features": features, "shape": tuple(map(int, d["shape"])), "classes": tuple(d["classes"])}
            encoding = cls(**d | tuples | arrays)
            if not encoding._is_consistent():
                raise ValueError("its parts do not fit together")
        return encoding

    def _is_consistent(self) -> bool:
        classification, scaling = self.task == "classification", (self.mean, self.scale)
        return (
            self.task in TASKS
            and bool(self.classes) == classification
            and (self.target_mean is None) == (self.target_scale is None) == classification
            and (not self.features or self.shape == (len(self.inputs),))
            and len({array is None for array in scaling}) == 1
            and all(array is None or array.shape in ((), self.shape) for array in scaling)
        )


ARRAYS = ("mean", "scale", "target_mean", "target_scale")


def are_positions(names: Sequence[str]) -> bool:
    """Whether columns are called 0, 1, 2, ... in any order, as those without names are."""
    return set(names) == {str(place) for place in range(len(names))}
