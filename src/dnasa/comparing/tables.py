"""Results as text: with ± and with intervals."""

import re
from collections.abc import Mapping
from math import floor, inf, isnan, log10, nan
from typing import Any

import pandas as pd

from dnasa.problems.metrics import in_percent

__all__ = ["form", "leaders", "metric_name", "notes", "number", "with_interval", "with_spread"]

DIVERGED = "diverged"
PAIRED = "Differences are paired by seed, with their 95 % confidence interval (t distribution)."
PLAIN = 1e-4, 1e6  # other numbers have a power of ten
POWERS = ".2e"
ROUNDING = 1e-12  # of a result: smaller differences between seeds are those of the arithmetic


def metric_name(metric: str) -> str:
    """The metric in words: "training loss" for train_loss."""
    words = metric.replace("_", " ")
    return re.sub("^train ", "training ", "gradient norm" if words == "grad norm" else words)


def number(metric: str, value: float, digits: int = 3) -> str:
    """Format a number; accuracies are in percent."""
    if pd.isna(value):
        return "-"
    return f"{100 * value:.2f} %" if in_percent(metric) else f"{value:.{digits}g}"


def notes(settings: Mapping[str, Any]) -> list[str]:
    """Sentences: what an accuracy is to be compared with, and the privacy budget, where the settings of a run have them."""
    share, privacy, out = settings.get("baseline"), settings.get("privacy"), []
    if isinstance(share, float):
        out.append(f"Always predicting the most frequent class gives a test accuracy of {number('accuracy', share)}.")
    if isinstance(privacy, str):
        out.append(f"{privacy:.1000}")
    return out


def form(metric: str, rows: "pd.DataFrame") -> str:
    """The format of a column of `statistics.differences`: powers of ten if one mean needs them, else that of the best."""
    best = rows[rows.best.eq(True)]
    if in_percent(metric) or not len(best):
        return ".2f"
    sizes = rows["mean"].abs()
    extreme = ((sizes > 0) & (sizes < PLAIN[0])) | (sizes >= PLAIN[1])
    return POWERS if extreme.any() else f".{_decimals(*best[['mean', 'spread']].iloc[0])}f"


def leaders(metric: str, rows: "pd.DataFrame") -> "pd.Series":
    """Which rows of `statistics.differences` have the mean of the best, as it is printed."""
    style, alone = form(metric, rows), rows.assign(spread=nan)
    means = pd.Series([with_spread(metric, row, style) for _, row in alone.iterrows()], rows.index)
    return means.isin(means[rows.best.eq(True)])


def with_spread(metric: str, row: Any, form: str) -> str:
    """Mean ± standard deviation, or how many runs diverged; `row` is one of `statistics.over_seeds`."""
    if row.diverged > 0:
        return f"{DIVERGED} ({row.diverged:.0f} of {row.runs:.0f})"
    if isnan(row["mean"]):
        return "-"
    scale, unit = (100, " %") if in_percent(metric) else (1, "")
    mean, spread = scale * float(row["mean"]), scale * float(row.spread)
    form = ".2f" if unit else _coarser(form, mean, spread)
    own = form if form != POWERS else ".1e" if spread >= abs(mean) / 1000 else ".0f"
    return f"{mean:{form}}" + ("" if isnan(spread) else f" ± {spread:{own}}") + unit


def _decimals(mean: float, spread: float) -> int:
    """The decimals that show two digits of the spread, but at most five of the mean; where there is no spread, four of it."""
    size = max(spread, abs(mean) / 1000) if spread > ROUNDING * abs(mean) else abs(mean) / 100
    return max(0, 1 - floor(log10(size))) if 0 < size < inf else 2


def _coarser(form: str, mean: float, spread: float) -> str:
    """The format of a column, with fewer decimals if these numbers need fewer."""
    return form if form == POWERS else f".{min(int(form[1:-1]), _decimals(mean, spread))}f"


def with_interval(metric: str, row: Any, form: str) -> str:
    """A difference and its confidence interval; `row` is one of `statistics.differences`."""
    if row.best:
        return "best"
    if pd.isna(row.difference):
        return "-"
    scale = 100 if in_percent(metric) else 1
    numbers = (row.difference, row.difference_low, row.difference_high)
    half, nearest = (row.difference_high - row.difference_low) / 2, min(map(abs, numbers[1:]))  # its sign is shown
    own = form if in_percent(metric) or not half else _coarser(form, row.difference, min(half, 10 * nearest or half))
    middle, low, high = (f"{scale * float(value) + 0.0:+{own}}" for value in numbers)  # + 0.0: no -0
    return middle if pd.isna(row.difference_low) else f"{middle} [{low}, {high}]"
