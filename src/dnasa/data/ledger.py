"""What a site has told of its rows: it refuses a result that, less those of earlier ones, would tell of few rows."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data.columns import NUMERIC, to_words
from dnasa.data.rows import Rows
from dnasa.files import read_json, refusing_damage, write_durably

TOLD, TESTED = "told.json", "tested.json"  # in the folder of the site's keys, which they never leave
KEPT = 0.5  # a column of which fewer values are the same was changed as a whole, as by other units
SAME = 0.2  # of the rows of the same table, at least, are equal in all other columns
Marks = Mapping[str, Sequence[str]]  # for each column, a mark of each row's value


class Ledger(NamedTuple):
    """What earlier summaries, regressions and tests of a site told of its rows.

    Attributes:
        folder: That of the site's keys.
        sends: Whether anything is about to leave.
        again: Whether the owner lets more leave of rows that were tested before, or that differ in few from earlier ones.
        tests: The rows that are tested after the training.
    """

    folder: Path
    sends: bool = True
    again: bool = False
    tests: Rows | None = None

    def check(self, rows: Rows, min_count: int) -> None:
        """Compare with the rows of all earlier summaries and regressions, and add these if theirs are about to be sent."""
        salt, earlier = self._read(TOLD)
        own = marks(rows, rows.features, salt)
        few = [count for each in earlier for count in differences(own, each) if 0 < count < min_count]
        if few and not self.again:
            raise InputError(
                f"The rows differ from those that an earlier run or fit told of in {few[0]}: the difference of both would tell "
                f"of them. Use the same rows, or {min_count} more or fewer (a fit leaves out those with missing values), or "
                "agree to it with --again.",
                f"rows that differ from those of an earlier run in fewer than {min_count}",
            )
        if self.sends and own not in earlier:
            self._write(TOLD, salt, [*earlier, own])

    def untested(self, record: bool = False) -> np.ndarray:
        """Which of the test rows no earlier run has tested; with `record`, they are tested now."""
        salt, earlier = self._read(TESTED)
        own = row_marks(self.tests, salt) if self.tests is not None else []
        known = {mark for each in earlier for mark in each["row"]}
        if record and self.sends and not known.issuperset(own):
            self._write(TESTED, salt, [{"row": sorted(known.union(own))}])
        return np.array([self.again or mark not in known for mark in own], bool)

    def _read(self, name: str) -> tuple[str, list[dict[str, list[str]]]]:
        path = self.folder / name
        if not path.exists():
            return secrets.token_hex(16), []
        stored = read_json(path, name)
        with refusing_damage(path):
            tables = [{str(column): [*map(str, each)] for column, each in table.items()} for table in stored["rows"]]
            return str(stored["salt"]), tables

    def _write(self, name: str, salt: str, tables: Sequence[Marks]) -> None:
        path = self.folder / name
        try:
            write_durably(path, json.dumps({"salt": salt, "rows": tables}).encode(), mode=0o600)
        except OSError as error:
            raise InputError(f"Cannot write {path}, which says what left this site: {error.strerror}.") from error


def marks(rows: Rows, names: Iterable[str], salt: str) -> Marks:
    """Those of these columns and the label; an array has one for the whole row."""
    if not rows.features:
        pairs = zip(rows.inputs, rows.labels.tolist(), strict=True)
        return {"row": [_mark(f"{array.tobytes().hex()} {label}", salt) for array, label in pairs]}
    columns = {name: rows.inputs[name] for name in names} | {str(rows.labels.name): rows.labels}
    return {name: marks_of(column, salt) for name, column in columns.items()}


def row_marks(rows: Rows, salt: str) -> list[str]:
    """A mark for each row of the user's table, whatever is dropped, recoded or predicted."""
    columns = {"": marks(rows, (), salt)["row"]} if rows.raw is None else {n: marks_of(rows.raw[n], salt) for n in rows.raw}
    return [_mark(row, salt) for row in zip(*(columns[name] for name in sorted(columns)), strict=True)]


def marks_of(column: pd.Series, salt: str) -> list[str]:
    """A mark for each value, the same for 3 and 3.0."""
    values = column.astype(float) if column.dtype.kind in NUMERIC else to_words(column)
    return [_mark(value, salt) for value in values.tolist()]


def _mark(value: object, salt: str) -> str:
    return blake2b(f"{salt} {value}".encode(), digest_size=6).hexdigest()


def differences(one: Marks, other: Marks) -> list[int]:
    """In how many rows two tables differ, by each of the shared columns alone and by the first few of them.

    All columns together would not do: a corrected column hides that a row came in.
    """
    pairs = [pd.factorize(np.array([*one[name], *other[name]], object))[0] for name in sorted(one.keys() & other.keys())]
    rows = [len(next(iter(each.values()))) for each in (one, other)]

    def counted(pair: np.ndarray) -> tuple[int, int]:
        """Rows that differ, and that are equal."""
        ours, theirs = (np.bincount(part, minlength=pair.max() + 1) for part in np.split(pair, rows[:1]))
        same = int(np.minimum(ours, theirs).sum())
        return max(rows) - same, same

    kept = sorted((pair for pair in pairs if counted(pair)[1] > KEPT * min(rows)), key=lambda pair: counted(pair)[0])
    counts, together = [counted(pair)[0] for pair in kept], np.zeros(sum(rows), int)
    for pair in kept:
        together = pd.factorize(together * (pair.max() + 1) + pair)[0]
        counts.append(counted(together)[0])
    return counts if kept and counts[-1] <= (1 - SAME) * max(rows) else []
