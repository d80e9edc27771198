"""Beyond the paper: which graph to choose. AdaNASA's result against the bytes a node sends, and tuned methods for comparison.

Parts are TASK/NODES/PARTITION for AdaNASA on every graph, TASK/few/PARTITION for AdaNASA with fewer bits or exchanges, and
TASK/tuned/PARTITION for the tuned methods, whose stepsizes are chosen on validation rows. On the same graph AdaNASA sends
three arrays per message, tuned methods one: they also get as many rounds as AdaNASA's bytes allow.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.plots import drawable, title
from dnasa.reproduce import network_tasks
from dnasa.reproduce.choosing import chosen_first
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, tuning_first
from dnasa.reproduce.network_tasks import NODES, WITHOUT_DATA, Measure, Task
from dnasa.reproduce.report import Report

GRAPHS = {  # the graph and the rounds
    "exact, 1 round": ("exact", 1),
    "complete": ("complete", 1),
    "exact, 2 rounds": ("exact", 2),
    "ring": ("ring", 1),
    "torus": ("torus", 1),
    "ring, 2 rounds": ("ring", 2),
    "exponential": ("exponential", 1),
    "ring, 4 rounds": ("ring", 4),
}
QUICK_GRAPHS = ("exact, 1 round", "complete", "exact, 2 rounds", "ring")
SIZES, SEEDS, TUNED, FEW = (8, 16, 32), 3, "tuned", "few"
EQUAL = "exact, 2 rounds"  # has the bytes of a ring
SAME_BYTES = "exact, 6 rounds"  # of one array; AdaNASA sends three
COMPRESSED = "1 round, moniqua:8,4,8/8"
RARE = {f"exact average every {every} steps": every for every in (2, 5)}
FEWER: Any = {
    EQUAL: {},
    COMPRESSED: {"compress": "moniqua:8,4,8/8"},
    **{label: {"every": h} for label, h in RARE.items()},
}
PLACES: dict[str, tuple[str, Any]] = GRAPHS | {SAME_BYTES: ("exact", 6), COMPRESSED: ("exact", 1)}
PLACES |= dict.fromkeys(RARE, ("exact", "exact"))
RATES: Any = {"dmsgd": (0.03, 0.1, 0.3, 1), "dadam": (1e-3, 3e-3, 1e-2, 3e-2)}
TABLE_RATES: Any = {"dmsgd": (0.03, 0.1, 0.3, 1), "dadam": (3e-3, 1e-2, 3e-2, 0.1, 0.3)}
TASKS = {
    "mnist": Task("mnist", steps=800, etas=TABLE_RATES),
    "cifar10": network_tasks.TASKS["cifar10-group"]._replace(etas=RATES),
    "covertype": Task("covertype", etas=TABLE_RATES),
    "gpt": network_tasks.TEXT._replace(model="gpt:4,60,32", steps=1000, etas=RATES, tuning_seeds=3, side_by_side=True),
}
QUICK = {"mnist": network_tasks.QUICK["mnist"], "covertype": network_tasks.QUICK["covertype"]}
ON_GPU = ("cifar10", "gpt")
make = cache(topology.make)  # the parts use the same graphs


def parts(quick: bool) -> list[Part]:
    tasks, sizes, seeds = (QUICK, SIZES[:1], 1) if quick else (TASKS, SIZES, SEEDS)
    graphs = QUICK_GRAPHS if quick else tuple(GRAPHS)
    every = tasks | {"digits": WITHOUT_DATA["digits"]}
    return [part for name, task in every.items() for part in parts_of(name, task, graphs, sizes, range(seeds))]


def parts_of(name: str, task: Task, graphs: tuple[str, ...], sizes: tuple[int, ...], seeds: range) -> Iterator[Part]:
    def runs(rule: str, label: str, nodes: int, partition: str) -> RunSpec:
        graph, rounds = PLACES[label]
        place: Any = {"graph": make(graph, nodes), "rounds": rounds, "partition": partition} | FEWER.get(label, {})
        return RunSpec(task.steps, [rule], task.etas, seeds, {"graph": label}, validation=True, **place)

    for partition in partitions(task):
        every: dict[int | str, list[RunSpec]] = {
            nodes: [runs("adanasa", graph, nodes, partition) for graph in graphs] for nodes in sizes
        }
        every[FEW] = [runs("adanasa", label, NODES, partition) for label in FEWER]
        every[TUNED] = [runs(rule, graph, NODES, partition) for rule in RATES for graph in (EQUAL, SAME_BYTES)]
        for kind, some in every.items():
            end = f"{kind}/{partition.partition('(')[0]}"
            first = tuning_first(some, task)
            yield Part(f"{name}/{end}", first, task, gpu=name in ON_GPU, fallback=name in WITHOUT_DATA)


def partitions(task: Task) -> list[str]:
    return ["iid", task.different] + ["by_label"] * (task.measure == network_tasks.ACCURACY)


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("graphs", f"Which graph, {found.seeds}", found.quick)
    if not found.rows:
        return out
    table = out.data["graphs-all"] = every_result(found)
    tasks = {name.partition("/")[0]: part.task for name, part in found.parts.items()}
    for (name, kind), rows in table.groupby(["task", "nodes"], sort=False):
        out.tables[f"graphs-{name}-{kind}"] = summary(rows, tasks[name].measure)
    for name, task in tasks.items():
        same = table.task == name
        ours, tuned = table[same & on_graphs(table)], table[same & (table.nodes == TUNED)]
        out.findings += findings(ours, task.measure) + against_tuned(ours, tuned, task.measure)
        if {*partitions(task)} <= {*ours.partition[ours.nodes == NODES]} & {*tuned.partition}:
            draw_tuned(out, name, task, ours, tuned)
    if on_graphs(table).any():
        draw(out, table[on_graphs(table)], tasks)
    return out


def on_graphs(table: pd.DataFrame) -> pd.Series:
    """Which rows are AdaNASA's on some graph."""
    return ~table.nodes.isin([TUNED, FEW])


