"""Results as text: with ± and with intervals."""

import re
from collections.abc import Mapping
from math import floor, inf, isnan, log10
from typing import Any

import pandas as pd

from dnasa.problems.metrics import in_percent

__all__ = ["baseline", "metric_name", "number", "with_interval", "with_spread"]

ROUNDING = 1e-12  # of a result: smaller differences between seeds are those of the arithmetic


def metric_name(metric: str) -> str:
    """The metric in words: "training loss" for train_loss."""
    return re.sub("^train ", "training ", metric.replace("_", " "))


def number(metric: str, value: float, digits: int = 3) -> str:
    """Format a number; accuracies are in percent."""
    if pd.isna(value):
        return "-"
    return f"{100 * value:.2f} %" if in_percent(metric) else f"{value:.{digits}g}"


def baseline(settings: Mapping[str, Any]) -> list[str]:
    """What an accuracy is to be compared with, in a sentence; none where the settings of a run do not have it."""
    share = settings.get("baseline")
    shown = number("accuracy", share) if isinstance(share, float) else ""
    return [f"Always predicting the most frequent class has a test accuracy of {shown}."] if shown else []


def with_spread(metric: str, row: Any) -> str:
    """Mean ± standard deviation, or how many runs diverged; `row` is one of `statistics.over_seeds`."""
    percent = in_percent(metric)
    mean, spread = (float(row[name]) * (100 if percent else 1) for name in ("mean", "spread"))
    if row.diverged > 0:
        return f"diverged ({row.diverged:.0f} of {row.runs:.0f})"
    if isnan(mean):
        return "-"
    size = spread if spread > ROUNDING * abs(mean) else abs(mean) / 100  # two digits of the spread, or four of the mean
    digits = 1 - floor(log10(size)) if 0 < size < inf else 2
    form = ".2f" if percent else f".{max(0, digits)}f" if -2 <= digits <= 6 else ".3g"
    return f"{mean:{form}}" + ("" if isnan(spread) else f" ± {spread:{form}}") + " %" * percent


def with_interval(metric: str, row: Any) -> str:
    """A difference and its confidence interval; `row` is one of `statistics.differences`."""
    if row.best:
        return "best"
    if pd.isna(row.difference):
        return "-"
    scale = 100 if in_percent(metric) else 1
    numbers = [scale * float(value) + 0.0 for value in (row.difference, row.difference_low, row.difference_high)]
    form = "+.2f" if in_percent(metric) else "+.3g"
    middle, low, high = (f"{value:{form}}" for value in numbers)
    return middle if pd.isna(row.difference_low) else f"{middle} [{low}, {high}]"
