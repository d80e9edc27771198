"""A user's rows as they were read, before they are encoded."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError
from dnasa.data.encoding import as_frame

if TYPE_CHECKING:
    import pandas as pd


class Rows(NamedTuple):
    """`inputs` are a frame, of which the columns `features` are used, or an array; `targets` is a frame.

    `understood` says how the file was read, by name; `notes` are sentences about what was left out.
    """

    inputs: Any
    targets: "pd.DataFrame"
    features: tuple[str, ...] = ()
    understood: dict[str, str] = {}  # noqa: RUF012 (never changed)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    def column(self, name: str) -> "pd.Series":
        if name not in self.inputs:
            raise InputError(f"The test rows have no column '{name}', which the training rows have: add it.")
        return self.inputs[name]


def of_frame(frame: "pd.DataFrame", target: Any, what: str, **more: Any) -> Rows:
    """A table; its columns are named by text."""
    if any(not isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    names = target_names(frame, target, what)
    features = tuple(name for name in frame.columns if name not in names)
    if not features:
        raise InputError(f"{what} has one column: it needs the target and at least one column of inputs.")
    return Rows(frame, frame[names], features, **more)


def of_arrays(inputs: Any, labels: Any, what: str = "the arrays", **more: Any) -> Rows:
    """Numbers with one row per sample, and a label for each, or several zeros and ones."""
    array, targets = np.asarray(inputs), target_frame(labels)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or not array.size:
        raise InputError(
            f"The inputs of {what} must be numbers with one row per sample; these are {array.dtype} of shape {array.shape}."
        )
    if len(array) != len(targets):
        raise InputError(f"There are {len(array)} rows of inputs but {len(targets)} labels: give one label per row.")
    if array.ndim == 2:
        frame = as_frame(array)
        return Rows(frame, targets, tuple(frame.columns), **more)
    if array.dtype != np.uint8:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            bad = int(np.argmax(~np.isfinite(array.reshape(len(array), -1)).all(1)))
            raise InputError(
                f"Row {bad} of the inputs has a missing, infinite or enormous value: fill, scale or drop it."
            )
    return Rows(array, targets, **more)


def target_frame(labels: Any) -> "pd.DataFrame":
    """One column, or one for each of several labels."""
    import pandas as pd

    array = np.atleast_1d(np.asarray(labels))
    if array.ndim > 2 or (array.ndim == 2 and not array.shape[1]):
        raise InputError(f"Labels must be one per row; these have shape {array.shape}.")
    if array.ndim == 1 or array.shape[1] == 1:
        return pd.DataFrame({"label": array.reshape(-1)})
    return pd.DataFrame(array, columns=[f"label {place}" for place in range(array.shape[1])])


def target_names(frame: "pd.DataFrame", target: Any, what: str) -> list[str]:
    """The target columns, by name or by position from 0; several are separated by commas."""
    columns = list(frame.columns)
    if target is None:
        raise InputError(f"{what} needs its target: give --target with one of its columns, {_some(columns)}.")
    wanted = [target] if isinstance(target, str | int) else list(target)
    if isinstance(target, str) and target not in columns and "," in target:
        wanted = [part.strip() for part in target.split(",")]
    return [_name(columns, str(one), what) for one in wanted]


def _name(columns: list[str], wanted: str, what: str) -> str:
    if wanted in columns:
        return wanted
    if wanted.isdigit() and int(wanted) < len(columns):
        return columns[int(wanted)]
    raise InputError(f"{what} has no column '{wanted}'. Its columns: {_some(columns)}.")


def _some(columns: list[str]) -> str:
    return ", ".join(columns if len(columns) <= 12 else [*columns[:10], "...", columns[-1]])
