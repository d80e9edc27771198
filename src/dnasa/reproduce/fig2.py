"""Figure 2: the spike model, where one direction is a hundred times steeper, against tuned methods."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.comparing.drawing import draw_stepsizes
from dnasa.comparing.tuning import best, eta_label, eta_text, grid, rows_of
from dnasa.engine.loop import solve
from dnasa.plots import by_seed, colours, curve, finish, panels, title
from dnasa.problems.least_squares import LeastSquares
from dnasa.reproduce.report import Report

NODES = 10
STEPS = 15_000
SEEDS = 5
RULES = ("dsgd", "dsgt", "dasagt", "dnasa")
ETAS = tuple(float(eta) for eta in np.logspace(-4, -1, 13).round(6))


def run(quick: bool = False, progress: bool | None = None) -> Report:
    """D-SGD, D-SGT and D-ASAGT, each at its best of 13 stepsizes, and D-NASA without one."""
    steps, seeds = (3_000, 2) if quick else (STEPS, SEEDS)
    eval_steps = sorted({int(t) for t in np.linspace(0, steps, 301)})
    result = solve(
        LeastSquares(spike=True),
        topology.ring(NODES),
        list(RULES),
        eta=ETAS,
        steps=steps,
        seed=range(seeds),
        evaluate=eval_steps,
        progress=progress,
    )
    table = grid(result, "test_loss")
    tuned = best(table, "test_loss")
    report = Report("fig2", f"Figure 2: spike model, ring of {NODES}, T = {steps:,}, {seeds} seeds")
    report.tables["fig2-best"] = summary(result.history, tuned, steps)
    report.data["fig2-grid"] = table
    report.data["fig2-history"] = result.history
    report.figures["fig2"] = draw(result.history, tuned, table, quick)
    report.findings = findings(report.tables["fig2-best"], table)
    return report


def summary(history: pd.DataFrame, tuned: pd.DataFrame, steps: int) -> pd.DataFrame:
    rows = []
    for rule, variant in tuned.iterrows():
        losses = by_seed(rows_of(history, variant), "test_loss").mean(axis=1)
        norms = by_seed(rows_of(history, variant), "grad_norm").mean(axis=1)
        row = {"rule": title(str(rule)), "best eta": eta_text(variant.eta)}
        for part in (0.02, 0.1, 1.0):
            step = int(losses.index[np.abs(losses.index - part * steps).argmin()])
            row[f"test loss at {step:,}"] = losses[step]
        rows.append(row | {"final gradient norm": norms.iloc[-1]})
    return pd.DataFrame(rows)


def draw(history: pd.DataFrame, tuned: pd.DataFrame, table: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(3)
    colour = colours(tuned.index)
    for axis, metric, name in zip(axes[0], ("test_loss", "grad_norm"), ("test loss", "gradient norm"), strict=False):
        for rule, variant in tuned.iterrows():
            curves = by_seed(rows_of(history, variant), metric)
            label = f"{title(str(rule))}, {eta_label(variant.eta)}"
            curve(axis, curves.index, curves, label, color=colour[str(rule)])
        finish(axis, "step", name, log=True)
    axes[0, 0].legend(fontsize=8)
    draw_stepsizes(axes[0, 2], table, "test_loss", "final test loss")
    axes[0, 2].legend(fontsize=8)
    figure.suptitle(
        f"Spike model, ring of {NODES}: each method at its best stepsize" + (" (quick run)" if quick else "")
    )
    return figure


def findings(summary: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    ours, others = summary[summary.rule == "D-NASA"].iloc[0], summary[summary.rule != "D-NASA"]
    lines = [
        f"{column}: D-NASA {ours[column]:.4g}, best tuned method {others[column].min():.4g} "
        f"({others.loc[others[column].idxmin(), 'rule']})."
        for column in summary
        if column.startswith("test loss")
    ]
    ends = [
        f"{title(str(rule))} {_text(rows.value.iloc[0])} | {_text(rows.value.min())} | {_text(rows.value.iloc[-1])}"
        for rule, rows in table[table.eta.notna()].groupby("rule", sort=False)
    ]
    return [*lines, "Final test loss at the grid's low end | best | high end: " + "; ".join(ends) + "."]


def _text(loss: float) -> str:
    return f"{loss:.3g}" if np.isfinite(loss) else "diverged"
