"""Figure 3: test accuracy against the stepsize on real data; D-NASA, which needs none, is a horizontal line."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.comparing.plots import draw_topology, title
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import Task
from dnasa.reproduce.report import Report
from dnasa.topology import Topology

ETAS = (0.005, 0.01, 0.5, 1, 5, 10, 50, 100)
RULES = ("dsgd", "dsgt", "dasagt", "d2", "dnasa")
STEPS = {"mnist": 3000, "a9a": 1000, "miniboone": 1000, "covertype": 1000}
QUICK = {"mnist": 60, "a9a": 300, "miniboone": 300, "covertype": 300}
SEEDS = 10


def search(graph: Topology, steps: int, seeds: int, etas: Sequence[float] | None = None, **options: Any) -> RunSpec:
    """Every rule with every stepsize; the loss is scaled by 1/n as in the paper. D2 needs eigenvalues above -1/3."""
    rules = [rule for rule in RULES if rule != "d2" or graph.smallest_eigenvalue > -1 / 3 + 1e-9]
    grids = {rule: tuple(etas or ETAS) for rule in rules if rule != "dnasa"}
    return RunSpec(steps, rules, grids, range(seeds), graph=graph, loss_scale="1/n", **options)


def parts(quick: bool) -> list[Part]:
    """MNIST, a9a, MiniBooNE and covertype, 8 nodes on the paper's random graph, batch 32."""
    graph, seeds = topology.paper_random(), 1 if quick else SEEDS
    steps = QUICK if quick else STEPS
    return [Part(name, [search(graph, count, seeds)], Task(name)) for name, count in steps.items()]


def report(found: Found) -> Report:
    return against_stepsizes(found, "fig3", "Figure 3: 8 nodes, random graph (ρ = 0.375)")


def against_stepsizes(found: Found, name: str, caption: str) -> Report:
    """A panel and a table for each part, with a drawing of its graph where these differ."""
    out = Report(name, f"{caption}, {found.seeds}", found.quick)
    graphs = {part.runs[0].graph.name for part in found.parts.values()}
    tables = {part: tuning.grid(rows, "test_accuracy") for part, rows in found.rows.items()}
    styles = drawing.line_styles(found.table[["rule"]])
    with out.draw(name, len(found.parts), f"{caption}: test accuracy against stepsize, {found.seeds}") as axes:
        for axis, (part, table) in zip(axes, tables.items(), strict=True):
            rows, graph = found.rows[part], found.parts[part].runs[0].graph
            steps = rows.step.max()
            drawing.draw_stepsizes(axis, table.drop(columns="schedule"), "test_accuracy", given=styles)
            axis.set_title(f"{part}, {steps:,} steps")
            if len(graphs) > 1:
                axis.set_title(rf"{part} ($\rho$ = {graph.rho:.3f})")
                inset = axis.inset_axes((0.38, 0.06, 0.3, 0.42))
                draw_topology(inset, graph)
                inset.collections[-1].set_sizes([40])  # type: ignore[attr-defined]
                inset.margins(0.15)
                inset.set_title("")
            out.tables[f"{name}-{part}"] = summary(table)
            out.data[f"{name}-{part}-grid"] = table
            duration = f"{len(rows)} runs of {steps:,} steps in {rows.seconds.max():.0f} s"
            out.findings.append(f"{part}: {sentence(table)} ({duration})")
    return out


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Each rule's best stepsize, its accuracy there, and its accuracy one step of the grid to either side."""
    rows = []
    for rule, variant in tuning.best(table, "test_accuracy").iterrows():
        same = table[table.rule == rule].reset_index(drop=True)
        place = int(same.value.argmax())
        near = [same.value.get(place + shift, np.nan) for shift in (-1, 1)]
        rows.append(
            {
                "rule": title(str(rule)),
                "best eta": tuning.eta_text(variant.eta),
                "test accuracy": variant.value,
                "accuracy one eta lower": near[0],
                "accuracy one eta higher": near[1],
                "diverged": tuning.diverged_text(same),
            }
        )
    return pd.DataFrame(rows)


def sentence(table: pd.DataFrame) -> str:
    tuned = tuning.best(table, "test_accuracy")
    ours, others = tuned.loc["dnasa"].value, tuned.drop(index="dnasa")
    best, theirs = others.value.idxmax(), others.value.max()
    return (
        f"D-NASA {100 * ours:.2f} % with nothing tuned; best tuned method {title(str(best))} {100 * theirs:.2f} % "
        f"at eta = {others.eta[best]:g}; difference {100 * (ours - theirs):+.2f} points."
    )


EXPERIMENT = Experiment("fig3", parts, report)
