"""Known datasets: from a local folder, or from OpenML.

A dataset NAME is read from `$DNASA_DATA/NAME/` if it is there, otherwise from OpenML, once: the arrays are cached.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.data.columns import as_float32, is_number
from dnasa.data.dataset import Dataset
from dnasa.data.reading import CONTEXT, from_text, read_arrays, read_bytes, read_libsvm
from dnasa.data.tokens import load_tokens
from dnasa.extras import needed_by

Arrays = Sequence[np.ndarray]  # inputs and labels; test inputs and labels where they are apart


class Known(NamedTuple):
    """The files of a dataset, one of several choices, how they are parsed and prepared, and its number on OpenML."""

    files: tuple[tuple[str, ...], ...]
    parse: Callable[[list[Path]], Arrays]
    prepare: Callable[[Arrays], Arrays]
    openml: int


def load_known(name: str, context: int = CONTEXT) -> Dataset:
    """A known dataset, prepared as in the literature. The `context` is that of texts."""
    if name == "digits":
        return _digits()
    if name in TEXTS:
        return _load_text(name, context)
    known, source = KNOWN[name], find_source(name)
    try:
        paths = local_files(name)
        arrays = known.parse(paths) if paths else _fetch(name)
        parts: Any = [as_float32(a, name) if a.dtype.kind == "f" else a for a in known.prepare(arrays)]
        if any(y.ndim != 1 or not len(x) == len(y) > 0 for x, y in (parts[:2], parts[2:])):
            raise ValueError("there must be rows, and one label per row")
    except Exception as error:  # whatever the cause, the remedy is the same
        remedy = f"Put {', '.join(known.files[0])} (.gz or not) into $DNASA_DATA/{name}."
        raise InputError(f"Cannot read {name} from {source} ({first_line(error)}). {remedy}") from error
    return Dataset(name, *parts)._replace(source=source, altered=altered(paths))


def find_source(name: str) -> str:
    """Where a dataset is read from; empty where it is a text that is not there."""
    if name == "digits":
        return "scikit-learn"
    paths = local_files(name)
    if paths:
        return f"{paths[0].parent} ({altered(paths)})" if altered(paths) else str(paths[0].parent)
    return f"OpenML {KNOWN[name].openml}" if name in KNOWN else ""


def altered(paths: Sequence[Path]) -> str:
    """What these files of a known dataset hold instead of its own rows; empty for those."""
    return next((word for path in paths for file, word in ALTERED.items() if path.name.startswith(file)), "")


def local_files(name: str) -> list[Path]:
    """The files of a known dataset under `$DNASA_DATA`, each perhaps gzipped, or none if some are missing."""
    home = os.environ.get("DNASA_DATA")
    if not home or name not in {*KNOWN, *TEXTS}:
        return []
    folder = Path(home).expanduser() / (name if name in KNOWN else "")
    for names in KNOWN[name].files if name in KNOWN else ((TEXTS[name],),):
        plain = [folder / file for file in names]
        paths = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
        if all(path.is_file() for path in paths):
            return paths
    return []


def _fetch(name: str) -> Arrays:
    """Inputs and labels from OpenML, labels as numbers 0, 1, ... in sorted order; cached, since parsing takes long."""
    number = KNOWN[name].openml
    home = Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser()  # that of scikit-learn
    cached = home / "dnasa" / f"{name}-openml-{number}.npz"
    with suppress(Exception), np.load(cached, allow_pickle=False) as archive:  # missing or damaged: fetched again
        return list(archive.values())
    with needed_by("Fetching from OpenML"):
        from sklearn.datasets import fetch_openml

    print(f"Fetching {name} (OpenML {number}); this happens once ...", file=sys.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about retries and parsers
        inputs, labels = fetch_openml(data_id=number, as_frame=False, return_X_y=True, parser="liac-arff")
    inputs = inputs.toarray() if hasattr(inputs, "toarray") else inputs
    arrays = np.asarray(inputs, np.float32), np.unique(labels, return_inverse=True)[1]
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, *arrays)
        partial.replace(cached)
    return arrays


def read_idx(path: Path) -> np.ndarray:
    """IDX of unsigned bytes: two zero bytes, type 8, the number of axes, their sizes, then the data."""
    raw = read_bytes(path)
    start = 4 + 4 * raw[3]
    if raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name} is not an IDX file of bytes")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(np.frombuffer(raw[4:start], ">u4"))


def read_miniboone(path: Path) -> Arrays:
    """UCI's text: the counts of signal and background, then 50 numbers a row, signal first."""
    text = io.BytesIO(read_bytes(path))
    counts = [int(count) for count in text.readline().split()]
    return np.loadtxt(text, dtype=np.float32, ndmin=2), np.repeat([1, 0], counts)


