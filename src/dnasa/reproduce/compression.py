"""Beyond the paper: accuracy against bytes for every compression of messages, and how much gamma matters.

The stepsizes of D-SGD and D-SGT are chosen on validation rows for each compression anew; D-NASA and AdaNASA have none, and
gamma is the default. The nodes' data differ much, so that little is learned without exchanges.
"""

from collections.abc import Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.channels import compression
from dnasa.comparing import tuning
from dnasa.core import choose
from dnasa.data import Dataset, divide, divide_validation, hold_out
from dnasa.engine.loop import solve
from dnasa.plots import panels, title
from dnasa.problems.classification import Classification
from dnasa.problems.problem import Problem
from dnasa.reproduce import network_tasks
from dnasa.reproduce.network_tasks import ACCURACY, NODES, Task, make_problem, with_data
from dnasa.reproduce.networks import averages, chosen
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.runs.result import Result

ETAS = (0.1, 0.3, 1.0, 3.0)
GRIDS: network_tasks.Etas = dict.fromkeys(("dsgd", "dsgt"), ETAS)
RULES = (*GRIDS, "dnasa", "adanasa")
PLAIN = "none"
COMPRESSIONS = ("8bit", "4bit", "sign", "topk:0.1", "topk:0.01", "randk:0.1", "randk:0.01")
FACTORS = (0.5, 2.0, 4.0)  # of the default gamma
VARIED = ("digits",)  # where other gammas are tried
POINTS = 10  # evaluations
SAVED = ("compress", "rule", "eta", "seed", "steps", "step", "bytes", "validation", "test")

DIGITS, MNIST = (Task(name, different="by_label", etas=GRIDS) for name in ("digits", "mnist"))
TASKS = {"digits": DIGITS._replace(steps=400), "mnist": MNIST._replace(steps=600)}
ON_GPU = {"cifar10": network_tasks.CIFAR10._replace(steps=1000, etas=dict.fromkeys(GRIDS, (0.03, *ETAS)))}
QUICK = {"digits": DIGITS._replace(steps=200), "mnist": MNIST._replace(steps=60, rows=10_000)}
SEEDS = 3


def run(
    quick: bool = False,
    progress: bool | None = None,
    device: str = "cpu",
    folder: str | Path = "figures",
    only: str | None = None,
) -> Report:
    """Runs what is missing of all tasks, or of the task `only`; reports all that are complete."""
    every = QUICK if quick else TASKS | ON_GPU
    tasks = {only: choose("part", only, every)} if only else every if device == "cuda" or quick else TASKS
    place = Path(folder) / ("compression-quick" if quick else "compression")
    study = Study(1 if quick else SEEDS, place, device, progress, varied=() if quick else VARIED)
    return make_report(study, every, study.run(tasks), quick)


class Study(NamedTuple):
    """How large the study is, and where its results are saved."""

    seeds: int
    folder: Path
    device: str
    progress: bool | None
    varied: tuple[str, ...]

    def saved(self, name: str) -> Saved:
        return Saved(self.folder / f"{name}.csv", SAVED)

    def entries(self, name: str) -> list[str]:
        """All compressions of a task, those with other gammas last."""
        defaults = {how: gamma for how in COMPRESSIONS if (gamma := gamma_of(how))}
        others = [
            f"{how},gamma={min(1.0, factor * gamma):.3g}"
            for how, gamma in defaults.items()
            for factor in FACTORS
            if factor * gamma < 2 and gamma != min(1.0, factor * gamma)
        ]
        return [PLAIN, *COMPRESSIONS, *(others if name in self.varied else ())]

    def missing(self, name: str, task: Task, seed: int) -> list[tuple[str, str, list[float]]]:
        """The compressions, rules and stepsizes that have not been run; NaN for rules that need no stepsize."""
        saved, out = self.saved(name), []
        for how in self.entries(name):
            for rule in RULES:
                known = {"compress": how, "rule": rule, "steps": task.steps, "seed": seed}
                todo = [eta for eta in task.etas.get(rule, (nan,)) if saved.find(eta=eta, **known).empty]
                if todo:
                    out.append((how, rule, todo))
        return out

    def complete(self, name: str, task: Task) -> list[int]:
        """The seeds with which everything has been run."""
        return [seed for seed in range(self.seeds) if not self.missing(name, task, seed)]

    def run(self, tasks: dict[str, Task]) -> list[str]:
        """Returns a line for each task whose data is not there."""
        notes = []
        for name, task in tasks.items():
            if len(self.complete(name, task)) < self.seeds:
                notes += with_data(name, task, partial(self.run_task, name, task))
        return notes

    def run_task(self, name: str, task: Task, data: Dataset) -> None:
        """Stepsizes and seeds run side by side where all models are computed together."""
        train, validation = hold_out(data)
        shards, validated = divide(data, train, task.different, NODES), divide_validation(validation, NODES)
        problem = make_problem(task, data, shards, self.device, validation=validated)
        together, every = isinstance(problem, Classification), range(self.seeds)
        for seeds in [every] if together else [[seed] for seed in every]:
            for how, rule, etas in self.missing(name, task, seeds[-1]):
                for some in [etas] if together else [[eta] for eta in etas]:
                    self.run_rule(name, task, problem, how, rule, some, seeds)

    def run_rule(
        self, name: str, task: Task, problem: Problem, how: str, rule: str, etas: list[float], seeds: Sequence[int]
    ) -> None:
        points = sorted({round(task.steps * i / POINTS) for i in range(1, POINTS + 1)})
        options: Any = {"steps": task.steps, "seed": seeds, "evaluate": points, "progress": self.progress}
        options |= {"eta": None if np.isnan(etas[0]) else etas, "compress": None if how == PLAIN else how}
        done = solve(problem, topology.ring(NODES), rule, **options)
        self.saved(name).add(rows_of(done).assign(compress=how)[list(SAVED)])

    def table(self, name: str, task: Task) -> pd.DataFrame | None:
        """The results of a task, of the seeds that are complete."""
        seeds, table = self.complete(name, task), self.saved(name).find(steps=task.steps)
        return table[table.seed.isin(seeds)] if seeds else None


