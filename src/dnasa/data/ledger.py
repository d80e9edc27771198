"""What a site has told of its rows: it refuses a result that, less those of earlier ones, would tell of few rows."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import accumulate
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
UNIQUE = 0.5  # columns of which so many rows have values of their own identify them
SAME = 0.2  # two tables of which fewer rows are equal in columns that identify them have nothing to do with each other
FLAG = "tested"  # which rows of a table were
Marks = Mapping[str, Sequence[str]]  # for each column, a mark of each row's value


class Ledger(NamedTuple):
    """What earlier summaries, regressions and tests of a site told of its rows.

    Attributes:
        folder: That of the site's keys.
        sends: Whether anything is about to leave.
        again: Whether the owner lets more leave of rows that were tested before, or that differ in few from earlier ones.
        table: The rows of the site from which `tests` are taken, those that are tested after the training.
    """

    folder: Path
    sends: bool = True
    again: bool = False
    table: Rows | None = None
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
        if self.tests is None or self.table is None:
            return np.zeros(0, bool)
        salt, earlier = self._read(TESTED)
        if not (earlier or record):
            return np.ones(len(self.tests.labels), bool)
        own, places = raw_marks(self.table, salt), self.table.labels.index.get_indexer(self.tests.labels.index)
        tested = np.zeros(len(self.table.labels), bool)
        for each in earlier:
            kept = kept_columns(own, {name: column for name, column in each.items() if name != FLAG})
            together = reduce(joined, kept) if kept else np.zeros(0, int)
            if kept and (identify(together) or 2 * len(kept) >= len(own.keys() & each.keys())):
                tested |= np.isin(together[: len(tested)], together[len(tested) :][np.array(each[FLAG]) == "1"])
        if record and self.sends:
            now = np.zeros(len(tested), int)
            now[places] = 1
            self._write(TESTED, salt, [*earlier, own | {FLAG: [str(flag) for flag in now]}])
        return ~tested[places] | self.again

    def _read(self, name: str) -> tuple[str, list[dict[str, list[str]]]]:
        path = self.folder / name
        if not path.exists():
            return secrets.token_hex(16), []
        stored = read_json(path, name)
        with refusing_damage(path, "restore it from a copy"):
            tables = [{str(column): [*map(str, each)] for column, each in table.items()} for table in stored["rows"]]
            if any(len({*map(len, table.values())}) != 1 or (name == TESTED and FLAG not in table) for table in tables):
                raise ValueError("not the rows of tables")
            return str(stored["salt"]), tables

    def _write(self, name: str, salt: str, tables: Sequence[Marks]) -> None:
        path = self.folder / name
        try:
            write_durably(path, json.dumps({"salt": salt, "rows": tables}).encode(), mode=0o600)
        except OSError as error:
            raise InputError(f"Cannot write {path}, which says what left this site: {error.strerror}.") from error


def marks(rows: Rows, names: Iterable[str], salt: str) -> dict[str, list[str]]:
    """Those of these columns and the label; an array has one for the whole row."""
    if not rows.features:
        pairs = zip(rows.inputs, rows.labels.tolist(), strict=True)
        return {"row": [_mark(f"{array.tobytes().hex()} {label}", salt) for array, label in pairs]}
    columns = {name: rows.inputs[name] for name in names} | {str(rows.labels.name): rows.labels}
    return {name: marks_of(column, salt) for name, column in columns.items()}


def raw_marks(rows: Rows, salt: str) -> dict[str, list[str]]:
    """Those of the user's table, whatever is dropped, recoded or predicted."""
    if rows.raw is None:
        return marks(rows, rows.features, salt)
    return {str(name): marks_of(rows.raw[name], salt) for name in rows.raw}


def marks_of(column: pd.Series, salt: str) -> list[str]:
    """A mark for each value, the same for 3 and 3.0, and in single precision."""
    if column.dtype.kind in NUMERIC:
        return [_mark(value, salt) for value in column.astype(np.float32).tolist()]
    return [_mark(value, salt) for value in to_words(column).tolist()]


def _mark(value: object, salt: str) -> str:
    return blake2b(f"{salt} {value}".encode(), digest_size=6).hexdigest()


def joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each row, the same for rows that have the same numbers in both."""
    return pd.factorize(one * (other.max() + 1) + other)[0]


def equal(both: np.ndarray, rows: int) -> int:
    """How many of the first rows there are among the others, too."""
    ours, theirs = (np.bincount(part, minlength=both.max() + 1) for part in np.split(both, [rows]))
    return int(np.minimum(ours, theirs).sum())


def identify(both: np.ndarray) -> bool:
    return len(np.unique(both)) > UNIQUE * len(both) / 2


def sizes(one: Marks, other: Marks) -> list[int]:
    return [len(next(iter(table.values()))) for table in (one, other)]


def kept_columns(one: Marks, other: Marks) -> list[np.ndarray]:
    """The columns of both tables that were not changed as a whole, the most equal ones first.

    Each is an array with a number for every row of the one table, then of the other, the same where the values are.
    """
    rows = sizes(one, other)
    shared = [pd.factorize(np.array([*one[name], *other[name]], object))[0] for name in sorted(one.keys() & other.keys())]
    kept = [both for both in shared if equal(both, rows[0]) > KEPT * min(rows)]
    return sorted(kept, key=lambda both: -equal(both, rows[0]))


def differences(one: Marks, other: Marks) -> list[int]:
    """In how many rows two tables differ, by each of the kept columns alone and by the first few of them.

    All columns together would not do: a corrected column hides that a row came in. None of tables of other rows.
    """
    rows, kept = sizes(one, other), kept_columns(one, other)
    together = list(accumulate(kept, joined))
    related = [equal(both, rows[0]) >= SAME * max(rows) for both in together if identify(both)]
    counts = [max(rows) - equal(both, rows[0]) for both in (*kept, *together)]
    return counts if any(related) or (not related and 2 * len(kept) >= len(one.keys() & other.keys())) else []
