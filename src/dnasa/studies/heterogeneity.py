"""One figure more than the paper: which methods keep their accuracy when the nodes' data differ."""

import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.experiments import fig3, tuning
from dnasa.experiments.report import Report
from dnasa.plots import COLOURS, panels, title

DATA = ("a9a", "mnist")
PARTITIONS = ("iid", "dirichlet(0.1)", "by_label")
SEEDS = 5
QUICK_ETAS = (1, 5, 10)


def run(quick: bool = False, progress: bool | None = None, device: str = "cpu") -> Report:
    """a9a and MNIST on the ring of 8 under three partitions, every method at its best stepsize for each."""
    seeds = 1 if quick else SEEDS
    rows = [
        {"data": name, "partition": how, "rule": rule, "eta": winner.eta, "accuracy": winner.value}
        for name in DATA
        for how in PARTITIONS
        for rule, winner in best(
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
    graph = topology.ring(8, weights="lazy")  # lazy, so that D2 may take part
    etas = QUICK_ETAS if steps < fig3.STEPS[name] else None
    return tuning.best(fig3.grid_search(name, graph, steps, seeds, progress, device, how, etas), "test_accuracy")


def draw(table: pd.DataFrame, quick: bool) -> Figure:
    figure, axes = panels(len(DATA), width=5.2)
    for axis, name in zip(axes[0], DATA, strict=True):
        rules = list(dict.fromkeys(table.rule))
        for j, rule in enumerate(rules):
            same = table[(table.data == name) & (table.rule == rule)].set_index("partition").accuracy
            places = [i + (j - (len(rules) - 1) / 2) * 0.16 for i in range(len(PARTITIONS))]
            axis.bar(places, same[list(PARTITIONS)], width=0.15, color=COLOURS[rule], label=title(rule))
        axis.set_xticks(range(len(PARTITIONS)), PARTITIONS)
        axis.set_ylabel("test accuracy")
        low = table[table.data == name].accuracy.min()
        axis.set_ylim(max(0.0, low - 0.05), min(1.0, table[table.data == name].accuracy.max() + 0.03))
        axis.set_title(name)
    axes[0, 0].legend(fontsize=7, ncol=2)
    figure.suptitle(
        "Best test accuracy (of the stepsize grid) as the nodes' data differ" + (" (quick run)" if quick else "")
    )
    return figure


def findings(table: pd.DataFrame) -> list[str]:
    lines = []
    for (name, rule), same in table.groupby(["data", "rule"], sort=False):
        values = same.set_index("partition").accuracy
        lost = {how: 100 * (values[how] - values["iid"]) for how in PARTITIONS[1:]}
        changes = ", ".join(f"{how} {change:+.2f}" for how, change in lost.items())
        lines.append(f"{name}, {title(str(rule))}: iid {100 * values['iid']:.2f} %; points against iid: {changes}.")
    return lines
