"""Beyond the paper: the accuracy of each method on unreliable networks."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.channels import faulty
from dnasa.comparing import tuning
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.plots import colours, panels, title
from dnasa.reproduce.report import Report
from dnasa.tasks import tasks

RULES = ("dsgd", "d2", "dsgt", "dasagt", "dnasa", "adanasa")
ETAS = (0.01, 0.03, 0.1, 0.3, 1.0)
FAULTS = {"drop": (0.0, 0.2, 0.4, 0.6, 0.8), "away": (0.0, 0.2, 0.4, 0.6, 0.8), "stale": (0, 1, 2, 3, 4, 8)}
LABELS = {
    "drop": "probability that a message is lost",
    "away": "share of the time a node is unreachable",
    "stale": "messages up to so many steps late",
}


def run(quick: bool = False, progress: bool | None = None) -> Report:
    """The digits on a ring of 8, sorted by label among the nodes, so that no node can learn all classes alone."""
    steps, seeds = (400, 2) if quick else (1000, 5)
    problem = tasks.classification("digits", 8, "by_label", train_metrics=False)
    graph = topology.ring(8, weights="lazy")  # D2 needs eigenvalues above -1/3
    options: Any = {"steps": steps, "seed": range(seeds), "evaluate": [steps], "progress": progress}
    best = tuning.best(
        tuning.grid(solve(problem, graph, list(RULES), eta=ETAS, **options), "test_accuracy"), "test_accuracy"
    )
    rows = []
    for kind, levels in FAULTS.items():
        for level in levels:
            channel = faulty(**{kind: level})  # type: ignore[arg-type]
            for rule, variant in best.iterrows():
                network = simulated.connect(graph, channel=channel)
                eta = None if pd.isna(variant.eta) else float(variant.eta)
                final = solve(problem, graph, str(rule), eta=eta, network=network, **options).final()
                accuracy = final.test_accuracy.fillna(0.0).mean()
                rows.append({"fault": kind, "level": level, "rule": rule, "eta": eta, "accuracy": accuracy})
    table = pd.DataFrame(rows)
    report = Report("faults", f"Test accuracy after {steps:,} steps on unreliable networks, {seeds} seeds")
    wide = table.pivot(index=["fault", "level"], columns="rule", values="accuracy")[list(best.index)].reset_index()
    report.tables["faults"] = wide.rename(columns={rule: f"accuracy {title(rule)}" for rule in best.index})
    report.data["faults-all"] = table
    report.figures["faults"] = draw(table, quick)
    report.findings = findings(table)
    return report


def draw(table: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(len(FAULTS), width=4.2)
    colour = colours(table.rule)
    for axis, (kind, levels) in zip(axes[0], FAULTS.items(), strict=True):
        for rule in colour:
            same = table[(table.fault == kind) & (table.rule == rule)].set_index("level").accuracy
            axis.plot(levels, same[list(levels)], "o-", color=colour[rule], label=title(rule))
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
