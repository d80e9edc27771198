"""Means and spreads over seeds, and paired differences: from histories to frames that tables and plots are made of.

A diverged run is counted. It is never averaged: where one diverged there is no mean.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from dnasa.problems.metrics import larger_is_better
from dnasa.runs.result import answered

__all__ = ["curves", "differences", "final", "labeled", "over_seeds", "with_the_best"]

METHOD = ["rule", "schedule"]  # what has a stepsize of its own
VARIANT = (*METHOD, "eta")  # what distinguishes the lines of a comparison
CONFIDENCE = 0.95
TESTED = 5  # seeds, below which a paired test finds next to nothing


def labeled(history: pd.DataFrame) -> pd.DataFrame:
    """The history with every column of a variant, and whether the run had diverged."""
    missing = {name: np.nan for name in VARIANT if name not in history}
    return history.assign(**missing, diverged=history.consensus.isna() if "consensus" in history else False)


def final(history: pd.DataFrame) -> pd.DataFrame:
    """The evaluation of every run's answer: the last, or with early stopping the best."""
    return labeled(answered(history)).drop_duplicates([*VARIANT, "seed"], keep="last").reset_index(drop=True)


def over_seeds(runs: pd.DataFrame, metric: str, keys: Sequence[str] = VARIANT) -> pd.DataFrame:
    """For each variant the mean, the standard deviation, the smallest and the largest value, and how many runs diverged."""
    values = runs[metric].astype(float)
    rows = runs.assign(value=values, diverged=runs.diverged | np.isinf(values))
    groups = rows.groupby(list(keys), sort=False, dropna=False)
    value = groups.value
    with np.errstate(all="ignore"):
        table = pd.DataFrame({"mean": value.mean(), "spread": value.std(), "low": value.min(), "high": value.max()})
    count, diverged = value.size(), groups.diverged.sum()
    known = (diverged == 0) & (value.count() == count)
    return table.where(known).assign(runs=count, diverged=diverged).reset_index()


def curves(history: pd.DataFrame, metric: str, columns: Sequence[str] = (), keys: Sequence[str] = VARIANT) -> pd.DataFrame:
    """`over_seeds` at every evaluation of every variant, with the means of these other columns."""
    places = [*keys, "step"]
    rows = labeled(history).drop_duplicates([*places, "seed"], keep="last")
    others = [name for name in columns if name != "step"]
    means = rows.groupby(places, sort=False, dropna=False)[others].mean().reset_index(drop=True)
    return over_seeds(rows, metric, places).join(means)


def differences(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The difference of each variant from the best, over the same seeds, with a confidence interval (t distribution).

    The best has the best mean of the variants that never diverged; its own difference is 0. There is no interval of a
    single seed.
    """
    table = over_seeds(runs, metric)
    means = table["mean"] if larger_is_better(metric) else -table["mean"]
    if means.isna().all():
        return table.assign(best=False, difference=np.nan, difference_low=np.nan, difference_high=np.nan)
    best = means.idxmax()
    numbered = runs.assign(variant=runs.groupby(list(VARIANT), sort=False, dropna=False).ngroup())
    values = numbered.pivot(index="seed", columns="variant", values=metric)
    with np.errstate(all="ignore"):
        gaps = values.sub(values[best], axis=0)
        gaps.loc[:, table["mean"].isna()] = np.nan
        count, middle = gaps.count(), gaps.mean()
        quantile = stdtrit((count - 1).clip(lower=1), (1 + CONFIDENCE) / 2)
        half = quantile * gaps.std() / np.sqrt(count.clip(lower=1))
    return table.assign(
        best=table.index == best, difference=middle, difference_low=middle - half, difference_high=middle + half
    )


def with_the_best(table: pd.DataFrame) -> pd.Series:
    """The best of a table of `differences`, and what does not differ clearly from it: the interval contains 0.

    Few seeds decide next to nothing, so they give the best alone.
    """
    return table.best.eq(True) | ((table.difference_low <= 0) & (table.difference_high >= 0) & (table.runs.max() >= TESTED))
