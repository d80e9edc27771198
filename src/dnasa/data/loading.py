"""Data by name or by path, from frames and arrays: all encoded and standardized in the same way."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dnasa.checks import suggestion
from dnasa.core import InputError
from dnasa.data import rows as raw
from dnasa.data import tokens
from dnasa.data.dataset import Dataset
from dnasa.data.datasets import DATASETS, load_known, local_files
from dnasa.data.encoding import Encoding
from dnasa.data.partitions import stratified
from dnasa.data.reading import CONTEXT, FORMATS, check_readable, extension, from_text, read_file, read_images
from dnasa.data.recoding import Recode, as_recode, unused_warnings
from dnasa.data.rows import Rows, without_columns
from dnasa.data.summaries import check_columns, check_labels, make_encoding, sentinel_warnings, summarize


def load(
    name: str | Path,
    target: Any = None,
    context: int = CONTEXT,
    task: str | None = None,
    text: bool = False,
    drop_columns: Any = None,
    id_column: str | None = None,
    recode: Any = None,
) -> Dataset:
    """A known dataset by its name, or a file or folder by its path.

    Args:
        name: The name of a known dataset (`DATASETS`), or a path.
        target: The name of the target column or its position from 0.
        context: The length of a text's windows, in characters or tokens.
        task: "classification" or "regression"; by default what the target looks like.
        text: Whether a file or folder holds text rather than tables or images. A .txt file without a target does, and so do
            an .npz file with `train` and `test`, and a folder with a `tokenizer.json`.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.
        recode: A file `recode.toml` or its contents, applied before anything else, also to new rows.

    Examples:
        >>> data = load("sales.csv", target="price", drop_columns=["comment"])
    """
    if isinstance(name, str) and name in DATASETS:
        return load_known(name, context)
    path = Path(name)
    if not path.exists():
        hint = suggestion(name, DATASETS)
        raise InputError(f"Unknown data '{name}': it is no file or folder. Datasets: {', '.join(DATASETS)}.{hint}")
    windows = tokens.load_tokens(path, context, text)
    if windows is not None:
        return windows
    if path.is_file() and (text or (extension(path) == ".txt" and target is None)):
        return from_text(path, context)
    rows, tests = read(path, target, as_recode(recode))
    rows = without_columns(rows, drop_columns, id_column, path.name)
    return encoded(rows, tests, path.resolve().name, str(path), task)


def names_of_nodes(name: str, text: bool) -> Sequence[str]:
    """The names of the nodes, of data that says which rows are whose."""
    paths = local_files(name) if name in DATASETS else [Path(name)]
    return tokens.names_of_nodes(paths[0], text) if paths else ()


def from_frame(
    frame: pd.DataFrame,
    target: Any,
    test: pd.DataFrame | None = None,
    name: str = "frame",
    task: str | None = None,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> Dataset:
    """A dataset from a pandas frame.

    Args:
        frame: The training rows.
        target: The name of the target column.
        test: The test rows. By default a random fifth of `frame`, of each class its share.
        name: What the dataset is called.
        task: "classification" or "regression"; by default what the target looks like.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows: it is not an input, and comes back with predictions.
    """
    tests = None if test is None else raw.from_frame(test, target, "The test frame")
    rows = without_columns(raw.from_frame(frame, target, "The frame"), drop_columns, id_column, "The frame")
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
        test_inputs: The inputs of the test rows. By default a random fifth of the rows, of each class its share.
        test_labels: The labels of the test rows.
        name: What the dataset is called.
        task: "classification" or "regression"; by default what the labels look like.
    """
    tests = None if test_inputs is None else raw.from_arrays(test_inputs, test_labels, "the test part")
    return encoded(raw.from_arrays(inputs, labels), tests, name, "arrays", task)


def read(path: Path, target: Any, recode: Recode | None = None) -> tuple[Rows, Rows | None]:
    """The rows of a file or a folder, and its test rows where it has them."""
    if not path.is_dir():
        return read_file(path, target, recode)
    check_readable(path)
    tables = sorted(p for p in path.iterdir() if p.is_file() and extension(p) in FORMATS)
    if not tables and recode is not None:
        raise InputError(f"{path.name} holds no tables: leave out --recode and --labels.")
    if not tables:
        return read_images(path)
    tests = [p for p in tables if p.name.startswith("test.")]
    others = [p for p in tables if p not in tests]
    train = [p for p in others if p.name.startswith("train.")] or others
    if len(train) != 1:
        names = ", ".join(p.name for p in train[:5]) or "none"
        raise InputError(f"{path} must hold one file of training rows, or one called train.csv; it has: {names}.")
    rows, included_tests = read_file(train[0], target, recode)
    return rows, read_file(tests[0], target, recode)[0] if tests else included_tests


def hold_out_rows(labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train and which test, a random fifth of those with the same label, both in the order of the file."""
    rows = len(labels)
    if rows < 5:
        raise InputError(f"There are too few rows to use a fifth for testing, {rows}: give at least 5.")
    test = stratified(pd.factorize(labels)[0], rows // 5)
    return np.delete(np.arange(rows), test), test


def split(rows: Rows, tests: Rows | None) -> tuple[Rows, Rows]:
    """The rows for training and for testing, checked; a fifth is for testing where there are no test rows."""
    check_columns(rows)
    if tests is None:
        train, test = hold_out_rows(rows.labels)
        return rows.take(train), rows.take(test)
    check_labels(tests.labels)
    if absent := [name for name in rows.features if name not in tests.inputs]:
        raise InputError(f"The test rows have no column '{absent[0]}', which the training rows have: add it.")
    shape, test_shape = rows.inputs.shape[1:], tests.inputs.shape[1:]
    if not rows.features and shape != test_shape:
        raise InputError(f"Training rows have shape {shape}, test rows {test_shape}: give both the same.")
    return rows, tests


def encode_rows(rows: Rows, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
    return encoding.transform(rows.inputs), encoding.labels(rows.labels)


def encoded(rows: Rows, tests: Rows | None, name: str, source: str, task: str | None = None) -> Dataset:
    train, test = split(rows, tests)
    encoding = make_encoding(summarize(train, test, task), task)._replace(id_column=rows.id_column, recode=rows.recode)
    parts = *encode_rows(train, encoding), *encode_rows(test, encoding)
    return Dataset(name, *parts, source, encoding=encoding, warnings=(*sentinel_warnings(rows), *unused_warnings([rows.used])))
