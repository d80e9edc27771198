"""Figures 3 to 6, on real data: accuracy against the stepsize, and curves at the best stepsizes against epochs and seconds.

D-NASA, which needs no stepsize, is a horizontal line in Figures 3 and 4.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.comparing.plots import LABELS, title
from dnasa.comparing.statistics import final, over_seeds
from dnasa.core import InputError
from dnasa.reproduce.report import Report, draw_lines
from dnasa.reproduce.runs import dataset, evaluation_steps, missing, run
from dnasa.topology import Topology

ETAS = (0.005, 0.01, 0.5, 1, 5, 10, 50, 100)
RULES = ("dsgd", "dsgt", "dasagt", "d2", "dnasa")
STEPS = {"mnist": 3000, "a9a": 1000, "miniboone": 1000, "covertype": 1000}
QUICK_STEPS = {"mnist": 60, "a9a": 300, "miniboone": 300, "covertype": 300}
SEEDS = 10
METRICS = ("train_loss", "test_loss", "test_accuracy", "stationarity")  # of the curves
EVALUATIONS = 25
QUICK_ROWS = 4000
GRAPHS = ("ring", "paper_random", "ladder", "complete")
search = partial(run, rules=RULES, etas=ETAS, loss_scale="1/n")  # the loss is scaled as in the paper


def fig3(quick: bool = False, **options: Any) -> Report:
    """MNIST, a9a, MiniBooNE and covertype, 8 nodes on the paper's random graph, batch 32."""
    graph, reasons = topology.paper_random(), {name: missing(name) for name in STEPS}
    panels = {name: (name, graph) for name, reason in reasons.items() if not reason}
    if not panels:
        raise InputError(reasons["mnist"])
    report = against_stepsizes("fig3", "Figure 3: 8 nodes, random graph (ρ = 0.375)", panels, quick, **options)
    report.notes += filter(None, reasons.values())
    return report


def fig4(quick: bool = False, **options: Any) -> Report:
    """a9a, 8 nodes on ring, random, ladder and complete graph."""
    graphs = {name.removeprefix("paper_"): topology.make(name, 8) for name in GRAPHS}
    panels = {rf"{name} ($\rho$ = {graph.rho:.3f})": ("a9a", graph) for name, graph in graphs.items()}
    steps = (QUICK_STEPS if quick else STEPS)["a9a"]
    return against_stepsizes("fig4", f"Figure 4: a9a, 8 nodes, {steps:,} steps", panels, quick, **options)


def against_stepsizes(
    name: str, caption: str, panels: Mapping[str, tuple[str, Topology]], quick: bool, **options: Any
) -> Report:
    """A panel and a table for each dataset and graph."""
    seeds, steps = (1, QUICK_STEPS) if quick else (SEEDS, STEPS)
    out = Report(f"{caption}, {seeds} seed" if seeds == 1 else f"{caption}, {seeds} seeds", quick)
    results = {}
    for panel, (data, graph) in panels.items():
        history = search(data, graph, steps=steps[data], seeds=range(seeds), **options)
        results[panel] = over_seeds(final(history), "test_accuracy").assign(schedule=None)
    styles = drawing.line_styles((rule, None) for rule in pd.concat(results.values()).rule.unique())
    with out.draw(name, len(panels), f"{out.title}: test accuracy against stepsize") as axes:
        for axis, (panel, table), (data, _) in zip(axes, results.items(), panels.values(), strict=True):
            drawing.draw_stepsizes(axis, table, "test_accuracy", styles)
            drawing.mark_beyond(axis)
            short = panel.partition(" ")[0]
            out.tables[f"{name}-{short}"] = summary(table).assign(data=dataset(data).title)
            out.data[f"{name}-{short}-grid"] = table.assign(data=dataset(data).title)
        titles = [key if "(" in key else f"{dataset(data).title}, {steps[data]:,} steps" for key, (data, _) in panels.items()]
        drawing.entitle(axes, titles)
    return out


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Each rule's best stepsize and its accuracy there."""
    rows = []
    for best in tuning.best(table, "test_accuracy").itertuples():
        row = {"rule": title(best.rule), "best eta": tuning.eta_text(best.eta), "test accuracy": best.value}
        rows.append(row | {"diverged": tuning.diverged_text(table[table.rule == best.rule])})
    return pd.DataFrame(rows)


def fig5(quick: bool = False, **options: Any) -> Report:
    """MNIST on the paper's random graph."""
    return curves("fig5", "mnist", quick, **options)


def fig6(quick: bool = False, **options: Any) -> Report:
    """a9a on the paper's random graph."""
    return curves("fig6", "a9a", quick, **options)


def curves(name: str, data: str, quick: bool, **options: Any) -> Report:
    """Tune each method on two seeds, then run it at its best stepsize for other seeds."""
    graph, steps = topology.paper_random(), (QUICK_STEPS if quick else STEPS)[data]
    seeds, evaluations = (2, 4) if quick else (SEEDS, EVALUATIONS)
    options |= {"rows": QUICK_ROWS if quick else None}
    tried = search(data, graph, steps=steps // 2 if quick else steps, seeds=range(1 if quick else 2), **options)
    options |= {"evaluate": evaluation_steps(steps, evaluations), "loss_scale": "1/n", "train_metrics": True}
    histories = []
    for best in tuning.best(over_seeds(final(tried), "test_accuracy"), "test_accuracy").itertuples():
        etas = [] if pd.isna(best.eta) else [best.eta]
        histories.append(run(data, graph, [best.rule], steps, range(100, 100 + seeds), etas, **options))
    history = pd.concat(histories, ignore_index=True)
    out = Report(f"{data}: best stepsizes, 8 nodes, random graph, {steps:,} steps, {seeds} seeds", quick)
    out.tables[f"{name}-final"] = results(history)
    out.data[f"{name}-history"] = history
    for file, x, words in ((name, "epochs", "mean and range"), (f"{name}-seconds", "seconds", f"{seeds} seeds side by side")):
        with out.draw(file, len(METRICS), f"{data}: each method at its best stepsize, {words}") as axes:
            for axis, metric in zip(axes, METRICS, strict=True):
                draw_lines(axis, history, metric, x)
    return out


def results(history: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for rule, same in final(history).groupby("rule", sort=False):
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(same.eta.iloc[0])}
        row |= {LABELS[metric]: same[metric].mean() for metric in METRICS}
        rows.append(row | {"spread of accuracy": same.test_accuracy.std(), "seconds": same.seconds.mean()})
    return pd.DataFrame(rows)
