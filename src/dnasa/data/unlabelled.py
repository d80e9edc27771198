"""Rows without their targets, for a trained model to predict."""

from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError
from dnasa.data import formats, images, reading
from dnasa.data.encoding import Encoding
from dnasa.data.rows import position


def read_rows(
    path: Path, encoding: Encoding, separator: str | None = None, header: bool | None = None
) -> tuple[Any, list[Any]]:
    """A frame or an array that `encoding` takes, from any format that is trained on, and the names of the rows, if they have.

    Those are a folder's images, or the `id_column` of a table.

    A table may have further columns, such as the target. Separator and header are detected unless they are given.
    """
    if path.is_dir():
        return _images(path, encoding.shape)
    if not path.is_file():
        raise InputError(f"There is no file or folder {path}.")
    rows = _rows(path, encoding, separator, header)
    return rows, _names(rows, encoding.id_column)


def _names(rows: Any, id_column: str | None) -> list[str]:
    names = [str(name) for name in getattr(rows, "columns", ())]
    place = None if id_column is None else position(names, id_column)
    return [] if place is None else rows.iloc[:, place].tolist()


def _rows(path: Path, encoding: Encoding, separator: str | None, header: bool | None) -> Any:
    kind = formats.kind(path)
    if kind == ".npz":
        return formats.read_arrays(path, {"inputs": reading.ARRAYS["inputs"]})["inputs"]
    if kind in images.KINDS:
        raise InputError(f"{path.name} is one image: give the folder that it is in.")
    if not encoding.features:
        raise InputError(f"The model takes rows of shape {encoding.shape}: give an .npz file, not {path.name}.")
    names = ",".join(feature.name for feature in encoding.features)
    table = reading.read_table(path, separator, header, names, encoding.id_column)
    if table.labels is None:
        return table.rows
    missing = max(0, len(encoding.features) - table.rows.shape[1])  # columns at the end without a value in any row
    return np.pad(table.rows, ((0, 0), (0, missing)))


def _images(folder: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in images.KINDS)
    if not paths:
        raise InputError(f"{folder} holds no images: give a folder of images, or a file.")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"The model takes rows of shape {shape}, not images: give a file.")
    mode, size = "L" if shape[0] == 1 else "RGB", (shape[2], shape[1])
    stacked = np.stack([images.pixels(path, mode, "the training data", size) for path in paths])
    return stacked, [str(path.relative_to(folder)) for path in paths]
