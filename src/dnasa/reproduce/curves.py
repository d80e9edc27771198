"""Figures 5 and 6: each method at its best stepsize, against epochs and against seconds."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.data import load
from dnasa.engine.loop import solve
from dnasa.plots import LABELS, LINEAR, by_seed, colours, curve, finish, panels, title
from dnasa.reproduce import fig3
from dnasa.reproduce.report import Report
from dnasa.tasks.tasks import classification

METRICS = ("train_loss", "test_loss", "test_accuracy", "stationarity")
EVALUATIONS = 25
QUICK_ROWS = 4000  # of the training data


def run(figure: str, data: str, quick: bool, progress: bool | None, device: str) -> Report:
    """Tune each method on two seeds, then run it at its best stepsize for other seeds."""
    graph = topology.paper_random()
    steps, seeds, evaluations = (fig3.QUICK[data], 2, 4) if quick else (fig3.STEPS[data], fig3.SEEDS, EVALUATIONS)
    rows = load(data)
    if quick:
        rows = rows._replace(inputs=rows.inputs[:QUICK_ROWS], labels=rows.labels[:QUICK_ROWS])
    grid = fig3.grid_search(rows, graph, steps // 2 if quick else steps, 1 if quick else 2, progress, device)
    tuned = tuning.best(grid, "test_accuracy")
    problem = classification(rows, graph.nodes, loss_scale="1/n", device=device)
    runs = [
        solve(
            problem,
            graph,
            str(rule),
            eta=None if np.isnan(variant.eta) else float(variant.eta),
            steps=steps,
            seed=range(100, 100 + seeds),
            evaluate=sorted({int(t) for t in np.linspace(0, steps, evaluations + 1)}),
            progress=progress,
        ).history
        for rule, variant in tuned.iterrows()
    ]
    history = pd.concat(runs, ignore_index=True)
    report = Report(figure, f"{data}: best stepsizes, 8 nodes, random graph, {steps:,} steps, {seeds} repetitions")
    report.tables[f"{figure}-final"] = final(history, tuned)
    report.data[f"{figure}-history"] = history
    report.figures[figure] = draw(history, tuned, data, seeds, quick)
    report.findings = findings(report.tables[f"{figure}-final"])
    return report


def final(history: pd.DataFrame, tuned: pd.DataFrame) -> pd.DataFrame:
    last = history[history.step == history.step.max()]
    rows = []
    for rule, variant in tuned.iterrows():
        same = last[last.rule == rule]
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(variant.eta)}
        row |= {LABELS[metric]: same[metric].mean() for metric in METRICS}
        rows.append(row | {"spread of accuracy": same.test_accuracy.std(), "seconds": same.seconds.mean()})
    return pd.DataFrame(rows)


def draw(history: pd.DataFrame, tuned: pd.DataFrame, data: str, seeds: int, quick: bool) -> Figure:
    figure, axes = panels(len(METRICS), 2, width=4.0, height=3.0)
    colour = colours(tuned.index)
    for row, against in zip(axes, ("epochs", "seconds"), strict=True):
        for axis, metric in zip(row, METRICS, strict=True):
            for rule, variant in tuned.iterrows():
                same = history[history.rule == rule]
                position = same.groupby("step")[against].mean()
                label = f"{title(str(rule))}, {tuning.eta_label(variant.eta)}"
                curve(axis, position, by_seed(same, metric), label, color=colour[str(rule)])
            name = against if against == "epochs" else f"seconds of training, {seeds} repetitions side by side"
            finish(axis, name, LABELS[metric], log=metric not in LINEAR)
            if metric in LINEAR:
                axis.set_ylim(max(0.0, history[history.step > 0][metric].quantile(0.05) - 0.02), 1.0)
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(
        f"{data}: each method at its best stepsize, mean and range"
        + (f" (quick run, {QUICK_ROWS:,} rows)" if quick else "")
    )
    return figure


def findings(table: pd.DataFrame) -> list[str]:
    ours, others = table[table.rule == "D-NASA"].iloc[0], table[table.rule != "D-NASA"]
    best = others.loc[others["test accuracy"].idxmax()]
    return [
        f"Final test accuracy: D-NASA {100 * ours['test accuracy']:.2f} % with nothing tuned, best tuned method "
        f"{best.rule} {100 * best['test accuracy']:.2f} % at eta = {best['best eta']}."
    ]
