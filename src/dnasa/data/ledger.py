"""Which rows the regressions of a site have used: it refuses one whose exact sums, less those of another, tell of few rows."""

import hashlib
import json
import secrets
from collections import Counter
from pathlib import Path

import pandas as pd

from dnasa.core import InputError
from dnasa.files import read_json, refusing_damage, write_durably

FITS = "fits.json"  # in the folder of the site's keys, which it never leaves


def check_rows(folder: Path, rows: pd.DataFrame, min_count: int, sends: bool) -> None:
    """Compare with the rows of all earlier regressions, and add these to the file if their sums are about to be sent."""
    path = folder / FITS
    salt, fits = secrets.token_hex(16), list[list[str]]()
    if path.exists():
        stored = read_json(path, FITS)
        with refusing_damage(path):
            salt, fits = str(stored["salt"]), [[str(row) for row in fit] for fit in stored["fits"]]
    seen, own = Counter[str](), set[str]()
    for row in map(repr, rows.itertuples(index=False, name=None)):
        seen[row] += 1  # equal rows are different patients
        own.add(hashlib.sha256(f"{salt} {seen[row]} {row}".encode()).hexdigest()[:16])
    differences = [len(own.symmetric_difference(fit)) for fit in fits]
    if few := [count for count in differences if 0 < count < min_count]:
        raise InputError(
            f"The complete rows differ from those of an earlier fit in {few[0]}: the difference of both would tell of them. "
            f"Fill missing values, or choose columns so that the same rows are complete, or {min_count} more or less.",
            f"its rows differ from those of an earlier fit in fewer than {min_count}",
        )
    if sends and 0 not in differences:
        try:
            write_durably(path, json.dumps({"salt": salt, "fits": [*fits, sorted(own)]}).encode())
        except OSError as error:
            raise InputError(f"Cannot write {path}, which a fit needs: {error.strerror}.") from error
