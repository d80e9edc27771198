"""Known datasets: from a local folder, or from OpenML.

A dataset NAME is read from `$DNASA_DATA/NAME/` if it is there, otherwise from scikit-learn's OpenML cache, and downloaded
to that cache if necessary. Parsed data is cached as a safetensors file, so that the next start is immediate.
"""

import hashlib
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import InputError, choose
from dnasa.data import formats
from dnasa.data.dataset import Dataset
from dnasa.data.reading import read_text_frame
from dnasa.data.text import CONTEXT, from_text
from dnasa.extras import needed_by
from dnasa.files import read_bytes

Parts = dict[str, Any]  # arrays: inputs, labels, test_inputs, test_labels


class Known(NamedTuple):
    """Where the files of a dataset are in a folder, how they are parsed, its number on OpenML, and how to get it by hand."""

    local: Callable[[Path], list[Path]]
    parse: Callable[[list[Path]], Parts]
    prepare: Callable[[Parts], Parts]
    openml: int
    remedy: str


def load_known(name: str, context: int = CONTEXT) -> Dataset:
    """A known dataset, prepared as in the literature. The `context` is that of texts."""
    choose("data", name, dict.fromkeys(DATASETS))
    if name == "digits":
        return digits()
    if name == "shakespeare":
        return shakespeare(context)
    known, found = KNOWN[name], local_files(name)
    if found:
        parts, source = _cached(name, found, lambda: known.parse(found)), str(found[0].parent)
        source += " (JPEG)" * (found[0].name == CIFAR10_JPEG)
    else:
        parts, source = _from_openml(name, known), f"OpenML {known.openml}"
    return _complete(Dataset(name, **known.prepare(parts), source=source))


def _complete(data: Dataset) -> Dataset:
    """Refuse files that do not belong together."""
    for inputs, labels in ((data.inputs, data.labels), (data.test_inputs, data.test_labels)):
        if labels.ndim != 1 or len(inputs) != len(labels) or not len(labels):
            raise InputError(
                f"The files of {data.name} in {data.source} must have one label per row, and rows for training and testing."
            )
    return data


def local_files(name: str) -> list[Path]:
    """The files of a known dataset under `$DNASA_DATA`, or none if some are missing.

    Args:
        name: The name of a dataset with files, such as "mnist".
    """
    home = os.environ.get("DNASA_DATA")
    if not home:
        return []
    folder = Path(home).expanduser()
    return _one_of(folder / "text", "shakespeare.txt") if name == "shakespeare" else KNOWN[name].local(folder / name)


# ---------------------------------------------------------------- the cache


def cache_folder() -> Path:
    """In scikit-learn's data folder, found as documented there, without importing it."""
    return Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser() / "dnasa"


def _cached(name: str, sources: list[Path], parse: Callable[[], Parts]) -> Parts:
    stamp = "".join(f"{p.resolve()} {p.stat().st_size} {p.stat().st_mtime_ns}\n" for p in sources)
    return _load_or_parse(f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}", parse)


def _load_or_parse(name: str, parse: Callable[[], Parts]) -> Parts:
    """The cached parts of that name; the first time they are parsed, and cached if the disk allows it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load, save_file

    cached = cache_folder() / f"{name}.safetensors"
    try:
        return load(read_bytes(cached, follow=True, largest=math.inf))
    except (OSError, SafetensorError):
        parts = {key: np.ascontiguousarray(value) for key, value in parse().items()}
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}")
        save_file(parts, partial)
        partial.replace(cached)
    except (OSError, SafetensorError):
        pass  # on a full or read-only disk the data is parsed again at the next start
    return parts


def _from_openml(name: str, known: Known) -> Parts:
    def fetch() -> Parts:
        print(f"Fetching {name} (OpenML {known.openml}); this happens once ...", file=sys.stderr)
        try:
            return _table(*fetch_openml(known.openml))
        except InputError:
            raise
        except Exception as error:  # whatever the cause, the remedy is the same
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"Cannot fetch {name} from OpenML ({reason}). {known.remedy}") from error

    return _load_or_parse(f"{name}-openml-{known.openml}", fetch)


def fetch_openml(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, labels as numbers 0, 1, ... in sorted order."""
    with needed_by("Fetching from OpenML"):
        from sklearn.datasets import fetch_openml as fetch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about retries and parsers
        inputs, labels = fetch(data_id=number, as_frame=False, return_X_y=True, parser="liac-arff")
    inputs = inputs.toarray() if hasattr(inputs, "toarray") else inputs
    return np.asarray(inputs, np.float32), formats.numbered(labels)


