"""Beyond the paper: the accuracy of each method when the nodes' data differ."""

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.drawing import line_styles
from dnasa.comparing.plots import drawable, name_heights, title
from dnasa.reproduce import fig3
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import Task
from dnasa.reproduce.report import Report

DATA = ("a9a", "mnist")
PARTITIONS = ("iid", "dirichlet(0.1)", "by_label")
SEEDS = 5
QUICK_ETAS = (1, 5, 10)


def parts(quick: bool) -> list[Part]:
    """a9a and MNIST on the ring of 8 under three partitions, every method at its best stepsize for each."""
    graph = topology.ring(8, weights="lazy")  # D2 needs eigenvalues above -1/3
    steps, seeds, etas = (fig3.QUICK, 1, QUICK_ETAS) if quick else (fig3.STEPS, SEEDS, None)

    def runs(name: str, how: str) -> RunSpec:
        return fig3.search(graph, steps[name], seeds, etas, partition=how, labels={"partition": how})

    return [Part(name, [runs(name, how) for how in PARTITIONS], Task(name)) for name in DATA]


def report(found: Found) -> Report:
    table = pd.DataFrame(
        [
            {"data": name, "partition": how, "rule": rule, "eta": variant.eta, "accuracy": variant.value}
            for name, rows in found.rows.items()
            for how, same in rows.groupby("partition", sort=False)
            for rule, variant in tuning.best(tuning.grid(same, "test_accuracy"), "test_accuracy").iterrows()
        ]
    )
    caption = f"Best test accuracy under three partitions, ring of 8, {found.seeds}"
    out = Report("heterogeneity", caption, found.quick)
    wide = table.pivot(index=["data", "rule"], columns="partition", values="accuracy")[list(PARTITIONS)].reset_index()
    names = {how: f"accuracy {how}" for how in PARTITIONS}
    out.tables["heterogeneity"] = wide.assign(rule=wide.rule.map(title)).rename(columns=names)
    out.data["heterogeneity-all"] = table
    out.findings = findings(table)
    draw(out, table)
    return out


def draw(out: Report, table: pd.DataFrame) -> None:
    table = table.assign(accuracy=drawable(table.accuracy))  # without stepsizes that all diverged
    data, looks = list(table.data.unique()), line_styles(table[["rule"]])
    beside = np.linspace(-0.25, 0.25, len(looks)) if len(looks) > 1 else [0.0]
    places = np.arange(len(PARTITIONS))
    caption = "Best test accuracy (of the stepsize grid) when the nodes' data differ"
    with out.draw("heterogeneity", len(data), caption, width=5.2) as axes:
        for axis, name in zip(axes, data, strict=True):
            shown = table[table.data == name].pivot(index="partition", columns="rule", values="accuracy")
            for shift, ((rule,), look) in zip(beside, looks.items(), strict=True):
                heights = shown.loc[list(PARTITIONS), rule]
                axis.plot(places + shift, heights, label=title(rule), **(look | {"linestyle": ""}))
            axis.set_xticks(places, PARTITIONS)
            axis.set_title(name)
            name_heights(axis, "test accuracy")


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for (name, rule), same in table.groupby(["data", "rule"], sort=False):
        values = same.set_index("partition").accuracy
        change = {how: 100 * (values[how] - values["iid"]) for how in PARTITIONS[1:]}
        changes = ", ".join(f"{how} {points:+.2f}" for how, points in change.items())
        lines.append(f"{name}, {title(str(rule))}: iid {100 * values['iid']:.2f} %; points against iid: {changes}.")
    return lines


EXPERIMENT = Experiment("heterogeneity", parts, report)
