"""Tables in files: text with a detected separator and header, Excel, LIBSVM, parquet and .npz."""

import csv
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError, first_line
from dnasa.data import formats, spreadsheets
from dnasa.data.columns import MISSING_WORDS
from dnasa.data.formats import kind, opened
from dnasa.data.rows import Rows, of_arrays, of_frame, position

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = 1 << 16  # bytes from which separator and header are detected
SEPARATORS = {";": "semicolon", "\t": "tab", ",": "comma", "|": "bar", " ": "whitespace"}  # in the order they are tried
NAMED = {name: sign for sign, name in SEPARATORS.items()} | {"\\t": "\t", "space": " "}
LIBSVM = re.compile(r"[+-]?[\d.eE+-]+(,[\d.]+)*(\s+\d+:\S+)+\s*")
TEXT_TABLES = (".csv", ".tsv", ".txt", ".data", ".dat", ".tab")
LIBSVM_NAMES = (".libsvm", ".svm", ".svmlight")
KINDS = (*TEXT_TABLES, *LIBSVM_NAMES, ".xlsx", ".npz", ".parquet")
OTHER_FORMATS = dict.fromkeys((".xls", ".ods"), "a spreadsheet: save it as .xlsx or .csv")
OTHER_FORMATS |= dict.fromkeys((".json", ".jsonl"), "JSON: save it as .csv")
OTHER_FORMATS[".npy"] = "one array: save inputs and labels in an .npz, with np.savez"
ARRAYS = {  # what an array of an .npz may be called
    "inputs": ("inputs", "X", "x", "X_train", "x_train"),
    "labels": ("labels", "y", "Y", "y_train", "targets"),
    "test_inputs": ("test_inputs", "X_test", "x_test"),
    "test_labels": ("test_labels", "y_test", "test_targets"),
}


class Table(NamedTuple):
    """The columns of a file, and how it was read; LIBSVM has the labels apart."""

    rows: Any
    understood: dict[str, str]
    notes: tuple[str, ...] = ()
    labels: np.ndarray | None = None


