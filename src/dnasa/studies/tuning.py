"""The best stepsize of each rule, and how much the stepsize matters."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnasa.plots import colours, draw_history, drawable, finish, title
from dnasa.rules.registry import RULES
from dnasa.runs.result import Result

SUMMARY = ("train_loss", "test_loss", "test_accuracy", "grad_norm")
BETTER_WHEN_LARGER = {"test_accuracy"}


def grid(result: Result, metric: str) -> pd.DataFrame:
    """The final `metric` of every rule and stepsize, averaged over the seeds: a diverged seed counts as the worst value."""
    worst = -np.inf if metric in BETTER_WHEN_LARGER else np.inf
    final = result.final().join(result.runs["diverged"])
    final[metric] = final[metric].fillna(worst)
    if "eta" not in final:
        final["eta"] = np.nan
    groups = final.groupby(["rule", "schedule", "eta"], sort=False, dropna=False)
    return groups.agg(value=(metric, "mean"), diverged=("diverged", "min")).reset_index()


def best(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The best row of each rule, in the order of the rules."""
    pick = "idxmax" if metric in BETTER_WHEN_LARGER else "idxmin"
    rows = [getattr(same.value, pick)() for _, same in table.groupby("rule", sort=False)]
    return table.loc[rows].set_index("rule")


def summary(result: Result, table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One line per rule: its best stepsize, the metrics it reaches with it, and which stepsizes diverged."""
    rows = []
    for rule, variant in best(table, metric).iterrows():
        last = rows_of(result.final(), variant)
        row = {"rule": title(str(rule)), "best eta": eta_text(variant.eta)}
        row |= {name.replace("_", " "): last[name].mean(skipna=False) for name in SUMMARY if name in last}
        rows.append(row | {"diverged": diverged_text(table[table.rule == rule])})
    return pd.DataFrame(rows)


def eta_text(eta: float) -> str:
    return "none needed" if pd.isna(eta) else f"{eta:g}"


def eta_label(eta: float) -> str:
    """For the legend of a plot."""
    return "nothing tuned" if pd.isna(eta) else f"eta = {eta:.3g}"


def diverged_text(table: pd.DataFrame) -> str:
    """The stepsizes at which a run diverged."""
    diverged = table[table.diverged.notna()]
    return ", ".join("all" if pd.isna(eta) else f"{eta:g}" for eta in diverged.eta) or "none"


def rows_of(history: pd.DataFrame, variant: pd.Series) -> pd.DataFrame:
    """The rows of a history that belong to this row of `best`."""
    rows = history[(history.rule == variant.name) & (history.schedule == variant.schedule)]
    return rows if pd.isna(variant.eta) else rows[rows.eta == variant.eta]


def draw_best(result: Result, table: pd.DataFrame, metric: str) -> Figure:
    """The curves of each rule at its best stepsize."""
    return draw_history(pd.concat([rows_of(result.history, variant) for _, variant in best(table, metric).iterrows()]))


def draw_stepsizes(axis: Axes, table: pd.DataFrame, label: str, log: bool) -> None:
    """The final metric against the stepsize; rules that need none as dashed lines; diverged stepsizes as crosses."""
    table = table.assign(value=drawable(table.value))
    finite = table.value.dropna()
    worst = (finite.max() if log else finite.min()) if len(finite) else 0.0
    colour = colours(table.rule)
    for rule, rows in table.groupby("rule", sort=False):
        style: Any = {"color": colour[str(rule)]}
        if str(rule) in RULES and not RULES[str(rule)].needs_eta:
            axis.axhline(rows.value.iloc[0], linestyle="--", label=f"{title(str(rule))}, nothing tuned", **style)
            continue
        axis.plot(rows.eta, rows.value, "o-", ms=4, label=title(str(rule)), **style)
        diverged = rows[rows.value.isna()]
        axis.plot(diverged.eta, [worst] * len(diverged), "x", ms=6, label="_diverged", **style)
    if table.eta.notna().any():
        axis.set_xscale("log")
    finish(axis, "stepsize eta (x: diverged)", label, log=log)
