"""Known datasets: from a local folder, or from OpenML.

A dataset NAME is read from `$DNASA_DATA/NAME/` if it is there, otherwise from scikit-learn's OpenML cache, and downloaded
to that cache if necessary. Parsed data is cached as a safetensors file, so that the next start is immediate.
"""

import hashlib
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.checks import choose, first_line
from dnasa.core import InputError
from dnasa.data.columns import as_float32
from dnasa.data.dataset import Dataset
from dnasa.data.reading import is_number, read_arrays, read_bytes, read_libsvm
from dnasa.data.text import CONTEXT, from_text
from dnasa.extras import needed_by
from dnasa.files import read_bytes as read_cached

Parts = dict[str, np.ndarray]
TABLE = ("inputs", "labels")
PARTS = (*TABLE, "test_inputs", "test_labels")  # the last two where training and test rows are apart
INPUTS = ("inputs", "test_inputs")


class Known(NamedTuple):
    """The files of a dataset, one of several choices, how they are parsed and prepared, and its number on OpenML."""

    files: tuple[tuple[str, ...], ...]
    parse: Callable[[list[Path]], Parts]
    prepare: Callable[[Parts], Parts]
    openml: int


def load_known(name: str, context: int = CONTEXT) -> Dataset:
    """A known dataset, prepared as in the literature. The `context` is that of texts."""
    choose("data", name, dict.fromkeys(DATASETS))
    if name == "digits":
        return _digits()
    paths = local_files(name)
    if name == "shakespeare":
        if not paths:
            raise InputError("There is no $DNASA_DATA/text/shakespeare.txt: put a text there, or give --data my.txt.")
        return from_text(paths[0], context)._replace(name=name, files=(paths[0].name,))
    known = KNOWN[name]
    if paths:
        stamp = "".join(f"{p.resolve()} {p.stat().st_size} {p.stat().st_mtime_ns}\n" for p in paths)
        stored = f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
        parts = _load_or_parse(stored, lambda: known.parse(paths))
        source = f"{paths[0].parent}{' (JPEG)' * (paths[0].name == CIFAR10_JPEG)}"
    else:
        parts, source = _from_openml(name, known), f"OpenML {known.openml}"
    return _dataset(name, known.prepare(parts), source)._replace(files=tuple(path.name for path in paths))


def _dataset(name: str, parts: Parts, source: str) -> Dataset:
    """Refuse files that do not belong together."""
    train, test = ((parts[f"{part}inputs"], parts[f"{part}labels"]) for part in ("", "test_"))
    for inputs, labels in (train, test):
        if labels.ndim != 1 or len(inputs) != len(labels) or not len(labels):
            raise InputError(f"The files of {name} in {source} must have rows, and one label per row.")
    return Dataset(name, *train, *test, source)


def local_files(name: str) -> list[Path]:
    """The files of a known dataset under `$DNASA_DATA`, each perhaps gzipped, or none if some are missing.

    Args:
        name: The name of a dataset with files, such as "mnist".
    """
    home = os.environ.get("DNASA_DATA")
    choices = KNOWN[name].files if name in KNOWN else (("shakespeare.txt",),)
    for names in choices if home else ():
        folder = Path(home or "").expanduser() / (name if name in KNOWN else "text")
        paths = [next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None) for file in names]
        if all(paths):
            return [path for path in paths if path]
    return []


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
        return load(read_cached(cached, follow=True, largest=math.inf))
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
            remedy = f"Put {', '.join(known.files[0])} (.gz or not) into $DNASA_DATA/{name}."
            raise InputError(f"Cannot fetch {name} from OpenML ({first_line(error)}). {remedy}") from error

    return _load_or_parse(f"{name}-openml-{known.openml}", fetch)


