"""Data by name or by path."""

from pathlib import Path
from typing import Any

from dnasa.core import InputError
from dnasa.data import reading
from dnasa.data.dataset import Dataset
from dnasa.data.datasets import DATASETS, load_known
from dnasa.data.own import from_file
from dnasa.data.rows import Chosen
from dnasa.data.text import CONTEXT, from_text


def load(
    name: str | Path,
    target: Any = None,
    context: int = CONTEXT,
    separator: str | None = None,
    header: bool | None = None,
    task: str | None = None,
    standardise: bool = True,
    text: bool | None = None,
    columns: Any = None,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> Dataset:
    """A known dataset by its name, or a file or folder by its path.

    `target` is the name of the target column or its position from 0, or several. Separator and header of a text table are
    detected unless they are given; `task` is classification, regression or multilabel, by default what the target looks
    like. A .txt file is a table if it looks like one, unless `text` says what it is; the `context` is that of texts. Inputs are
    all other columns, or `columns`, without `drop_columns` and the `id_column`, which comes back with predictions.
    """
    if isinstance(name, str) and name in DATASETS:
        return load_known(name, context)
    path = Path(name)
    if path.is_file() and (is_text(path, separator) if text is None else text):
        return from_text(path, context)
    if path.exists() or path.suffix:
        chosen = Chosen(columns, drop_columns, id_column)
        return from_file(path, target, separator, header, task, standardise, chosen)
    raise InputError(f"Unknown data '{name}': it is no file or folder. Datasets: {', '.join(DATASETS)}.")


def is_text(path: Path, separator: str | None) -> bool:
    """Whether a .txt file is a text rather than a table."""
    return reading.kind(path) == ".txt" and separator is None and not reading.is_table(path)
