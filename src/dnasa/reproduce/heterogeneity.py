"""Beyond the paper: the accuracy of each method when the nodes' data differ."""

import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.plots import colours, drawable, panels, title
from dnasa.reproduce import fig3
from dnasa.reproduce.report import Report

DATA = ("a9a", "mnist")
PARTITIONS = ("iid", "dirichlet(0.1)", "by_label")
SEEDS = 5
QUICK_ETAS = (1, 5, 10)


def run(quick: bool = False, progress: bool | None = None, device: str = "cpu") -> Report:
    """a9a and MNIST on the ring of 8 under three partitions, every method at its best stepsize for each."""
    seeds = 1 if quick else SEEDS
    rows = [
        {"data": name, "partition": how, "rule": rule, "eta": variant.eta, "accuracy": variant.value}
        for name in DATA
        for how in PARTITIONS
        for rule, variant in best(
            name, how, (fig3.QUICK if quick else fig3.STEPS)[name], seeds, progress, device
        ).iterrows()
    ]
    table = pd.DataFrame(rows)
    report = Report("heterogeneity", f"Best test accuracy under three partitions, ring of 8, {seeds} seeds")
    wide = table.pivot(index=["data", "rule"], columns="partition", values="accuracy")[list(PARTITIONS)].reset_index()
    names = {how: f"accuracy {how}" for how in PARTITIONS}
    report.tables["heterogeneity"] = wide.assign(rule=wide.rule.map(title)).rename(columns=names)
    report.data["heterogeneity-all"] = table
    report.figures["heterogeneity"] = draw(table, quick)
    report.findings = findings(table)
    return report


def best(name: str, how: str, steps: int, seeds: int, progress: bool | None, device: str) -> pd.DataFrame:
    graph = topology.ring(8, weights="lazy")  # D2 needs eigenvalues above -1/3
    etas = QUICK_ETAS if steps < fig3.STEPS[name] else None
    return tuning.best(fig3.grid_search(name, graph, steps, seeds, progress, device, how, etas), "test_accuracy")


def draw(table: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(len(DATA), width=5.2)
    colour = colours(table.rule)
    table = table.assign(accuracy=drawable(table.accuracy))  # without stepsizes that all diverged
    for axis, name in zip(axes[0], DATA, strict=True):
        for j, rule in enumerate(colour):
            same = table[(table.data == name) & (table.rule == rule)].set_index("partition").accuracy
            places = [i + (j - (len(colour) - 1) / 2) * 0.16 for i in range(len(PARTITIONS))]
            axis.bar(places, same[list(PARTITIONS)], width=0.15, color=colour[rule], label=title(rule))
        axis.set_xticks(range(len(PARTITIONS)), PARTITIONS)
        axis.set_ylabel("test accuracy")
        shown = table[table.data == name].accuracy
        if shown.notna().any():
            axis.set_ylim(max(0.0, shown.min() - 0.05), min(1.0, shown.max() + 0.03))
        axis.set_title(name)
    axes[0, 0].legend(fontsize=7, ncol=2)
    figure.suptitle(
        "Best test accuracy (of the stepsize grid) when the nodes' data differ" + (" (quick run)" if quick else "")
    )
    return figure


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for (name, rule), same in table.groupby(["data", "rule"], sort=False):
        values = same.set_index("partition").accuracy
        change = {how: 100 * (values[how] - values["iid"]) for how in PARTITIONS[1:]}
        changes = ", ".join(f"{how} {points:+.2f}" for how, points in change.items())
        lines.append(f"{name}, {title(str(rule))}: iid {100 * values['iid']:.2f} %; points against iid: {changes}.")
    return lines