# ---------------------------------------------------------------- known datasets


def digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    with needed_by("The digits data"):
        from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    return Dataset("digits", **every_fifth(inputs.astype(np.float32) / 16, labels), source="scikit-learn")


def shakespeare(context: int) -> Dataset:
    found = local_files("shakespeare")
    if not found:
        raise InputError(
            "There is no $DNASA_DATA/text/shakespeare.txt: put a text of the plays there, such as "
            "data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, or give any text file, such as --data my.txt."
        )
    return from_text(found[0], context)._replace(name="shakespeare")


def every_fifth(inputs: np.ndarray, labels: np.ndarray) -> Parts:
    test = np.arange(len(labels)) % 5 == 4
    if len(labels) < 5:
        raise InputError(f"{len(labels)} rows are too few to use every fifth for testing: give at least 5.")
    return {
        "inputs": inputs[~test],
        "labels": labels[~test],
        "test_inputs": inputs[test],
        "test_labels": labels[test],
    }


def split_at(parts: Parts, rows: int) -> Parts:
    """OpenML gives one table: the first rows are for training."""
    if "test_inputs" in parts:
        return parts
    inputs, labels = parts["inputs"], parts["labels"]
    return {
        "inputs": inputs[:rows],
        "labels": labels[:rows],
        "test_inputs": inputs[rows:],
        "test_labels": labels[rows:],
    }


def shuffled(parts: Parts) -> Parts:
    order = np.random.default_rng(0).permutation(len(parts["labels"]))
    return {"inputs": parts["inputs"][order], "labels": parts["labels"][order]}


def standardised(parts: Parts) -> Parts:
    """Every feature with mean 0 and deviation 1 over the training rows; constant ones are left at 0."""
    mean, deviation = parts["inputs"].mean(0), parts["inputs"].std(0)
    deviation[deviation == 0] = 1
    scaled = {key: ((parts[key] - mean) / deviation).astype(np.float32) for key in ("inputs", "test_inputs")}
    return parts | scaled


def _pixels(parts: Parts) -> Parts:
    parts = split_at(parts, 60_000)
    for key in ("inputs", "test_inputs"):
        if np.prod(parts[key].shape[1:]) != 784:
            raise InputError(
                f"MNIST's images have 28 x 28 pixels; these have {' x '.join(map(str, parts[key].shape[1:]))}."
            )
    scaled = {key: parts[key].reshape(-1, 1, 28, 28).astype(np.float32) for key in ("inputs", "test_inputs")}
    for image in scaled.values():
        image /= 255
        image -= 0.1307
        image /= 0.3081
    return parts | scaled


def _colour_images(parts: Parts) -> Parts:
    parts = split_at(parts, 50_000)
    for key in ("inputs", "test_inputs"):
        if np.prod(parts[key].shape[1:]) != 3072:
            raise InputError("CIFAR-10's images have 3 x 32 x 32 numbers; these have others.")
    images = {key: parts[key].reshape(-1, 3, 32, 32).astype(np.uint8, copy=False) for key in ("inputs", "test_inputs")}
    return parts | images


def _one_of(folder: Path, *names: str) -> list[Path]:
    return next(([p] for name in names for p in (folder / name, folder / f"{name}.gz") if p.is_file()), [])