def fetch_openml(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, labels as numbers 0, 1, ... in sorted order."""
    with needed_by("Fetching from OpenML"):
        from sklearn.datasets import fetch_openml as fetch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about retries and parsers
        inputs, labels = fetch(data_id=number, as_frame=False, return_X_y=True, parser="liac-arff")
    inputs = inputs.toarray() if hasattr(inputs, "toarray") else inputs
    return np.asarray(inputs, np.float32), np.unique(labels, return_inverse=True)[1]


# ---------------------------------------------------------------- files


def read_idx(path: Path) -> np.ndarray:
    """IDX of unsigned bytes: two zero bytes, type 8, the number of axes, their sizes, then the data."""
    raw = read_bytes(path)
    start = 4 + 4 * raw[3] if len(raw) > 3 and raw[:3] == b"\x00\x00\x08" else 0
    sizes = np.frombuffer(raw[4:start], ">u4").tolist() if 4 < start <= len(raw) else []
    if not sizes or len(raw) - start != math.prod(sizes):
        raise InputError(f"{path} is not an IDX file of bytes, or is truncated. Download the file again.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def read_miniboone(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """UCI's text: the counts of signal and background, then 50 numbers a row, signal first."""
    text = io.BytesIO(read_bytes(path))
    try:
        signal, background = (int(count) for count in text.readline().split())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about no rows at all, which is checked below
            inputs = np.loadtxt(text, dtype=np.float32, ndmin=2)
        if min(signal, background) < 0 or len(inputs) != signal + background:
            raise ValueError(f"{signal} + {background} rows are declared, {len(inputs)} are there")
    except ValueError as error:
        raise InputError(f"{path} is not MiniBooNE's text (two counts, then rows of numbers): {error}.") from error
    return as_float32(inputs, path.name), np.repeat([1, 0], [signal, background])


def read_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The official binary version: a byte for the label, then 32 x 32 bytes each for red, green and blue."""
    raw = read_bytes(path)
    if not raw or len(raw) % 3073:
        raise InputError(f"{path} is not of CIFAR-10's binary version: {len(raw):,} bytes are not rows of 3,073.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), _checked_classes(rows[:, 0], path)


def read_cifar10_jpeg(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test part of an .npz: `_jpeg` has the bytes of all images, `_ends` where each ends, and `_labels`."""
    for part in ("train", "test"):
        names = {name: [f"{part}_{name}"] for name in ("jpeg", "ends", "labels")}
        raw, ends, labels = read_arrays(path, names).values()
        plain = raw.dtype == np.uint8 and ends.dtype.kind in "iu" and raw.ndim == ends.ndim == labels.ndim == 1
        cuts = np.append(0, ends).astype(np.int64) if plain and len(ends) else np.zeros(1)
        if len(cuts) == 1 or len(ends) != len(labels) or (np.diff(cuts) <= 0).any() or cuts[-1] != len(raw):
            raise InputError(f"{path} is damaged: the images in '{part}_jpeg' do not end where '{part}_ends' says.")
        images = [decode_jpeg(raw[start:end].tobytes(), path) for start, end in pairwise(cuts)]
        yield np.stack(images).transpose(0, 3, 1, 2), _checked_classes(labels, path)


def decode_jpeg(jpeg: bytes, path: Path) -> np.ndarray:
    """An image of 32 x 32 pixels and 3 colors; its size is checked before memory is used for it."""
    with needed_by(f"Decoding the images of {path.name}"):
        from PIL import Image
    try:
        image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
        if image.size == (32, 32) and image.mode == "RGB":
            return np.asarray(image)
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise InputError(f"{path} holds a damaged image. Download the file again.") from error
    raise InputError(f"{path} holds something that is not a color JPEG of 32 x 32 pixels. Download the file again.")


def _checked_classes(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.dtype.kind not in "iu" or not len(labels) or labels.min() < 0 or labels.max() > 9:
        raise InputError(f"The labels in {path} must be whole numbers from 0 to 9.")
    return labels.astype(np.int64)


def _parse_a9a(paths: list[Path]) -> Parts:
    pairs = (read_libsvm(path, 123) for path in paths)
    return _parts(
        chain.from_iterable((as_float32(inputs, "a9a"), (labels > 0).astype(np.int64)) for inputs, labels in pairs)
    )


def _parse_covertype(paths: list[Path]) -> Parts:
    """The last column is the class; UCI's file has no header."""
    raw = read_bytes(paths[0])
    header = 0 if is_number(raw.partition(b",")[0].decode(errors="replace")) else 1
    try:
        table: Any = np.loadtxt(io.BytesIO(raw), np.float32, delimiter=",", skiprows=header, ndmin=2)
    except ValueError as error:
        raise InputError(f"{paths[0]} is not a table of numbers: {first_line(error)}.") from error
    return _parts((as_float32(table[:, :-1], paths[0].name), np.unique(table[:, -1], return_inverse=True)[1]))


def _parse_cifar10(paths: list[Path]) -> Parts:
    if len(paths) == 1:
        return _parts(chain.from_iterable(read_cifar10_jpeg(paths[0])))
    *training, test = (read_cifar10(path) for path in paths)
    return _parts((*map(np.concatenate, zip(*training, strict=True)), *test))


# ---------------------------------------------------------------- training and test rows


def _digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    with needed_by("The digits data"):
        from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    return _dataset("digits", every_fifth(_parts((inputs.astype(np.float32) / 16, labels))), "scikit-learn")


def _parts(arrays: Iterable[np.ndarray]) -> Parts:
    return dict(zip(PARTS, arrays, strict=False))


def every_fifth(parts: Parts) -> Parts:
    test = np.arange(len(parts["labels"])) % 5 == 4
    return _split(parts, ~test, test)


def split_at(parts: Parts, rows: int) -> Parts:
    """OpenML gives one table: the first rows are for training."""
    return parts if "test_inputs" in parts else _split(parts, slice(rows), slice(rows, None))


def _split(parts: Parts, train: np.ndarray | slice, test: np.ndarray | slice) -> Parts:
    return _parts(parts[name][rows] for rows in (train, test) for name in TABLE)


def shuffled(parts: Parts) -> Parts:
    order = np.random.default_rng(0).permutation(len(parts["labels"]))
    return {name: parts[name][order] for name in TABLE}


def standardized(parts: Parts) -> Parts:
    """Every feature with mean 0 and deviation 1 over the training rows; constant ones are left at 0."""
    mean, deviation = parts["inputs"].mean(0), parts["inputs"].std(0)
    deviation[deviation == 0] = 1
    return parts | {name: ((parts[name] - mean) / deviation).astype(np.float32) for name in INPUTS}


def _images(parts: Parts, train: int, shape: tuple[int, ...], change: Callable[[np.ndarray], np.ndarray]) -> Parts:
    parts = split_at(parts, train)
    if any(math.prod(parts[key].shape[1:]) != math.prod(shape) for key in INPUTS):
        raise InputError(f"The images must have {' x '.join(map(str, shape))} numbers. Download the files again.")
    return parts | {key: change(parts[key].reshape(-1, *shape)) for key in INPUTS}


def _scale_mnist(pixels: np.ndarray) -> np.ndarray:
    out = pixels.astype(np.float32)
    out /= 255
    out -= 0.1307
    out /= 0.3081
    return out


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_JPEG = "cifar10-jpeg.npz"
KNOWN = {
    "mnist": Known(
        (MNIST_FILES,),
        lambda paths: _parts(map(read_idx, paths)),
        lambda parts: _images(parts, 60_000, (1, 28, 28), _scale_mnist),
        554,
    ),
    "a9a": Known((("a9a", "a9a.t"),), _parse_a9a, lambda parts: split_at(parts, 32_561), 1430),
    "miniboone": Known(
        (("MiniBooNE_PID.txt",),),
        lambda paths: _parts(read_miniboone(paths[0])),
        lambda parts: standardized(split_at(shuffled(parts), round(len(parts["labels"]) * 100_000 / 130_064))),
        41150,
    ),
    "covertype": Known(
        (("covertype.csv",), ("covertype-sample.csv",), ("covtype.data",)),
        _parse_covertype,
        lambda parts: standardized(every_fifth(shuffled(parts | {"labels": (parts["labels"] == 1).astype(np.int64)}))),
        1596,
    ),
    "cifar10": Known(
        (CIFAR10_FILES, tuple(f"cifar-10-batches-bin/{name}" for name in CIFAR10_FILES), (CIFAR10_JPEG,)),
        _parse_cifar10,
        lambda parts: _images(parts, 50_000, (3, 32, 32), lambda pixels: pixels.astype(np.uint8, copy=False)),
        40927,
    ),
}
DATASETS = ("digits", *KNOWN, "shakespeare")
"""Datasets that can be loaded by name."""
