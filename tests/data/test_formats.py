"""The same table is encoded the same from every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_own_data import encoding_of

from dnasa import data
from dnasa.core import InputError

ROWS = 12
BLANKS = ["", " ", "NA", "?", None]
NUMBERS = st.lists(
    st.one_of(st.sampled_from(BLANKS), st.integers(-9, 9), st.floats(-99, 99, width=32)), min_size=ROWS, max_size=ROWS
)
WORDS = st.lists(st.sampled_from([*BLANKS, "red", "dark red", "a;b", "1,5 m", 'the "old"']), min_size=ROWS, max_size=ROWS)
BOOLS = st.lists(st.sampled_from([True, False, None]), min_size=ROWS, max_size=ROWS)


def parquet(path: Path, frame: pd.DataFrame) -> Path:
    """Which has one type in a column: with blanks between its numbers it is text."""
    mixed = {n for n in frame if frame[n].map(lambda v: isinstance(v, str)).any()}
    frame.assign(**{n: frame[n].map(str, na_action="ignore") for n in mixed}).to_parquet(path)
    return path


@settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=NUMBERS, words=WORDS, bools=BOOLS)
def test_the_same_table_is_encoded_the_same_from_every_format(tmp_path: Path, numbers: Any, words: Any, bools: Any) -> None:
    columns = {"size": [1.5, 2, *numbers], "colour": ["red", "blue", *words], "open": [True, False, *bools]}
    columns["kind"] = ["x", "y"] * (1 + ROWS // 2)
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    whole = pd.concat([frame] * 2, ignore_index=True)
    whole.to_csv(tmp_path / "t.csv", index=False)
    whole.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    parquet(tmp_path / "t.parquet", whole)
    plain = frame.assign(**{name: frame[name].where(~frame[name].isin(BLANKS)) for name in frame})
    plain = plain.assign(size=plain["size"].astype(float))
    rows = [data.load(str(tmp_path / f"t.{kind}"), "kind") for kind in ("csv", "tsv", "parquet")]
    twice = pd.concat([plain] * 2, ignore_index=True)
    rows += [data.from_frame(table, "kind") for table in (whole, twice, twice.convert_dtypes())]
    for other in rows[1:]:
        assert encoding_of(other).inputs == encoding_of(rows[0]).inputs
        np.testing.assert_allclose(other.inputs, rows[0].inputs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(encoding_of(other).encode(frame), encoding_of(rows[0]).encode(plain), rtol=1e-5, atol=1e-6)


def test_missing_numbers_of_arrays_are_those_of_tables(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    x[:9, 1] = x[9:18, 2] = np.nan
    np.savez(tmp_path / "x.npz", inputs=x, labels=y)
    frame = pd.DataFrame(x).astype(object).assign(kind=y)
    made = data.from_frame(frame.fillna(" "), "kind")
    assert encoding_of(made).inputs == ("0", "1", "1 missing", "2", "2 missing")
    np.testing.assert_allclose(data.load(str(tmp_path / "x.npz")).inputs, made.inputs, rtol=1e-6)


@pytest.mark.parametrize("blank", ["", "  ", "NA", None])
def test_a_blank_label_is_a_missing_label(tmp_path: Path, blank: Any) -> None:
    frame = pd.DataFrame({"a": range(10), "kind": [*"xyxyxyxyx", blank]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    reads: list[Any] = [lambda kind=kind: data.load(str(tmp_path / f"t.{kind}"), "kind") for kind in ("csv", "parquet")]
    reads += [lambda: data.from_frame(frame, "kind"), lambda: data.from_arrays(frame[["a"]], frame.kind.to_numpy())]
    for read in reads:
        with pytest.raises(InputError, match="has rows without a label"):
            read()


def test_text_that_is_meant_as_text_stays_text() -> None:
    codes = pd.DataFrame({"code": ["01", "02"] * 5, "ward": pd.Categorical(["1", ""] * 5), "kind": ["x", "y"] * 5})
    made = encoding_of(data.from_frame(codes, "kind"))
    assert made.inputs == ("code=01", "code=02", "ward missing", "ward=1")