def every_result(found: Found) -> pd.DataFrame:
    """Each rule on each graph at its best stepsize, averaged over the seeds; bytes are relative to AdaNASA's on a ring."""
    rows = []
    for name, part in found.parts.items():
        task, kind, _ = name.split("/")
        place = {
            "task": task,
            "nodes": kind if kind in (TUNED, FEW) else int(kind),
            "partition": part.runs[0].partition,
        }
        for graph, same in found.rows[name].groupby("graph", sort=False):
            best = chosen_first(same, part.task)
            rows.append(best.assign(**place, graph=graph, bytes=same.groupby("rule").bytes.max()).reset_index())
    table = pd.concat(rows, ignore_index=True)
    ring = table[(table.rule == "adanasa") & table.graph.isin(["ring", EQUAL])].groupby("task").bytes.max()
    share = table.bytes / table.task.map(ring)
    return table.assign(bytes=share, equal=(table.rule != "adanasa") & np.isclose(share, 1))


def summary(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The printed table: a row for each rule and graph, a column for each partition."""

    def text(row: Any) -> str:
        spread = f" ± {abs(measure.scale) * row.spread:.2g}" if np.isfinite(row.spread) else ""
        eta = f" ({tuning.eta_text(row.eta)}{', edge' if row.edge else ''})" if np.isfinite(row.eta) else ""
        return measure.text(row.test) + spread + eta

    cells = rows.assign(text=[text(row) for row in rows.itertuples()], rule=rows.rule.map(title))
    places = {how: same.set_index(["rule", "graph"]) for how, same in cells.groupby("partition", sort=False)}
    sent = next(iter(places.values())).bytes.map("{:.3g}".format)
    return pd.DataFrame({"bytes (ring = 1)": sent} | {how: same.text for how, same in places.items()}).reset_index()


def findings(ours: pd.DataFrame, measure: Measure) -> list[str]:
    """What each graph loses against iid data, and the best graph with at most a ring's bytes that needs no all-reduce."""
    lines = []
    for (name, nodes), rows in ours.groupby(["task", "nodes"], sort=False):
        by_partition = {how: same.set_index("graph") for how, same in rows.groupby("partition", sort=False)}
        iid = by_partition.pop("iid", None)
        for how, same in by_partition.items():
            cheap = same[(same.bytes < 1 + 1e-9) & (same.index != "complete")]
            best = (measure.scale * cheap.test).idxmax()
            named = dict.fromkeys((best, "ring", "complete"))
            values = "; ".join(f"{graph}: {measure.text(same.test[graph])}" for graph in named)
            line = f"{name}, {nodes} nodes, {how}: best with at most a ring's bytes and no all-reduce is {values}."
            if iid is not None:
                gains = measure.gain(same.test, iid.test)
                line += (
                    " Against iid: "
                    + "; ".join(f"{graph} {measure.signed(gain)}" for graph, gain in gains.items())
                    + "."
                )
            lines.append(line)
    return lines


def against_tuned(ours: pd.DataFrame, tuned: pd.DataFrame, measure: Measure) -> list[str]:
    """AdaNASA on the graph with a ring's bytes against the best tuned method, on the same graphs and with the same bytes."""
    lines = []
    for row in ours[(ours.nodes == NODES) & (ours.graph == EQUAL)].itertuples():
        rivals = tuned[tuned.partition == row.partition]
        for words, some in (("as many messages", rivals[~rivals.equal]), ("as many bytes", rivals)):
            if len(some):
                best = some.loc[(measure.scale * some.test).idxmax()]
                gain = measure.gain(row.test, best.test)
                lines.append(
                    f"{row.task}, {row.partition}: AdaNASA on {EQUAL}, {measure.text(row.test)}, is {measure.amount(gain)} "
                    f"{'better' if gain >= 0 else 'worse'} than the best tuned method with at most {words}: "
                    f"{title(best.rule)} on {best.graph}, {measure.text(best.test)}."
                )
    return lines


# ---------------------------------------------------------------- pictures

COLOURS = {"exact": "#0072b2", "ring": "#d55e00", "torus": "#009e73", "exponential": "#cc79a7", "complete": "#000000"}
BARS = ("#0072b2", "#8ecbf0", "#f2a05c", "#bbbbbb")
MARKERS = {1: "o", 2: "s", 4: "^"}  # by rounds
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "gpt": "GPT"}
SHIFT = 1.04  # of markers with twice the nodes, so that none is hidden


