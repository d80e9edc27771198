"""The history of a run that may still be under way."""

import os
from collections.abc import Iterator
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


class History:
    """The rows of a `history.csv`, by run."""

    def __init__(self, path: Path):
        self.path = path
        self.looks: Looks = {}
        self.content = 0
        self.clear()

    def clear(self) -> None:
        self.lines: dict[int, dict[str, Any]] = {}  # name, seed, answer and columns of each run
        self.step = 0
        self.count = 0
        self.damage = ""

    def update(self) -> None:
        """Read the complete rows, if the file has changed. Those before a damaged one stay."""
        if not os.path.lexists(self.path):  # before the first evaluation
            return self.clear()
        try:
            with open_regular(self.path) as file:
                data = file.read(LARGEST)
            if hash(data) != self.content:
                self.content = hash(data)
                self.clear()
                for row in parse_rows(data[: data.rfind(b"\n") + 1].decode()):
                    self._append(row)
        except Exception as error:  # anybody may have written the file
            self.damage = first_line(error)[:80]
        if self.damage:
            raise InputError(f"{self.path} is damaged ({self.damage}).")

    def _append(self, row: dict[str, Any]) -> None:
        if None in row or not all(type(row[name]) is int and abs(row[name]) < WHOLE for name in ("run", "step")):
            raise ValueError(f"row {self.count + 1} is not an evaluation")
        run = row["run"]
        if run not in self.lines:
            line = {"run": run, "name": self._name(row), "seed": short(row.get("seed")), "rule": str(row.get("rule"))}
            self.lines[run] = line | {"answer": {}, "columns": {}}
        shown = ("consensus", *AXES)
        values = {name: short(value) for name, value in row.items() if name in shown or name not in COLUMNS}
        for name, value in values.items():
            self.lines[run]["columns"].setdefault(name, []).append(value)
        if is_answer(row):
            self.lines[run]["answer"] = values
        self.count += 1
        self.step = row["step"]

    def _name(self, row: dict[str, Any]) -> str:
        """The name of a run as in plots; runs with the same name are numbered."""
        seed, eta = short(row.get("seed")), row.get("eta")
        taken = {(line["name"], line["seed"]) for line in self.lines.values()}
        variant = row.get("rule"), row.get("schedule"), _float(eta)
        names = (text(label(*variant, number, self.looks)) for number in count(1))
        return next(name for name in names if (name, seed) not in taken)

    def values(self, name: str) -> Iterator[Any]:
        """The values in a column, of all runs."""
        for line in self.lines.values():
            yield from line["columns"].get(name, ())

    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for line in self.lines.values() for name in line["columns"]))

    def metrics(self) -> list[str]:
        """Columns of numbers that curves show."""
        return [
            name
            for name in self.columns()
            if name not in AXES and any(isinstance(value, float) for value in self.values(name))
        ]

    def diverged(self) -> dict[int, int]:
        """The evaluation at which each diverged run was first found to be so."""
        found = {}
        for run, line in self.lines.items():
            steps = zip(line["columns"]["step"], line["columns"].get("consensus", ()), strict=False)
            if steps_without := [step for step, consensus in steps if consensus is None]:
                found[run] = steps_without[0]
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
