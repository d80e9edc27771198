"""A user's rows as they were read, before they are encoded."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data.columns import NUMERIC, as_float32, as_frame, blanks_to_missing, infer_dtype, map_text_columns
from dnasa.data.recoding import Recode


class Rows(NamedTuple):
    """Inputs and labels of the user."""

    inputs: Any  # a frame, of which the columns `features` are used, or an array
    labels: pd.Series
    features: tuple[str, ...] = ()
    id_column: str | None = None  # names the rows, and is not an input
    absent: tuple[str, ...] = ()  # columns that were to be left out and are not there
    recode: Recode | None = None  # what made them of the user's table
    used: Mapping[str, bool] = {}  # whether the table had what each entry of it replaces
    raw: pd.DataFrame | None = None  # the user's table

    def take(self, positions: np.ndarray) -> "Rows":
        inputs = self.inputs.iloc[positions] if self.features else self.inputs[positions]
        raw = None if self.raw is None else self.raw.iloc[positions]
        return self._replace(inputs=inputs, labels=self.labels.iloc[positions], raw=raw)


def without_columns(rows: Rows, drop: Any, id_column: str | None, what: str, may_be_absent: bool = False) -> Rows:
    """These rows without columns that are given by name or position, one of which names the rows. Errors call them `what`."""
    columns = list(rows.inputs.columns) if rows.features else []
    wanted = split_names(columns, drop)
    if id_column is not None:
        wanted.append(id_column)
    if wanted and not rows.features:
        raise InputError(f"{what} is no table: leave out --drop-columns and --id-column.")
    places = {name: position(columns, name) for name in wanted}
    absent = tuple(name for name, place in places.items() if place is None)
    if absent and not may_be_absent:
        raise InputError(_no_column(columns, absent[0], what))
    names = {name: columns[place] for name, place in places.items() if place is not None}
    features = tuple(name for name in rows.features if name not in names.values())
    if names and (not features or rows.labels.name in names.values()):
        raise InputError(f"{what} needs its target and an input: correct --drop-columns or --id-column.")
    return rows._replace(features=features, id_column=names.get(id_column or ""), absent=absent)


def from_frame(frame: pd.DataFrame, target: Any, what: str, recode: Recode | None = None) -> Rows:
    """Make rows of a table; its columns are named by text. The target is given by name or by position from 0."""
    raw, frame = frame, map_text_columns(frame if recode is None else recode.table(frame, what), infer_dtype)
    columns = [str(name) for name in frame.columns]
    frame.columns = columns
    if target is None:
        raise InputError(f"{what} needs its target: give --target with one of its columns, {_shortened(columns)}.")
    place = position(columns, str(target))
    if place is None:
        raise InputError(_no_column(columns, str(target), what))
    features = tuple(name for name in columns if name != columns[place])
    if not features:
        raise InputError(f"{what} has one column: it needs the target and at least one column of inputs.")
    labels = frame[columns[place]]
    if recode is None:
        return Rows(frame, labels, features, raw=raw)
    return Rows(frame, recode.target(labels), features, recode=recode, used=recode.used(raw, labels), raw=raw)


def from_arrays(inputs: Any, labels: Any, what: str = "the arrays") -> Rows:
    """Numbers with one row per sample, and a label for each."""
    inputs, labels = np.asarray(inputs), np.atleast_1d(np.asarray(labels))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if inputs.dtype.kind not in NUMERIC or inputs.ndim < 2 or not inputs.size:
        raise InputError(f"The inputs of {what} must be rows of numbers, not {inputs.dtype} of shape {inputs.shape}.")
    if labels.shape != (len(inputs),):
        raise InputError(f"{len(inputs)} rows have labels of shape {labels.shape}: give one label per row.")
    column = blanks_to_missing(pd.Series(labels, name="label"))
    if inputs.ndim == 2:
        frame = as_frame(inputs)
        return Rows(frame, column, tuple(frame.columns))
    return Rows(inputs if inputs.dtype == np.uint8 else as_float32(inputs, "the inputs"), column)


def split_names(columns: Sequence[str], names: Any) -> list[str]:
    """One name, several in a list, or several with commas between them."""
    if isinstance(names, str) and names not in columns and "," in names:
        return [part.strip() for part in names.split(",")]
    if isinstance(names, str | int):
        return [str(names)]
    return [str(name) for name in names or ()]


def position(columns: Sequence[str], wanted: str) -> int | None:
    """The position of a column, given by name or by position from 0."""
    if wanted in columns:
        return columns.index(wanted)
    return int(wanted) if wanted.isdigit() and int(wanted) < len(columns) else None


def _no_column(columns: Sequence[str], wanted: str, what: str) -> str:
    return f"{what} has no column '{wanted}'. Its columns: {_shortened(columns)}."


def _shortened(columns: Sequence[str]) -> str:
    return ", ".join(columns if len(columns) <= 12 else [*columns[:10], "...", columns[-1]])
