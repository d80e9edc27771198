"""What a site has told of its rows: it refuses a result that, less those of earlier ones, would tell of few rows."""

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dnasa.core import InputError
from dnasa.data.columns import kind_of, to_numbers, to_words
from dnasa.data.rows import Rows
from dnasa.files import read_json, refusing_damage, write_durably

TOLD, TESTED = "told.json", "tested.json"  # in the folder of the site's keys, which they never leave
KEPT = 0.5  # a column of which fewer values are the same was changed as a whole, as by other units
SAME = 0.5  # test rows are new if at most this share of them was measured before
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
        salt, stored = self._read(TOLD)
        with refusing_damage(self.folder / TOLD):
            earlier = [{str(name): [str(mark) for mark in marks] for name, marks in each.items()} for each in stored]
        own = marks(rows, salt)
        few = [count for each in earlier if 0 < (count := difference(own, each)) < min_count]
        if few and not self.again:
            raise InputError(
                f"The rows differ from those that an earlier run or fit told of in {few[0]}: the difference of both would tell "
                f"of them. Use the same rows, or {min_count} more or fewer (a fit leaves out those with missing values), or "
                "agree to it with --again.",
                f"rows that differ from those of an earlier run in fewer than {min_count}",
            )
        if self.sends and own not in earlier:
            self._write(TOLD, salt, [*earlier, own])

    def tested_before(self) -> bool:
        """Whether most of these test rows were measured before."""
        own, earlier, _ = self._tests()
        return bool(own) and sum(mark in earlier for mark in own) > SAME * len(own)

    def admits_test(self) -> bool:
        """Whether a test of these rows may leave; if so, they count as measured."""
        if self.tested_before() and not self.again:
            return False
        own, earlier, salt = self._tests()
        if not earlier.issuperset(own):
            self._write(TESTED, salt, sorted(earlier.union(own)))
        return True

    def _tests(self) -> tuple[list[str], set[str], str]:
        salt, stored = self._read(TESTED)
        columns = {} if self.tests is None else marks(self.tests, salt)
        return ["".join(row) for row in zip(*columns.values(), strict=True)], set(map(str, stored)), salt

    def _read(self, name: str) -> tuple[str, list[Any]]:
        path = self.folder / name
        if not path.exists():
            return secrets.token_hex(16), []
        stored = read_json(path, name)
        with refusing_damage(path):
            return str(stored["salt"]), list(stored["rows"])

    def _write(self, name: str, salt: str, rows: Sequence[Any]) -> None:
        path = self.folder / name
        try:
            write_durably(path, json.dumps({"salt": salt, "rows": rows}).encode(), mode=0o600)
        except OSError as error:
            raise InputError(f"Cannot write {path}, which says what left this site: {error.strerror}.") from error


def marks(rows: Rows, salt: str) -> Marks:
    columns = {name: rows.inputs[name] for name in rows.features} | {str(rows.labels.name): rows.labels}
    return {name: marks_of(name, column, salt) for name, column in columns.items()}


def marks_of(name: str, column: pd.Series, salt: str) -> list[str]:
    """A mark for each value, the same for 3 and 3.0."""
    values = to_numbers(name, column, allow_missing=True) if kind_of(name, column) == "number" else to_words(column)
    return [blake2b(f"{salt} {value}".encode(), digest_size=6).hexdigest() for value in values.tolist()]


def difference(one: Marks, other: Marks) -> int:
    """In how many rows two tables differ, by the columns that both have and that were not changed as a whole."""
    shared = []
    for name in sorted(one.keys() & other.keys()):
        same = (Counter(one[name]) & Counter(other[name])).total()
        if same > KEPT * min(len(one[name]), len(other[name])):
            shared.append(name)
    if not shared:
        return 0
    ours, theirs = (Counter(zip(*(fit[name] for name in shared), strict=True)) for fit in (one, other))
    return ((ours - theirs) + (theirs - ours)).total()
