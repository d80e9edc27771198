"""Rows in files: tables, parquet, LIBSVM, arrays, folders of images, texts. A damaged file is refused with one line."""

import csv
import gzip
import io
import lzma
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from dnasa import files
from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.data.columns import MISSING_WORDS, is_number
from dnasa.data.dataset import Dataset
from dnasa.data.encoding import Encoding
from dnasa.data.recoding import Recode
from dnasa.data.rows import Rows, from_arrays, from_frame, position
from dnasa.extras import needed_by

SAMPLE = 1 << 16  # bytes from which separator and decimal sign are found
SEPARATORS = ",;\t|"
BOM = b"\xef\xbb\xbf"  # the byte-order mark that some programs write before UTF-8 text
LIBSVM = (".libsvm", ".svm", ".svmlight")
FORMATS = (".csv", ".tsv", ".txt", ".data", ".dat", ".tab", *LIBSVM, ".npz", ".parquet")
OTHER_TABLES = (  # of spreadsheets and statistics programs
    *(".xlsx", ".xlsm", ".xls", ".ods", ".sas7bdat", ".xpt", ".sav", ".zsav", ".dta", ".rds", ".rda", ".rdata", ".feather"),
    *(".arrow", ".orc", ".mdb", ".accdb"),
)
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # others may start a program, as PostScript does
CONTEXT = 256  # characters that a model of a text sees at once
ARRAYS = {  # what an array of an .npz may be called
    "inputs": ("inputs", "X", "x", "X_train", "x_train"),
    "labels": ("labels", "y", "Y", "y_train", "targets"),
    "test_inputs": ("test_inputs", "X_test", "x_test"),
    "test_labels": ("test_labels", "y_test", "test_targets"),
}


@contextmanager
def refusing(line: str) -> Iterator[None]:
    """Refuse a damaged file with this line, whatever a library raises."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(line) from error


def extension(path: Path) -> str:
    """The end of the name in lower case, without .gz and .xz."""
    return Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix.lower()


def in_order(path: Path) -> str:
    """The key by which node-10 comes after node-9."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), path.name)


def check_readable(folder: Path) -> None:
    """Refuse a table in a format that cannot be read, unless the folder has it in another one, too."""
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "~$"))]
    saved = {path.name.partition(".")[0] for path in files if path.is_dir() or extension(path) in FORMATS}
    for path in files:
        if extension(path) in OTHER_TABLES and path.name.partition(".")[0] not in saved:
            raise InputError(f"{path} has no format that can be read: save it as .csv or .parquet, or move it elsewhere.")