def draw(out: Report, table: pd.DataFrame, tasks: dict[str, Task]) -> None:
    """The result of each graph against its bytes: a row for each task, a column for each kind of partition."""
    panels = [(name, how) for name in table.task.unique() for how in [*partitions(tasks[name]), ""][:3]]
    caption = "AdaNASA, untuned: what each graph reaches for its bytes"
    with out.draw("graphs", len(panels), caption, 3, 3.7, 2.7) as axes:
        for place, (axis, (name, how)) in enumerate(zip(axes, panels, strict=True)):
            if not how:
                axis.remove()
                continue
            measure, first = tasks[name].measure, place % 3 == 0
            axis.axvspan(0.4, 1.1, color="#eeeeee", zorder=0, label="at most a ring's bytes")
            for graph, same in table[(table.task == name) & (table.partition == how)].groupby("graph", sort=False):
                draw_graph(axis, str(graph), same, abs(measure.scale))
            if not first:
                axis.sharey(axes[place - place % 3])
            elif measure.scale < 0:
                axis.invert_yaxis()
            axis.set(title=f"{TITLES.get(name, name)}, {how}", xscale="log", xlim=(0.4, 5.6))
            axis.set_xticks([0.5, 1, 2, 4], ["1/2", "1", "2", "4"])
            axis.minorticks_off()
            axis.set_ylabel(y_label(measure) if first else "")
            if place + 3 >= len(panels) or not panels[place + 3][1]:
                axis.set_xlabel("bytes of a node (ring = 1)")
        for graph, (family, rounds) in GRAPHS.items():
            if graph in {*table.graph}:
                axes[0].plot([], [], MARKERS[rounds], color=COLOURS[family], ms=7, label=graph)
        sizes = sorted({*table.nodes})
        for nodes in sizes if len(sizes) > 1 else ():
            axes[0].plot([], [], "o", color="#777777", mfc="none", ms=marker_size(nodes), label=f"{nodes} nodes")


