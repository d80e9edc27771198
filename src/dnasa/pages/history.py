"""The history of a run that may still be under way."""

import csv
from itertools import count
from pathlib import Path
from typing import Any

from dnasa.core import COLUMNS, InputError
from dnasa.files import LARGEST, open_regular
from dnasa.plots import label
from dnasa.runs.result import parse_rows

AXES = ("step", "epochs", "seconds", "messages", "bytes")  # what a curve can be drawn against
DIGITS = 7  # of the numbers in a page
CHECKED = 256  # bytes before the end of what was read that must still be there


class History:
    """The rows of a `history.csv`; only what was appended since is read, unless a resumed run has rewritten it."""

    def __init__(self, path: Path):
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.offset, self.end, self.header = 0, b"", b""
        self.columns: dict[str, list[Any]] = {}
        self.lines: dict[int, dict[str, Any]] = {}  # name and seed of each run
        self.count = 0

    def update(self) -> None:
        """Read the complete rows that are new."""
        try:
            self._read()
        except FileNotFoundError:
            self.clear()  # it does not exist before the first evaluation
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"{self.path} is damaged ({str(error).partition(chr(10))[0]:.80}).") from error

    def _read(self) -> None:
        with open_regular(self.path) as file:
            file.seek(self.offset - len(self.end))
            if file.read(len(self.end)) != self.end:
                self.clear()
                file.seek(0)
            data = file.read(LARGEST)
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return
        if not self.header:
            self.header = data[: data.find(b"\n") + 1]
            text = data
        else:
            text = self.header + data
        for row in parse_rows(text.decode()):
            self._append(row)
        self.offset, self.end = self.offset + len(data), (self.end + data)[-CHECKED:]

    def _append(self, row: dict[str, Any]) -> None:
        if type(row["run"]) is not int or type(row["step"]) is not int or None in row:
            raise ValueError(f"row {self.count + 1} is not an evaluation")
        if row["run"] not in self.lines:
            self.lines[row["run"]] = {"name": self._name(row), "seed": row.get("seed"), "rule": str(row.get("rule"))}
        for name, value in row.items():
            if name in ("run", "consensus", *AXES) or name not in COLUMNS:
                self.columns.setdefault(name, []).append(short(value))
        self.count += 1

    def _name(self, row: dict[str, Any]) -> str:
        """As in plots; runs that would be named alike are numbered."""
        seed, eta = row.get("seed"), row.get("eta")
        taken = {(line["name"], line["seed"]) for line in self.lines.values()}
        names = (label(row.get("rule"), row.get("schedule"), _float(eta), number) for number in count(1))
        return next(name for name in names if (name, seed) not in taken)

    def since(self, row: int) -> dict[str, list[Any]]:
        return {name: values[row:] for name, values in self.columns.items()}

    def metrics(self) -> list[str]:
        """Columns of numbers that curves show."""
        shown = (name for name in self.columns if name != "run" and name not in AXES)
        return [name for name in shown if any(isinstance(value, float) for value in self.columns[name])]

    def diverged(self) -> dict[int, int]:
        """The evaluation at which each diverged run was first found to be so."""
        found: dict[int, int] = {}
        columns = (self.columns.get(name, []) for name in ("run", "step", "consensus"))
        for run, step, consensus in zip(*columns, strict=False):
            if consensus is None:
                found.setdefault(run, step)
        return found


def short(value: Any) -> Any:
    """For a page: numbers with a few digits, and none that are not finite."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else None
    return value if isinstance(value, int) else None


def _float(value: Any) -> Any:
    """A stepsize of 1 is written and read as a whole number."""
    return float(value) if isinstance(value, int) else value
