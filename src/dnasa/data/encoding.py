"""How the rows of a table become the inputs of a model, and its targets become labels.

A column of numbers is one input; if values are missing, they become the mean, and a second input says where. A column of text
is one input for each category (one-hot), all of them 0 for a category that the training rows do not have.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError

if TYPE_CHECKING:
    import pandas as pd

TASKS = ("classification", "regression", "multilabel")
MISSING = ""  # the category of a missing text
MISSING_WORDS = {  # those of pandas, and ?
    *("", "?", "#N/A", "#N/A N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    *("-NaN", "-nan", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
}


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
    """From rows to inputs, `(encoded - mean) / scale`, and from targets to labels.

    Attributes:
        task: "classification", "regression" or "multilabel".
        features: The columns of a table; empty for images, texts and arrays of more than two axes.
        shape: The shape of one row of inputs.
        target: The names of the target columns.
        classes: The names of the classes, of their own type.
        mean: The mean of each input. None: nothing is standardised.
        scale: The standard deviation of each input.
        target_mean: In a regression, `target = output * target_scale + target_mean`.
        target_scale: The standard deviation of the target.
        id_column: A column of a table that names its rows and is no input.
    """

    task: str
    features: tuple[Feature, ...]
    shape: tuple[int, ...]
    target: tuple[str, ...]
    classes: tuple[Any, ...] = ()
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None
    target_mean: np.ndarray | None = None
    target_scale: np.ndarray | None = None
    id_column: str | None = None

    def __repr__(self) -> str:
        columns = f"{len(self.features)} columns" if self.features else f"rows of shape {self.shape}"
        return f"Encoding for {self.task}: {columns} to {int(np.prod(self.shape)):,} inputs, {self.outputs} outputs"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, of a table."""
        return tuple(name for feature in self.features for name in feature.inputs)

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a row."""
        return len(self.classes) if self.task == "classification" else len(self.target)

    # ------------------------------------------------------------ inputs

    def encode(self, rows: Any) -> np.ndarray:
        """The rows as numbers (float32), not standardised; bytes stay bytes.

        Args:
            rows: A frame or an array.
        """
        if not self.features:
            return self._checked_array(rows)
        table = as_frame(rows)
        out = np.empty((len(table), *self.shape), np.float32)
        for j, column in enumerate(self._columns(table)):
            out[:, j] = column
        return out

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
        mean, scale = (np.zeros(1), np.ones(1)) if self.mean is None or self.scale is None else (self.mean, self.scale)
        mean, scale = np.broadcast_to(mean, self.shape), np.broadcast_to(scale, self.shape)
        for j, column in enumerate(self._columns(table, picked)):
            out[:, j] = (column - mean[j]) / scale[j]
        return out

    def unknown_categories(self, rows: Any) -> list[str]:
        """A sentence for each text column with values that the training rows did not have; their inputs are all 0.

        Args:
            rows: A frame or an array.
        """
        import pandas as pd

        columns = zip(self.features, self._selected(as_frame(rows)), strict=True) if self.features else ()
        sentences = []
        for feature, column in columns:
            if feature.kind == "number":
                continue
            words = pd.Series(as_words(column))
            unknown = words[~words.isin(feature.categories)]
            if len(unknown):
                some = ", ".join(word[:30] or "a missing one" for word in unknown.unique()[:3])
                which = f"{len(unknown):,} of {len(words):,} rows have a value of '{feature.name}'"
                sentences.append(f"{which} that was not in training: {some}.")
        return sentences

    def _checked_array(self, rows: Any) -> np.ndarray:
        array = np.asarray(rows)
        if array.shape[1:] != self.shape or array.dtype.kind not in "fiub":
            raise InputError(
                f"Rows must be numbers of shape {self.shape}; these are {array.dtype} of shape {array.shape[1:]}."
            )
        return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)

    def _columns(self, table: "pd.DataFrame", picked: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Each input's values, for all rows or those that are picked."""
        for feature, whole in zip(self.features, self._selected(table), strict=True):
            column = whole if picked is None else whole.iloc[picked]
            if feature.kind == "number":
                yield from _number_inputs(feature, column)
            else:
                words = as_words(column)
                yield from (words == category for category in feature.categories)

    def _selected(self, table: "pd.DataFrame") -> Iterator["pd.Series"]:
        for place in self._places([str(name) for name in table.columns]):
            yield table.iloc[:, place]

    def _places(self, names: list[str]) -> list[int]:
        """By name; by position where these rows or the training rows have no names. Numbered columns have none."""
        wanted = [feature.name for feature in self.features]
        positions = {name: place for place, name in enumerate(names)}
        missing = [name for name in wanted if name not in positions]
        if not missing:
            return [positions[name] for name in wanted]
        nameless = numbered(names)
        if not nameless and not all(map(str.isdigit, wanted)):
            raise InputError(_missing_column(missing[0], [name for name in names if name not in wanted]))
        if len(names) == len(wanted):
            return list(range(len(wanted)))
        if len(names) == len(wanted) + len(self.target) and numbered([*wanted, *self.target]):
            return list(map(int, wanted))
        whose, order = ("These", f" in the order {', '.join(wanted[:3])}, ...") if nameless else ("The training", "")
        raise InputError(
            f"{whose} rows have no column names: the model needs {len(wanted)} columns{order}; {len(names)} are given."
        )

    # ------------------------------------------------------------ targets

    def labels(self, targets: "pd.DataFrame", picked: np.ndarray | None = None) -> np.ndarray:
        """Of the target columns: class numbers, standardised numbers, or zeros and ones (float32).

        Args:
            targets: The target columns.
            picked: The positions of the rows to use; by default all.
        """
        rows = targets if picked is None else targets.iloc[picked]
        if self.task == "classification":
            return self._class_numbers(rows.iloc[:, 0])
        columns = [numbers(name, rows.iloc[:, place]) for place, name in enumerate(self.target)]
        out = np.stack(columns, axis=1)
        if self.task == "regression" and self.target_mean is not None:
            out = (out - self.target_mean) / self.target_scale
        return out.astype(np.float32)

    def target_values(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of a regression in the target's own units.

        Args:
            outputs: Outputs of the model, or labels.
        """
        if self.target_mean is None or self.target_scale is None:
            return outputs
        return outputs * self.target_scale + self.target_mean

    def _class_numbers(self, column: "pd.Series") -> np.ndarray:
        import pandas as pd

        words = all(isinstance(name, str) for name in self.classes)
        values = as_words(column) if words else column.to_numpy()
        found = pd.Index(np.array(self.classes, dtype=object)).get_indexer(pd.Index(values.astype(object)))
        if (found < 0).any():
            unknown = values[int(np.argmax(found < 0))]
            raise InputError(
                f"Column '{self.target[0]}' has the class '{unknown}', which the model does not know: it knows "
                f"{', '.join(map(str, self.classes[:10]))}."
            )
        return found.astype(np.int64)

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
        try:
            features = tuple(
                Feature(str(f["name"]), str(f["kind"]), _number(f["fill"]), tuple(map(str, f["categories"])))
                for f in d["features"]
            )
            arrays = {name: None if d[name] is None else np.asarray(d[name], np.float64) for name in ARRAYS}
            made = cls(
                str(d["task"]),
                features,
                tuple(map(int, d["shape"])),
                tuple(map(str, d["target"])),
                tuple(d["classes"]),
                **arrays,
                id_column=None if d.get("id_column") is None else str(d["id_column"]),
            )
            made._check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"The description of the model's inputs is damaged ({error}): train the model again."
            ) from error
        return made

    def _check(self) -> None:
        names = len(self.inputs)
        good = self.task in TASKS and all(f.kind in ("number", "text") for f in self.features)
        good &= not self.features or self.shape == (names,)
        good &= (
            bool(self.classes) == (self.task == "classification")
            and bool(self.target)
            and min(self.shape, default=1) > 0
        )
        good &= all(isinstance(name, str | int | float) for name in self.classes)
        for array, shape in ((self.mean, self.shape), (self.scale, self.shape)):
            good &= array is None or array.shape in ((), shape)
        good &= (self.mean is None) == (self.scale is None) and (self.target_mean is None) == (
            self.target_scale is None
        )
        good &= all(getattr(self, name) is None or np.isfinite(getattr(self, name)).all() for name in ARRAYS)
        if not good:
            raise ValueError("its parts do not fit together")


ARRAYS = ("mean", "scale", "target_mean", "target_scale")


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def numbered(names: Sequence[str]) -> bool:
    """Whether columns are called 0, 1, 2, ... in any order, as those without names are."""
    return set(names) == {str(place) for place in range(len(names))}


def _missing_column(name: str, others: Sequence[str]) -> str:
    folded = {other.casefold(): other for other in others}
    near = get_close_matches(name.casefold(), folded, 1)
    if near:
        return f"There is no column '{name}', which the model needs; there is '{folded[near[0]]}': rename it."
    return f"There is no column '{name}', which the model was trained with: add it."


def as_frame(rows: Any) -> "pd.DataFrame":
    """A frame with its blank texts missing; an array of two axes as one with columns 0, 1, 2, ..., without a copy."""
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return changed(rows, without_blanks)
    array = np.asarray(rows)
    if array.ndim != 2:
        raise InputError(f"Rows must be a table, an array of two axes; this one has shape {array.shape}.")
    return pd.DataFrame(array, columns=[str(place) for place in range(array.shape[1])], copy=False)


def changed(frame: "pd.DataFrame", change: Callable[["pd.Series"], "pd.Series"]) -> "pd.DataFrame":
    """With some of its columns of text changed; numbers are not copied."""
    for place, kind in enumerate(frame.dtypes):
        if getattr(kind, "kind", "O") == "O" and (new := change(column := frame.iloc[:, place])) is not column:
            frame = frame.copy(deep=False)
            frame.isetitem(place, new)
    return frame


def without_blanks(column: "pd.Series") -> "pd.Series":
    """Empty texts, and words such as NA, are missing values, from whatever file they come."""
    words = column.unique()
    blank = [word for word in words if isinstance(word, str) and word.strip() in MISSING_WORDS]
    return column.mask(column.isin(blank)) if blank else column


def typed(column: "pd.Series") -> "pd.Series":
    """As it is read from a text file: numbers, or True and False, between blanks are numbers. Other text stays as it is."""
    import pandas as pd

    full = without_blanks(column)
    known = full.dropna().unique()
    if isinstance(column.dtype, pd.CategoricalDtype) or not len(known):
        return full
    if all(isinstance(word, bool | np.bool_) for word in known):
        return full.astype("boolean")
    if full is column and all(isinstance(word, str) for word in known):
        return column
    numeric = pd.to_numeric(pd.Series([str(word) for word in known]), errors="coerce").notna().all()
    return pd.to_numeric(full) if numeric else full


def _number_inputs(feature: Feature, column: "pd.Series") -> Iterator[np.ndarray]:
    values = numbers(feature.name, column, missing=True)
    gaps = np.isnan(values)
    if feature.fill is None:
        if gaps.any():
            where = place(column, int(np.argmax(gaps)))
            raise InputError(
                f"Column '{feature.name}' has a missing value ({where}), and the training rows had none: fill it or "
                "drop the row."
            )
        yield values
    else:
        yield np.where(gaps, feature.fill, values)
        yield gaps


def numbers(name: str, column: "pd.Series", missing: bool = False) -> np.ndarray:
    """A column of numbers in double precision; an error names the column, and a row that is not one."""
    import pandas as pd

    kind = getattr(column.dtype, "kind", "O")
    if kind not in "fiub":
        converted = pd.to_numeric(column, errors="coerce")
        bad = converted.isna() & column.notna()
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            raise InputError(
                f"Column '{name}' must hold numbers; {place(column, row)} has '{column.iloc[row]!s:.40}': correct it."
            )
        column = converted
    own_type = isinstance(column.dtype, np.dtype)  # others of pandas have a value for what is missing
    values = column.to_numpy() if own_type else column.to_numpy(dtype=np.float64, na_value=np.nan)
    values = values.astype(np.float64, copy=False)
    bad = ~(np.abs(values) < FLOAT32) if not missing else np.abs(values) >= FLOAT32
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"Column '{name}' has {unusable(values[row])} ({place(column, row)}): fill, scale or drop it.")
    return values


FLOAT32 = 3.4e38  # what a model can take in single precision


def unusable(value: float) -> str:
    if np.isnan(value):
        return "a missing value"
    return "an infinite value" if np.isinf(value) else f"the value {value:.2g}, too large for single precision"


def place(column: "pd.Series", row: int) -> str:
    """Where a value is for the user: the line of a text file, or the row."""
    return f"{'line' if column.index.name == 'line' else 'row'} {column.index[row]}"


def as_words(column: "pd.Series") -> np.ndarray:
    """A column of categories as text, whole numbers without a decimal point; missing ones are empty."""
    import pandas as pd

    if getattr(column.dtype, "kind", "O") == "f":
        whole = column.dropna().mod(1).eq(0).all()
        column = column.astype("Int64") if whole else column
    words = column.astype(object).where(column.notna(), MISSING)
    return np.array(
        [str(word) for word in words] if not isinstance(column.dtype, pd.StringDtype) else words, dtype=object
    )
