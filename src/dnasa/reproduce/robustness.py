"""Beyond the paper: how much AdaNASA's result changes with nodes, steps, graph, partition, scale of the loss and first radius.

Each entry differs from the default of its column in one respect. The batch of a node is constant, so the number of nodes
also changes the total batch. D-NASA is run beside it: what changes for both is due to the task rather than the rule.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.core import Layout, Rule, choose
from dnasa.data import Dataset, divide
from dnasa.engine.loop import solve
from dnasa.plots import colours, drawable, panels, title
from dnasa.reproduce.network_tasks import NODES, QUICK, TASKS, WITHOUT_DATA, Measure, Task, make_problem, with_data
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.rules import adanasa, schedules
from dnasa.rules.registry import CUSTOM

RULES = ("adanasa", "dnasa")
SEEDS = 3
LIMITS = {"points": 1.0, "": 0.05}  # how much worse an entry may be, by the unit of the measure
SAVED = ("kind", "change", "steps", "rule", "seed", "value")


class Column(NamedTuple):
    task: str
    partition: str
    others: tuple[str, ...]  # partitions to compare it with


class Entry(NamedTuple):
    """One run of a column; `kind` and `change` say how it differs from the default."""

    kind: str
    change: str
    steps: int
    partition: str
    nodes: int = NODES
    graph: str = "ring"
    loss_scale: float = 1.0
    radius: float | None = None  # AdaNASA's at the start, relative to 1 + |x|; None: its own

    def rules(self, layout: Layout) -> list[str | Rule]:
        if self.radius is None:
            return list(RULES)
        return [adanasa(*schedules.adanasa(self.nodes, self.steps), layout=layout, radius=self.radius), "dnasa"]


TABLES = {
    "a9a-iid": Column("a9a", "iid", ("dirichlet(0.1)", "by_label")),
    "a9a-dirichlet": Column("a9a", "dirichlet(0.1)", ("iid", "by_label")),
    "covertype-iid": Column("covertype", "iid", ("dirichlet(0.1)", "by_label")),
}
IMAGES = {
    "mnist-iid": Column("mnist", "iid", ("dirichlet(0.1)", "by_label")),
    "mnist-by_label": Column("mnist", "by_label", ("iid", "dirichlet(0.1)")),
}
ON_GPU = {
    "cifar10-iid": Column("cifar10", "iid", ("dirichlet(0.1)",)),
    "shakespeare-iid": Column("shakespeare", "iid", ("contiguous",)),
}
FALLBACK = {"digits-iid": Column("digits", "iid", ("dirichlet(0.1)", "by_label"))}  # where no data is there


def entries(column: Column, steps: int) -> list[Entry]:
    """The default, and every single change of it."""
    default = Entry("default", "none", steps, column.partition)
    changes: list[dict[str, Any]] = [
        *({"kind": "nodes", "change": f"{n} node{'s' * (n > 1)}", "nodes": n} for n in (1, 2, 32)),
        *({"kind": "steps", "change": f"{t:,} steps", "steps": t} for t in (steps // 5, 4 * steps)),
        *({"kind": "graph", "change": g, "graph": g} for g in ("exponential", "complete", "star", "path")),
        *({"kind": "partition", "change": how, "partition": how} for how in column.others),
        *({"kind": "loss scale", "change": f"loss times {c:g}", "loss_scale": c} for c in (1e-3, 1e3)),
        *({"kind": "radius", "change": f"radius {r:g} at the start", "radius": r} for r in (1e-6, 1e-2)),
    ]
    return [default, *(default._replace(**change) for change in changes)]


def run(
    quick: bool = False,
    progress: bool | None = None,
    device: str = "cpu",
    folder: str | Path = "figures",
    only: str | None = None,
) -> Report:
    """Runs what is missing of all columns, or of the column `only`; reports all that are complete."""
    tasks, columns, seeds = (QUICK, TABLES, 1) if quick else (TASKS, TABLES | IMAGES, SEEDS)
    if device == "cuda" and not quick:
        columns = columns | ON_GPU
    place = Path(folder) / ("robustness-quick" if quick else "robustness")
    study = Study(tasks | WITHOUT_DATA, seeds, place, device, progress)
    every = columns | FALLBACK
    notes = study.run({only: choose("part", only, every)} if only else columns)
    if not only and len(notes) == len(columns):
        notes += study.run(FALLBACK)
    return make_report(study, every, notes, quick)


class Study(NamedTuple):
    """How large the study is, and where its results are saved."""

    tasks: dict[str, Task]
    seeds: int
    folder: Path
    device: str
    progress: bool | None

    def saved(self, name: str) -> Saved:
        return Saved(self.folder / f"{name}.csv", SAVED)

    def missing(self, column: Column, saved: Saved) -> list[Entry]:
        wanted = entries(column, self.tasks[column.task].steps)
        return [entry for entry in wanted if saved.find(change=entry.change, steps=entry.steps).empty]

    def run(self, columns: dict[str, Column]) -> list[str]:
        """Returns a line for each column whose data is not there."""
        notes = []
        for name, column in columns.items():
            if self.missing(column, self.saved(name)):
                notes += with_data(name, self.tasks[column.task], partial(self.run_column, name, column))
        return notes

    def run_column(self, name: str, column: Column, data: Dataset) -> None:
        saved = self.saved(name)
        for entry in self.missing(column, saved):
            saved.add(self.run_entry(self.tasks[column.task], data, entry))

    def run_entry(self, task: Task, data: Dataset, entry: Entry) -> pd.DataFrame:
        shards = divide(data, np.arange(len(data.labels)), entry.partition, entry.nodes)
        problem = make_problem(task, data, shards, self.device, loss_scale=entry.loss_scale)
        result = solve(
            problem,
            topology.make(entry.graph, entry.nodes),
            entry.rules(problem.layout),
            steps=entry.steps,
            seed=range(self.seeds),
            evaluate=[entry.steps],
            progress=self.progress,
        )
        final = result.final().reset_index(drop=True).replace({"rule": {CUSTOM: "adanasa"}})
        labels = {"kind": entry.kind, "change": entry.change, "steps": entry.steps}
        return final.assign(**labels, value=final[task.measure.column])[list(SAVED)]

    def table(self, name: str, column: Column) -> pd.DataFrame | None:
        """The results of a column that is complete, in the order of its entries."""
        saved = self.saved(name)
        if self.missing(column, saved):
            return None
        wanted = entries(column, self.tasks[column.task].steps)
        return pd.concat([saved.find(change=entry.change, steps=entry.steps) for entry in wanted])


# ---------------------------------------------------------------- tables and findings


def differences(table: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Each entry's mean over the seeds and by how much it is better than the default, for both rules; a diverged seed
    counts as infinitely bad."""
    filled = table.fillna({"value": -np.inf * measure.scale})
    values = filled.pivot_table(index=["kind", "change"], columns="rule", values="value", sort=False)[list(RULES)]
    gains = measure.gain(values, values.loc[("default", "none")])
    return values.join(gains.add_suffix(" gain")).reset_index()


