"""Text columns that hold no categories are refused by name: dates, numbers that were not read as such, identifiers."""

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dnasa.core import InputError
from dnasa.data.encoding import MISSING, place

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 256  # of a text column
MOST = 0.9  # the share of values that decides
FEW = 20  # values that may all be different
TIME = r"([T ]+\d{1,2}:\d{2}\S*( ?[AaPp][Mm])?)?"
DATE = re.compile(rf"(\d{{4}}([-/.])\d{{1,2}}\2\d{{1,2}}|\d{{1,2}}([-/.])\d{{1,2}}\3\d{{4}}){TIME}")
DECORATED = re.compile(r"[-+]?([$€£] ?[\d.,]+|[\d.,]+ ?[%$€£]|\d{1,3}(,\d{3})+(\.\d+)?|\d+,\d+)")  # 12%, 1,012.5


def leave_out(name: str) -> str:
    """The remedy for a column that cannot be used."""
    return f"leave it out with --drop-columns {shlex.quote(name)}"


def check_text(name: str, column: "pd.Series") -> None:
    """Refuse dates and numbers; a column of pandas' type category is taken as it is."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return
    counts = column.dropna().astype(str).value_counts()
    words, total = counts.index, int(counts.sum())
    for form, remedy in REMEDIES.items():
        found = [bool(form.fullmatch(word.strip())) for word in words]
        if counts[found].sum() >= MOST * total:
            raise InputError(f"Column '{name}' holds {remedy.format(words[found][0][:30])}, or {leave_out(name)}.")
    numeric = pd.to_numeric(words.to_series(), errors="coerce").notna().to_numpy()
    numbers = int(counts[numeric].sum())
    if MOST * total <= numbers < total:
        row = int(np.argmax(column.astype(str).isin(words[~numeric]).to_numpy()))
        raise InputError(
            f"Column '{name}' holds '{column.iloc[row]!s:.30}' in {place(column, row)}; {numbers:,} of {total:,} values are "
            "numbers: correct it, or leave it empty."
        )


REMEDIES = {
    DATE: "dates, such as '{}': turn them into numbers, such as days since the first",
    DECORATED: "numbers such as '{}': write them with digits and a decimal point only",
}


def check_categories(name: str, counts: Mapping[str, int]) -> None:
    """Refuse too many, and values that are different in nearly every row."""
    known = sorted(word for word in counts if word != MISSING)
    rows = sum(counts[word] for word in known)
    if nearly_all_different(len(known), rows):
        raise InputError(
            f"Column '{name}' has {len(known):,} different texts in {rows:,} rows, such as '{known[-1]:.30}': "
            f"{leave_out(name)}, or keep it for the predictions with --id-column {shlex.quote(name)}."
        )
    if len(known) > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' holds {len(known):,} different texts, such as '{known[-1]:.30}': {leave_out(name)}, or turn "
            f"it into numbers or at most {MOST_CATEGORIES} categories."
        )


def nearly_all_different(different: int, rows: int) -> bool:
    return different > max(FEW, MOST * rows)
