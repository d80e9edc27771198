"""Tables say what their frames hold, with ±."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dnasa.comparing import tables


def cell(metric: str = "test_loss", **values: Any) -> tuple[str, str]:
    usual = {"mean": 1.0, "spread": np.nan, "runs": 3, "diverged": 0, "best": False}
    usual |= {"difference": np.nan, "difference_low": np.nan, "difference_high": np.nan}
    row = pd.Series(usual | values)
    form = tables.form(metric, pd.DataFrame([usual | values | {"best": True}]))
    return tables.with_spread(metric, row, form), tables.with_interval(metric, row, form)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mean": 0.97123, "spread": 0.0031, "metric": "test_accuracy"}, "97.12 ± 0.31 %"),
        ({"mean": 0.97123, "metric": "test_accuracy"}, "97.12 %"),
        ({"mean": 1.23456, "spread": 0.0123}, "1.235 ± 0.012"),
        ({"mean": 1234.56, "spread": 12.3}, "1235 ± 12"),
        ({"mean": 3.21e7, "spread": 2e6}, "3.21e+07 ± 2.0e+06"),
        ({"mean": 1.5e-9, "spread": 2e-10}, "1.50e-09 ± 2.0e-10"),
        ({"mean": 0.0, "spread": 0.0}, "0.00 ± 0.00"),
        ({"mean": 0.5, "spread": 0.0}, "0.5000 ± 0.0000"),
        ({"mean": 0.5, "spread": 1e-17}, "0.5000 ± 0.0000"),
        ({"mean": 3.21e7, "spread": 0.0}, "3.21e+07 ± 0"),
        ({"mean": 0.5, "spread": 0.0, "metric": "test_accuracy"}, "50.00 ± 0.00 %"),
        ({"diverged": 2}, "diverged (2 of 3)"),
        ({"mean": np.nan}, "-"),
    ],
)
def test_results_have_their_spread(values: dict[str, Any], text: str) -> None:
    assert cell(**values)[0] == text


def test_differences_have_their_interval() -> None:
    numbers: dict[str, Any] = {"difference": -0.0123, "difference_low": -0.02, "difference_high": 0.001}
    assert cell("test_accuracy", **numbers)[1] == "-1.23 [-2.00, +0.10]"
    assert cell(**numbers)[1] == "-0.012 [-0.020, +0.001]"
    assert cell(difference=0.5)[1] == "+0.500"
    assert cell(best=True)[1] == "best"
    assert cell(diverged=1)[1] == "-"


@pytest.mark.parametrize(
    ("means", "spreads", "texts"),
    [
        ([8.79e-7, 0.000187, 84.6], [1e-8, 2e-5, 2.88e-7], ["8.79e-07 ± 1.0e-08", "1.87e-04 ± 2.0e-05", "8.46e+01 ± 0"]),
        ([0.0821, 84.6, np.nan], [0.018, 2.88e-7, np.nan], ["0.082 ± 0.018", "84.600 ± 0.000", "-"]),
    ],
)
def test_a_column_has_one_notation(means: list[float], spreads: list[float], texts: list[str]) -> None:
    rows = pd.DataFrame({"mean": means, "spread": spreads, "best": [True, False, False], "diverged": 0, "runs": 3})
    rows = rows.assign(difference=rows["mean"] - means[0], difference_low=0.1, difference_high=0.2)
    form = tables.form("test_loss", rows)
    assert [tables.with_spread("test_loss", row, form) for _, row in rows.iterrows()] == texts
    gaps = [tables.with_interval("test_loss", row, form) for _, row in rows.iloc[1:].iterrows()]
    assert all(("e" in gap) == ("e" in texts[0]) for gap in gaps)
