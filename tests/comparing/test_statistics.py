"""Means, spreads and paired differences are those of their definitions; diverged runs are counted and never averaged."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dnasa.comparing import statistics


def runs(metric: str = "test_loss", **values: Any) -> pd.DataFrame:
    """The results of each rule, one per seed; None where the run diverged."""
    rows = [
        {"rule": rule, "schedule": "fixed", "eta": 0.1, "seed": s, "diverged": v is None} | {metric: np.nan if v is None else v}
        for rule, some in values.items()
        for s, v in enumerate(some)
    ]
    return pd.DataFrame(rows)


def test_the_table_has_mean_standard_deviation_and_range() -> None:
    (row,) = statistics.over_seeds(runs(a=[1.0, 2.0, 6.0]), "test_loss").itertuples()
    assert (row.mean, row.low, row.high, row.runs, row.diverged) == (3, 1, 6, 3, 0)
    assert row.spread == pytest.approx(np.std([1, 2, 6], ddof=1))


@pytest.mark.parametrize("bad", [None, np.inf])
def test_a_diverged_run_is_counted_and_not_averaged(bad: float | None) -> None:
    table = statistics.over_seeds(runs(a=[1.0, bad, 3.0], b=[1.0, 1.0, 1.0]), "test_loss").set_index("rule")
    assert table.loc["a", ["runs", "diverged"]].tolist() == [3, 1]
    assert table.loc["a", ["mean", "spread", "low", "high"]].isna().all()
    assert table.loc["b", "mean"] == 1


def test_a_metric_that_is_undefined_is_not_a_divergence() -> None:
    (row,) = statistics.over_seeds(runs(a=[1.0, 2.0]).assign(test_loss=[1.0, np.nan]), "test_loss").itertuples()
    assert np.isnan(row.mean)
    assert row.diverged == 0


@pytest.mark.parametrize("metric", ["test_loss", "test_accuracy"])
def test_differences_are_paired_with_the_interval_of_a_paired_t_test(metric: str) -> None:
    rng = np.random.default_rng(0)
    luck = rng.normal(size=6)
    a, b = 0.3 + 0.1 * luck, 0.4 + 0.1 * luck + 0.01 * rng.normal(size=6)
    table = statistics.differences(runs(metric, a=a, b=b), metric).set_index("rule")
    best, other = ("b", "a") if metric == "test_accuracy" else ("a", "b")
    assert table.best.to_dict() == {best: True, other: False}
    expected = stats.ttest_rel(*((a, b) if other == "a" else (b, a)))
    interval = expected.confidence_interval(0.95)
    assert table.difference[other] == pytest.approx((b - a).mean() * (1 if other == "b" else -1))
    assert table.loc[other, ["difference_low", "difference_high"]].tolist() == pytest.approx([interval.low, interval.high])
    assert table.difference[best] == 0


def test_the_best_never_diverged_and_one_seed_has_no_interval() -> None:
    assert not statistics.differences(runs(a=[None, None]), "test_loss").best.any()
    one = statistics.differences(runs(a=[1.0], b=[3.0]), "test_loss").set_index("rule")
    assert one.difference["b"] == 2
    assert np.isnan(one.difference_low["b"])
    table = statistics.differences(runs(a=[0.1, None], b=[1.0, 2.0], c=[2.0, 3.0]), "test_loss").set_index("rule")
    assert table.best.to_dict() == {"a": False, "b": True, "c": False}
    assert np.isnan(table.difference["a"])
    assert table.difference["c"] == 1


def test_curves_are_over_the_seeds_of_each_evaluation() -> None:
    rows = [
        {"rule": "a", "schedule": "fixed", "seed": s, "step": t, "bytes": 100 * t, "consensus": 0.0, "test_loss": s + t}
        for t in (0, 5)
        for s in (1, 3)
    ]
    table = statistics.curves(pd.DataFrame(rows), "test_loss", ["bytes"])
    assert table[["step", "bytes", "mean", "low", "high", "runs"]].to_numpy().tolist() == [
        [0, 0, 2, 1, 3, 2],
        [5, 500, 7, 6, 8, 2],
    ]
