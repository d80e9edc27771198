"""Figure 1: with more nodes, D-NASA needs fewer steps."""

from typing import Any

import pandas as pd

from dnasa import topology
from dnasa.reproduce.report import Report, draw_lines
from dnasa.reproduce.runs import evaluation_steps, run

NODES = (5, 10, 20)
STEPS = 15_000
SEEDS = 10
SCHEDULES = ("fixed", "diminishing")


def fig1(quick: bool = False, progress: bool | None = None) -> Report:
    """Least squares on rings of 5, 10 and 20 nodes, fixed and diminishing schedules, 10 seeds."""
    steps, seeds = (3_000, 3) if quick else (STEPS, SEEDS)
    options: Any = {"schedules": SCHEDULES, "evaluate": evaluation_steps(steps, 300), "progress": progress}
    histories = [
        run("least_squares", topology.ring(n), ["dnasa"], steps, range(seeds), **options).assign(nodes=n) for n in NODES
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
        level = norms.min().max() * 1.02
        first = {n: int(norms.index[(norms[n] <= level).argmax()]) for n in norms}
        for n, reached in first.items():
            row = {"schedule": schedule, "nodes": n, "gradient norm": level, "steps to reach it": reached}
            row |= {"speedup over n = 5": first[NODES[0]] / reached}
            last = runs[(runs.nodes == n) & (runs.step == runs.step.max())]
            rows.append(row | {"final test loss": last.test_loss.mean(), "final gradient norm": norms[n].iloc[-1]})
    return pd.DataFrame(rows)
