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
]

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
    with np.errstate(all="ignore"):
        table = rows.groupby(list(keys), sort=False, dropna=False).agg(
            mean=("value", "mean"),
            spread=("value", "std"),
            low=("value", "min"),
            high=("value", "max"),
            runs=("value", "size"),
            known=("value", "count"),
            diverged=("diverged", "sum"),
        )
    unknown = (table.diverged > 0) | (table.known < table.runs)
    numbers = {name: table[name].mask(unknown) for name in ("mean", "spread", "low", "high")}
    return table.assign(**numbers).drop(columns="known").reset_index()


def curves(history: pd.DataFrame, metric: str, x: str = "step", keys: Sequence[str] = VARIANT) -> pd.DataFrame:
    """`over_seeds` at every evaluation of every variant, with the mean of column `x` as `x`."""
    rows = labelled(history).drop_duplicates([*keys, "seed", "step"], keep="last")
    table = over_seeds(rows, metric, [*keys, "step"])
    place = rows.groupby([*keys, "step"], sort=False, dropna=False)[x].mean() if x != "step" else None
    return table.assign(x=table.step if place is None else place.to_numpy())


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


def with_interval(table: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """A table of `over_seeds` with the confidence interval of each mean (t distribution); there is none of a single seed."""
    with np.errstate(all="ignore"):
        half = stdtrit((table.runs - 1).clip(lower=1), (1 + level) / 2) * table.spread / np.sqrt(table.runs)
    return table.assign(mean_low=table["mean"] - half, mean_high=table["mean"] + half)
