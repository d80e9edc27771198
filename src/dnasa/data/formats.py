"""File formats: gzip, text, LIBSVM, arrays, and those of known datasets. A damaged file is refused with one line."""

import gzip
import io
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError, first_line
from dnasa.data import spreadsheets
from dnasa.data.columns import as_float32
from dnasa.extras import needed_by

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"  # the byte-order mark that some programs write before UTF-8 text


def kind(path: Path) -> str:
    """The end of the name, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of bytes, unpacked if the first are those of gzip; a workbook as text with commas."""
    try:
        if kind(path) == ".xlsx":
            yield io.BytesIO(spreadsheets.read(path).text)
            return
        with open(path, "rb") as file:
            zipped = file.read(2) == GZIP
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if zipped else file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"Cannot read {path}: {str(error) or 'it is truncated'}. Write or download the file again."
        ) from error


def read_bytes(path: Path) -> bytes:
    with opened(path) as file:
        return bytes(file.read())


def read_idx(path: Path) -> np.ndarray:
    """IDX of unsigned bytes: two zero bytes, type 8, the number of axes, their sizes, then the data."""
    raw = read_bytes(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an IDX file of bytes.")
    axes = raw[3]
    if not axes or len(raw) < 4 + 4 * axes:
        raise InputError(f"{path} is truncated or has no axes. Download the file again.")
    sizes = np.frombuffer(raw[4 : 4 + 4 * axes], ">u4").tolist()
    data = np.frombuffer(raw[4 + 4 * axes :], np.uint8)
    if data.size != np.prod(sizes, dtype=object):
        raise InputError(
            f"{path} declares {' x '.join(map(str, sizes))} bytes but has {data.size}. Download the file again."
        )
    return data.reshape(sizes)


def read_libsvm(path: Path, features: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`label index:value ...` per line, indices from 1; by default as many features as occur."""
    with needed_by("Reading LIBSVM files"):
        from sklearn.datasets import load_svmlight_file

    text = io.BytesIO(read_bytes(path))
    try:
        inputs, labels = load_svmlight_file(text, n_features=features, dtype=np.float32)
    except (ValueError, OverflowError) as error:
        of_features = f" of {features} features" if features else ""
        raise InputError(
            f"{path.name} is not LIBSVM text (label index:value ...){of_features}: {first_line(error)}."
        ) from error
    return inputs.toarray(), labels


def read_miniboone(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """UCI's text: the counts of signal and background, then 50 numbers a row, signal first."""
    text = io.BytesIO(read_bytes(path))
    try:
        signal, background = (int(count) for count in text.readline().split())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about no rows at all, which is checked below
            inputs = np.loadtxt(text, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise InputError(f"{path} is not MiniBooNE's text (two counts, then rows of numbers): {error}.") from error
    if min(signal, background) < 0 or len(inputs) != signal + background:
        raise InputError(
            f"{path} declares {signal} + {background} rows but has {len(inputs)}. Download the file again."
        )
    return as_float32(inputs, path.name), np.repeat([1, 0], [signal, background])


def read_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The official binary version: a byte for the label, then 32 x 32 bytes each for red, green and blue."""
    raw = read_bytes(path)
    if not raw or len(raw) % 3073:
        raise InputError(f"{path} is not of CIFAR-10's binary version: {len(raw):,} bytes are not rows of 3,073.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), _checked_classes(rows[:, 0], 10, path)


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
        yield np.stack(images).transpose(0, 3, 1, 2), _checked_classes(labels, 10, path)


def decode_jpeg(jpeg: bytes, path: Path) -> np.ndarray:
    """An image of 32 x 32 pixels and 3 colours; its size is checked before memory is used for it."""
    with needed_by(f"Decoding the images of {path.name}"):
        from PIL import Image
    try:
        image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
        pixels = np.asarray(image) if image.size == (32, 32) and image.mode == "RGB" else None
    except Exception:  # Pillow raises many kinds for damaged images
        pixels = None
    if pixels is None:
        raise InputError(
            f"{path} holds something that is not a colour JPEG of 32 x 32 pixels. Download the file again."
        )
    return pixels


def _checked_classes(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    if labels.dtype.kind not in "iu" or not len(labels) or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"The labels in {path} must be whole numbers from 0 to {classes - 1}.")
    return labels.astype(np.int64)


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise InputError(not_utf8(path, f" (byte {error.start:,})")) from error


def not_utf8(path: Path, where: str = "") -> str:
    """The name of the encoding is a guess from the first bytes."""
    with open(path, "rb") as file:
        start = file.read(2)
    if path.suffix == ".gz" and start != GZIP:
        return f"{path.name} is neither gzipped nor text: write it again."
    encoding = "utf16" if start in (b"\xff\xfe", b"\xfe\xff") else "latin1"
    return f"{path.name} is not UTF-8 text{where}: convert it, such as `iconv -f {encoding} -t utf8 {path.name} > new.csv`."


def read_arrays(path: Path, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Arrays of an .npz, never a pickle, each by the first of its possible names; of test arrays all or none."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            known = archive.files
            found = {key: next((name for name in some if name in known), None) for key, some in names.items()}
            parts = {key: np.asarray(archive[name]) for key, name in found.items() if name is not None}
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # NumPy and zipfile raise many kinds for damaged files
        raise InputError(
            f"Cannot read {path}: it is not an archive of plain arrays. Write it with np.savez."
        ) from error
    optional = [key for key in names if key.startswith("test_")]
    missing = [key for key in names if key not in parts and (key not in optional or parts.keys() & set(optional))]
    if missing:
        raise InputError(f"{path.name} has no array '{missing[0]}'; it has: {', '.join(known) or 'nothing'}.")
    return parts


def as_classes(labels: Any) -> np.ndarray:
    """Labels as 0, 1, 2, ... in their sorted order."""
    words = np.asarray(labels)
    if words.dtype.kind == "f" and not np.isfinite(words).all():
        raise InputError("Some labels are missing or infinite: fill or drop those rows.")
    try:
        names, numbers = np.unique(words, return_inverse=True)
    except TypeError:  # numbers and words mixed
        names, numbers = np.unique(words.astype(str), return_inverse=True)
    if len(names) < 2:
        raise InputError("All labels are the same: there is nothing to learn.")
    if words.dtype.kind == "f" and len(names) > 1000:
        raise InputError(f"The labels have {len(names):,} different values: this is regression, not classification.")
    return numbers.astype(np.int64)
