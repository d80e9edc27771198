"""Beyond the paper: the first steps from a trained model, on all of its parameters and on a part of them.

AdaNASA trains a model. Then each rule starts from its weights, on the same data and on another partition of it. Partial
training, as with adapters, is of the last layer and all biases; the other parameters are constant.
"""

from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.plots import colours, title
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import NODES, QUICK, TASKS, WITHOUT_DATA
from dnasa.reproduce.report import Report, draw_lines

RULES = ("adanasa", "dnasa", "dadam")
ETAS = (1e-4, 1e-3)  # of D-Adam
EARLY = 50  # steps in which the model must not be harmed
EVERY = {"cifar10": 5}  # steps from one test to the next: with batch norm a test takes longer than a step
MOST = 2.0  # points that it may lose in them
TRAINED = ("all parameters", "last layer and biases")
PLACES: dict[str, Any] = {"same data": {}, "another partition": {"partition": "dirichlet(0.1)"}}
DEFAULT: Any = {"partition": "dirichlet(0.1)", "graph": topology.make("exact", NODES), "rounds": 2}
MORE_PLACES = {"cifar10": {"another partition, default graph": DEFAULT}}  # a ring loses much there


def parts(quick: bool) -> list[Part]:
    """MNIST with LeNet and, on a GPU, CIFAR-10 with the residual net; the digits where there is no data."""
    steps, before, seeds, tasks = (60, 200, 1, QUICK) if quick else (200, 1000, 3, TASKS)
    every = {name: (tasks | WITHOUT_DATA)[name] for name in ("mnist", "cifar10", "digits")}
    return [
        Part(name, runs(name, steps, before, seeds), task, gpu=name == "cifar10", fallback=name == "digits")
        for name, task in every.items()
        if not (quick and name == "cifar10")
    ]


def runs(name: str, steps: int, before: int, seeds: int) -> list[RunSpec]:
    """The accuracy is measured at the first steps, and at every tenth after them."""
    training = RunSpec(before, ["adanasa"])
    evaluate = [*range(0, EARLY, EVERY.get(name, 1)), *range(EARLY, steps + 1, 10)]
    places = PLACES | MORE_PLACES.get(name, {})

    def continued(trained: str, data: str) -> RunSpec:
        labels = {"trained": trained, "data": data}
        start: Any = {"start_from": training, "last_layer": trained == TRAINED[1]}
        return RunSpec(steps, RULES, {"dadam": ETAS}, range(seeds), labels, evaluate=evaluate, **places[data], **start)

    return [continued(trained, data) for trained in TRAINED for data in places]


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    caption = f"{found.last_step} steps from a trained network, {NODES} nodes on a ring unless stated, {found.seeds}"
    out = Report("finetuning", caption, found.quick)
    for name, history in found.rows.items():
        table = summary(history)
        out.findings += [f"{name}, {line}" for line in findings(table)]
        out.tables[f"finetuning-{name}"] = shown(table)
        draw(out, name, history)
    return out


def summary(history: pd.DataFrame) -> pd.DataFrame:
    """For each rule: the accuracy at the start, the largest fall of any seed in the first steps, and the end."""
    rows = []
    keys = ["trained", "data", "rule", "eta"]
    for names, same in history.groupby(keys, sort=False, dropna=False):
        table = same.pivot(index="step", columns="seed", values="accuracy")
        start, end = table.iloc[0].mean(), table.iloc[-1].mean(skipna=False)
        early = table[(table.index > 0) & (table.index <= EARLY)]
        fall = 100 * (table.iloc[0] - early.min(skipna=False)).max(skipna=False)
        labels = dict(zip(keys, names, strict=True))
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


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The printed table."""
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


def draw(out: Report, name: str, history: pd.DataFrame) -> None:
    """The points lost since the start in the first steps, a panel for each kind of training and data."""
    colour = colours(RULES)
    keys = ["trained", "data", "rule", "eta", "seed"]
    start = history.groupby(keys, dropna=False).accuracy.transform("first")
    early = history.assign(points=100 * (history.accuracy - start), consensus=history.accuracy)
    early = early[early.step <= EARLY]
    groups = list(early.groupby(["trained", "data"], sort=False))

    def style(rule: str, eta: float) -> dict[str, str]:
        return {"color": colour[rule], "linestyle": "--" if eta == ETAS[0] else "-"}

    with out.draw(f"finetuning-{name}", len(groups), f"{name}: the first {EARLY} steps from a trained model") as axes:
        for axis, ((trained, data), same) in zip(axes, groups, strict=True):
            draw_lines(axis, same, "points", ["rule", "eta"], label, style)
            axis.set_ylabel("change of test accuracy (points)")
            axis.set_title(f"{trained}, {data}")


SAVED = ("trained", "data", "rule", "eta", "seed", "step", "accuracy")
EXPERIMENT = Experiment("finetuning", parts, report, SAVED, metric="accuracy", selectable=True)
