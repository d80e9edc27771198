"""Beyond the paper: the accuracy of each method on unreliable networks."""

from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing.drawing import line_styles
from dnasa.comparing.plots import finish, title
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import Task
from dnasa.reproduce.report import Report

TUNED = ("dsgd", "d2", "dsgt", "dasagt")
RULES = (*TUNED, "dnasa", "adanasa")
ETAS = (0.01, 0.03, 0.1, 0.3, 1.0)
FAULTS = {"drop": (0.0, 0.2, 0.4, 0.6, 0.8), "away": (0.0, 0.2, 0.4, 0.6, 0.8), "stale": (0, 1, 2, 3, 4, 8)}
LABELS = {
    "drop": "probability that a message is lost",
    "away": "share of time a node is unreachable",
    "stale": "largest delay of a message (steps)",
}
TICKS, OVER = (0, 0.5, 0.8, 0.9, 0.95, 0.98), 1.01  # the axis is logarithmic in the share of errors


def parts(quick: bool) -> list[Part]:
    """The digits on a ring of 8, sorted by label among the nodes, so that no node can learn all classes alone."""
    steps, seeds = (400, 2) if quick else (1000, 5)
    graph = topology.ring(8, weights="lazy")  # D2 needs eigenvalues above -1/3
    options: Any = {"seeds": range(seeds), "graph": graph, "partition": "by_label"}
    reliable = RunSpec(steps, RULES, dict.fromkeys(TUNED, ETAS), **options)
    runs = [
        RunSpec(
            steps, RULES, labels={"fault": kind, "level": level}, faults={kind: level}, tuned_on=reliable, **options
        )
        for kind, levels in FAULTS.items()
        for level in levels
    ]
    return [Part("digits", runs, Task("digits"))]


def report(found: Found) -> Report:
    runs = found.table.assign(accuracy=found.table.test_accuracy.fillna(0.0))
    keys = ["fault", "level", "rule", "eta"]
    table = runs.groupby(keys, sort=False, dropna=False).accuracy.mean().reset_index()
    caption = f"Test accuracy after {found.last_step:,} steps on unreliable networks, {found.seeds}"
    out = Report("faults", caption, found.quick)
    wide = table.pivot(index=["fault", "level"], columns="rule", values="accuracy")[list(table.rule.unique())]
    out.tables["faults"] = wide.rename(columns=lambda rule: f"accuracy {title(rule)}").reset_index()
    out.data["faults-all"] = table
    out.findings = findings(table)
    draw(out, table)
    return out


def draw(out: Report, table: pd.DataFrame) -> None:
    look = line_styles(table[["rule"]])
    caption = "Digits sorted by label, ring of 8: test accuracy on unreliable networks (diverged: 0 %)"
    with out.draw("faults", len(FAULTS), caption, columns=3, width=3.8) as axes:
        for axis, kind in zip(axes, FAULTS, strict=True):
            for rule, same in table[table.fault == kind].groupby("rule", sort=False):
                axis.plot(same.level, same.accuracy, ms=4, label=title(str(rule)), **look[(str(rule),)])
            axis.set_ylim(-0.1, 0.99)
            axis.set_yscale("function", functions=(lambda share: -np.log(OVER - share), lambda y: OVER - np.exp(-y)))
            finish(axis, LABELS[kind], "test accuracy")
            axis.set_yticks(TICKS)


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for kind, levels in FAULTS.items():
        ends = table[(table.fault == kind)].pivot(index="rule", columns="level", values="accuracy")
        changes = ", ".join(
            f"{title(str(r))} {100 * (row[levels[-1]] - row[levels[0]]):+.1f}" for r, row in ends.iterrows()
        )
        lines.append(f"{kind} from {levels[0]} to {levels[-1]}, points: {changes}.")
    return lines


EXPERIMENT = Experiment("faults", parts, report, on_gpu=False)