def gamma_of(how: str) -> float | None:
    """CHOCO's gamma; None without memory."""
    return compression(how).settings[1]


def rows_of(result: Result) -> pd.DataFrame:
    """Every evaluation, with what a node had sent by then."""
    history = result.history
    return history.assign(
        eta=history.get("eta", nan),
        bytes=history.bytes / NODES,
        validation=history.validation_accuracy,
        test=history.test_accuracy,
        steps=result.settings["steps"],
    )


# ---------------------------------------------------------------- tables and findings


def best_rows(table: pd.DataFrame, how: str) -> pd.DataFrame:
    """Of each rule, the last evaluation at the stepsize that is best on the validation rows, mean over the seeds."""
    last = table[(table.compress == how) & (table.step == table.steps)]
    best = chosen(averages(last, ACCURACY), ACCURACY).loc[list(RULES)]
    return best.assign(bytes=last.groupby("rule").bytes.mean())


def summary(table: pd.DataFrame, hows: list[str]) -> pd.DataFrame:
    """For people: what each rule has reached with each compression, and at which stepsize."""
    plain, rows = best_rows(table, PLAIN), []
    for how in hows:
        best = best_rows(table, how)
        gamma = None if how == PLAIN else gamma_of(how)
        row = {"compression": how.partition(",")[0], "gamma": "" if gamma is None else f"{gamma:.3g}"}
        row["bytes"] = f"1/{plain.bytes['dsgd'] / best.bytes['dsgd']:.1f}"
        for rule in RULES:
            edge = ", edge" * bool(best.edge[rule])
            eta = "" if np.isnan(best.eta[rule]) else f" ({tuning.eta_text(best.eta[rule])}{edge})"
            row[title(rule)] = ACCURACY.text(best.test[rule]) + eta
        rows.append(row)
    return pd.DataFrame(rows)


def findings(name: str, table: pd.DataFrame, varied: bool) -> list[str]:
    plain, lines = best_rows(table, PLAIN), []
    for rule in RULES:
        lost = {how: ACCURACY.gain(best_rows(table, how).test[rule], plain.test[rule]) for how in COMPRESSIONS}
        parts = ", ".join(f"{how} {ACCURACY.signed(gain) or 'diverged'}" for how, gain in lost.items())
        lines.append(f"{name}: {title(rule)} {ACCURACY.text(plain.test[rule])} uncompressed; points gained by {parts}.")
    if varied:
        lines += [gamma_finding(name, table, how) for how in COMPRESSIONS if gamma_of(how)]
    return lines


def gamma_finding(name: str, table: pd.DataFrame, how: str) -> str:
    """How much a better gamma than the default would gain."""
    every = {label: best_rows(table, label).test for label in table.compress.unique() if label.partition(",")[0] == how}
    gains = []
    for rule in RULES:
        values = {gamma_of(label): test[rule] for label, test in every.items()}
        best = max(values, key=lambda gamma: values[gamma])
        gain = ACCURACY.signed(ACCURACY.gain(values[best], values[gamma_of(how)]))
        gains.append(f"{title(rule)} {gain} at {best:.3g}")
    return f"{name}: {how}, default gamma {gamma_of(how):.3g}; points gained by the best gamma: {', '.join(gains)}."


def make_report(study: Study, tasks: dict[str, Task], notes: list[str], quick: bool) -> Report:
    report = Report("compression", f"Compressed messages: test accuracy (best eta), {NODES} nodes on a ring")
    report.findings += notes
    for name, task in tasks.items():
        table = study.table(name, task)
        if table is None:
            continue
        varied, seeds = name in study.varied, table.seed.nunique()
        report.findings.append(f"{name}: {seeds} seed{'s' * (seeds > 1)}, {task.different}, {task.steps:,} steps.")
        report.tables[f"compression-{name}"] = summary(table, [PLAIN, *COMPRESSIONS])
        report.figures[f"compression-{name}"] = draw(name, table, task, quick)
        report.findings += findings(name, table, varied)
        if varied:
            report.tables[f"compression-{name}-gamma"] = summary(table, study.entries(name)[1 + len(COMPRESSIONS) :])
    return report


# ---------------------------------------------------------------- pictures


def draw(name: str, table: pd.DataFrame, task: Task, quick: bool) -> Figure:
    """Accuracy on the validation rows against what a node has sent, a panel for each rule."""
    figure, axes = panels(len(RULES), width=3.6, height=3.6)
    palette = matplotlib.color_sequences["tab10"]
    for axis, rule in zip(axes[0], RULES, strict=True):
        for colour, how in zip(palette, (PLAIN, *COMPRESSIONS), strict=False):
            eta = best_rows(table, how).eta[rule]
            same = table[(table.compress == how) & (table.rule == rule)]
            same = same[same.eta.isna() if np.isnan(eta) else same.eta == eta]
            curve = same.groupby("step")[["bytes", "validation"]].mean()
            axis.plot(curve.bytes / 1e6, curve.validation, color=colour, label=how, linewidth=1.4)
        axis.set_xscale("log")
        axis.set_title(title(rule), fontsize=10)
        axis.set_xlabel("MB sent by a node")
    axes[0, 0].set_ylabel("accuracy on validation rows")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=8, fontsize=8)
    figure.suptitle(f"{name}, {task.different}, ring of 8, {task.steps:,} steps" + " (quick run)" * quick)
    return figure
