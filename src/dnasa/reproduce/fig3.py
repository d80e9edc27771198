"""Figure 3: test accuracy against the stepsize on real data; D-NASA, which needs none, is a horizontal line."""

import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.engine.loop import solve
from dnasa.plots import panels, title
from dnasa.reproduce.report import Report
from dnasa.tasks.tasks import classification
from dnasa.topology import Topology

ETAS = (0.005, 0.01, 0.5, 1, 5, 10, 50, 100)
RULES = ("dsgd", "dsgt", "dasagt", "d2", "dnasa")
STEPS = {"mnist": 3000, "a9a": 1000, "miniboone": 1000, "covertype": 1000}
QUICK = {"mnist": 60, "a9a": 300, "miniboone": 300, "covertype": 300}
SEEDS = 10


def run(
    quick: bool = False, progress: bool | None = None, device: str = "cpu", data: Sequence[str] = tuple(STEPS)
) -> Report:
    """MNIST, a9a, MiniBooNE and covertype, 8 nodes on the paper's random graph, batch 32."""
    seeds = 1 if quick else SEEDS
    report = Report("fig3", f"Figure 3: 8 nodes, random graph (rho = 0.375), {seeds} seeds")
    figure, axes = panels(2, (len(data) + 1) // 2) if len(data) > 1 else panels(1)
    for axis, name in zip(axes.flat, data, strict=False):
        steps = (QUICK if quick else STEPS)[name]
        began = time.perf_counter()
        try:
            table = grid_search(name, topology.paper_random(), steps, seeds, progress, device)
        except InputError as error:
            show_error(axis, name, str(error))
            report.findings.append(f"{name}: {error}")
            continue
        draw(axis, table, f"{name}, {steps:,} steps")
        report.tables[f"fig3-{name}"] = summary(table)
        report.data[f"fig3-{name}-grid"] = table
        runs = len(table) * seeds
        duration = f"{runs} runs of {steps:,} steps in {time.perf_counter() - began:.0f} s"
        report.findings.append(f"{name}: {sentence(table)} ({duration})")
    figure.suptitle("Test accuracy against stepsize, 8 nodes, random graph" + (" (quick run)" if quick else ""))
    report.figures["fig3"] = figure
    return report


def grid_search(
    name: str | Dataset,
    graph: Topology,
    steps: int,
    seeds: int,
    progress: bool | None,
    device: str,
    how: str = "iid",
    etas: Sequence[float] | None = None,
) -> pd.DataFrame:
    """The final accuracy of every rule and stepsize, all seeds in one batch; the loss is scaled by 1/n as in the paper."""
    problem = classification(name, graph.nodes, how, loss_scale="1/n", device=device, train_metrics=False)
    # D2 needs eigenvalues above -1/3
    rules = [rule for rule in RULES if rule != "d2" or graph.smallest_eigenvalue > -1 / 3 + 1e-9]
    result = solve(
        problem, graph, rules, eta=etas or ETAS, steps=steps, seed=range(seeds), evaluate=[steps], progress=progress
    )
    return tuning.grid(result, "test_accuracy")


def draw(axis: Axes, table: pd.DataFrame, name: str) -> None:
    drawing.draw_stepsizes(axis, table, "test_accuracy")
    axis.set_title(name)
    axis.legend(fontsize=7, loc="lower center")


def show_error(axis: Axes, name: str, why: str) -> None:
    import textwrap

    axis.set_title(name)
    axis.text(0.5, 0.5, textwrap.fill(why, 38), ha="center", va="center", fontsize=8, transform=axis.transAxes)
    axis.set_xticks([])
    axis.set_yticks([])


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
