"""The history of a run that may still be under way."""

import os
from itertools import count
from pathlib import Path
from typing import Any, TypeGuard

from dnasa.comparing.plots import Looks, label
from dnasa.core import COLUMNS, InputError, first_line
from dnasa.files import LARGEST, open_regular
from dnasa.runs.result import is_answer, parse_rows

AXES = ("step", "epochs", "seconds", "clock_seconds", "messages", "bytes")  # what a curve can be drawn against
DIGITS = 7  # of the numbers in a page
WHOLE = 2**53  # whole numbers below it are exact in a browser
LARGEST_NUMBER = 1e300  # sums of a few smaller numbers do not overflow
CHECKED = 256  # bytes before the end of what was read that must still be there


class History:
    """The rows of a `history.csv`; only what was appended since is read, unless a resumed run has rewritten it."""

    def __init__(self, path: Path):
        self.path = path
        self.looks: Looks = {}
        self.clear()

    def clear(self) -> None:
        self.offset = 0
        self.end = b""
        self.header = b""
        self.columns: dict[str, list[Any]] = {}
        self.lines: dict[int, dict[str, Any]] = {}  # name, seed and answer of each run
        self.count = 0
        self.damage = ""

    def update(self) -> None:
        """Read the complete rows that are new. Those before a damaged one stay."""
        if not os.path.lexists(self.path):  # before the first evaluation
            return self.clear()
        try:
            for row in parse_rows(self._new_rows().decode()):
                self._append(row)
        except Exception as error:  # anybody may have written the file
            self.damage = first_line(error)[:80]
        if self.damage:
            raise InputError(f"{self.path} is damaged ({self.damage}).")

    def _new_rows(self) -> bytes:
        """The header, and the complete rows after those that were read before."""
        with open_regular(self.path) as file:
            file.seek(self.offset - len(self.end))
            if file.read(len(self.end)) != self.end:
                self.clear()
                file.seek(0)
            data = file.read(LARGEST)
        data = data[: data.rfind(b"\n") + 1]
        self.offset, self.end = self.offset + len(data), (self.end + data)[-CHECKED:]
        known = self.header
        self.header = known or data[: data.find(b"\n") + 1]
        return known + data

    def _append(self, row: dict[str, Any]) -> None:
        if None in row or not all(type(row[name]) is int and abs(row[name]) < WHOLE for name in ("run", "step")):
            raise ValueError(f"row {self.count + 1} is not an evaluation")
        if row["run"] not in self.lines:
            line = {"name": self._name(row), "seed": short(row.get("seed")), "rule": str(row.get("rule")), "answer": {}}
            self.lines[row["run"]] = line
        shown = ("run", "consensus", *AXES)
        values = {name: short(value) for name, value in row.items() if name in shown or name not in COLUMNS}
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)
        if is_answer(row):
            self.lines[row["run"]]["answer"] = values
        self.count += 1

    def _name(self, row: dict[str, Any]) -> str:
        """The name of a run as in plots; runs with the same name are numbered."""
        seed, eta = short(row.get("seed")), row.get("eta")
        taken = {(line["name"], line["seed"]) for line in self.lines.values()}
        variant = row.get("rule"), row.get("schedule"), _float(eta)
        names = (text(label(*variant, number, self.looks)) for number in count(1))
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


def text(value: Any) -> str:
    """Shorten text for a page, and remove characters that cannot be encoded."""
    return " ".join(f"{value!s:.300}".split()).encode(errors="replace").decode()


def short(value: Any) -> Any:
    """Round a number to a few digits for a page; None where there is none."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a number is finite in a browser, whose whole numbers overflow too."""
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER


def _float(value: Any) -> Any:
    """Convert whole numbers: a stepsize of 1 is written and read as one."""
    return float(value) if isinstance(value, int) else value
