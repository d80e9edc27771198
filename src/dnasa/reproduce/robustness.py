"""Beyond the paper: how much AdaNASA's result changes with nodes, steps, graph, partition, scale of the loss and first radius.

Each entry differs from the default of its column in one respect. The batch of a node is constant, so the number of nodes
also changes the total batch. D-NASA is run next to it, except on large models: what changes for both is due to the task
rather than the rule.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing.plots import colours, drawable, title
from dnasa.core import Layout, Rule
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import NODES, QUICK, SMALL_TEXT, TASKS, WITHOUT_DATA, Measure, Task
from dnasa.reproduce.report import Report
from dnasa.rules import adanasa, schedules

RULES = ("adanasa", "dnasa")
SEEDS = 3
LIMITS = {"points": 1.0, "": 0.05}  # how much worse an entry may be, by the unit of the measure
PARTITIONS = ("iid", "dirichlet(0.1)", "by_label")
COLUMNS = {  # the task, and its partition followed by those to compare it with
    "a9a-iid": ("a9a", PARTITIONS),
    "a9a-dirichlet": ("a9a", ("dirichlet(0.1)", "iid", "by_label")),
    "covertype-iid": ("covertype", PARTITIONS),
    "mnist-iid": ("mnist", PARTITIONS),
    "mnist-by_label": ("mnist", ("by_label", "iid", "dirichlet(0.1)")),
    "cifar10-iid": ("cifar10", ("iid", "dirichlet(0.1)")),
    "gpt-small-iid": ("gpt-small", ("iid", "contiguous")),
    "digits-iid": ("digits", PARTITIONS),
}
NOT_QUICK, ON_GPU = ("mnist", "cifar10", "gpt-small"), ("cifar10", "gpt-small")


def parts(quick: bool) -> list[Part]:
    tasks, seeds = (QUICK, 1) if quick else (TASKS, SEEDS)
    every = tasks | WITHOUT_DATA | {"gpt-small": SMALL_TEXT}

    def part(column: str, name: str, partitions: tuple[str, ...]) -> Part:
        task, gpu = every[name], name in ON_GPU
        rules = RULES[:1] if gpu else RULES
        return Part(column, entries(task, partitions, rules, seeds), task, gpu, name in WITHOUT_DATA)

    return [
        part(column, name, partitions)
        for column, (name, partitions) in COLUMNS.items()
        if not (quick and name in NOT_QUICK)
    ]


def entries(task: Task, partitions: tuple[str, ...], rules: Sequence[str], seeds: int) -> list[RunSpec]:
    """The default, and every single change of it."""

    def entry(kind: str = "default", change: str = "none", **other: Any) -> RunSpec:
        options: Any = {"steps": task.steps, "partition": partitions[0]} | other
        return RunSpec(rules=rules, seeds=range(seeds), labels={"kind": kind, "change": change}, **options)

    def radius(size: float) -> Any:
        def make(eta: float, layout: Layout) -> Rule:
            return adanasa(*schedules.adanasa(NODES, task.steps), layout=layout, radius=size)

        return {"adanasa": make}

    graphs = ("exponential", "complete", "star", "path")
    return [
        entry(),
        *(entry("nodes", f"{n} node{'s' * (n > 1)}", graph=topology.ring(n)) for n in (1, 2, 32)),
        *(entry("steps", f"{steps:,} steps", steps=steps) for steps in (task.steps // 5, 4 * task.steps)),
        *(entry("graph", graph, graph=topology.make(graph, NODES)) for graph in graphs),
        *(entry("partition", how, partition=how) for how in partitions[1:]),
        *(entry("loss scale", f"loss times {scale:g}", loss_scale=scale) for scale in (1e-3, 1e3)),
        *(entry("radius", f"radius {size:g} at the start", rule_makers=radius(size)) for size in (1e-6, 1e-2)),
    ]


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("robustness", f"Single changes of the default ({NODES} nodes, ring), {found.seeds}", found.quick)
    rows, measures = {}, {}
    for name, part in found.parts.items():
        measures[name] = part.task.measure
        rows[name] = differences(found.rows[name], measures[name])
        out.data[f"robustness-{name}"] = rows[name]
        out.findings.append(f"{name}: {finding(rows[name], measures[name])}")
    if rows:
        out.tables["robustness"] = shown(rows, measures)
        out.tables["robustness-worst"] = shown({name: worst(some) for name, some in rows.items()}, measures)
        draw(out, rows, measures)
    return out


def differences(table: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Each entry's mean over the seeds and by how much it is better than the default, for every rule; a diverged seed
    counts as infinitely bad."""
    filled = table.fillna({"value": -np.inf * measure.scale})
    values = filled.pivot_table(index=["kind", "change"], columns="rule", values="value", sort=False)
    values = values.reindex(columns=[rule for rule in RULES if rule in values])
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
    ours, *theirs = (measure.signed(low[f"{rule} gain"]) + unit for rule in RULES if rule in rows)
    other = f" (D-NASA {theirs[0]} there)" if theirs else ""
    return (
        f"AdaNASA {measure.text(default.adanasa)} by default; worst entry: {low.change}, {ours}{other}: "
        f"{verdict} {limit:g}{unit}. No run of AdaNASA diverged."
    )


def shown(rows: dict[str, pd.DataFrame], measures: dict[str, Measure]) -> pd.DataFrame:
    """The printed table: results and differences of the rules as text."""

    def text(row: pd.Series, rule: str, measure: Measure) -> str:
        if rule not in row:
            return ""
        gain = f" ({measure.signed(row[f'{rule} gain'])})"
        return measure.text(row[rule]) + gain * bool(np.isfinite(row[rule]))

    return pd.DataFrame(
        [
            {"column": name, "change": row["change"]} | {title(rule): text(row, rule, measures[name]) for rule in RULES}
            for name, some in rows.items()
            for _, row in some.iterrows()
        ]
    )


def draw(out: Report, rows: dict[str, pd.DataFrame], measures: dict[str, Measure]) -> None:
    """Draw how much better each entry is than the default, a panel for each column."""
    colour = colours(RULES)
    caption = f"Single changes of the default: {NODES} nodes, ring"
    with out.draw("robustness", len(rows), caption, columns=3, width=4.2, height=4.0) as axes:
        for axis, (name, some) in zip(axes, rows.items(), strict=True):
            changed = some[some.kind != "default"]
            limit = LIMITS[measures[name].unit]
            axis.axvspan(-limit, limit, color="#eeeeee", label="within the limit")
            for rule, form in (("dnasa", "s"), ("adanasa", "o")):
                if rule not in some:
                    continue
                gains, fill = drawable(changed[f"{rule} gain"]), colour[rule] if form == "o" else "none"
                axis.plot(gains, changed.change, form, color=colour[rule], mfc=fill, label=title(rule))
            axis.invert_yaxis()
            axis.set_title(name)
            axis.set_xlabel(f"better than the default ({measures[name].unit or 'loss'})")


SAVED = ("kind", "change", "steps", "rule", "seed", "value")
EXPERIMENT = Experiment("robustness", parts, report, SAVED, metric="value", selectable=True)
