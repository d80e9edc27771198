"""Columns of a table as numbers or as words; those that cannot be used are refused by name."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import InputError

if TYPE_CHECKING:
    import pandas as pd

MISSING = ""  # the category of a missing text
MISSING_WORDS = {  # those of pandas, and ?
    *("", "?", "#N/A", "#N/A N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    *("-NaN", "-nan", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
}
MOST_CATEGORIES = 256  # of a text column
MOST = 0.9  # the share of values that decides
FEW = 20  # values that may all be different
IDENTIFIERS = "a column of identifiers or free text"
DATE = r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]+\d{1,2}:\d{2}\S*( ?[AaPp][Mm])?)?"
DECORATED = r"[-+]?([$€£] ?[\d.,]+|[\d.,]+ ?[%$€£]|\d{1,3}(,\d{3})+(\.\d+)?|\d+,\d+)"  # 12%, 1,012.5
LIKE_NUMBERS = re.compile(rf"\s*(?:{DATE}|{DECORATED})\s*")
FLOAT32 = 3.4e38  # what a model can take in single precision


def as_frame(rows: Any) -> "pd.DataFrame":
    """A frame with its blank texts missing; an array of two axes as one with columns 0, 1, 2, ..., without a copy."""
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return changed(rows, without_blanks)
    array = np.asarray(rows)
    if array.ndim != 2:
        raise InputError(f"Rows must be a table, an array of two axes; this one has shape {array.shape}.")
    return pd.DataFrame(array, columns=[str(place) for place in range(array.shape[1])], copy=False)


def changed(frame: "pd.DataFrame", change: Callable[["pd.Series"], "pd.Series"]) -> "pd.DataFrame":
    """Change some of the text columns of a frame; numbers are not copied."""
    for place, kind in enumerate(frame.dtypes):
        if getattr(kind, "kind", "O") == "O" and (new := change(column := frame.iloc[:, place])) is not column:
            frame = frame.copy(deep=False)
            frame.isetitem(place, new)
    return frame


def without_blanks(column: "pd.Series") -> "pd.Series":
    """Empty texts, and words such as NA, are missing values, from whatever file they come."""
    blank = [word for word in column.unique() if isinstance(word, str) and word.strip() in MISSING_WORDS]
    return column.mask(column.isin(blank)) if blank else column


def typed(column: "pd.Series") -> "pd.Series":
    """The column as a text file gives it: numbers, True and False between blanks become numbers, other text stays."""
    import pandas as pd

    full = without_blanks(column)
    known = full.dropna().unique()
    if isinstance(column.dtype, pd.CategoricalDtype) or not len(known):
        return full
    if all(isinstance(word, bool | np.bool_) for word in known):
        return full.astype("boolean")
    if full is column and all(isinstance(word, str) for word in known):
        return column
    numeric = pd.to_numeric(pd.Series([str(word) for word in known]), errors="coerce").notna().all()
    return pd.to_numeric(full) if numeric else full


def kind_of(name: str, column: "pd.Series") -> str:
    """Numbers, or text; dates and the like are refused."""
    kind = getattr(column.dtype, "kind", "O")
    if kind in "fiub":
        return "number"
    if kind in "Mmc":
        raise InputError(f"Column '{name}' holds {column.dtype} values: turn them into numbers, or {leave_out(name)}.")
    return "text" if column.notna().any() else "number"


def numbers(name: str, column: "pd.Series", missing: bool = False) -> np.ndarray:
    """A column of numbers in double precision; an error names the column, and a row that is not one."""
    import pandas as pd

    if getattr(column.dtype, "kind", "O") not in "fiub":
        converted = pd.to_numeric(column, errors="coerce")
        bad = (converted.isna() & column.notna()).to_numpy()
        if bad.any():
            word = column.iloc[int(np.argmax(bad))]
            raise InputError(f"Column '{name}' must hold numbers; {row_of(column, bad)} has '{word!s:.40}'.")
        column = converted
    numpy_type = isinstance(column.dtype, np.dtype)  # others of pandas have a value for what is missing
    values = column.to_numpy() if numpy_type else column.to_numpy(dtype=np.float64, na_value=np.nan)
    values = values.astype(np.float64, copy=False)
    bad = np.abs(values) >= FLOAT32 if missing else ~(np.abs(values) < FLOAT32)
    if bad.any():
        raise InputError(f"Column '{name}' has a missing, infinite or enormous value ({row_of(column, bad)}): correct it.")
    return values


def as_float32(array: np.ndarray, what: str) -> np.ndarray:
    """Rows of finite numbers, in single precision."""
    with np.errstate(over="ignore"):
        rows = array.astype(np.float32, copy=False)
    finite = np.isfinite(rows)
    if not finite.all():
        bad = int(np.argmin(finite.reshape(len(rows), -1).all(1)))
        raise InputError(f"Row {bad} of {what} has a missing, infinite or enormous value: fill, scale or drop it.")
    return rows


def row_of(column: "pd.Series", flags: np.ndarray) -> str:
    """The first row that is flagged, for the user: rows of a file count from 1, below its header."""
    return f"row {column.index[int(np.argmax(flags))]}"


def as_words(column: "pd.Series") -> np.ndarray:
    """A column of categories as text, whole numbers without a decimal point; missing ones are empty."""
    if getattr(column.dtype, "kind", "O") == "f" and column.dropna().mod(1).eq(0).all():
        column = column.astype("Int64")
    words = column.astype(object).where(column.notna(), MISSING)
    return np.array([str(word) for word in words], dtype=object)


# ---------------------------------------------------------------- text


def leave_out(name: str) -> str:
    """The remedy for a column that cannot be used."""
    return f"leave it out with --drop-columns {shlex.quote(name)}"


def check_text(name: str, column: "pd.Series") -> None:
    """Refuse what is mostly numbers or dates; a column of pandas' type category is taken as it is."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return
    counts = column.dropna().astype(str).value_counts()
    plain = pd.to_numeric(counts.index.to_series(), errors="coerce").notna().to_numpy()
    meant = plain | np.array([bool(LIKE_NUMBERS.fullmatch(word)) for word in counts.index], bool)
    if not plain.all() and counts[meant].sum() >= MOST * counts.sum():
        odd = column.astype(str).isin(counts.index[~plain]).to_numpy()
        raise InputError(
            f"Column '{name}' holds mostly numbers or dates, and '{column.iloc[int(np.argmax(odd))]!s:.30}' in "
            f"{row_of(column, odd)}: write numbers with digits and a decimal point only, dates as a number of days, or "
            f"{leave_out(name)}."
        )


def check_categories(name: str, counts: Mapping[str, int], few: int = FEW) -> None:
    """Refuse too many, and values that are different in nearly every row, or in each of more than a few."""
    known = [count for word, count in counts.items() if word != MISSING]
    if nearly_all_different(len(known), sum(known), few) or len(known) > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' has {len(known):,} different texts in {sum(known):,} rows: {leave_out(name)}, keep it for the "
            f"predictions with --id-column {shlex.quote(name)}, or make at most {MOST_CATEGORIES} categories of it.",
            IDENTIFIERS,
        )


def nearly_all_different(different: int, rows: int, few: int = FEW) -> bool:
    return different > max(FEW, MOST * rows) or different == rows > few
