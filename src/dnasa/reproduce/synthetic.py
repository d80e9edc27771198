"""Figures 1 and 2, on synthetic problems: with more nodes D-NASA needs fewer steps, and the spike model.

In the spike model one direction is a hundred times steeper than the others.
"""

from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.drawing import draw_stepsizes, mark_beyond
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import final, over_seeds
from dnasa.reproduce.report import Report, draw_lines
from dnasa.reproduce.runs import evaluation_steps, run

STEPS, QUICK_STEPS = 15_000, 3_000
SIZES = (5, 10, 20)
SCHEDULES = ("fixed", "diminishing")
RULES = ("dsgd", "dsgt", "dasagt", "dnasa")
ETAS = tuple(float(eta) for eta in np.logspace(-4, -1, 13).round(6))


def fig1(quick: bool = False, progress: bool | None = None) -> Report:
    """Least squares on rings of 5, 10 and 20 nodes, fixed and diminishing schedules, 10 seeds."""
    steps, seeds = (QUICK_STEPS, 3) if quick else (STEPS, 10)
    options: Any = {"schedules": SCHEDULES, "evaluate": evaluation_steps(steps, 300), "progress": progress}
    histories = [
        run("least_squares", topology.ring(n), ["dnasa"], steps, range(seeds), **options).assign(nodes=n) for n in SIZES
    ]
    history = pd.concat(histories, ignore_index=True)
    out = Report(f"Figure 1: least squares, ring, T = {steps:,}, {seeds} seeds", quick)
    out.tables["fig1-speedup"] = speedup(history)
    out.data["fig1-history"] = history
    lines = history.assign(rule=[f"n = {n}" for n in history.nodes])
    metrics = [(schedule, metric) for schedule in SCHEDULES for metric in ("test_loss", "grad_norm")]
    with out.draw("fig1", len(metrics), f"D-NASA, least squares on a ring: mean and range over {seeds} seeds") as axes:
        for axis, (schedule, metric) in zip(axes, metrics, strict=True):
            draw_lines(axis, lines[lines.schedule == schedule], metric)
            axis.set_title(f"{schedule} stepsizes")
    return out


def speedup(history: pd.DataFrame) -> pd.DataFrame:
    """For each schedule, the first evaluated step at which the mean gradient norm of each n is at most the same level.

    The level is the smallest gradient norm that all sizes reach, so that the comparison uses the whole of the runs.
    """
    rows = []
    for schedule, runs in history.groupby("schedule", sort=False):
        norms = runs.pivot_table(index="step", columns="nodes", values="grad_norm")
        losses = runs[runs.step == runs.step.max()].groupby("nodes").test_loss.mean()
        level = norms.min().max() * 1.02
        first = {n: int(norms.index[(norms[n] <= level).argmax()]) for n in norms}
        for n, reached in first.items():
            row = {"schedule": schedule, "nodes": n, "gradient norm": level, "steps to reach it": reached}
            row |= {"speedup over n = 5": first[SIZES[0]] / reached}
            rows.append(row | {"final test loss": losses[n], "final gradient norm": norms[n].iloc[-1]})
    return pd.DataFrame(rows)


def fig2(quick: bool = False, progress: bool | None = None) -> Report:
    """D-SGD, D-SGT and D-ASAGT, each at its best of 13 stepsizes, and D-NASA without one."""
    steps, seeds = (QUICK_STEPS, 2) if quick else (STEPS, 5)
    options: Any = {"etas": ETAS, "evaluate": evaluation_steps(steps, 300), "progress": progress}
    history = run("spike", topology.ring(10), RULES, steps, range(seeds), **options)
    table = over_seeds(final(history), "test_loss")
    best_etas = tuning.best(table, "test_loss").set_index("rule").eta
    best = history[history.eta.isna() | history.eta.eq(history.rule.map(best_etas))]
    out = Report(f"Figure 2: spike model, ring of 10, T = {steps:,}, {seeds} seeds", quick)
    out.tables["fig2-best"] = summary(best, best_etas)
    out.data |= {"fig2-grid": table, "fig2-history": history}
    with out.draw("fig2", 3, "Spike model, ring of 10: each method at its best stepsize") as axes:
        for axis, metric in zip(axes, ("test_loss", "grad_norm"), strict=False):
            draw_lines(axis, best.assign(eta=None), metric)
        draw_stepsizes(axes[2], table.assign(schedule=None), "test_loss")
        mark_beyond(axes[2])
    return out


def summary(best: pd.DataFrame, etas: pd.Series) -> pd.DataFrame:
    """The test loss of each rule after 2, 10 and 100 % of the steps."""
    rows = []
    for rule, eta in etas.items():
        means = best[best.rule == rule].groupby("step")[["test_loss", "grad_norm"]].mean()
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(eta)}
        for part in (0.02, 0.1, 1.0):
            step = int(means.index[np.abs(means.index - part * means.index[-1]).argmin()])
            row[f"test loss at {step:,}"] = means.test_loss[step]
        rows.append(row | {"final gradient norm": means.grad_norm.iloc[-1]})
    return pd.DataFrame(rows)