def read_file(path: Path, target: Any, recode: Recode | None = None) -> tuple[Rows, Rows | None]:
    """The training rows and, where the file has them apart, the test rows."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if recode is not None and extension(path) in (".npz", *LIBSVM):
        raise InputError(f"{path.name} is no table: leave out --recode and --labels.")
    if extension(path) == ".npz":
        arrays = read_arrays(path, ARRAYS)
        train = from_arrays(arrays["inputs"], arrays["labels"], path.name)
        if "test_inputs" not in arrays:
            return train, None
        return train, from_arrays(arrays["test_inputs"], arrays["test_labels"], path.name)
    if extension(path) in LIBSVM:
        return from_arrays(*read_libsvm(path), path.name), None
    return from_frame(read_table(path), target, path.name, recode), None


def read_rows(path: Path, encoding: Encoding) -> tuple[Any, list[Any]]:
    """A frame or an array that `encoding` takes, perhaps with further columns, and the names of the rows, if they have any.

    Names are those of a folder's images, or the `id_column` of a table.
    """
    if path.is_dir():
        return read_unlabeled(path, encoding.shape)
    if not path.is_file():
        raise InputError(f"There is no file or folder {path}.")
    if extension(path) == ".npz":
        return read_arrays(path, {"inputs": ARRAYS["inputs"]})["inputs"], []
    if not encoding.features:
        raise InputError(f"The model takes rows of shape {encoding.shape}: give an .npz file or a folder of images.")
    if extension(path) in LIBSVM:
        return read_libsvm(path, len(encoding.features))[0], []
    frame = read_table(path, encoding.id_column)
    place = position(list(frame.columns), encoding.id_column or "")
    return frame, [] if place is None else frame.iloc[:, place].tolist()


def read_table(path: Path, as_text: str | None = None) -> pd.DataFrame:
    """Parquet, or text. The column `as_text` stays text, as 007."""
    if extension(path) not in FORMATS:
        raise InputError(f"{path.name} has no format that can be read: save it as .csv. Formats: {', '.join(FORMATS)}.")
    frame = _read_parquet(path) if extension(path) == ".parquet" else _read_text(path, as_text)
    return frame.set_axis(pd.RangeIndex(1, 1 + len(frame)))  # rows count from 1, below the header


def _read_text(path: Path, as_text: str | None) -> pd.DataFrame:
    raw = read_bytes(path).removeprefix(BOM)
    sample = raw[:SAMPLE].decode(errors="replace")
    header = next((line for line in sample.splitlines() if line.strip()), "")
    try:
        choices = [(next(csv.reader([header], delimiter=sign, skipinitialspace=True), []), sign) for sign in SEPARATORS]
        names, separator = max(choices, key=lambda choice: len(choice[0]))  # which divides the line into most names
        if len(names) < 2 and extension(path) != ".csv":
            names, separator = header.split(), " "
        frame = pd.read_csv(
            io.BytesIO(raw),
            sep=r"\s+" if separator == " " else separator,
            decimal=_decimal(sample, separator),
            dtype={as_text: str} if as_text else None,
            keep_default_na=False,
            na_values=list(MISSING_WORDS),
            skipinitialspace=True,
            low_memory=False,
        )
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 text: convert it, such as with iconv.") from error
    except (ValueError, csv.Error) as error:
        where = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        reason = "line {1} has {2} values, the header {0}".format(*where.groups()) if where else first_line(error)
        raise InputError(f"{path.name} is not a table with a header line: {reason}.") from error
    _check_header(path, [name.strip() for name in names], frame)
    surplus = [name for place, name in enumerate(frame.columns) if _is_surplus(frame, name, place)]
    return frame.drop(columns=surplus)


def _decimal(sample: str, separator: str) -> str:
    """A comma where numbers are written so and it does not separate."""
    number = r'(?m)(?:^|[;\t| ])"?-?\d+{}\d+"?(?=[;\t| \r]|$)'
    with_comma, with_point = (re.search(number.replace("{}", mark), sample) for mark in (",", r"\."))
    return "," if separator != "," and with_comma and not with_point else "."


def _check_header(path: Path, names: list[str], frame: pd.DataFrame) -> None:
    numeric = [name for name in names if is_number(name)]
    only_counted = numeric == [str(place) for place in range(len(numeric))]  # as pandas writes columns without names
    named = [name for name in names if name]
    has_surplus = not isinstance(frame.index, pd.RangeIndex)  # pandas makes values without a name the index
    if not only_counted or len(set(named)) < len(named) or has_surplus:
        raise InputError(f"The first line of {path.name} must have a name for each column, all different: correct it.")
    if not len(frame):
        raise InputError(f"{path.name} has no rows below its header.")


def _is_surplus(frame: pd.DataFrame, name: str, place: int) -> bool:
    """What programs add: the row numbers of pandas, and an empty column after a separator at the end of each line."""
    if name != f"Unnamed: {place}":
        return False
    return bool(frame[name].isna().all()) or (place == 0 and np.array_equal(frame[name], np.arange(len(frame))))


def _read_parquet(path: Path) -> pd.DataFrame:
    with needed_by(f"Reading {path.name}"):
        import pyarrow  # noqa: F401, which pandas uses
    with refusing(f"{path.name} is not a parquet file: write it again."):
        frame = pd.read_parquet(path)
    if isinstance(frame.index, pd.RangeIndex):
        return frame
    return frame.reset_index(drop=frame.index.name is None)


def read_bytes(path: Path) -> bytes:
    """The contents of a file, unpacked if the first bytes are those of gzip or xz."""
    try:
        raw = files.read_bytes(path, follow=True, largest=math.inf)
        if raw.startswith(b"\xfd7zXZ\x00"):
            return lzma.decompress(raw)
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"Cannot read {path}: {first_line(error)}. Write or download the file again.") from error


def read_libsvm(path: Path, features: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`label index:value ...` per line, indices from 1; by default as many features as occur."""
    with needed_by("Reading LIBSVM files"):
        from sklearn.datasets import load_svmlight_file
    try:
        inputs, labels = load_svmlight_file(io.BytesIO(read_bytes(path)), n_features=features, dtype=np.float32)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path.name} is not LIBSVM text (label index:value): {first_line(error)}.") from error
    return inputs.toarray(), labels


