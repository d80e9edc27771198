"""Known datasets: from a local folder, or from OpenML.

A dataset NAME is read from `$DNASA_DATA/NAME/` if it is there, otherwise from scikit-learn's OpenML cache, and downloaded
to that cache if necessary. Parsed data is cached as a safetensors file, so that the next start is immediate.
"""

import hashlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dnasa.core import InputError, choose, first_line
from dnasa.data import formats
from dnasa.data.columns import as_float32
from dnasa.data.dataset import Dataset
from dnasa.data.reading import read_text_frame
from dnasa.data.text import CONTEXT, from_text
from dnasa.extras import needed_by
from dnasa.files import read_bytes

Parts = dict[str, np.ndarray]
TABLE = ("inputs", "labels")
PARTS = (*TABLE, "test_inputs", "test_labels")  # the last two where training and test rows are apart
INPUTS = ("inputs", "test_inputs")


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
        stamp = "".join(f"{p.resolve()} {p.stat().st_size} {p.stat().st_mtime_ns}\n" for p in found)
        stored = f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
        parts = _load_or_parse(stored, lambda: known.parse(found))
        folder = found[0].parent
        source = f"{folder} (JPEG)" if found[0].name == CIFAR10_JPEG else str(folder)
    else:
        parts, source = _from_openml(name, known), f"OpenML {known.openml}"
    return _dataset(name, known.prepare(parts), source)._replace(files=tuple(path.name for path in found))


def _dataset(name: str, parts: Parts, source: str) -> Dataset:
    """Refuse files that do not belong together."""
    train, test = ((parts[f"{part}inputs"], parts[f"{part}labels"]) for part in ("", "test_"))
    for inputs, labels in (train, test):
        if labels.ndim != 1 or len(inputs) != len(labels) or not len(labels):
            raise InputError(
                f"The files of {name} in {source} must have one label per row, and rows for training and testing."
            )
    return Dataset(name, *train, *test, source)


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
    """The cache in scikit-learn's data folder, which is found as documented there, without importing it."""
    return Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser() / "dnasa"


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
            return _parts(fetch_openml(known.openml))
        except InputError:
            raise
        except Exception as error:  # whatever the cause, the remedy is the same
            reason = first_line(error)
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
    return np.asarray(inputs, np.float32), formats.as_classes(labels)


# ---------------------------------------------------------------- known datasets


def digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    with needed_by("The digits data"):
        from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    return _dataset("digits", every_fifth(_parts((inputs.astype(np.float32) / 16, labels))), "scikit-learn")


def shakespeare(context: int) -> Dataset:
    found = local_files("shakespeare")
    if not found:
        raise InputError(
            "There is no $DNASA_DATA/text/shakespeare.txt: put a text of the plays there, such as "
            "data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, or give any text file, such as --data my.txt."
        )
    return from_text(found[0], context)._replace(name="shakespeare", files=(found[0].name,))


def _parts(arrays: Iterable[np.ndarray]) -> Parts:
    return dict(zip(PARTS, arrays, strict=False))


def every_fifth(parts: Parts) -> Parts:
    test = np.arange(len(parts["labels"])) % 5 == 4
    if not test.any():
        raise InputError(f"{len(test)} rows are too few to use every fifth for testing: give at least 5.")
    return _split(parts, ~test, test)


def split_at(parts: Parts, rows: int) -> Parts:
    """OpenML gives one table: the first rows are for training."""
    return parts if "test_inputs" in parts else _split(parts, slice(rows), slice(rows, None))


def _split(parts: Parts, train: np.ndarray | slice, test: np.ndarray | slice) -> Parts:
    return _parts(parts[name][rows] for rows in (train, test) for name in TABLE)


def shuffled(parts: Parts) -> Parts:
    order = np.random.default_rng(0).permutation(len(parts["labels"]))
    return {name: parts[name][order] for name in TABLE}


def standardised(parts: Parts) -> Parts:
    """Every feature with mean 0 and deviation 1 over the training rows; constant ones are left at 0."""
    mean, deviation = parts["inputs"].mean(0), parts["inputs"].std(0)
    deviation[deviation == 0] = 1
    return parts | {name: ((parts[name] - mean) / deviation).astype(np.float32) for name in INPUTS}


