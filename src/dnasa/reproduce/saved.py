"""Rows of a part in a CSV file: an experiment that was stopped continues with what is missing."""

import io
from pathlib import Path

import pandas as pd

from dnasa.core import InputError, first_line
from dnasa.files import make_folder, read_bytes
from dnasa.runs.own_files import OwnFiles

NUMBERS = {"eta", "steps", "step", "seed", "value", "bytes", "accuracy", "validation", "test"}


class Saved:
    """A table that is written after every addition; without columns it stays in memory, with all columns it is given."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path, self.columns = path, columns
        self.table = pd.DataFrame(columns=list(columns))
        if columns:
            OwnFiles(path.parent.parent).inside(f"{path.parent.name}/{path.name}")
            self.own = OwnFiles(make_folder(path.parent))
            if path.exists():
                self.table = _read(path, columns)
            self.own.claim([path.name])

    def missing(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The runs that have not reached their last step."""
        if self.table.empty or not self.columns:
            return runs
        reached = self.table if "steps" in self.columns else self.table.rename(columns={"step": "steps"})
        keys = [name for name in runs if name in reached]
        found = runs.merge(reached[keys].drop_duplicates(), on=keys, how="left", indicator=True)
        return runs[(found._merge == "left_only").to_numpy()]

    def of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The rows of these runs, in their order."""
        keys = [name for name in runs if name in self.columns]
        return runs[keys].merge(self.table, on=keys)

    def add(self, rows: pd.DataFrame) -> None:
        self.table = pd.concat([self.table, rows], ignore_index=True) if len(self.table) else rows
        if self.columns:
            self.own.write(self.path.name, self.table.to_csv(index=False).encode())


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(io.BytesIO(read_bytes(path)))
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the saved results in {path} ({first_line(error)}): delete the file.") from error
    if list(table.columns) != list(columns):
        raise InputError(f"{path} does not hold results of this study: delete it, or choose another --out.")
    for name in NUMBERS & set(columns):
        if table[name].dtype.kind not in "iuf":
            raise InputError(f"Column '{name}' of the saved results in {path} must hold numbers: delete the file.")
    return table