def _all_of(folder: Path, *names: str) -> list[Path]:
    found = [_one_of(folder, name) for name in names]
    return [path for paths in found for path in paths] if all(found) else []


def _parse_mnist(paths: list[Path]) -> Parts:
    keys = ("inputs", "labels", "test_inputs", "test_labels")
    return dict(zip(keys, (formats.read_idx(path) for path in paths), strict=True))


def _parse_a9a(paths: list[Path]) -> Parts:
    (inputs, labels), (test_inputs, test_labels) = (formats.read_libsvm(path, 123) for path in paths)
    return {"inputs": inputs, "labels": labels, "test_inputs": test_inputs, "test_labels": test_labels}


def _parse_covertype(paths: list[Path]) -> Parts:
    """The last column is the class."""
    frame = read_text_frame(paths[0]).frame
    inputs = formats.checked_inputs(frame.iloc[:, :-1].to_numpy(np.float32), paths[0])
    return _table(inputs, formats.numbered(frame.iloc[:, -1].to_numpy()))


def _cifar10_files(folder: Path) -> list[Path]:
    """The official binary files, in the folder or as they are unpacked, before images that were compressed again."""
    official = (_all_of(place, *CIFAR10_FILES) for place in (folder, folder / "cifar-10-batches-bin"))
    return next(filter(None, official), None) or _one_of(folder, CIFAR10_JPEG)


def _parse_cifar10(paths: list[Path]) -> Parts:
    if len(paths) == 1:
        (inputs, labels), (test_inputs, test_labels) = formats.read_cifar10_jpeg(paths[0])
    else:
        *training, (test_inputs, test_labels) = (formats.read_cifar10(path) for path in paths)
        inputs, labels = (np.concatenate(column) for column in zip(*training, strict=True))
    return {"inputs": inputs, "labels": labels, "test_inputs": test_inputs, "test_labels": test_labels}


def _table(inputs: np.ndarray, labels: np.ndarray) -> Parts:
    return {"inputs": inputs, "labels": labels}


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_JPEG = "cifar10-jpeg.npz"
KNOWN = {
    "mnist": Known(
        lambda folder: _all_of(folder, *MNIST_FILES),
        _parse_mnist,
        _pixels,
        554,
        f"Put its four IDX files ({MNIST_FILES[0]}, ...; .gz or not) into $DNASA_DATA/mnist.",
    ),
    "a9a": Known(
        lambda folder: _all_of(folder, "a9a", "a9a.t"),
        _parse_a9a,
        lambda parts: split_at(parts, 32_561),
        1430,
        "Put the LIBSVM files a9a and a9a.t (.gz or not) into $DNASA_DATA/a9a.",
    ),
    "miniboone": Known(
        lambda folder: _one_of(folder, "MiniBooNE_PID.txt"),
        lambda paths: _table(*formats.read_miniboone(paths[0])),
        lambda parts: standardised(split_at(shuffled(parts), round(len(parts["labels"]) * 100_000 / 130_064))),
        41150,
        "Put the UCI file MiniBooNE_PID.txt (.gz or not) into $DNASA_DATA/miniboone.",
    ),
    "covertype": Known(
        lambda folder: _one_of(folder, "covertype.csv", "covertype-sample.csv", "covtype.data"),
        _parse_covertype,
        lambda parts: standardised(
            every_fifth(**shuffled(parts | {"labels": (parts["labels"] == 1).astype(np.int64)}))
        ),
        1596,
        "Put covertype.csv, covertype-sample.csv or covtype.data (.gz or not) into $DNASA_DATA/covertype.",
    ),
    "cifar10": Known(
        _cifar10_files,
        _parse_cifar10,
        _colour_images,
        40927,
        f"Put the files of its binary version ({CIFAR10_FILES[0]}, ..., {CIFAR10_FILES[-1]}) into $DNASA_DATA/cifar10.",
    ),
}
DATASETS = ("digits", *KNOWN, "shakespeare")
"""Datasets that can be loaded by name."""
