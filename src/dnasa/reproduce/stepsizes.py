"""Figures 3 and 4: test accuracy against the stepsize on real data; D-NASA, which needs none, is a horizontal line."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.comparing.plots import title
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
    graph, steps = topology.paper_random(), QUICK_STEPS if quick else STEPS
    reasons = {name: missing(name) for name in steps}
    notes = [f"{name} is left out: {reason}" for name, reason in reasons.items() if reason]
    if len(notes) == len(steps):
        raise InputError(notes[0])
    panels = {name: (name, graph) for name, reason in reasons.items() if not reason}
    report = against_stepsizes("fig3", "Figure 3: 8 nodes, random graph (ρ = 0.375)", panels, quick, **options)
    report.findings[:0] = notes
    return report


def fig4(quick: bool = False, **options: Any) -> Report:
    """a9a, 8 nodes on ring, random, ladder and complete graph."""
    if reason := missing("a9a"):
        raise InputError(f"a9a is left out: {reason}")
    panels = {name.removeprefix("paper_"): ("a9a", topology.make(name, 8)) for name in GRAPHS}
    steps = (QUICK_STEPS if quick else STEPS)["a9a"]
    return against_stepsizes("fig4", f"Figure 4: a9a, 8 nodes, {steps:,} steps", panels, quick, **options)


def against_stepsizes(
    name: str, caption: str, panels: Mapping[str, tuple[str, Topology]], quick: bool, **options: Any
) -> Report:
    """A panel and a table for each dataset and graph."""
    seeds = 1 if quick else SEEDS
    steps = QUICK_STEPS if quick else STEPS
    several = len({graph.name for _, graph in panels.values()}) > 1
    out = Report(name, f"{caption}, {seeds} seed{'s' * (seeds > 1)}", quick)
    histories = {
        panel: search(data, graph, steps=steps[data], seeds=range(seeds), **options)
        for panel, (data, graph) in panels.items()
    }
    styles = drawing.line_styles(pd.concat(histories.values())[["rule"]])
    with out.draw(name, len(panels), f"{out.title}: test accuracy against stepsize") as axes:
        for axis, (panel, (data, graph)) in zip(axes, panels.items(), strict=True):
            rows, table = histories[panel], tuning.grid(histories[panel], "test_accuracy")
            drawing.draw_stepsizes(axis, table.drop(columns="schedule"), "test_accuracy", fixed=styles)
            axis.set_title(f"{panel}, {steps[data]:,} steps")
            if several:
                axis.set_title(rf"{panel} ($\rho$ = {graph.rho:.3f})")
            out.tables[f"{name}-{panel}"] = summary(table)
            out.data[f"{name}-{panel}-grid"] = table
            duration = f"{len(rows)} runs of {steps[data]:,} steps in {rows.seconds.max():.0f} s"
            out.findings.append(f"{panel}: {sentence(table)} ({duration})")
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
