"""Which rows the regressions of a site have used: it refuses one whose exact sums, less those of another, tell of few rows."""

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import pandas as pd

from dnasa.core import InputError
from dnasa.data.columns import kind_of, to_numbers, to_words
from dnasa.data.rows import Rows
from dnasa.files import read_json, refusing_damage, write_durably

FITS = "fits.json"  # in the folder of the site's keys, which it never leaves
KEPT = 0.5  # a column of which fewer values are the same was changed as a whole, as by other units
Marks = Mapping[str, Sequence[str]]  # for each column of a fit, a mark of each row's value


def check_rows(folder: Path, rows: Rows, min_count: int, sends: bool) -> None:
    """Compare with the rows of all earlier regressions, and add these to the file if their sums are about to be sent."""
    path = folder / FITS
    salt, fits = secrets.token_hex(16), list[Marks]()
    if path.exists():
        stored = read_json(path, FITS)
        with refusing_damage(path):
            salt = str(stored["salt"])
            fits = [{str(name): [str(mark) for mark in marks] for name, marks in fit.items()} for fit in stored["fits"]]
    labels = rows.labels
    own = {name: marks_of(name, rows.inputs[name], salt) for name in rows.features}
    own[str(labels.name)] = marks_of(str(labels.name), labels, salt)
    if few := [count for fit in fits if 0 < (count := difference(own, fit)) < min_count]:
        raise InputError(
            f"The complete rows differ from those of an earlier fit in {few[0]}: the difference of both would tell of them. "
            f"Fill missing values, or choose columns so that the same rows are complete, or {min_count} more or less.",
            f"rows that differ from those of an earlier fit in fewer than {min_count}",
        )
    if sends and own not in fits:
        try:
            write_durably(path, json.dumps({"salt": salt, "fits": [*fits, own]}).encode(), mode=0o600)
        except OSError as error:
            raise InputError(f"Cannot write {path}, which a fit needs: {error.strerror}.") from error


def marks_of(name: str, column: pd.Series, salt: str) -> list[str]:
    """A mark for each value, the same for 3 and 3.0."""
    values = to_numbers(name, column) if kind_of(name, column) == "number" else to_words(column)
    return [blake2b(f"{salt} {value}".encode(), digest_size=6).hexdigest() for value in values.tolist()]


def difference(one: Marks, other: Marks) -> int:
    """In how many rows two fits differ, by the columns that both have and that were not changed as a whole."""
    shared = []
    for name in sorted(one.keys() & other.keys()):
        same = (Counter(one[name]) & Counter(other[name])).total()
        if same > KEPT * min(len(one[name]), len(other[name])):
            shared.append(name)
    if not shared:
        return 0
    ours, theirs = (Counter(zip(*(fit[name] for name in shared), strict=True)) for fit in (one, other))
    return ((ours - theirs) + (theirs - ours)).total()
