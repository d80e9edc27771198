"""Beyond the paper: which graph to choose. AdaNASA's result against the bytes a node sends, and tuned methods for comparison.

Parts are TASK/NODES/PARTITION for AdaNASA on every graph, and TASK/tuned/PARTITION for the tuned methods, whose stepsizes are
chosen on validation rows. On the same graph AdaNASA sends three arrays per message, tuned methods one or two: they also get
as many rounds as AdaNASA's bytes allow.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.plots import title
from dnasa.reproduce import network_tasks
from dnasa.reproduce.choosing import averages, chosen
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import NODES, WITHOUT_DATA, Measure, Task
from dnasa.reproduce.report import Report

GRAPHS = {  # the graph and the rounds
    "exact": ("exact", 1),
    "complete": ("complete", 1),
    "exact, 2 rounds": ("exact", 2),
    "ring": ("ring", 1),
    "torus": ("torus", 1),
    "ring, 2 rounds": ("ring", 2),
    "exponential": ("exponential", 1),
    "ring, 4 rounds": ("ring", 4),
}
QUICK_GRAPHS = ("exact", "complete", "exact, 2 rounds", "ring")
SIZES, SEEDS, TUNED = (8, 16, 32), 3, "tuned"
EQUAL = "exact, 2 rounds"  # has the bytes of a ring
ROUNDS = {"dmsgd": 6, "dadam": 6, "dsgt": 3}  # with which a method sends AdaNASA's bytes on this graph
RATES: Any = {"dmsgd": (0.03, 0.1, 0.3, 1), "dadam": (1e-3, 3e-3, 1e-2, 3e-2), "dsgt": (0.03, 0.1, 0.3, 1)}
TABLE_RATES: Any = {"dmsgd": (0.03, 0.1, 0.3, 1), "dadam": (3e-3, 1e-2, 3e-2, 0.1, 0.3), "dsgt": (0.3, 1, 3, 10)}
TASKS = {
    "mnist": Task("mnist", steps=800, etas=TABLE_RATES),
    "cifar10": network_tasks.TASKS["cifar10-group"]._replace(etas=RATES),
    "covertype": Task("covertype", etas=TABLE_RATES),
    "gpt": network_tasks.TEXT._replace(model="gpt:4,60,32", steps=1000, etas=RATES),
}
QUICK = {"mnist": network_tasks.QUICK["mnist"], "covertype": network_tasks.QUICK["covertype"]}
ON_GPU = ("cifar10", "gpt")


def parts(quick: bool) -> list[Part]:
    tasks, sizes, seeds = (QUICK, SIZES[:1], 1) if quick else (TASKS, SIZES, SEEDS)
    graphs = QUICK_GRAPHS if quick else tuple(GRAPHS)
    every = tasks | {"digits": WITHOUT_DATA["digits"]}
    return [part for name, task in every.items() for part in parts_of(name, task, graphs, sizes, range(seeds))]


def parts_of(name: str, task: Task, graphs: tuple[str, ...], sizes: tuple[int, ...], seeds: range) -> Iterator[Part]:
    def runs(rule: str, graph: str, rounds: int, nodes: int, partition: str) -> RunSpec:
        label = {"graph": f"{graph}, {rounds} rounds" if rounds > 1 else graph}
        place: Any = {"graph": topology.make(graph, nodes), "rounds": rounds, "partition": partition}
        return RunSpec(task.steps, [rule], task.etas, seeds, label, validation=True, **place)

    for partition in partitions(task):
        every: dict[int | str, list[RunSpec]] = {
            nodes: [runs("adanasa", *GRAPHS[graph], nodes, partition) for graph in graphs] for nodes in sizes
        }
        every[TUNED] = [
            runs(rule, *place, NODES, partition)
            for rule, rounds in ROUNDS.items()
            for place in (GRAPHS["ring"], GRAPHS[EQUAL], ("exact", rounds))
        ]
        for kind, some in every.items():
            end = f"{kind}/{partition.partition('(')[0]}"
            yield Part(f"{name}/{end}", some, task, gpu=name in ON_GPU, fallback=name in WITHOUT_DATA)


def partitions(task: Task) -> list[str]:
    return ["iid", task.different] + ["by_label"] * (task.measure == network_tasks.ACCURACY)


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("graphs", f"Which graph: AdaNASA against bytes, {found.seeds}", found.quick)
    if not found.rows:
        return out
    table = out.data["graphs-all"] = every_result(found)
    tasks = {name.partition("/")[0]: part.task for name, part in found.parts.items()}
    for (name, kind), rows in table.groupby(["task", "nodes"], sort=False):
        out.tables[f"graphs-{name}-{kind}"] = summary(rows, tasks[name].measure)
    for name, task in tasks.items():
        rows = table[table.task == name]
        out.findings += findings(rows[rows.nodes != TUNED], task.measure)
        out.findings += against_tuned(rows, task.measure)
    return out


def every_result(found: Found) -> pd.DataFrame:
    """Each rule on each graph at its best stepsize, averaged over the seeds; bytes are relative to AdaNASA's on a ring."""
    rows = []
    for name, part in found.parts.items():
        task, kind, _ = name.split("/")
        place = {"task": task, "nodes": kind if kind == TUNED else int(kind), "partition": part.runs[0].partition}
        for graph, same in found.rows[name].groupby("graph", sort=False):
            best = chosen(averages(same, part.task.measure), part.task.measure)
            rows.append(best.assign(**place, graph=graph, bytes=same.groupby("rule").bytes.mean()).reset_index())
    table = pd.concat(rows, ignore_index=True)
    ring = table[(table.rule == "adanasa") & (table.graph == "ring")].groupby("task").bytes.mean()
    share = table.bytes / table.task.map(ring)
    complete = table.graph == "complete"  # sends 2 (n - 1) / n arrays as one all-reduce, and a ring 2
    share[complete] = 1 - 1 / table.nodes[complete].astype(float)
    return table.assign(bytes=share)


