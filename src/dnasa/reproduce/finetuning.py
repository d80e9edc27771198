"""Beyond the paper: the first steps from a trained network, on all of its parameters and on a part of them.

AdaNASA trains a network. Then each rule starts from its weights, on the same data and on another partition of it. Partial
training, as with adapters, is of the last layer and all biases; the other parameters are constant.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.core import choose
from dnasa.data import Dataset, divide
from dnasa.engine.loop import solve
from dnasa.plots import by_seed, colours, curve, finish, panels, title
from dnasa.problems.sharded import Sharded
from dnasa.problems.supervised import Supervised, cross_entropy
from dnasa.reproduce.network_tasks import NODES, QUICK, TASKS, WITHOUT_DATA, Task, make_problem, with_data
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.tasks import models

RULES = ("adanasa", "dnasa", "dadam")
ETAS = (1e-4, 1e-3)  # of D-Adam
EARLY = 50  # steps in which the network must not be harmed
MOST = 2.0  # points that it may lose in them
TRAINED = ("all parameters", "last layer and biases")
PARTITIONS = {"same data": "iid", "another partition": "dirichlet(0.1)"}
SAVED = ("trained", "data", "rule", "eta", "seed", "step", "accuracy")


class Study(NamedTuple):
    tasks: dict[str, Task]  # their steps are those before
    steps: int
    seeds: int
    folder: Path
    device: str
    progress: bool | None


def run(
    quick: bool = False,
    progress: bool | None = None,
    device: str = "cpu",
    folder: str | Path = "figures",
    only: str | None = None,
) -> Report:
    """MNIST with LeNet and, on a GPU, CIFAR-10 with the residual net; the digits where there is no data."""
    names = ("mnist", "cifar10") if device == "cuda" and not quick else ("mnist",)
    steps, before, seeds, tasks = (60, 200, 1, QUICK) if quick else (200, 1000, 3, TASKS)
    every = {name: (tasks | WITHOUT_DATA)[name]._replace(steps=before) for name in (*names, "digits")}
    place = Path(folder) / ("finetuning-quick" if quick else "finetuning")
    study = Study(every, steps, seeds, place, device, progress)
    if only:
        choose("part", only, every)
    notes = [note for name in ([only] if only else names) for note in run_task(study, name)]
    if not only and len(notes) == len(names):
        run_task(study, "digits")
    return make_report(study, notes, quick)


# ---------------------------------------------------------------- runs


def run_task(study: Study, name: str) -> list[str]:
    """Runs what is missing of a task; returns a line where its data is not there."""
    saved, task = saved_of(study, name), study.tasks[name]
    todo = [(trained, how) for trained in TRAINED for how in PARTITIONS if not is_complete(study, saved, trained, how)]

    def work(data: Dataset) -> None:
        weights = pretrained(study, task, data)
        for trained, how in todo:
            history = continued(study, task, data, weights, trained, PARTITIONS[how])
            saved.add(history.assign(trained=trained, data=how)[list(SAVED)])

    return with_data(name, task, work) if todo else []


def saved_of(study: Study, name: str) -> Saved:
    return Saved(study.folder / f"{name}.csv", SAVED)


def is_complete(study: Study, saved: Saved, trained: str, how: str) -> bool:
    return not saved.find(trained=trained, data=how, step=study.steps).empty


def pretrained(study: Study, task: Task, data: Dataset) -> Tensor:
    """The parameters after training with AdaNASA."""
    problem = make_problem(task, data, division(data, "iid"), study.device)
    graph, steps = topology.ring(NODES), task.steps
    return solve(problem, graph, "adanasa", steps=steps, evaluate=[steps], progress=study.progress).mean


def division(data: Dataset, how: str) -> list[np.ndarray]:
    return divide(data, np.arange(len(data.labels)), how, NODES)


def continued(study: Study, task: Task, data: Dataset, weights: Tensor, trained: str, how: str) -> pd.DataFrame:
    """The accuracy of every rule at each of the first steps, and at every tenth after them."""
    shards = division(data, how)
    options: Any = {"steps": study.steps, "seed": range(study.seeds), "progress": study.progress}
    if trained == TRAINED[0]:
        problem = make_problem(task, data, shards, study.device)
        options["start"] = weights
    else:
        problem = of_last_layer(task, data, shards, weights, study.device)
    evaluate = [*range(EARLY), *range(EARLY, study.steps + 1, 10)]
    history = solve(problem, topology.ring(NODES), list(RULES), eta=ETAS, evaluate=evaluate, **options).history
    return history.rename(columns={"test_accuracy": "accuracy"})


def of_last_layer(task: Task, data: Dataset, shards: list[np.ndarray], weights: Tensor, device: str) -> Sharded:
    """The network with these parameters, of which the last layer and all biases are trained."""
    network = models.make(task.model or models.default(data), data)()
    vector_to_parameters(weights.cpu(), network.parameters())
    last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or parameter is last.weight)
    return Supervised(
        network, cross_entropy, data, shards, task.batch, task.augment, device=device, train_metrics=False
    )


# ---------------------------------------------------------------- tables and findings


def summary(history: pd.DataFrame) -> pd.DataFrame:
    """For each rule: the accuracy at the start, the largest fall of any seed in the first steps, and the end."""
    rows = []
    for (trained, how, rule, eta), same in history.groupby(list(SAVED[:4]), sort=False, dropna=False):
        table = by_seed(same, "accuracy")
        start, end = table.iloc[0].mean(), table.iloc[-1].mean(skipna=False)
        early = table[(table.index > 0) & (table.index <= EARLY)]
        fall = 100 * (table.iloc[0] - early.min(skipna=False)).max(skipna=False)
        labels = {"trained": trained, "data": how, "rule": rule, "eta": eta}
        rows.append(labels | {"start": start, "fall": fall, "end": end, "gain": 100 * (end - start)})
    return pd.DataFrame(rows)


def findings(table: pd.DataFrame) -> list[str]:
    """Whether AdaNASA reaches the target; a diverged run does not."""
    lines = []
    for row in table[table.rule == "adanasa"].itertuples():
        reached = round(row.fall, 6) <= MOST and round(row.gain, 6) >= 0
        lines.append(
            f"{row.trained}, {row.data}: AdaNASA starts at {100 * row.start:.2f} %, falls by at most {max(row.fall, 0):.2f} "
            f"points in the first {EARLY} steps and ends {row.gain:+.2f} points from its start: target "
            f"{'reached' if reached else 'NOT reached'} (at most {MOST:g} points, not below the start)."
            if np.isfinite(row.fall) and np.isfinite(row.gain)
            else f"{row.trained}, {row.data}: AdaNASA diverged."
        )
    return lines


def make_report(study: Study, notes: list[str], quick: bool) -> Report:
    seeds = f"{study.seeds} seed{'s' * (study.seeds > 1)}"
    report = Report("finetuning", f"{study.steps} steps from a trained network, ring of {NODES}, {seeds}")
    report.findings += notes
    for name in study.tasks:
        history = saved_of(study, name).table
        if history.empty:
            continue
        table = summary(history)
        report.findings += [f"{name}, {line}" for line in findings(table)]
        report.tables[f"finetuning-{name}"] = shown(table)
        report.figures[f"finetuning-{name}"] = draw(name, history, quick)
    return report


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """For people."""
    names = {
        "start": "accuracy at the start",
        "fall": f"largest fall in {EARLY} steps (points)",
        "end": "accuracy at the end",
        "gain": "change (points)",
    }
    rules = [label(rule, eta) for rule, eta in zip(table.rule, table.eta, strict=True)]
    return table.assign(rule=rules).drop(columns="eta").rename(columns=names)


def label(rule: str, eta: float) -> str:
    return title(rule) if pd.isna(eta) else f"{title(rule)}, {tuning.eta_label(eta)}"


def draw(name: str, history: pd.DataFrame, quick: bool) -> Figure:
    """The accuracy against steps, a panel for each kind of training and data."""
    groups = list(history.groupby(["trained", "data"], sort=False))
    figure, axes = panels(2, -(-len(groups) // 2))
    colour = colours(RULES)
    for axis, ((trained, how), same) in zip(axes.flat, groups, strict=False):
        for (rule, eta), rows in same.groupby(["rule", "eta"], sort=False, dropna=False):
            table = by_seed(rows, "accuracy")
            style = "--" if eta == ETAS[0] else "-"
            curve(axis, table.index, table, label(str(rule), eta), color=colour[str(rule)], linestyle=style)
        finish(axis, "step", "test accuracy")
        axis.set_title(f"{trained}, {how}", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(f"{name}: from a trained network" + " (quick run)" * quick)
    return figure
