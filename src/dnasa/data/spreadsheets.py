"""Excel workbooks as text with commas, so that their cells are read as those of a .csv file are."""

import csv
import io
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dnasa.core import InputError
from dnasa.extras import needed_by


class Sheet(NamedTuple):
    """The first sheet of a workbook; `others` are the names of the further ones."""

    text: bytes
    name: str
    others: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        some = ", ".join(self.others[:3])
        return (f"The first sheet, '{self.name}', is used, and not: {some}.",) if self.others else ()


def read(path: Path) -> Sheet:
    """The values of the first sheet; merged cells, errors, and formulas whose values were not saved are refused."""
    about = path.stat()
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1)  # a table is looked at several times
def _read(path: Path, modified: int, size: int) -> Sheet:
    book = _load(path, values=False)
    sheet = book.worksheets[0]
    if sheet.merged_cells.ranges:
        raise InputError(
            f"{path.name} has merged cells ({min(map(str, sheet.merged_cells.ranges))}): give each cell its own value."
        )
    formulas = [cell.coordinate for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    if formulas:
        sheet = _load(path, values=True).worksheets[0]
        unsaved = next((place for place in formulas if sheet[place].value is None), None)
        if unsaved is not None:
            raise InputError(
                f"Cell {unsaved} of {path.name} has a formula without a value: open and save the file in a spreadsheet program."
            )
    lines = [[_text(cell, path) for cell in row] for row in sheet.iter_rows()]
    width = max((place + 1 for line in lines for place, text in enumerate(line) if text), default=0)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(line[:width] if any(line) else [] for line in lines)
    return Sheet(
        buffer.getvalue().rstrip("\n").encode(), sheet.title, tuple(other.title for other in book.worksheets[1:])
    )


def _load(path: Path, values: bool) -> Any:
    with needed_by(f"Reading {path.name}"):
        from openpyxl import load_workbook
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats that have no values
            return load_workbook(path, data_only=values)
    except Exception as error:  # openpyxl and zipfile raise many kinds for damaged files
        raise InputError(
            f"{path.name} is not an Excel workbook, or has a password: save it again, or as .csv."
        ) from error


def _text(cell: Any, path: Path) -> str:
    if cell.data_type == "e" and cell.value != "#N/A":
        raise InputError(f"Cell {cell.coordinate} of {path.name} holds {cell.value}: correct it, or leave it empty.")
    return "" if cell.value is None else " ".join(str(cell.value).splitlines()).strip()