def summary(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The printed table: a row for each graph (of tuned methods, for each rule and graph), a column for each partition."""

    def text(row: Any) -> str:
        eta = f" ({tuning.eta_text(row.eta)}{', edge' if row.edge else ''})" if np.isfinite(row.eta) else ""
        return measure.text(row.test) + with_spread(row.spread, measure) + eta

    cells = rows.assign(text=[text(row) for row in rows.itertuples()], rule=rows.rule.map(title))
    keys = ["rule", "graph", "bytes"]
    wide = cells.pivot(index=keys, columns="partition", values="text")[list(rows.partition.unique())]
    wide = wide.loc[list(dict.fromkeys(cells[keys].itertuples(index=False, name=None)))].reset_index()
    return wide.assign(bytes=wide.bytes.map("{:.3g}".format)).rename(columns={"bytes": "bytes (ring = 1)"})


def with_spread(spread: float, measure: Measure) -> str:
    return f" ± {measure.amount(measure.scale * spread).split()[0]}" if np.isfinite(spread) else ""


def findings(rows: pd.DataFrame, measure: Measure) -> list[str]:
    """What each graph loses against iid data, and the best graph with at most a ring's bytes."""
    lines = []
    for (name, nodes), same in rows.groupby(["task", "nodes"], sort=False):
        test = same.pivot(index="graph", columns="partition", values="test").loc[
            list(same.graph.unique()), list(same.partition.unique())
        ]
        cheap = test.loc[[g for g in test.index if g != "complete" and (same.bytes[same.graph == g] <= 1 + 1e-9).all()]]
        for partition in test.columns.drop("iid", errors="ignore"):
            if "iid" in test:
                gains = measure.gain(test[partition], test.iid)
                lost = ", ".join(f"{graph} {measure.signed(gain) or 'diverged'}" for graph, gain in gains.items())
                lines.append(f"{name}, {nodes} nodes, {partition} against iid on the same graph: {lost}.")
            best = (measure.scale * cheap[partition]).idxmax()
            known = "; ".join(f"{graph} {measure.text(test[partition][graph])}" for graph in (best, "ring", "complete"))
            lines.append(f"{name}, {nodes} nodes, {partition}: best with at most a ring's bytes is {known}.")
    return lines


def against_tuned(rows: pd.DataFrame, measure: Measure) -> list[str]:
    """AdaNASA on the graph with a ring's bytes against the best tuned method, on the same graph and with the same bytes."""
    lines = []
    for partition, same in rows.groupby("partition", sort=False):
        ours = same[(same.nodes == NODES) & (same.graph == EQUAL)]
        tuned = same[same.nodes == TUNED]
        if len(ours) and len(tuned):
            value, said = ours.test.iloc[0], []
            for words, some in (("with the same messages", tuned[~equal_bytes(tuned)]), ("with the same bytes", tuned)):
                best = some.loc[(measure.scale * some.test).idxmax()]
                gain = measure.gain(value, best.test)
                said.append(
                    f"{measure.amount(gain)} {'better' if gain >= 0 else 'worse'} than the best tuned method {words} "
                    f"({title(best.rule)}, {best.graph}: {measure.text(best.test)})"
                )
            lines.append(
                f"{ours.task.iloc[0]}, {partition}: AdaNASA on {EQUAL}, {measure.text(value)}, {', '.join(said)}."
            )
    return lines


def equal_bytes(tuned: pd.DataFrame) -> pd.Series:
    """Where a tuned method exchanges as often as AdaNASA's bytes allow."""
    return tuned.graph == "exact, " + tuned.rule.map(ROUNDS).astype(str) + " rounds"


SAVED = ("graph", "rule", "eta", "seed", "steps", "bytes", "validation", "test")
EXPERIMENT = Experiment("graphs", parts, report, SAVED, selectable=True)
