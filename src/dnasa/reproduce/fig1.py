"""Figure 1: with more nodes, D-NASA needs fewer steps."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.engine.loop import solve
from dnasa.plots import by_seed, curve, finish, panels
from dnasa.problems.least_squares import LeastSquares
from dnasa.reproduce.report import Report

NODES = (5, 10, 20)
STEPS = 15_000
SEEDS = 10


def run(quick: bool = False, progress: bool | None = None) -> Report:
    """Least squares on rings of 5, 10 and 20 nodes, fixed and diminishing schedules, 10 seeds."""
    steps, seeds = (3_000, 3) if quick else (STEPS, SEEDS)
    history = pd.concat([one_size(n, steps, seeds, progress) for n in NODES], ignore_index=True)
    table = speedup(history)
    report = Report("fig1", f"Figure 1: least squares, ring, T = {steps:,}, {seeds} seeds")
    report.tables["fig1-speedup"] = table
    report.data["fig1-history"] = history
    report.figures["fig1"] = draw(history, quick)
    report.findings = findings(table)
    return report


def one_size(n: int, steps: int, seeds: int, progress: bool | None) -> pd.DataFrame:
    eval_steps = sorted({int(t) for t in np.linspace(0, steps, 301)})
    result = solve(
        LeastSquares(),
        topology.ring(n),
        steps=steps,
        schedule=["fixed", "diminishing"],
        seed=range(seeds),
        evaluate=eval_steps,
        progress=progress,
    )
    return result.history.assign(nodes=n)


def speedup(history: pd.DataFrame) -> pd.DataFrame:
    """For each schedule, the first evaluated step at which the mean gradient norm of each n is at most the same level.

    The level is the smallest gradient norm that all sizes reach, so that the comparison uses the whole of the runs.
    """
    rows = []
    for schedule, runs in history.groupby("schedule", sort=False):
        norms = runs.pivot_table(index="step", columns="nodes", values="grad_norm")
        level = norms.min().max() * 1.02
        first = {n: int(norms.index[(norms[n] <= level).argmax()]) for n in norms}
        for n, reached in first.items():
            rows.append(
                {
                    "schedule": schedule,
                    "nodes": n,
                    "gradient norm": level,
                    "steps to reach it": reached,
                    "speedup over n = 5": first[NODES[0]] / reached,
                    "final test loss": runs[(runs.nodes == n) & (runs.step == runs.step.max())].test_loss.mean(),
                    "final gradient norm": norms[n].iloc[-1],
                }
            )
    return pd.DataFrame(rows)


def draw(history: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(2, 2)
    for row, (schedule, runs) in zip(axes, history.groupby("schedule", sort=False), strict=True):
        for axis, metric, label in zip(row, ("test_loss", "grad_norm"), ("test loss", "gradient norm"), strict=True):
            for n, same in runs.groupby("nodes"):
                table = by_seed(same, metric)
                curve(axis, table.index, table, f"n = {n}")
            finish(axis, "step", label, log=True)
            axis.set_title(f"{schedule} stepsizes")
    axes[0, 0].legend()
    seeds = history.seed.nunique()
    figure.suptitle(
        f"D-NASA, least squares on a ring: mean and range over {seeds} seeds" + (" (quick run)" if quick else "")
    )
    return figure


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for schedule, rows in table.groupby("schedule", sort=False):
        steps = ", ".join(f"n = {r['nodes']}: {r['steps to reach it']:,}" for _, r in rows.iterrows())
        last = rows.iloc[-1]
        lines.append(
            f"{schedule}: steps until the gradient norm is {last['gradient norm']:.3g}: {steps}; "
            f"20 nodes are {last['speedup over n = 5']:.2f} times as fast as 5 (linear speedup would be 4)."
        )
    return lines