def read_cifar10(path: Path) -> Arrays:
    """The official binary version: a byte for the label, then 32 x 32 bytes each for red, green and blue."""
    rows = np.frombuffer(read_bytes(path), np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def read_cifar10_jpeg(path: Path, part: str) -> Arrays:
    """The training or the test part of an .npz: `_jpeg` has the bytes of all images, `_ends` where each ends, and `_labels`."""
    raw, ends, labels = read_arrays(path, {name: [f"{part}_{name}"] for name in ("jpeg", "ends", "labels")}).values()
    with needed_by("Decoding images"):
        from PIL import Image
    jpegs = [io.BytesIO(raw[start:end].tobytes()) for start, end in pairwise([0, *ends.tolist()])]
    images = [np.asarray(Image.open(jpeg, formats=["JPEG"])) for jpeg in jpegs]
    return np.stack(images).transpose(0, 3, 1, 2), labels.astype(np.int64)


def _parse_a9a(paths: list[Path]) -> Arrays:
    tables = (read_libsvm(path, 123) for path in paths)
    return [a for inputs, labels in tables for a in (inputs, (labels > 0).astype(np.int64))]


def _parse_covertype(paths: list[Path]) -> Arrays:
    """The last column is the class; UCI's file has no header."""
    raw = read_bytes(paths[0])
    header = 0 if is_number(raw.partition(b",")[0].decode(errors="replace")) else 1
    table: Any = np.loadtxt(io.BytesIO(raw), np.float32, delimiter=",", skiprows=header, ndmin=2)
    return table[:, :-1], np.unique(table[:, -1], return_inverse=True)[1]


def _parse_cifar10(paths: list[Path]) -> Arrays:
    if len(paths) == 1:
        return list(chain.from_iterable(read_cifar10_jpeg(paths[0], part) for part in ("train", "test")))
    *training, test = (read_cifar10(path) for path in paths)
    return [*map(np.concatenate, zip(*training, strict=True)), *test]


def _digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    with needed_by("The digits data"):
        from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    parts: Any = every_fifth((inputs.astype(np.float32) / 16, labels))
    return Dataset("digits", *parts)._replace(source="scikit-learn")


def _load_text(name: str, context: int) -> Dataset:
    paths = local_files(name)
    if not paths:
        raise InputError(f"There is no $DNASA_DATA/{TEXTS[name]}: put it there, or give a file of your own to --data.")
    rows = load_tokens(paths[0], context) or from_text(paths[0], context)
    return rows._replace(name=name)


def every_fifth(arrays: Arrays) -> Arrays:
    test = np.arange(len(arrays[1])) % 5 == 4
    return [a[rows] for rows in (~test, test) for a in arrays]


def split_at(arrays: Arrays, rows: int) -> Arrays:
    """OpenML gives one table: the first rows are for training."""
    return arrays if len(arrays) == 4 else [a[part] for part in (slice(rows), slice(rows, None)) for a in arrays]


def shuffled(arrays: Arrays) -> Arrays:
    order = np.random.default_rng(0).permutation(len(arrays[1]))
    return [a[order] for a in arrays]


def standardized(arrays: Arrays) -> Arrays:
    """Every feature with mean 0 and deviation 1 over the training rows; constant ones are left at 0."""
    inputs, labels, test_inputs, test_labels = arrays
    mean, deviation = inputs.mean(0), inputs.std(0)
    deviation[deviation == 0] = 1
    train, test = (((x - mean) / deviation).astype(np.float32) for x in (inputs, test_inputs))
    return train, labels, test, test_labels


def _mnist(arrays: Arrays) -> Arrays:
    inputs, labels, test_inputs, test_labels = split_at(arrays, 60_000)
    train, test = (x.reshape(-1, 1, 28, 28).astype(np.float32) for x in (inputs, test_inputs))
    for pixels in (train, test):  # in place: the temporary arrays would take longer than the arithmetic
        pixels /= 255
        pixels -= 0.1307
        pixels /= 0.3081
    return train, labels, test, test_labels


def _miniboone(arrays: Arrays) -> Arrays:
    return standardized(split_at(shuffled(arrays), round(len(arrays[1]) * 100_000 / 130_064)))


def _covertype(arrays: Arrays) -> Arrays:
    inputs, labels = arrays
    return standardized(every_fifth(shuffled((inputs, (labels == 1).astype(np.int64)))))


def _cifar10(arrays: Arrays) -> Arrays:
    inputs, labels, test_inputs, test_labels = split_at(arrays, 50_000)
    train, test = (x.reshape(-1, 3, 32, 32).astype(np.uint8, copy=False) for x in (inputs, test_inputs))
    return train, labels, test, test_labels


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_JPEG = "cifar10-jpeg.npz"
CIFAR10 = (CIFAR10_FILES, tuple(f"cifar-10-batches-bin/{name}" for name in CIFAR10_FILES), (CIFAR10_JPEG,))
COVERTYPE_SAMPLE = "covertype-sample.csv"
COVERTYPE = (("covertype.csv",), (COVERTYPE_SAMPLE,), ("covtype.data",))
ALTERED = {CIFAR10_JPEG: "JPEG", COVERTYPE_SAMPLE: "sample"}
KNOWN = {
    "mnist": Known((MNIST_FILES,), lambda paths: [*map(read_idx, paths)], _mnist, 554),
    "a9a": Known((("a9a", "a9a.t"),), _parse_a9a, lambda arrays: split_at(arrays, 32_561), 1430),
    "miniboone": Known((("MiniBooNE_PID.txt",),), lambda paths: read_miniboone(paths[0]), _miniboone, 41150),
    "covertype": Known(COVERTYPE, _parse_covertype, _covertype, 1596),
    "cifar10": Known(CIFAR10, _parse_cifar10, _cifar10, 40927),
}
TEXTS = {"shakespeare": "text/shakespeare.txt", "code": "code/tokens.npz.xz"}  # files in $DNASA_DATA
DATASETS = ("digits", *KNOWN, *TEXTS)
"""Datasets that can be loaded by name."""
