"""One figure more than the paper: what unreliable networks cost each method."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.experiments import tasks, tuning
from dnasa.experiments.report import Report
from dnasa.networks import faulty
from dnasa.plots import COLOURS, panels, title
from dnasa.rules import RULES
from dnasa.solve import solve

ETAS = (0.01, 0.03, 0.1, 0.3, 1.0)
FAULTS = {"drop": (0.0, 0.2, 0.4, 0.6, 0.8), "away": (0.0, 0.2, 0.4, 0.6, 0.8), "stale": (0, 1, 2, 4, 8)}
LABELS = {
    "drop": "probability that a message is lost",
    "away": "share of the time a node is out of reach",
    "stale": "messages up to so many steps old",
}


def run(quick: bool = False, progress: bool | None = None) -> Report:
    """The digits on a ring of 8, sorted by label among the nodes, so that they need each other."""
    steps, seeds = (400, 2) if quick else (1000, 5)
    problem = tasks.classification("digits", 8, "by_label", train_metrics=False)
    graph = topology.ring(8, weights="lazy")  # lazy, so that D2 may take part
    options: Any = {"steps": steps, "seed": range(seeds), "evaluate": [steps], "progress": progress}
    tuned = tuning.best(
        tuning.grid(solve(problem, graph, list(RULES), eta=ETAS, **options), "test_accuracy"), "test_accuracy"
    )
    rows = []
    for kind, levels in FAULTS.items():
        for level in levels:
            faults: Any = {kind: level}
            for rule, winner in tuned.iterrows():
                network = faulty.connect(graph, **faults)
                eta: Any = {} if pd.isna(winner.eta) else {"eta": float(winner.eta)}
                final = solve(problem, graph, str(rule), network=network, **eta, **options).final()
                accuracy = final.test_accuracy.fillna(0.0).mean()
                rows.append({"fault": kind, "level": level, "rule": rule, "eta": winner.eta, "accuracy": accuracy})
    table = pd.DataFrame(rows)
    report = Report("faults", f"Test accuracy after {steps:,} steps on unreliable networks, {seeds} seeds")
    wide = table.pivot(index=["fault", "level"], columns="rule", values="accuracy")[list(tuned.index)].reset_index()
    report.tables["faults"] = wide.rename(columns={rule: f"accuracy {title(rule)}" for rule in tuned.index})
    report.data["faults-all"] = table
    report.figures["faults"] = draw(table, quick)
    report.findings = findings(table)
    return report


def draw(table: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(len(FAULTS), width=4.2)
    for axis, (kind, levels) in zip(axes[0], FAULTS.items(), strict=True):
        for rule in dict.fromkeys(table.rule):
            same = table[(table.fault == kind) & (table.rule == rule)].set_index("level").accuracy
            axis.plot(levels, same[list(levels)], "o-", color=COLOURS[rule], label=title(rule))
        axis.set(xlabel=LABELS[kind], ylabel="test accuracy")
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(
        "Digits, one or two labels per node, ring of 8: accuracy on unreliable networks"
        + (" (quick run)" if quick else "")
    )
    return figure


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for kind, levels in FAULTS.items():
        ends = table[(table.fault == kind)].pivot(index="rule", columns="level", values="accuracy")
        changes = ", ".join(
            f"{title(str(r))} {100 * (row[levels[-1]] - row[levels[0]]):+.1f}" for r, row in ends.iterrows()
        )
        lines.append(f"{kind} from {levels[0]} to {levels[-1]}, points: {changes}.")
    return lines
