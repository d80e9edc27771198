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
        own, places = raw_marks(self.table, salt), self.table.labels.index.get_indexer(self.tests.labels.index)
        tested = np.zeros(len(self.table.labels), bool)
        for flags, each in ((np.array(each[FLAG]) == "1", {n: a for n, a in each.items() if n != FLAG}) for each in earlier):
            kept = kept_columns(own, each)
            together = joined([own[name] + each[name] for name in kept]) if kept else np.zeros(0, int)
            if kept and (identify(together) or 2 * len(kept) >= len(own.keys() & each.keys())):
                tested |= np.isin(together[: len(tested)], together[len(tested) :][flags])
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
        with refusing_damage(path):
            tables = [{str(column): [*map(str, each)] for column, each in table.items()} for table in stored["rows"]]
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


def joined(columns: Sequence[Sequence[str]]) -> np.ndarray:
    """A number for each row, the same for rows that are equal in these columns."""
    together = np.zeros(len(columns[0]), int)
    for column in columns:
        codes = pd.factorize(np.array(column, object))[0]
        together = pd.factorize(together * (codes.max() + 1) + codes)[0]
    return together


def equal(pair: np.ndarray, rows: int) -> int:
    """How many of the first rows there are among the others, too."""
    ours, theirs = (np.bincount(part, minlength=pair.max() + 1) for part in np.split(pair, [rows]))
    return int(np.minimum(ours, theirs).sum())


def identify(pair: np.ndarray) -> bool:
    return len(np.unique(pair)) > UNIQUE * len(pair) / 2


def kept_columns(one: Marks, other: Marks) -> list[str]:
    """The columns that both tables have and that were not changed as a whole, the most equal ones first."""
    rows, most = len(next(iter(one.values()))), len(next(iter(other.values())))
    same = {name: equal(joined([[*one[name], *other[name]]]), rows) for name in sorted(one.keys() & other.keys())}
    return sorted((name for name in same if same[name] > KEPT * min(rows, most)), key=lambda name: -same[name])


def differences(one: Marks, other: Marks) -> list[int]:
    """In how many rows two tables differ, by each of the kept columns alone and by the first few of them.

    All columns together would not do: a corrected column hides that a row came in. None of tables of other rows.
    """
    sizes = [len(next(iter(table.values()))) for table in (one, other)]
    kept, together, counts, related = kept_columns(one, other), np.zeros(sum(sizes), int), list[int](), list[bool]()
    for name in kept:
        alone = joined([[*one[name], *other[name]]])
        together = pd.factorize(together * (alone.max() + 1) + alone)[0]
        counts += [max(sizes) - equal(pair, sizes[0]) for pair in (alone, together)]
        if identify(together):
            related.append(equal(together, sizes[0]) >= SAME * max(sizes))
    return counts if any(related) or (not related and 2 * len(kept) >= len(one.keys() & other.keys())) else []
