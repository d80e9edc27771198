"""Which stepsize is best for each rule, and how much it matters."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnasa.plots import COLOURS, draw_history, finish, title
from dnasa.records import Result
from dnasa.rules import RULES

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
    """One line per rule: its best stepsize, what it reaches with it, and which stepsizes diverged."""
    rows = []
    for rule, winner in best(table, metric).iterrows():
        last = chosen(result.final(), winner)
        row = {"rule": title(str(rule)), "best eta": eta_text(winner.eta)}
        row |= {name.replace("_", " "): last[name].mean(skipna=False) for name in SUMMARY if name in last}
        rows.append(row | {"diverged": lost_text(table[table.rule == rule])})
    return pd.DataFrame(rows)


def eta_text(eta: float) -> str:
    return "none needed" if np.isnan(eta) else f"{eta:g}"


def lost_text(table: pd.DataFrame) -> str:
    """The stepsizes at which a run diverged."""
    return ", ".join(f"{eta:g}" for eta in table[table.diverged.notna()].eta) or "none"


def chosen(history: pd.DataFrame, winner: pd.Series) -> pd.DataFrame:
    """The history of a rule's best variant; `winner` is a row of `best`."""
    rows = history[(history.rule == winner.name) & (history.schedule == winner.schedule)]
    return rows if np.isnan(winner.eta) else rows[rows.eta == winner.eta]


def draw_winners(result: Result, table: pd.DataFrame, metric: str) -> Figure:
    """The curves of each rule at its best stepsize."""
    return draw_history(pd.concat([chosen(result.history, winner) for _, winner in best(table, metric).iterrows()]))


def draw_stepsizes(axis: Axes, table: pd.DataFrame, label: str, log: bool) -> None:
    """The final metric against the stepsize; rules that need none as dashed lines; diverged stepsizes as crosses."""
    finite = table.value[np.isfinite(table.value)]
    for rule, rows in table.groupby("rule", sort=False):
        colour, name = COLOURS.get(str(rule), "black"), title(str(rule))
        if str(rule) in RULES and not RULES[str(rule)].needs_eta:
            axis.axhline(rows.value.iloc[0], color=colour, linestyle="--", label=f"{name}, nothing tuned")
            continue
        alive = rows[np.isfinite(rows.value)]
        axis.plot(alive.eta, alive.value, "o-", color=colour, ms=4, label=name)
        lost = rows[~np.isfinite(rows.value)]
        edge = finite.max() if log else finite.min()
        axis.plot(lost.eta, [edge] * len(lost), "x", color=colour, ms=6, label="_diverged")
    axis.set_xscale("log")
    finish(axis, "stepsize eta (x: diverged)", label, log=log)
