"""Data by name or by path, from frames, arrays and torch datasets: all encoded and standardized in the same way."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import InputError, first_line
from dnasa.data import images, reading
from dnasa.data.dataset import Dataset
from dnasa.data.datasets import DATASETS, load_known
from dnasa.data.encoding import Encoding
from dnasa.data.formats import kind
from dnasa.data.rows import Chosen, Rows, of_arrays, of_frame
from dnasa.data.summaries import make_encoding, summarise
from dnasa.data.text import CONTEXT, from_text
from dnasa.extras import needed_by

if TYPE_CHECKING:
    import pandas as pd


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
        standardise: Standardize inputs with the mean and standard deviation of the training rows.
        text: Whether a .txt file is a text rather than a table; by default what it looks like.
        columns: The columns to use as inputs; by default all but the target.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.

    Examples:
        >>> data = load("sales.csv", target="price", drop_columns=["comment"])
    """
    if isinstance(name, str) and name in DATASETS:
        return load_known(name, context)
    path = Path(name)
    if text is None:
        text = kind(path) == ".txt" and separator is None and path.is_file() and not reading.is_table(path)
    if text and path.is_file():
        return from_text(path, context)
    if path.exists() or path.suffix:
        rows, tests = read(path, target, separator, header)
        rows = Chosen(columns, drop_columns, id_column).of(rows, path.name)
        return encoded(rows, tests, path.resolve().name, str(path), task, standardise)
    raise InputError(f"Unknown data '{name}': it is no file or folder. Datasets: {', '.join(DATASETS)}.")


def from_frame(
    frame: "pd.DataFrame",
    target: Any,
    test: "pd.DataFrame | None" = None,
    name: str = "frame",
    task: str | None = None,
    standardise: bool = True,
    columns: Any = None,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> Dataset:
    """A dataset from a pandas frame.

    Args:
        frame: The training rows.
        target: The name of the target column, or those of several columns of zeros and ones.
        test: The test rows. By default every fifth of the shuffled rows of `frame`.
        name: What the dataset is called.
        task: "classification", "regression" or "multilabel"; by default what the target looks like.
        standardise: Standardize inputs with the mean and standard deviation of the training rows.
        columns: The columns to use as inputs; by default all but the target.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.
    """
    tests = None if test is None else of_frame(test, target, "The test frame")
    rows = Chosen(columns, drop_columns, id_column).of(of_frame(frame, target, "The frame"), "The frame")
    return encoded(rows, tests, name, "a frame", task, standardise)


def from_arrays(
    inputs: Any,
    labels: Any,
    test_inputs: Any = None,
    test_labels: Any = None,
    name: str = "own",
    task: str | None = None,
    standardise: bool = True,
) -> Dataset:
    """A dataset from arrays.

    Args:
        inputs: A row for each sample.
        labels: Numbers or words, or several zeros and ones for each row.
        test_inputs: The inputs of the test rows. By default every fifth of the shuffled rows is for testing.
        test_labels: The labels of the test rows.
        name: What the dataset is called.
        task: "classification", "regression" or "multilabel"; by default what the labels look like.
        standardise: Standardize inputs with the mean and standard deviation of the training rows.
    """
    tests = None if test_inputs is None else of_arrays(test_inputs, test_labels, "the test part")
    return encoded(of_arrays(inputs, labels), tests, name, "arrays", task, standardise)


def from_torch(
    train: Any, test: Any = None, name: str = "own", task: str | None = None, standardise: bool = True
) -> Dataset:
    """A dataset from a torch `Dataset`, read once into memory.

    Args:
        train: A torch `Dataset` of (input, label) pairs.
        test: The same for testing. By default every fifth of the shuffled rows of `train`.
        name: What the dataset is called.
        task: "classification", "regression" or "multilabel"; by default what the labels look like.
        standardise: Standardize inputs with the mean and standard deviation of the training rows.
    """
    inputs, labels = _columns(train)
    test_inputs, test_labels = (None, None) if test is None else _columns(test)
    return from_arrays(inputs, labels, test_inputs, test_labels, name, task, standardise)


def _columns(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    with needed_by("A torch dataset"):
        import torch

    pairs = [rows[i] for i in range(len(rows))]
    inputs, labels = ([torch.as_tensor(pair[place]) for pair in pairs] for place in (0, 1))
    try:
        return torch.stack(inputs).numpy(), torch.stack(labels).numpy()
    except RuntimeError as error:
        raise InputError(f"The rows of the torch dataset differ in shape: {first_line(error)}.") from error


# ---------------------------------------------------------------- files


def read(path: Path, target: Any, separator: str | None, header: bool | None) -> tuple[Rows, Rows | None]:
    """The rows of a file or a folder, and its test rows where it has them."""
    if not path.is_dir():
        return reading.read(path, target, separator, header)
    tables = sorted(p for p in path.iterdir() if p.is_file() and kind(p) in reading.KINDS and p.name[:2] != "~$")
    if not tables:
        return images.read_images(path)
    tests = [p for p in tables if p.name.startswith("test.")]
    mine = [p for p in tables if p not in tests]
    chosen = [p for p in mine if p.name.startswith("train.")] or mine
    if len(chosen) != 1:
        names = ", ".join(p.name for p in chosen[:5]) or "none"
        raise InputError(f"{path} must hold one file of training rows, or one called train.csv; it has: {names}.")
    train, own_test = reading.read(chosen[0], target, separator, header)
    return train, reading.read(tests[0], target, separator, header)[0] if tests else own_test


# ---------------------------------------------------------------- encoding


def hold_out_rows(rows: int, what: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Which rows train and which test, every fifth of shuffled rows, both in the order of the file."""
    if rows < 5:
        raise InputError(f"There are too few rows{what} to use every fifth for testing, {rows}: give at least 5.")
    order = np.random.default_rng(0).permutation(rows)
    test = np.zeros(rows, bool)
    test[order[4::5]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


class Split:
    """Rows divided into training and test rows, without copies."""

    def __init__(self, rows: Rows, tests: Rows | None, what: str = ""):
        self.rows, self.tests = rows, rows if tests is None else tests
        if tests is None:
            self.train, self.test = hold_out_rows(len(rows), what)
        else:
            self.train, self.test = np.arange(len(rows)), np.arange(len(tests))
            if not rows.features and rows.inputs.shape[1:] != tests.inputs.shape[1:]:
                raise InputError(
                    f"Training rows have shape {rows.inputs.shape[1:]}, test rows {tests.inputs.shape[1:]}: give both the same."
                )

    def summary(self, task: str | None) -> Any:
        return summarise(self.rows, self.train, self.tests, self.test, task)

    def training(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        return encoding.transform(self.rows.inputs, self.train), encoding.labels(self.rows.targets, self.train)

    def testing(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        return encoding.transform(self.tests.inputs, self.test), encoding.labels(self.tests.targets, self.test)


def encoded(
    rows: Rows, tests: Rows | None, name: str, source: str, task: str | None = None, standardise: bool = True
) -> Dataset:
    split = Split(rows, tests)
    encoding = make_encoding(split.summary(task), task, standardise)._replace(id_column=rows.id_column)
    parts = (*split.training(encoding), *split.testing(encoding))
    return Dataset(name, *parts, source, encoding=encoding, notes=rows.notes)
