"""Figures 3 and 4: test accuracy against the stepsize on real data; D-NASA, which needs none, is a horizontal line."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import final
from dnasa.core import InputError
from dnasa.reproduce.report import Report
from dnasa.reproduce.runs import missing, run
from dnasa.topology import Topology

ETAS = (0.005, 0.01, 0.5, 1, 5, 10, 50, 100)
RULES = ("dsgd", "dsgt", "dasagt", "d2", "dnasa")
STEPS = {"mnist": 3000, "a9a": 1000, "miniboone": 1000, "covertype": 1000}
QUICK_STEPS = {"mnist": 60, "a9a": 300, "miniboone": 300, "covertype": 300}
SEEDS = 10
GRAPHS = ("ring", "paper_random", "ladder", "complete")
search = partial(run, rules=RULES, etas=ETAS, loss_scale="1/n")  # the loss is scaled as in the paper


def fig3(quick: bool = False, **options: Any) -> Report:
    """MNIST, a9a, MiniBooNE and covertype, 8 nodes on the paper's random graph, batch 32."""
    graph, reasons = topology.paper_random(), {name: missing(name) for name in STEPS}
    panels = {name: (name, graph) for name, reason in reasons.items() if not reason}
    if not panels:
        raise InputError(reasons["mnist"])
    report = against_stepsizes("fig3", "Figure 3: 8 nodes, random graph (ρ = 0.375)", panels, quick, **options)
    report.findings[:0] = filter(None, reasons.values())
    return report


def fig4(quick: bool = False, **options: Any) -> Report:
    """a9a, 8 nodes on ring, random, ladder and complete graph."""
    if reason := missing("a9a"):
        raise InputError(reason)
    graphs = {name.removeprefix("paper_"): topology.make(name, 8) for name in GRAPHS}
    panels = {rf"{name} ($\rho$ = {graph.rho:.3f})": ("a9a", graph) for name, graph in graphs.items()}
    steps = (QUICK_STEPS if quick else STEPS)["a9a"]
    return against_stepsizes("fig4", f"Figure 4: a9a, 8 nodes, {steps:,} steps", panels, quick, **options)


def against_stepsizes(
    name: str, caption: str, panels: Mapping[str, tuple[str, Topology]], quick: bool, **options: Any
) -> Report:
    """A panel and a table for each dataset and graph."""
    seeds, steps = (1, QUICK_STEPS) if quick else (SEEDS, STEPS)
    out = Report(name, f"{caption}, {seeds} seed{'s' * (seeds > 1)}", quick)
    histories = {
        panel: search(data, graph, steps=steps[data], seeds=range(seeds), **options)
        for panel, (data, graph) in panels.items()
    }
    styles = drawing.line_styles(pd.concat(histories.values())[["rule"]])
    with out.draw(name, len(panels), f"{out.title}: test accuracy against stepsize") as axes:
        for axis, (panel, rows) in zip(axes, histories.items(), strict=True):
            table, count = tuning.grid(final(rows), "test_accuracy"), steps[panels[panel][0]]
            drawing.draw_stepsizes(axis, table.drop(columns="schedule"), "test_accuracy", fixed=styles)
            axis.set_title(panel if "(" in panel else f"{panel}, {count:,} steps")
            short = panel.partition(" ")[0]
            out.tables[f"{name}-{short}"] = summary(table)
            out.data[f"{name}-{short}-grid"] = table
            duration = f"{len(rows)} runs of {count:,} steps in {rows.seconds.max():.0f} s"
            out.findings.append(f"{short}: {sentence(table)} ({duration})")
    return out


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Each rule's best stepsize, its accuracy there, and its accuracy one step of the grid to either side."""
    rows = []
    for rule, variant in tuning.best(table, "test_accuracy").iterrows():
        same = table[table.rule == rule].reset_index(drop=True)
        lower, higher = (same.value.get(int(same.value.argmax()) + shift, np.nan) for shift in (-1, 1))
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(variant.eta), "test accuracy": variant.value}
        row |= {"accuracy one eta lower": lower, "accuracy one eta higher": higher}
        rows.append(row | {"diverged": tuning.diverged_text(same)})
    return pd.DataFrame(rows)


def sentence(table: pd.DataFrame) -> str:
    tuned = tuning.best(table, "test_accuracy")
    ours, others = tuned.loc["dnasa"].value, tuned.drop(index="dnasa")
    best, theirs = others.value.idxmax(), others.value.max()
    return (
        f"D-NASA {100 * ours:.2f} % with nothing tuned; best tuned method {title(str(best))} {100 * theirs:.2f} % "
        f"at eta = {others.eta[best]:g}; difference {100 * (ours - theirs):+.2f} points."
    )
