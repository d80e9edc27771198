"""File formats: IDX, LIBSVM, CSV, MiniBooNE's text, CIFAR-10, npz, text; gzipped or not. Damaged files get one line."""

import gzip
import io
import warnings
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import InputError

if TYPE_CHECKING:
    import pandas as pd

BOM = b"\xef\xbb\xbf"  # the byte-order mark that some programs write before UTF-8 text


def read_bytes(path: Path) -> bytes:
    """The whole file, unpacked if its first bytes are those of gzip."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"Cannot read {path}: {str(error) or 'it is truncated'}. Download the file again.") from error


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


def read_libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """`label index:value ...` per line, indices from 1."""
    from sklearn.datasets import load_svmlight_file

    text = io.BytesIO(read_bytes(path))
    try:
        rows, labels = load_svmlight_file(text, n_features=features, dtype=np.float32)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is not LIBSVM text of {features} features: {error}.") from error
    return checked_inputs(rows.toarray(), path), numbered(labels)


def read_csv(path: Path, target: str | None, keep_labels: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A table of numbers; the label is the column `target`, or the last one. The header is optional without a target.

    Labels become 0, 1, 2, ... in sorted order, unless `keep_labels`.
    """
    import pandas as pd

    text = io.BytesIO(read_bytes(path).removeprefix(BOM))
    try:
        first = text.readline().decode().strip().split(",")
        text.seek(0)
        table = pd.read_csv(text, header=0 if target or not all(map(_is_number, first)) else None)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a table of comma-separated values: {str(error).splitlines()[0]}.") from error
    if target is not None and target not in table:
        raise InputError(f"{path.name} has no column '{target}'. Its columns: {', '.join(map(str, table.columns))}.")
    _check_table(table, path)
    name = target if target is not None else table.columns[-1]
    inputs = table.drop(columns=name)
    words = [str(column) for column in inputs if inputs[column].dtype.kind not in "fiub"]
    if words:
        raise InputError(f"Column '{words[0]}' of {path.name} is not numeric: encode it as numbers first.")
    if table[name].isna().any():
        raise InputError(f"Column '{name}' of {path.name} has rows without a label: fill or drop them.")
    labels = table[name].to_numpy()
    return checked_inputs(inputs.to_numpy(np.float32), path), labels if keep_labels else numbered(labels)


def _check_table(table: "pd.DataFrame", path: Path) -> None:
    import pandas as pd

    if table.shape[1] < 2:
        raise InputError(f"{path.name} has one column: it needs the label and at least one column of inputs.")
    if not len(table):
        raise InputError(f"{path.name} has no rows below its header.")
    if not isinstance(table.index, pd.RangeIndex):  # pandas makes surplus columns the index
        raise InputError(f"The rows of {path.name} have more values than its header has names: remove or name them.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    return checked_inputs(inputs, path), np.repeat([1, 0], [signal, background])


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
        raw, ends, labels = _read_arrays(path, [f"{part}_{name}" for name in ("jpeg", "ends", "labels")]).values()
        plain = (
            raw.dtype == np.uint8
            and ends.dtype.kind in "iu"
            and ends.shape == labels.shape
            and raw.ndim == ends.ndim == 1
        )
        cuts = np.append(0, ends).astype(np.int64) if plain and len(ends) else np.zeros(1)
        if len(cuts) == 1 or (np.diff(cuts) <= 0).any() or cuts[-1] != len(raw):
            raise InputError(f"{path} is damaged: the images in '{part}_jpeg' do not end where '{part}_ends' says.")
        images = [decode_jpeg(raw[start:end].tobytes(), path) for start, end in pairwise(cuts)]
        yield np.stack(images).transpose(0, 3, 1, 2), _checked_classes(labels, 10, path)


def decode_jpeg(jpeg: bytes, path: Path) -> np.ndarray:
    """An image of 32 x 32 pixels and 3 colours; its size is checked before memory is used for it."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(f"{path.name} holds JPEG images, and Pillow decodes them: `pip install pillow`.") from None
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
        raise InputError(f"{path} is not UTF-8 text (byte {error.start:,}): convert it first.") from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """`inputs`, `labels` and, if present, `test_inputs`, `test_labels`."""
    return _read_arrays(path, ["inputs", "labels"], ["test_inputs", "test_labels"])


def _read_arrays(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an .npz, never a pickle; of the optional ones all or none."""
    keys = [*required, *optional]
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            parts = {key: np.asarray(archive[key]) for key in keys if key in names}
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # NumPy and zipfile raise many kinds for damaged files
        raise InputError(
            f"Cannot read {path}: it is not an archive of plain arrays. Write it with np.savez."
        ) from error
    missing = [key for key in (keys if parts.keys() & set(optional) else required) if key not in parts]
    if missing:
        raise InputError(f"{path.name} has no array '{missing[0]}'; it has: {', '.join(names) or 'nothing'}.")
    return parts


def checked_inputs(inputs: Any, path: Path | None = None) -> np.ndarray:
    """Finite numbers, one row per sample: signed whole numbers are tokens and stay so, all others become float32."""
    rows, name = np.asarray(inputs), f"inputs of {path.name}" if path else "inputs"
    if rows.dtype.kind not in "fiub" or rows.ndim < 2 or not rows.size:
        raise InputError(
            f"The {name} must be numbers with one row per sample; these are {rows.dtype} of shape {rows.shape}."
        )
    if rows.dtype.kind == "i":
        return rows.astype(np.int64)
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    if not np.isfinite(rows).all():
        bad = int(np.argwhere(~np.isfinite(rows.reshape(len(rows), -1)).all(1))[0, 0])
        raise InputError(f"Row {bad} of the {name} has a missing, infinite or enormous value: fill, scale or drop it.")
    return rows


def numbered(labels: Any) -> np.ndarray:
    """Labels as 0, 1, 2, ... in their sorted order."""
    words = np.asarray(labels)
    if words.ndim != 1:
        raise InputError(f"Labels must be one per row; these have shape {words.shape}.")
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
