"""Rows of a study in a CSV file: a study that was stopped continues with what is missing."""

import io
from pathlib import Path
from typing import Any

import pandas as pd

from dnasa.core import InputError
from dnasa.files import make_folder, read_bytes
from dnasa.runs.own_files import OwnFiles

NUMBERS = {"eta", "steps", "step", "seed", "value", "bytes", "accuracy", "validation", "test"}


class Saved:
    """A table that is written after every addition."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        OwnFiles(path.parent.parent).inside(f"{path.parent.name}/{path.name}")
        self.own, self.path = OwnFiles(make_folder(path.parent)), path
        self.table = _read(path, columns) if path.exists() else pd.DataFrame(columns=list(columns))
        self.own.claim([path.name])

    def find(self, **values: Any) -> pd.DataFrame:
        """The rows with these values."""
        table = self.table
        for name, value in values.items():
            table = table[table[name].isna() if pd.isna(value) else table[name] == value]
        return table

    def add(self, rows: pd.DataFrame) -> None:
        self.table = pd.concat([self.table, rows], ignore_index=True) if len(self.table) else rows
        self.own.write(self.path.name, self.table.to_csv(index=False).encode())


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(io.BytesIO(read_bytes(path)))
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"Cannot read the saved results in {path} ({reason}): delete the file.") from error
    if list(table.columns) != list(columns):
        raise InputError(f"{path} does not hold results of this study: delete it, or choose another --out.")
    for name in NUMBERS & set(columns):
        if table[name].dtype.kind not in "iuf":
            raise InputError(f"Column '{name}' of the saved results in {path} must hold numbers: delete the file.")
    return table