def draw_graph(axis: Any, graph: str, rows: pd.DataFrame, scale: float) -> None:
    """A marker for each number of nodes, connected."""
    (family, rounds), rows = GRAPHS[graph], rows.sort_values("nodes")
    x = rows.bytes * SHIFT ** np.log2(rows.nodes.astype(float) / 16)
    y = scale * drawable(rows.test)
    axis.plot(x, y, color=COLOURS[family], linewidth=1.0, alpha=0.6)
    style: Any = {"marker": MARKERS[rounds], "edgecolor": "white", "zorder": 3}
    axis.scatter(x, y, marker_size(rows.nodes.astype(float)) ** 2, COLOURS[family], **style)


def marker_size(nodes: Any) -> Any:
    return 2.2 * nodes**0.4


def draw_tuned(out: Report, name: str, task: Task, ours: pd.DataFrame, tuned: pd.DataFrame) -> None:
    """AdaNASA with the bytes of a ring, and tuned methods at their best, under every partition; with the seeds' spread."""
    hows, measure = partitions(task), task.measure
    scale = abs(measure.scale)
    ours = ours[(ours.nodes == NODES) & ours.graph.isin([EQUAL, "ring"])]
    ours = ours.assign(label=[f"AdaNASA, untuned, {graph}" for graph in ours.graph])
    tuned = tuned.assign(label=[f"{title(rule)}, tuned" for rule in tuned.rule])
    bars, more = (
        drawable(scale * rows.pivot(index="label", columns="partition", values=["test", "spread"]))
        for rows in (pd.concat([ours, tuned[~tuned.equal]]), tuned[tuned.equal])
    )
    costs = measure.gain(bars.test.iid, bars.test[task.different]) / scale
    pairs, ring = (measure.signed(costs[label]).removeprefix("+") for label in ours.label.unique())
    caption = (
        f"{TITLES.get(name, name)}, {NODES} nodes: {task.different} costs AdaNASA {pairs} {measure.unit} on {EQUAL},\n"
        f"and {ring} {measure.unit} on a ring with the same bytes"
    )
    with out.draw(f"graphs-{name}-tuned", 1, caption, width=8.0, height=4.0) as (axis,):
        places = np.arange(len(hows))
        for index, (label, colour) in enumerate(zip([*ours.label.unique(), *tuned.label.unique()], BARS, strict=True)):
            at, heights = places + 0.2 * (index - 1.5), bars.test.loc[label, hows]
            drawn = axis.bar(at, heights, 0.19, color=colour, label=label)
            axis.errorbar(at, heights, bars.spread.loc[label, hows].fillna(0), fmt="none", ecolor="black", elinewidth=1)
            shown = [f"{height:.1f}" if measure.unit else f"{height:.2f}" for height in heights]
            axis.bar_label(drawn, shown, label_type="center", fontsize=9, color="white" if index == 0 else "black")
            if label in more.index:
                style: Any = {
                    "mfc": "white",
                    "mec": "black",
                    "ecolor": "black",
                    "label": "tuned, as many bytes as AdaNASA",
                }
                axis.errorbar(at, more.test.loc[label, hows], more.spread.loc[label, hows].fillna(0), fmt="D", **style)
        axis.set_xticks(places, hows)
        axis.grid(axis="x", visible=False)
        axis.set_axisbelow(True)
        axis.set_ylabel(y_label(measure))
        axis.set_xlabel(f"Bars of tuned methods: {EQUAL}, with 1/3 of AdaNASA's bytes", fontsize=8)


def y_label(measure: Measure) -> str:
    return measure.label + " (%)" * bool(measure.unit)


SAVED = ("graph", "rule", "eta", "seed", "steps", "bytes", "validation", "test")
EXPERIMENT = Experiment("graphs", parts, report, SAVED, selectable=True)