def _images(name: str, parts: Parts, shape: tuple[int, ...]) -> Parts:
    for key in INPUTS:
        if np.prod(parts[key].shape[1:]) != np.prod(shape):
            wanted, found = (" x ".join(map(str, sizes)) for sizes in (shape, parts[key].shape[1:]))
            raise InputError(f"{name}'s images have {wanted} numbers; these have {found}.")
    return parts | {key: parts[key].reshape(-1, *shape) for key in INPUTS}


def _prepare_mnist(parts: Parts) -> Parts:
    parts = _images("MNIST", split_at(parts, 60_000), (1, 28, 28))
    scaled = {key: parts[key].astype(np.float32) for key in INPUTS}
    for image in scaled.values():
        image /= 255
        image -= 0.1307
        image /= 0.3081
    return parts | scaled


def _prepare_cifar10(parts: Parts) -> Parts:
    parts = _images("CIFAR-10", split_at(parts, 50_000), (3, 32, 32))
    return parts | {key: parts[key].astype(np.uint8, copy=False) for key in INPUTS}


def _one_of(folder: Path, *names: str) -> list[Path]:
    return next(([p] for name in names for p in (folder / name, folder / f"{name}.gz") if p.is_file()), [])


def _all_of(folder: Path, *names: str) -> list[Path]:
    found = [_one_of(folder, name) for name in names]
    return [path for paths in found for path in paths] if all(found) else []


def _parse_a9a(paths: list[Path]) -> Parts:
    return _parts(chain.from_iterable(_checked(path, *formats.read_libsvm(path, 123)) for path in paths))


def _checked(path: Path, inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return as_float32(inputs, path.name), formats.as_classes(labels)


def _parse_covertype(paths: list[Path]) -> Parts:
    """The last column is the class."""
    frame = read_text_frame(paths[0]).rows
    return _parts(_checked(paths[0], frame.iloc[:, :-1].to_numpy(), frame.iloc[:, -1].to_numpy()))


def _cifar10_files(folder: Path) -> list[Path]:
    """The official binary files, in the folder or as they are unpacked, before images that were compressed again."""
    official = (_all_of(place, *CIFAR10_FILES) for place in (folder, folder / "cifar-10-batches-bin"))
    return next(filter(None, official), None) or _one_of(folder, CIFAR10_JPEG)


def _parse_cifar10(paths: list[Path]) -> Parts:
    if len(paths) == 1:
        return _parts(chain.from_iterable(formats.read_cifar10_jpeg(paths[0])))
    *training, test = (formats.read_cifar10(path) for path in paths)
    return _parts((*map(np.concatenate, zip(*training, strict=True)), *test))


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_JPEG = "cifar10-jpeg.npz"
KNOWN = {
    "mnist": Known(
        lambda folder: _all_of(folder, *MNIST_FILES),
        lambda paths: _parts(map(formats.read_idx, paths)),
        _prepare_mnist,
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
        lambda paths: _parts(formats.read_miniboone(paths[0])),
        lambda parts: standardised(split_at(shuffled(parts), round(len(parts["labels"]) * 100_000 / 130_064))),
        41150,
        "Put the UCI file MiniBooNE_PID.txt (.gz or not) into $DNASA_DATA/miniboone.",
    ),
    "covertype": Known(
        lambda folder: _one_of(folder, "covertype.csv", "covertype-sample.csv", "covtype.data"),
        _parse_covertype,
        lambda parts: standardised(every_fifth(shuffled(parts | {"labels": (parts["labels"] == 1).astype(np.int64)}))),
        1596,
        "Put covertype.csv, covertype-sample.csv or covtype.data (.gz or not) into $DNASA_DATA/covertype.",
    ),
    "cifar10": Known(
        _cifar10_files,
        _parse_cifar10,
        _prepare_cifar10,
        40927,
        f"Put the files of its binary version ({CIFAR10_FILES[0]}, ..., {CIFAR10_FILES[-1]}) into $DNASA_DATA/cifar10.",
    ),
}
DATASETS = ("digits", *KNOWN, "shakespeare")
"""Datasets that can be loaded by name."""
