"""Columns of a table as numbers or as words; those that cannot be used are refused by name."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dnasa.core import InputError

MISSING = ""  # the category of a missing text
MISSING_WORDS = {  # those of pandas, and ?
    *("", "?", "#N/A", "#N/A N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    *("-NaN", "-nan", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
}
NUMERIC = "fiub"  # kinds of dtypes: float, signed, unsigned, bool
MOST_CATEGORIES = 256  # of a text column
MOST = 0.9  # the share of values that decides
FEW = 20  # values that may all be different
IDENTIFIERS, DATES = "a column of identifiers or free text", "a column of dates"
NO_DATES, EARLIEST, LATEST = "write dates as a number of days", 19000101, 21001231
DATE = r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]+\d{1,2}:\d{2}\S*( ?[AaPp][Mm])?)?"
DECORATED = r"[-+]?([$€£] ?[\d.,]+|[\d.,]+ ?[%$€£]|\d{1,3}(,\d{3})+(\.\d+)?|\d+,\d+)"  # 12%, 1,012.5
LEAST_CODE = 10_000  # whole numbers that are all different and mostly larger are codes, such as patient numbers
LIKE_NUMBERS = re.compile(rf"\s*(?:{DATE}|{DECORATED})\s*")
FLOAT32 = 3.4e38  # what a model can take in single precision


def as_frame(rows: Any) -> pd.DataFrame:
    """A frame with its blank texts missing; an array of two axes as one with columns 0, 1, 2, ..., without a copy."""
    if isinstance(rows, pd.DataFrame):
        return map_text_columns(rows, blanks_to_missing)
    array = np.asarray(rows)
    if array.ndim != 2:
        raise InputError(f"Rows must be a table, an array of two axes; this one has shape {array.shape}.")
    return pd.DataFrame(array, columns=[str(place) for place in range(array.shape[1])], copy=False)


def map_text_columns(frame: pd.DataFrame, function: Callable[[pd.Series], pd.Series]) -> pd.DataFrame:
    """Apply a function to every column that is not numeric. Numbers are not copied, and `frame` is not changed."""
    result = frame.copy(deep=False)
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind == "O":
            result.isetitem(place, function(frame.iloc[:, place]))
    return result


def blanks_to_missing(column: pd.Series) -> pd.Series:
    """Make empty texts, and words such as NA, missing values, and trim other texts, whatever file they come from."""
    texts = {word: word.strip() for word in column.unique() if isinstance(word, str)}
    blanks = [word for word, trimmed in texts.items() if trimmed in MISSING_WORDS]
    column = column.mask(column.isin(blanks)) if blanks else column
    return column.replace(padded) if (padded := {word: text for word, text in texts.items() if word != text}) else column


def infer_dtype(column: pd.Series) -> pd.Series:
    """Give a column the type it would have in a text file: numbers and booleans between blanks; other text stays text."""
    full = blanks_to_missing(column)
    values = full.dropna().unique()
    if isinstance(column.dtype, pd.CategoricalDtype) or not len(values):
        return full
    if all(isinstance(value, bool | np.bool_) for value in values):
        return full.astype("boolean")
    if full is column and all(isinstance(value, str) for value in values):
        return column  # the user's own text, such as the codes 01 and 02
    are_numbers = pd.to_numeric(pd.Series([str(value) for value in values]), errors="coerce").notna().all()
    return pd.to_numeric(full) if are_numbers else full


def kind_of(name: str, column: pd.Series) -> str:
    """Return "number" or "text"; dates and the like are refused."""
    if column.dtype.kind in NUMERIC:
        return "number"
    if column.dtype.kind in "Mmc":
        raise InputError(f"Column '{name}' holds {column.dtype} values: turn them into numbers, or {drop_remedy(name)}.")
    return "text" if column.notna().any() else "number"


def to_numbers(name: str, column: pd.Series, allow_missing: bool = False) -> np.ndarray:
    """The column in double precision, missing values as NaN; an error names the column, and a row that is not a number."""
    if column.dtype.kind not in NUMERIC:
        converted = pd.to_numeric(column, errors="coerce")
        bad = (converted.isna() & column.notna()).to_numpy()
        if bad.any():
            word = column.iloc[int(np.argmax(bad))]
            raise InputError(f"Column '{name}' must hold numbers; {first_row(column, bad)} has '{word!s:.40}'.")
        column = converted
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.abs(values) >= FLOAT32
    if not allow_missing:
        bad |= np.isnan(values)
    if bad.any():
        raise InputError(f"Column '{name}' has a missing, infinite or enormous value ({first_row(column, bad)}): correct it.")
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


def first_row(column: pd.Series | pd.DataFrame, flags: np.ndarray) -> str:
    """The first row that is flagged, for the user: rows of a file count from 1, below its header."""
    return f"row {column.index[int(np.argmax(flags))]}"


def to_words(column: pd.Series) -> np.ndarray:
    """A column of categories as text, whole numbers without a decimal point; missing ones are empty."""
    if column.dtype.kind == "f" and column.dropna().mod(1).eq(0).all():
        column = column.astype("Int64")
    words = column.astype(object).where(column.notna(), MISSING)
    return np.array([str(word) for word in words], dtype=object)


def drop_remedy(name: str) -> str:
    return f"leave it out with --drop-columns {shlex.quote(name)}"


def identifier_remedy(name: str) -> str:
    return f"{drop_remedy(name)}, keep it for the predictions with --id-column {shlex.quote(name)}"


def check_codes(name: str, numbers: np.ndarray) -> None:
    """Refuse dates such as 20260131, and whole numbers that differ in nearly every row, and are consecutive or long."""
    distinct, rows = np.unique(numbers), len(numbers)
    known = distinct[~np.isnan(distinct)]
    if (
        known.size
        and EARLIEST <= known[0] <= known[-1] <= LATEST
        and pd.to_datetime(pd.Series(known).astype(int).astype(str), format="%Y%m%d", errors="coerce").notna().all()
    ):
        raise InputError(f"Column '{name}' holds dates, such as {known[0]:.0f}: {NO_DATES}, or {drop_remedy(name)}.", DATES)
    if rows < FEW or not nearly_all_different(len(distinct), rows) or (numbers % 1 != 0).any():  # also where some are missing
        return
    if np.ptp(distinct) == rows - 1 or np.median(np.abs(distinct)) >= LEAST_CODE:
        raise InputError(
            f"Column '{name}' has another whole number in almost each row, as identifiers do: {identifier_remedy(name)}, or, "
            f'if it is a measurement, write units."{name}".factor = 1 into a file of --recode.',
            IDENTIFIERS,
        )


def check_text(name: str, column: pd.Series) -> None:
    """Refuse what is mostly numbers or dates; a column of pandas' type category is taken as it is."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return
    counts = column.dropna().astype(str).value_counts()
    plain = pd.to_numeric(counts.index.to_series(), errors="coerce").notna().to_numpy()
    decorated = np.array([bool(LIKE_NUMBERS.fullmatch(word)) for word in counts.index], bool)
    if plain.all() or counts[plain | decorated].sum() < MOST * counts.sum():
        return
    odd = column.astype(str).isin(counts.index[~plain]).to_numpy()
    raise InputError(
        f"Column '{name}' holds mostly numbers or dates, and '{column.iloc[int(np.argmax(odd))]!s:.30}' in "
        f"{first_row(column, odd)}: write numbers with digits and a decimal point only, {NO_DATES}, "
        f"list what stands for a missing value under [missing] in a file of --recode, or {drop_remedy(name)}."
    )


def check_categories(name: str, counts: Mapping[str, int], few: int = FEW) -> None:
    """Refuse too many, and values that are different in nearly every row, or in each of more than a few."""
    present = [count for word, count in counts.items() if word != MISSING]
    if nearly_all_different(len(present), sum(present), few) or len(present) > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' has {len(present):,} different texts in {sum(present):,} rows: {identifier_remedy(name)}, "
            f"or make at most {MOST_CATEGORIES} categories of it.",
            IDENTIFIERS,
        )


def nearly_all_different(distinct: int, rows: int, few: int = FEW) -> bool:
    return distinct > max(FEW, MOST * rows) or distinct == rows > few


def is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def as_csv(table: pd.DataFrame) -> str:
    """The text of a CSV file; texts that a spreadsheet would calculate begin with an apostrophe there."""
    safe = map_text_columns(table, lambda column: column.map(_not_a_formula))
    return safe.set_axis([_not_a_formula(name) for name in safe], axis=1).to_csv(index=False, float_format="%.7g")


def _not_a_formula(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) and not is_number(value)
    return f"'{value}" if is_formula else value
