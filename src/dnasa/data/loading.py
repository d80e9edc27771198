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

    Args:
        name: The name of a known dataset (`DATASETS`), or a path.
        target: The name of the target column or its position from 0, or several of them.
        context: The length of a text's windows, in characters.
        separator: The separator of a text table; detected by default.
        header: Whether a text table begins with the names of its columns; detected by default.
        task: "classification", "regression" or "multilabel"; by default what the target looks like.
        standardise: Standardise inputs with the mean and standard deviation of the training rows.
        text: Whether a .txt file is a text rather than a table; by default what it looks like.
        columns: The columns to use as inputs; by default all but the target.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is no input, and comes back with predictions.

    Examples:
        >>> data = load("sales.csv", target="price", drop_columns=["comment"])
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
