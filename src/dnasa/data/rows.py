"""A user's rows as they were read, before they are encoded."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError
from dnasa.data.columns import as_float32, as_frame, changed, typed, without_blanks

if TYPE_CHECKING:
    import pandas as pd


class Rows(NamedTuple):
    """`inputs` are a frame, of which the columns `features` are used, or an array; `labels` are a column with its name.

    `id_column` names the rows and is not an input. `absent` are columns that were to be left out and are not there.
    """

    inputs: Any
    labels: "pd.Series"
    features: tuple[str, ...] = ()
    id_column: str | None = None
    absent: tuple[str, ...] = ()

    def column(self, name: str) -> "pd.Series":
        if name not in self.inputs:
            raise InputError(f"The test rows have no column '{name}', which the training rows have: add it.")
        return self.inputs[name]


def without(rows: Rows, drop: Any, id_column: str | None, what: str, partly: bool = False) -> Rows:
    """These rows without some columns, and without the one that names the rows. Each is given by name or position.

    They must be there, unless it is enough that another site has them (`partly`).
    """
    every = list(rows.inputs.columns) if rows.features else []
    words = [*split_names(every, drop), *([] if id_column is None else [id_column])]
    if words and not rows.features:
        raise InputError(f"{what} is no table: leave out --drop-columns and --id-column.")
    places = {word: position(every, word) for word in words}
    absent = tuple(word for word, place in places.items() if place is None)
    if absent and not partly:
        _name(every, absent[0], what)
    dropped = {every[place] for place in places.values() if place is not None}
    features = tuple(name for name in rows.features if name not in dropped)
    if dropped and (not features or rows.labels.name in dropped):
        raise InputError(f"{what} needs its target and an input: correct --drop-columns or --id-column.")
    id_place = places.get(id_column or "")
    return rows._replace(features=features, id_column=None if id_place is None else every[id_place], absent=absent)


def of_frame(frame: "pd.DataFrame", target: Any, what: str) -> Rows:
    """Make rows of a table; its columns are named by text. The target is given by name or by position from 0."""
    if any(not isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    frame, columns = changed(frame, typed), list(frame.columns)
    if target is None:
        raise InputError(f"{what} needs its target: give --target with one of its columns, {_some(columns)}.")
    label = _name(columns, str(target), what)
    features = tuple(name for name in columns if name != label)
    if not features:
        raise InputError(f"{what} has one column: it needs the target and at least one column of inputs.")
    return Rows(frame, frame[label], features)


def of_arrays(inputs: Any, labels: Any, what: str = "the arrays") -> Rows:
    """Numbers with one row per sample, and a label for each."""
    import pandas as pd

    array, each = np.asarray(inputs), np.atleast_1d(np.asarray(labels))
    each = each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each
    if array.dtype.kind not in "fiub" or array.ndim < 2 or not array.size:
        raise InputError(f"The inputs of {what} must be rows of numbers, not {array.dtype} of shape {array.shape}.")
    if each.shape != (len(array),):
        raise InputError(f"{len(array)} rows have labels of shape {each.shape}: give one label per row.")
    column = without_blanks(pd.Series(each, name="label"))
    if array.ndim == 2:
        frame = as_frame(array)
        return Rows(frame, column, tuple(frame.columns))
    return Rows(array if array.dtype == np.uint8 else as_float32(array, "the inputs"), column)


def split_names(columns: list[str], names: Any) -> list[str]:
    """One name, several in a list, or several with commas between them."""
    if isinstance(names, str) and names not in columns and "," in names:
        return [part.strip() for part in names.split(",")]
    return [str(one) for one in ([names] if isinstance(names, str | int) else names or ())]


def position(columns: list[str], wanted: str) -> int | None:
    """The position of a column, given by name or by position from 0."""
    if wanted in columns:
        return columns.index(wanted)
    return int(wanted) if wanted.isdigit() and int(wanted) < len(columns) else None


def _name(columns: list[str], wanted: str, what: str) -> str:
    place = position(columns, wanted)
    if place is None:
        raise InputError(f"{what} has no column '{wanted}'. Its columns: {_some(columns)}.")
    return columns[place]


def _some(columns: list[str]) -> str:
    return ", ".join(columns if len(columns) <= 12 else [*columns[:10], "...", columns[-1]])
