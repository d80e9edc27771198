"""Figures 5 and 6: how each method gets there, at its best stepsize, against epochs and against seconds."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.data import load
from dnasa.experiments import fig3, tuning
from dnasa.experiments.report import Report
from dnasa.experiments.tasks import classification
from dnasa.plots import COLOURS, LABELS, LINEAR, curve, finish, panels, title
from dnasa.solve import solve

METRICS = ("train_loss", "test_loss", "test_accuracy", "stationarity")
LOOKS = 25
QUICK_ROWS = 4000  # of the training data


def run(figure: str, data: str, quick: bool, progress: bool | None, device: str) -> Report:
    """Tune each method on two seeds of its own, then run every method at its best stepsize for all seeds."""
    graph = topology.paper_random()
    steps, seeds, looks = (fig3.QUICK[data], 2, 4) if quick else (fig3.STEPS[data], fig3.SEEDS, LOOKS)
    rows = load(data)
    if quick:
        rows = rows._replace(inputs=rows.inputs[:QUICK_ROWS], labels=rows.labels[:QUICK_ROWS])
    tuned = fig3.grid_search(rows, graph, steps // 2 if quick else steps, 1 if quick else 2, progress, device)
    winners = tuning.best(tuned, "test_accuracy")
    problem = classification(rows, graph.nodes, loss_scale="1/n", device=device)
    runs = [
        solve(
            problem,
            graph,
            str(rule),
            eta=None if np.isnan(winner.eta) else winner.eta,
            steps=steps,
            seed=range(100, 100 + seeds),
            evaluate=sorted({int(t) for t in np.linspace(0, steps, looks + 1)}),
            progress=progress,
        ).history
        for rule, winner in winners.iterrows()
    ]
    history = pd.concat(runs, ignore_index=True)
    report = Report(figure, f"{data}: best stepsizes, 8 nodes, random graph, {steps:,} steps, {seeds} repetitions")
    report.tables[f"{figure}-final"] = final(history, winners)
    report.data[f"{figure}-history"] = history
    report.figures[figure] = draw(history, winners, data, seeds, quick)
    report.findings = findings(report.tables[f"{figure}-final"])
    return report


def final(history: pd.DataFrame, winners: pd.DataFrame) -> pd.DataFrame:
    last = history[history.step == history.step.max()]
    rows = []
    for rule, winner in winners.iterrows():
        same = last[last.rule == rule]
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(winner.eta)}
        row |= {LABELS[metric]: same[metric].mean() for metric in METRICS}
        rows.append(row | {"spread of accuracy": same.test_accuracy.std(), "seconds": same.seconds.mean()})
    return pd.DataFrame(rows)


def draw(history: pd.DataFrame, winners: pd.DataFrame, data: str, seeds: int, quick: bool) -> Figure:
    figure, axes = panels(len(METRICS), 2, width=4.0, height=3.0)
    for row, against in zip(axes, ("epochs", "seconds"), strict=True):
        for axis, metric in zip(row, METRICS, strict=True):
            for rule, winner in winners.iterrows():
                same = history[history.rule == rule]
                table = same.pivot_table(index="step", columns="seed", values=metric)
                place = same.groupby("step")[against].mean()
                note = "nothing tuned" if np.isnan(winner.eta) else f"eta = {winner.eta:g}"
                curve(axis, place, table, f"{title(str(rule))}, {note}", color=COLOURS[str(rule)])
            label = against if against == "epochs" else f"seconds of training, {seeds} repetitions side by side"
            finish(axis, label, LABELS[metric], log=metric not in LINEAR)
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
