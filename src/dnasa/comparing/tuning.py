"""Choosing stepsizes: on validation rows or on other seeds, and beyond the grid where its edge is best."""

from collections.abc import Sequence
from math import log10
from typing import NamedTuple

import numpy as np
import pandas as pd

from dnasa.comparing.statistics import METHOD, over_seeds
from dnasa.comparing.tables import metric_name
from dnasa.data.partitions import validation_name
from dnasa.problems.metrics import larger_is_better
from dnasa.rules.registry import CUSTOM, Variant


class Selection(NamedTuple):
    """The metric and the seeds that stepsizes are chosen on, and the seeds whose results are reported."""

    metric: str
    seeds: tuple[int, ...]
    reported: tuple[int, ...]

    def __str__(self) -> str:
        name = metric_name(self.metric)
        if self.seeds == self.reported:
            return f"the {name} (a tenth of the training rows, held out)"
        which = ", ".join(map(str, self.seeds)) if len(self.seeds) < 6 else f"{self.seeds[0]} to {self.seeds[-1]}"
        return f"the {name} of other seeds ({which})"


def select(metrics: Sequence[str], metric: str, seeds: Sequence[int], others: Sequence[int]) -> Selection:
    """Choose on validation rows instead of test rows; without them, on the training loss of other seeds."""
    reported = tuple(seeds)
    if metric.startswith("test_") and validation_name(metric) in metrics:
        return Selection(validation_name(metric), reported, reported)
    if metric.startswith("test_") and "train_loss" in metrics:
        metric = "train_loss"
    return Selection(metric, tuple(others) or reported, reported)


def chosen(runs: pd.DataFrame, selection: Selection) -> pd.DataFrame:
    """The best stepsize of each rule and schedule on the seeds of the selection."""
    return best(over_seeds(runs[runs.seed.isin(selection.seeds)], selection.metric), selection.metric)


def best(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """For each rule and schedule the stepsize with the best mean, this mean as `value`, and at which edge of its grid it is.

    `edge` is empty inside the grid, for a single stepsize, and for rules that need none. A stepsize at which a run diverged
    is the worst; if every one is, the smallest is chosen.
    """
    larger = larger_is_better(metric)
    table = table.assign(value=table["mean"].fillna(-np.inf if larger else np.inf))
    rows = []
    for _, same in table.groupby(METHOD, sort=False, dropna=False):
        grid = same.sort_values("eta")
        row = grid.loc[grid.value.idxmax() if larger else grid.value.idxmin()]
        edge = ""
        if len(grid) > 1 and row.eta in (grid.eta.min(), grid.eta.max()):
            edge = "smallest" if row.eta == grid.eta.min() else "largest"
        rows.append(row[[*METHOD, "eta", "value"]].to_dict() | {"edge": edge})
    return pd.DataFrame(rows)


def extension(runs: pd.DataFrame, choice: pd.DataFrame) -> list[Variant]:
    """The next stepsize of every rule that is best at an edge of its grid, by the factor of the grid there."""
    out = []
    for row in choice[choice.edge != ""].itertuples():
        etas = sorted({*runs[(runs.rule == row.rule) & (runs.schedule == row.schedule)].eta})
        eta = _next(etas if row.edge == "largest" else etas[::-1])
        if 0 < eta < np.inf:
            out.append(Variant(str(row.rule), str(row.schedule), eta))
    return out


def _next(etas: Sequence[float]) -> float:
    """What follows the last of these by its factor, as a round number; grids such as 0.1, 0.3, 1 continue with 3 and 10."""
    *_, inner, edge = etas
    exact = edge * (edge / inner)
    if not 0 < exact < np.inf:
        return exact
    if all(f"{eta:e}".startswith(("1.000000", "3.000000")) for eta in etas):
        return float(f"{10 ** (round(2 * log10(exact)) / 2):.1g}")
    rounded = float(f"{exact:.2g}")
    is_beyond = rounded > edge if edge > inner else rounded < edge
    return rounded if is_beyond else float(f"{exact:.6g}")


def eta_text(eta: float, schedule: str = CUSTOM) -> str:
    return "none needed" if pd.isna(eta) else f"{eta:.3g}" + (f" ({schedule})" if schedule != CUSTOM else "")


def diverged_text(table: pd.DataFrame) -> str:
    diverged = table[table.diverged > 0]
    return ", ".join("all" if pd.isna(eta) else f"{eta:.3g}" for eta in diverged.eta) or "none"
