"""Means and spreads over seeds, and paired differences: from histories to frames that tables and plots are made of.

A diverged run is counted. It is never averaged: where one diverged there is no mean.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

__all__ = [
    "curves",
    "differences",
    "final",
    "in_percent",
    "labelled",
    "larger_is_better",
    "over_seeds",
    "start",
    "with_interval",
    "with_the_best",
]

WINDOW = 0.05  # of a run's evaluations, in a running mean: a wider one moves the kinks of a curve
ENOUGH = 20  # evaluations; from here on, a running mean is over at least three of them
POINTS = 100  # of a smoothed curve
VARIANT = ("rule", "schedule", "eta")  # what distinguishes the lines of a comparison


def larger_is_better(metric: str) -> bool:
    """Whether larger values are better: for accuracies and R^2; for everything else, smaller ones are."""
    return in_percent(metric) or metric.endswith("_r2")


def in_percent(metric: str) -> bool:
    """Whether a metric is shown in percent: accuracies are shares."""
    return "accuracy" in metric


def labelled(history: pd.DataFrame) -> pd.DataFrame:
    """The history with every column of a variant, and whether the run had diverged."""
    missing = {name: np.nan for name in VARIANT if name not in history}
    return history.assign(**missing, diverged=history.consensus.isna() if "consensus" in history else False)


def answered(history: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of which the last is that of a run's answer: with early stopping, those that improved."""
    if "improved" not in history:
        return history
    return history[(history.improved == 1) | history.consensus.isna()]


def final(history: pd.DataFrame) -> pd.DataFrame:
    """The evaluation of every run's answer: the last, or with early stopping the best."""
    return labelled(answered(history)).drop_duplicates([*VARIANT, "seed"], keep="last").reset_index(drop=True)


def start(history: pd.DataFrame) -> pd.DataFrame:
    """The evaluation of every run before its first step; empty where there was none."""
    rows = labelled(history)
    return rows[rows.step == 0].drop_duplicates([*VARIANT, "seed"], keep="last").reset_index(drop=True)


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


def curves(
    history: pd.DataFrame, metric: str, x: str = "step", keys: Sequence[str] = VARIANT, smooth: str = "none"
) -> pd.DataFrame:
    """`over_seeds` at every evaluation of every variant, with the mean of column `x` as `x`.

    `low` and `high` contain at least 80 % of the seeds: all of them up to ten. What is smoothed, each run by itself, has at
    most 100 points.
    """
    rows = labelled(history).drop_duplicates([*keys, "seed", "step"], keep="last").reset_index(drop=True)
    if smooth != "none":
        rows = _thinned(_smoothed(rows, metric, [*keys, "seed"], smooth))
    places = [*keys, "step"]
    table = over_seeds(rows, metric, places)
    values = rows[metric].astype(float).groupby([rows[key] for key in places], sort=False, dropna=False)
    known = table["mean"].notna()
    low, high = values.quantile(0.1, interpolation="lower"), values.quantile(0.9, interpolation="higher")
    table = table.assign(low=low.to_numpy(), high=high.to_numpy())
    table[["low", "high"]] = table[["low", "high"]].where(known)
    place = rows.groupby(places, sort=False, dropna=False)[x].mean() if x != "step" else None
    return table.assign(x=table.step if place is None else place.to_numpy())


# ---------------------------------------------------------------- smoothing


def _smoothed(rows: pd.DataFrame, metric: str, run: Sequence[str], smooth: str) -> pd.DataFrame:
    """A metric of every run, up to where it diverged."""

    def of_run(values: pd.Series) -> np.ndarray:
        numbers = values.to_numpy(float)
        lost = np.flatnonzero(~np.isfinite(numbers))
        end = lost[0] if len(lost) else len(numbers)
        return np.concatenate([SMOOTHINGS[smooth](numbers[:end], larger_is_better(metric)), numbers[end:]])

    ordered = rows.sort_values("step", kind="stable")
    smoothed = ordered.groupby(list(run), sort=False, dropna=False)[metric].transform(of_run)
    return rows.assign(**{metric: smoothed})


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """At most 100 of the steps, the first and the last among them."""
    steps = np.sort(rows.step.unique())
    if len(steps) <= POINTS:
        return rows
    kept = steps[np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
    return rows[rows.step.isin(kept)]


def running_mean(values: np.ndarray, larger: bool = False) -> np.ndarray:
    """The mean of the evaluations around each one, 5 % of all and at least three; geometric where they are positive.

    Fewer than 20 evaluations stay as they are. The window shrinks towards both ends, so a curve begins and ends with its own
    values, which tables show.
    """
    count, positive = len(values), bool((values > 0).all())
    place = np.arange(count)
    widest = max(int(WINDOW * count / 2), int(count >= ENOUGH))
    half = np.minimum(np.minimum(place, count - 1 - place), widest)
    with np.errstate(all="ignore"):
        sums = np.concatenate([[0.0], np.cumsum(np.log(values) if positive else values)])
        means = (sums[place + half + 1] - sums[place - half]) / (2 * half + 1)
        return np.where(half == 0, values, np.exp(means) if positive else means)


def best_so_far(values: np.ndarray, larger: bool = False) -> np.ndarray:
    return np.maximum.accumulate(values) if larger else np.minimum.accumulate(values)


def average_so_far(values: np.ndarray, larger: bool = False) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.cumsum(values) / np.arange(1, len(values) + 1)


SMOOTHINGS = {
    "mean": running_mean,
    "best": best_so_far,
    "average": average_so_far,
    "none": lambda values, larger: values,
}


def differences(runs: pd.DataFrame, metric: str, keys: Sequence[str] = VARIANT, level: float = 0.95) -> pd.DataFrame:
    """The difference of each variant to the best, over the same seeds, with a confidence interval (t distribution).

    The best has the best mean of the variants that never diverged; its own difference is 0. There is no interval of a
    single seed.
    """
    table = over_seeds(runs, metric, keys)
    wide = runs.assign(variant=runs.groupby(list(keys), sort=False, dropna=False).ngroup()).pivot(
        index="seed", columns="variant", values=metric
    )
    means = table["mean"] if larger_is_better(metric) else -table["mean"]
    if means.isna().all():
        return table.assign(best=False, difference=np.nan, difference_low=np.nan, difference_high=np.nan)
    best = means.idxmax()
    with np.errstate(all="ignore"):
        gaps = wide.sub(wide[best], axis=0)
        gaps.loc[:, table["mean"].isna()] = np.nan
        count, middle = gaps.count(), gaps.mean()
        half = stdtrit((count - 1).clip(lower=1), (1 + level) / 2) * gaps.std() / np.sqrt(count.clip(lower=1))
    return table.assign(
        best=table.index == best, difference=middle, difference_low=middle - half, difference_high=middle + half
    )


def with_the_best(table: pd.DataFrame) -> pd.Series:
    """The best of a table of `differences`, and what does not differ clearly from it: the interval contains 0."""
    return table.best.eq(True) | ((table.difference_low <= 0) & (table.difference_high >= 0))


def with_interval(table: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """A table of `over_seeds` with the confidence interval of each mean (t distribution); there is none of a single seed."""
    with np.errstate(all="ignore"):
        half = stdtrit((table.runs - 1).clip(lower=1), (1 + level) / 2) * table.spread / np.sqrt(table.runs)
    return table.assign(mean_low=table["mean"] - half, mean_high=table["mean"] + half)