def worst(rows: pd.DataFrame) -> pd.DataFrame:
    """The entry of each kind of change where AdaNASA loses the most."""
    changed = rows[rows.kind != "default"]
    return changed.loc[changed.groupby("kind", sort=False)["adanasa gain"].idxmin()]


def finding(rows: pd.DataFrame, measure: Measure) -> str:
    """Whether the worst entry is within the limit, what D-NASA does there, and what diverged."""
    default, limit = rows[rows.kind == "default"].iloc[0], LIMITS[measure.unit]
    lost = rows[~np.isfinite(rows.adanasa)]
    if len(lost):
        return f"AdaNASA diverged: {', '.join(lost.change)}."
    low = rows.loc[rows["adanasa gain"].idxmin()]
    verdict = "within" if low["adanasa gain"] >= -limit else "NOT within"
    unit = f" {measure.unit}".rstrip()
    ours, beside = (measure.signed(low[f"{rule} gain"]) + unit for rule in RULES)
    return (
        f"AdaNASA {measure.text(default.adanasa)} by default; worst entry: {low.change}, {ours} (D-NASA {beside} there): "
        f"{verdict} {limit:g}{unit}. No run of AdaNASA diverged."
    )


def make_report(study: Study, columns: dict[str, Column], notes: list[str], quick: bool) -> Report:
    seeds = f"{study.seeds} seed{'s' * (study.seeds > 1)}"
    report = Report("robustness", f"Single changes of the default ({NODES} nodes, ring), {seeds}")
    report.findings += notes
    rows, measures = {}, {}
    for name, column in columns.items():
        table = study.table(name, column)
        if table is not None:
            measures[name] = study.tasks[column.task].measure
            rows[name] = differences(table, measures[name])
            report.data[f"robustness-{name}"] = rows[name]
            report.findings.append(f"{name}: {finding(rows[name], measures[name])}")
    if rows:
        report.tables["robustness"] = shown(rows, measures)
        report.tables["robustness-worst"] = shown({name: worst(some) for name, some in rows.items()}, measures)
        report.figures["robustness"] = draw(rows, measures, quick)
    return report


def shown(rows: dict[str, pd.DataFrame], measures: dict[str, Measure]) -> pd.DataFrame:
    """For people: results and differences of both rules as text."""
    return pd.DataFrame(
        [
            {"column": name, "change": row["change"]}
            | {title(rule): entry_text(row[rule], row[f"{rule} gain"], measures[name]) for rule in RULES}
            for name, some in rows.items()
            for _, row in some.iterrows()
        ]
    )


def entry_text(value: float, gain: float, measure: Measure) -> str:
    return f"{measure.text(value)} ({measure.signed(gain)})" if np.isfinite(value) else "diverged"


def draw(rows: dict[str, pd.DataFrame], measures: dict[str, Measure], quick: bool) -> Figure:
    """By how much each entry is better than the default, a panel for each column."""
    columns = min(3, len(rows))
    figure, axes = panels(columns, -(-len(rows) // columns), width=4.2, height=4.0)
    colour = colours(RULES)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    for axis, (name, some) in zip(axes.flat, rows.items(), strict=False):
        changed = some[some.kind != "default"]
        limit = LIMITS[measures[name].unit]
        axis.axvspan(-limit, limit, color="#eeeeee", label="within the limit")
        for rule, style in (("dnasa", {"marker": "s", "mfc": "none"}), ("adanasa", {"marker": "o"})):
            gains = drawable(changed[f"{rule} gain"])
            axis.plot(gains, changed.change, linestyle="", color=colour[rule], label=title(rule), **style)
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.set_xlabel(f"better than the default ({measures[name].unit or 'loss'})")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle("Single changes of the default: 8 nodes, ring" + " (quick run)" * quick)
    return figure
