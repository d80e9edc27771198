"""Data by name or by path, from frames and arrays: all encoded and standardized in the same way."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import InputError
from dnasa.data.dataset import Dataset
from dnasa.data.datasets import DATASETS, load_known
from dnasa.data.encoding import Encoding
from dnasa.data.reading import CONTEXT, KINDS, from_text, kind, read_file, read_images
from dnasa.data.rows import Rows, of_arrays, of_frame, without
from dnasa.data.summaries import Summary, make_encoding, summarize

if TYPE_CHECKING:
    import pandas as pd


def load(
    name: str | Path,
    target: Any = None,
    context: int = CONTEXT,
    task: str | None = None,
    text: bool = False,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> Dataset:
    """A known dataset by its name, or a file or folder by its path.

    Args:
        name: The name of a known dataset (`DATASETS`), or a path.
        target: The name of the target column or its position from 0.
        context: The length of a text's windows, in characters.
        task: "classification" or "regression"; by default what the target looks like.
        text: Whether a file is a text rather than a table, as a .txt file without a target is.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.

    Examples:
        >>> data = load("sales.csv", target="price", drop_columns=["comment"])
    """
    if isinstance(name, str) and name in DATASETS:
        return load_known(name, context)
    path = Path(name)
    if not path.exists():
        raise InputError(f"Unknown data '{name}': it is no file or folder. Datasets: {', '.join(DATASETS)}.")
    if path.is_file() and (text or (kind(path) == ".txt" and target is None)):
        return from_text(path, context)
    rows, tests = read(path, target)
    rows = without(rows, drop_columns, id_column, path.name)
    return encoded(rows, tests, path.resolve().name, str(path), task)


def from_frame(
    frame: "pd.DataFrame",
    target: Any,
    test: "pd.DataFrame | None" = None,
    name: str = "frame",
    task: str | None = None,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> Dataset:
    """A dataset from a pandas frame.

    Args:
        frame: The training rows.
        target: The name of the target column.
        test: The test rows. By default every fifth of the shuffled rows of `frame`.
        name: What the dataset is called.
        task: "classification" or "regression"; by default what the target looks like.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.
    """
    tests = None if test is None else of_frame(test, target, "The test frame")
    rows = without(of_frame(frame, target, "The frame"), drop_columns, id_column, "The frame")
    return encoded(rows, tests, name, "a frame", task)


def from_arrays(
    inputs: Any,
    labels: Any,
    test_inputs: Any = None,
    test_labels: Any = None,
    name: str = "own",
    task: str | None = None,
) -> Dataset:
    """A dataset from arrays.

    Args:
        inputs: A row for each sample.
        labels: A number or a word for each row.
        test_inputs: The inputs of the test rows. By default every fifth of the shuffled rows is for testing.
        test_labels: The labels of the test rows.
        name: What the dataset is called.
        task: "classification" or "regression"; by default what the labels look like.
    """
    tests = None if test_inputs is None else of_arrays(test_inputs, test_labels, "the test part")
    return encoded(of_arrays(inputs, labels), tests, name, "arrays", task)


# ---------------------------------------------------------------- files


def read(path: Path, target: Any) -> tuple[Rows, Rows | None]:
    """The rows of a file or a folder, and its test rows where it has them."""
    if not path.is_dir():
        return read_file(path, target)
    tables = sorted(p for p in path.iterdir() if p.is_file() and kind(p) in KINDS and p.name[:2] != "~$")
    if not tables:
        return read_images(path)
    tests = [p for p in tables if p.name.startswith("test.")]
    others = [p for p in tables if p not in tests]
    train = [p for p in others if p.name.startswith("train.")] or others
    if len(train) != 1:
        names = ", ".join(p.name for p in train[:5]) or "none"
        raise InputError(f"{path} must hold one file of training rows, or one called train.csv; it has: {names}.")
    rows, own_test = read_file(train[0], target)
    return rows, read_file(tests[0], target)[0] if tests else own_test


# ---------------------------------------------------------------- encoding


def hold_out_rows(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train and which test, every fifth of shuffled rows, both in the order of the file."""
    if rows < 5:
        raise InputError(f"There are too few rows to use every fifth for testing, {rows}: give at least 5.")
    order = np.random.default_rng(0).permutation(rows)
    return np.sort(np.delete(order, np.s_[4::5])), np.sort(order[4::5])


class Split:
    """Rows divided into training and test rows, without copies."""

    def __init__(self, rows: Rows, tests: Rows | None):
        self.rows, self.tests = rows, rows if tests is None else tests
        self.train, self.test = np.arange(len(rows.labels)), np.arange(len(self.tests.labels))
        if tests is None:
            self.train, self.test = hold_out_rows(len(rows.labels))
        shapes = [part.inputs.shape[1:] for part in (rows, self.tests)]
        if not rows.features and shapes[0] != shapes[1]:
            raise InputError(f"Training rows have shape {shapes[0]}, test rows {shapes[1]}: give both the same.")

    def summary(self, task: str | None) -> Summary:
        return summarize(self.rows, self.train, self.tests, self.test, task)

    def training(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        return encoding.transform(self.rows.inputs, self.train), encoding.labels(self.rows.labels, self.train)

    def testing(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        return encoding.transform(self.tests.inputs, self.test), encoding.labels(self.tests.labels, self.test)


def encoded(rows: Rows, tests: Rows | None, name: str, source: str, task: str | None = None) -> Dataset:
    split = Split(rows, tests)
    encoding = make_encoding(split.summary(task), task)._replace(id_column=rows.id_column)
    parts = (*split.training(encoding), *split.testing(encoding))
    return Dataset(name, *parts, source, encoding=encoding)