@contextmanager
def open_archive(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz, perhaps compressed as a whole; never a pickle. Each is read when it is used."""
    damaged = refusing(f"{path} is not an archive of plain arrays: write it with np.savez.")
    source: Any = path if path.suffix == ".npz" else io.BytesIO(read_bytes(path))
    with damaged, np.load(source, allow_pickle=False) as archive:
        yield archive


def read_arrays(path: Path, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Arrays of an .npz, each by the first of its possible names; of test arrays all or none."""
    with open_archive(path) as archive:
        stored = list(archive)
        chosen = {key: next((name for name in some if name in stored), None) for key, some in names.items()}
        arrays = {key: np.asarray(archive[name]) for key, name in chosen.items() if name is not None}
    has_tests = any(key.startswith("test_") for key in arrays)
    for key in names:
        if key not in arrays and (has_tests or not key.startswith("test_")):
            raise InputError(f"{path.name} has no array '{key}'; it has: {', '.join(stored) or 'nothing'}.")
    return arrays


def read_images(folder: Path) -> tuple[Rows, Rows | None]:
    """All images as bytes, gray or in color, and those of the folder `test` if there is one; all have the size of the first."""
    folders = [folder]
    if (folder / "train").is_dir():
        folders = [part for part in (folder / "train", folder / "test") if part.is_dir()]
    parts = [by_class(part) for part in folders]
    paths = [path for part in parts for path in part]
    gray = all(_open(path).mode in ("L", "1", "I;16", "I") for path in paths)
    size, mode = _open(paths[0]).size, "L" if gray else "RGB"
    rows = []
    for part in parts:
        images = np.stack([_pixels(path, mode, size) for path in part])
        rows.append(from_arrays(images, np.array(list(part.values())), folder.name))
    return rows[0], rows[1] if len(rows) > 1 else None


def read_unlabeled(folder: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    """All images of a folder, for a model that takes rows of this shape, and their names."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES)
    if not paths or len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"{folder} holds no images, or the model takes none: give a file.")
    mode, size = "L" if shape[0] == 1 else "RGB", (shape[2], shape[1])
    images = np.stack([_pixels(path, mode, size) for path in paths])
    return images, [str(path.relative_to(folder)) for path in paths]


def by_class(folder: Path) -> dict[Path, str]:
    """The images and the name of each one's class, the folder it is in."""
    groups = sorted(path for path in folder.iterdir() if path.is_dir())
    classes = {
        path: group.name
        for group in groups
        for path in sorted(group.iterdir())
        if path.suffix.lower() in IMAGES and path.is_file()
    }
    if not classes:
        raise InputError(f"{folder} holds neither a table nor images by class, such as cat/1.png; for texts give --model gpt.")
    return classes


def _open(path: Path) -> Any:
    with needed_by(f"Reading the image {path.name}"):
        from PIL import Image
    with refusing(f"{path} is not an image that Pillow can read: replace or remove it."):
        return Image.open(path, formats=IMAGE_FORMATS)


def _pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    image = _open(path)
    if image.size != size:  # checked before memory is used for it
        here, others = (f"{width} x {height} pixels" for width, height in (image.size, size))
        raise InputError(f"{path} has {here} and others have {others}: make all images the same size.")
    with refusing(f"{path} is damaged: replace or remove it."):
        array = np.asarray(image.convert(mode))
    return array[None] if mode == "L" else array.transpose(2, 0, 1)


def from_text(path: str | Path, context: int = CONTEXT) -> Dataset:
    """Windows of a text, each the label of the one that begins a character earlier; the last tenth of the text is for testing.

    Training windows begin at every character and share the text's memory; test windows do not overlap.

    Args:
        path: The text file.
        context: The length of a window, in characters.
    """
    path = Path(path)
    (tokens,), vocabulary = by_characters([read_text(path)])
    train, test = np.split(tokens.astype(np.int64), [len(tokens) * 9 // 10])
    if len(test) <= context or len(vocabulary) < 2:
        raise InputError(
            f"{path} has {len(tokens):,} characters, {len(vocabulary)} different ones: a context of {context:,} needs more."
        )
    rows, tests = (sliding_window_view(part, context + 1, writeable=True) for part in (train, test))
    tests = tests[::context]
    return Dataset(path.name, rows[:, :-1], rows[:, 1:], tests[:, :-1], tests[:, 1:], str(path), vocabulary)


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start:,}): convert or remove it.") from error


def by_characters(texts: Iterable[str]) -> tuple[list[np.ndarray], Sequence[str]]:
    """The characters of each text, as positions in the sorted characters of all."""
    codes = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in texts]
    characters, tokens = np.unique(np.concatenate(codes), return_inverse=True)
    ends = np.cumsum([len(each) for each in codes])
    return np.split(tokens.astype(np.int32), ends[:-1]), "".join(map(chr, characters))
