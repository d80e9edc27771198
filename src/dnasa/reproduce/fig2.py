"""Figure 2: the spike model, where one direction is a hundred times steeper, against tuned methods."""

from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.drawing import draw_stepsizes
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import final
from dnasa.reproduce.report import Report, draw_lines
from dnasa.reproduce.runs import evaluation_steps, run

NODES = 10
STEPS = 15_000
SEEDS = 5
RULES = ("dsgd", "dsgt", "dasagt", "dnasa")
ETAS = tuple(float(eta) for eta in np.logspace(-4, -1, 13).round(6))


def fig2(quick: bool = False, progress: bool | None = None) -> Report:
    """D-SGD, D-SGT and D-ASAGT, each at its best of 13 stepsizes, and D-NASA without one."""
    steps, seeds = (3_000, 2) if quick else (STEPS, SEEDS)
    options: Any = {"etas": ETAS, "evaluate": evaluation_steps(steps, 300), "progress": progress}
    history = run("spike", topology.ring(NODES), RULES, steps, range(seeds), **options)
    table = tuning.grid(final(history), "test_loss")
    tuned = tuning.best(table, "test_loss")
    best = history[
        [eta == tuned.eta[rule] or pd.isna(eta) for rule, eta in zip(history.rule, history.eta, strict=True)]
    ]
    out = Report(f"Figure 2: spike model, ring of {NODES}, T = {steps:,}, {seeds} seeds", quick)
    out.tables["fig2-best"] = summary(best, tuned)
    out.data |= {"fig2-grid": table, "fig2-history": history}
    with out.draw("fig2", 3, f"Spike model, ring of {NODES}: each method at its best stepsize", columns=3) as axes:
        for axis, metric in zip(axes, ("test_loss", "grad_norm"), strict=False):
            draw_lines(axis, best, metric)
        draw_stepsizes(axes[2], table.drop(columns="schedule"), "test_loss", "final test loss")
    return out


def summary(best: pd.DataFrame, tuned: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for rule, eta in tuned.eta.items():
        means = best[best.rule == rule].groupby("step")[["test_loss", "grad_norm"]].mean()
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(eta)}
        for part in (0.02, 0.1, 1.0):
            step = int(means.index[np.abs(means.index - part * means.index[-1]).argmin()])
            row[f"test loss at {step:,}"] = means.test_loss[step]
        rows.append(row | {"final gradient norm": means.grad_norm.iloc[-1]})
    return pd.DataFrame(rows)