def read(path: Path, target: Any, separator: str | None = None, header: bool | None = None) -> tuple[Rows, Rows | None]:
    """The training rows and, where the file has them apart, the test rows."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if kind(path) == ".npz":
        return read_npz(path)
    table = read_table(path, separator, header, target)
    if table.labels is not None:
        return of_arrays(table.rows, table.labels, path.name, understood=table.understood), None
    if table.rows.shape[1] < 2 and "separator" in table.understood:
        raise InputError(
            f"{path.name} has one column: it needs the target and at least one column of inputs. If its separator was not "
            "found, give --separator."
        )
    return of_frame(table.rows, target, path.name, understood=table.understood, notes=table.notes), None


def read_table(
    path: Path, separator: str | None, header: bool | None, target: Any = None, id_column: str | None = None
) -> Table:
    """Parquet, LIBSVM, a workbook, or text."""
    if kind(path) in OTHER_FORMATS:
        raise InputError(f"{path.name} is {OTHER_FORMATS[kind(path)]} first.")
    if kind(path) == ".parquet":
        return Table(read_parquet(path), {"format": "parquet"})
    if separator is None and (kind(path) in LIBSVM_NAMES or is_libsvm(sample(path))):
        rows, labels = formats.read_libsvm(path)
        return Table(rows, {"format": "LIBSVM"}, labels=labels)
    return read_text_frame(path, separator, header, target, id_column)


# ---------------------------------------------------------------- text


def sample(path: Path) -> list[str]:
    """The complete lines at the beginning of a file that have something in them."""
    with opened(path) as file:
        raw = file.read(SAMPLE)
    lines = raw.removeprefix(formats.BOM).decode(errors="replace").splitlines()
    return [line for line in (lines[:-1] if len(raw) == SAMPLE else lines) if line.strip()]


def is_libsvm(lines: list[str]) -> bool:
    return bool(lines) and all(LIBSVM.fullmatch(line) for line in lines[:20])


def is_table(path: Path) -> bool:
    """Whether a text file holds columns: as many values in every line, and in some column nothing but numbers."""
    lines = sample(path)
    if len(lines) > 1 and is_libsvm(lines):
        return True
    separator = consistent_separator(lines)
    if separator is None or len(lines) < 2:
        return False
    columns = zip(*(cells(line, separator) for line in lines[1:]), strict=True)
    return any(all(map(is_number, column)) for column in columns)


def cells(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]


def consistent_separator(lines: list[str]) -> str | None:
    """The first separator that divides all lines into the same number of values, at least two."""
    for sign in SEPARATORS:
        counts = {len(cells(line, sign)) for line in lines}
        if len(counts) == 1 and counts.pop() > 1:
            return sign
    return None


def find_separator(path: Path, lines: list[str]) -> str:
    """The separator of all lines or, if none fits all, of the first: reading then names the line that differs."""
    found = consistent_separator(lines)
    if found is not None:
        return found
    if kind(path) == ".csv":
        return "," if not lines or "," in lines[0] or ";" not in lines[0] else ";"
    counts = {sign: len(cells(lines[0], sign)) for sign in SEPARATORS} if lines else {}
    return max(counts, key=lambda sign: counts[sign]) if counts else ","


def has_header(rows: list[list[str]], target: Any) -> bool:
    """A first line with words above numbers, with the name of the target, or with 0, 1, 2, ... as pandas writes it."""
    first, rest = rows[0], rows[1:]
    if first == [str(place) for place in range(len(first))]:
        return True
    if any(word in first for word in str(target).split(",") if not is_number(word)):
        return True
    below = list(zip(*rest, strict=False)) or [()] * len(first)
    numeric = [bool(column) and all(is_number(cell) or cell in MISSING_WORDS for cell in column) for column in below]
    above = [cell for cell, is_numeric in zip(first, numeric, strict=False) if is_numeric]
    if any(not is_number(cell) and cell not in MISSING_WORDS for cell in above):
        return True
    if above:
        return False
    return not any(map(is_number, first)) and all(
        cell not in column for cell, column in zip(first, below, strict=False)
    )


def is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def read_text_frame(
    path: Path,
    separator: str | None = None,
    header: bool | None = None,
    target: Any = None,
    id_column: str | None = None,
) -> Table:
    """Values with a separator between them; the header is detected unless `header` says whether there is one.

    The `id_column` is read as text, so that 007 stays 007.
    """
    lines, sheet = sample(path), spreadsheets.read(path) if kind(path) == ".xlsx" else None
    separator = "," if sheet else separator
    sign = _separator(separator) if separator is not None else find_separator(path, lines)
    parsed = [cells(line, sign) for line in lines]
    if header is None:
        header = bool(parsed) and has_header(parsed, target)
    names = parsed[0] if parsed and header else []
    duplicates = [name for name in names if name and names.count(name) > 1]
    if duplicates:
        raise InputError(f"{path.name} has two columns named '{duplicates[0]}': rename one of them.")
    place = position(names or [str(place) for place in range(len(parsed[0]) if parsed else 0)], id_column or "")
    as_text = None if place is None else {names[place] if header else place: str}
    frame, notes = _without_surplus(_read_csv(path, sign, header, _decimal(parsed, sign), as_text))
    _check_frame(frame, path, names)
    frame.index = _lines(path, len(frame), header)
    understood = {
        **({"format": f"Excel, sheet '{sheet.name}'"} if sheet else {"separator": SEPARATORS.get(sign, sign)}),
        "header": "yes" if header else "none: columns are 0, 1, 2, ...",
    }
    return Table(frame, understood, (*notes, *(sheet.notes if sheet else ())))


def _lines(path: Path, rows: int, header: bool) -> "pd.RangeIndex":
    """The line of each row, for messages; where some lines are empty, the rows count from 0."""
    import pandas as pd

    with opened(path) as file:
        count, last = 0, b"\n"
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part[-1:]
    exact = count + (last != b"\n") == rows + header
    return pd.RangeIndex(1 + header, 1 + header + rows, name="line") if exact else pd.RangeIndex(rows)


def _separator(given: str) -> str:
    sign = NAMED.get(given, given)
    if len(sign) != 1:
        raise InputError(f"A separator is one character, or one of: {', '.join(NAMED)}; not '{given}'.")
    return sign


def _decimal(rows: list[list[str]], sign: str) -> str:
    """A comma where numbers are written so and it does not separate."""
    body = [cell for row in rows[1:] for cell in row]
    commas = sign != "," and any(re.fullmatch(r"-?\d+,\d+", cell) for cell in body)
    return "," if commas and not any(re.fullmatch(r"-?\d+\.\d+", cell) for cell in body) else "."


def _read_csv(path: Path, sign: str, header: bool, decimal: str, dtype: Any = None) -> "pd.DataFrame":
    import pandas as pd

    try:
        with opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            return pd.read_csv(
                file,
                sep=r"\s+" if sign == " " else sign,
                header=0 if header else None,
                decimal=decimal,
                dtype=dtype,
                keep_default_na=False,
                na_values=list(MISSING_WORDS),
                skipinitialspace=True,
            )
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path.name} is empty: give a file with rows.") from error
    except UnicodeDecodeError as error:
        raise InputError(formats.not_utf8(path)) from error
    except InputError:
        raise
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path.name} is not a table: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    ragged = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if ragged:
        return f"line {ragged[2]} has {ragged[3]} values and those before it have {ragged[1]}; correct that line"
    unclosed = re.search(r"EOF inside string starting at row (\d+)", str(error))
    if unclosed:
        return f"a quote in line {int(unclosed[1]) + 1} is never closed; correct that line"
    return first_line(error)


def _without_surplus(frame: "pd.DataFrame") -> tuple["pd.DataFrame", tuple[str, ...]]:
    """Drop what programs add: the row numbers of pandas, and an empty column after a separator at the end of each line."""
    unnamed = [name for name in frame.columns if str(name).startswith("Unnamed: ")]
    empty = [name for name in unnamed if frame[name].isna().all()]
    counted = [name for name in unnamed if name == "Unnamed: 0" and np.array_equal(frame[name], np.arange(len(frame)))]
    notes = ["The first column has no name and counts the rows: it is not used."] if counted else []
    notes += ["A column without a name and values is not used."] if empty else []
    surplus = {*empty, *counted}
    return (frame[[name for name in frame.columns if name not in surplus]] if surplus else frame), tuple(notes)


def _check_frame(frame: "pd.DataFrame", path: Path, names: list[str]) -> None:
    import pandas as pd

    if not len(frame):
        raise InputError(f"{path.name} has no rows below its header.")
    if not isinstance(frame.index, pd.RangeIndex):  # pandas makes surplus columns the index
        raise InputError(
            f"The rows of {path.name} have more values than its header, '{', '.join(names):.60}', has names: correct the first "
            "line, or remove it."
        )


# ---------------------------------------------------------------- other formats


def read_parquet(path: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise InputError(f'Reading {path.name} needs pyarrow: `pip install "dnasa[parquet]"`.') from None
    except Exception as error:  # pyarrow raises many kinds for damaged files
        raise InputError(f"{path.name} is not a parquet file: {first_line(error)}.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index(drop=frame.index.name is None)
    return frame


def read_npz(path: Path) -> tuple[Rows, Rows | None]:
    """Arrays `inputs` and `labels`, and `test_inputs` and `test_labels` if they are there; or X and y, x_train, ..."""
    arrays = formats.read_arrays(path, ARRAYS)
    train = of_arrays(arrays["inputs"], arrays["labels"], path.name, understood={"format": "npz"})
    test = of_arrays(arrays["test_inputs"], arrays["test_labels"], path.name) if "test_inputs" in arrays else None
    return train, test
