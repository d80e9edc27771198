"""Beyond the paper: accuracy against bytes for every compression of messages, and how much gamma matters.

The stepsizes of D-SGD and D-SGT are chosen on validation rows for each compression; D-NASA and AdaNASA have none, and
gamma is the default. The nodes' data differ much, so that little is learned without exchanges.
"""

from typing import Any

import numpy as np
import pandas as pd

from dnasa.channels import compression
from dnasa.comparing import tuning
from dnasa.comparing.drawing import AXES
from dnasa.comparing.plots import finish, title
from dnasa.comparing.style import DASHES, MARKERS, OKABE_ITO
from dnasa.reproduce import network_tasks
from dnasa.reproduce.choosing import averages, chosen
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, evaluation_steps, seeds_text
from dnasa.reproduce.network_tasks import ACCURACY, NODES, Task
from dnasa.reproduce.report import Report

ETAS = (0.1, 0.3, 1.0, 3.0)
GRIDS: network_tasks.Etas = dict.fromkeys(("dsgd", "dsgt"), ETAS)
RULES = (*GRIDS, "dnasa", "adanasa")
PLAIN = "none"
COMPRESSIONS = ("8bit", "4bit", "sign", "topk:0.1", "topk:0.01", "randk:0.1", "randk:0.01")
COLOURS = dict(zip((PLAIN, "8bit", "4bit", "sign", "topk", "randk"), OKABE_ITO, strict=False))
FACTORS = (0.5, 2.0, 4.0)  # of the default gamma
VARIED = ("digits",)  # where other gammas are tried
POINTS = 10  # evaluations

DIGITS, MNIST = (Task(name, different="by_label", etas=GRIDS) for name in ("digits", "mnist"))
CIFAR10 = network_tasks.CIFAR10._replace(steps=1000, etas=dict.fromkeys(GRIDS, (0.03, *ETAS)))
TASKS = {"digits": DIGITS._replace(steps=400), "mnist": MNIST._replace(steps=600), "cifar10": CIFAR10}
QUICK = {"digits": DIGITS._replace(steps=200), "mnist": MNIST._replace(steps=60, rows=10_000)}
SEEDS = 3


def parts(quick: bool) -> list[Part]:
    tasks, seeds = (QUICK, 1) if quick else (TASKS, SEEDS)
    return [
        Part(name, runs(task, name in VARIED and not quick, seeds), task, gpu=name == "cifar10")
        for name, task in tasks.items()
    ]


def runs(task: Task, varied: bool, seeds: int) -> list[RunSpec]:
    options: Any = {
        "partition": task.different,
        "validation": True,
        "evaluate": evaluation_steps(task.steps, POINTS)[1:],
    }
    return [
        RunSpec(
            task.steps,
            [rule],
            task.etas,
            range(seeds),
            labels={"compress": how},
            compress=None if how == PLAIN else how,
            **options,
        )
        for how in (PLAIN, *COMPRESSIONS, *(other_gammas() if varied else ()))
        for rule in RULES
    ]


def other_gammas() -> list[str]:
    """The compressions with memory, with other gammas than the default."""
    defaults = {how: gamma for how in COMPRESSIONS if (gamma := gamma_of(how))}
    return [
        f"{how},gamma={min(1.0, factor * gamma):.3g}"
        for how, gamma in defaults.items()
        for factor in FACTORS
        if factor * gamma < 2 and gamma != min(1.0, factor * gamma)
    ]


def gamma_of(how: str) -> float | None:
    """CHOCO's gamma; None without memory."""
    return compression(how).settings[1]


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("compression", f"Compressed messages: test accuracy (best eta), {NODES} nodes on a ring", found.quick)
    for name, table in found.rows.items():
        task = found.parts[name].task
        others = [how for how in table.compress.unique() if ",gamma=" in how]
        out.findings.append(f"{name}: {seeds_text(table)}, {task.different}, {task.steps:,} steps.")
        out.findings += findings(name, table, bool(others))
        out.tables[f"compression-{name}"] = summary(table, [PLAIN, *COMPRESSIONS])
        if others:
            out.tables[f"compression-{name}-gamma"] = summary(table, others)
        draw(out, name, table, task)
    return out


def best_rows(table: pd.DataFrame, how: str) -> pd.DataFrame:
    """The last evaluation of each rule at its best stepsize on the validation rows, averaged over the seeds."""
    last = table[(table.compress == how) & (table.step == table.steps)]
    best = chosen(averages(last, ACCURACY), ACCURACY).loc[list(RULES)]
    return best.assign(bytes=last.groupby("rule").bytes.mean())


def summary(table: pd.DataFrame, hows: list[str]) -> pd.DataFrame:
    """The printed table: what each rule has reached with each compression, and at which stepsize."""
    plain, rows = best_rows(table, PLAIN), []
    for how in hows:
        best = best_rows(table, how)
        gamma = None if how == PLAIN else gamma_of(how)
        row = {"compression": how.partition(",")[0], "gamma": "" if gamma is None else f"{gamma:.3g}"}
        row["bytes"] = f"1/{plain.bytes['dsgd'] / best.bytes['dsgd']:.1f}"
        for rule in RULES:
            edge = ", edge" if best.edge[rule] else ""
            eta = "" if np.isnan(best.eta[rule]) else f" ({tuning.eta_text(best.eta[rule])}{edge})"
            row[title(rule)] = ACCURACY.text(best.test[rule]) + eta
        rows.append(row)
    return pd.DataFrame(rows)


def findings(name: str, table: pd.DataFrame, varied: bool) -> list[str]:
    plain, lines = best_rows(table, PLAIN), []
    for rule in RULES:
        lost = {how: ACCURACY.gain(best_rows(table, how).test[rule], plain.test[rule]) for how in COMPRESSIONS}
        gains = ", ".join(f"{how} {ACCURACY.signed(gain) or 'diverged'}" for how, gain in lost.items())
        lines.append(f"{name}: {title(rule)} {ACCURACY.text(plain.test[rule])} uncompressed; points gained by {gains}.")
    return lines + [gamma_finding(name, table, how) for how in COMPRESSIONS if varied and gamma_of(how)]


def gamma_finding(name: str, table: pd.DataFrame, how: str) -> str:
    """A sentence on how much a better gamma than the default would gain."""
    every = {label: best_rows(table, label).test for label in table.compress.unique() if label.partition(",")[0] == how}
    gains = []
    for rule in RULES:
        values = {gamma_of(label): test[rule] for label, test in every.items()}
        best = max(values, key=lambda gamma: values[gamma])
        gain = ACCURACY.signed(ACCURACY.gain(values[best], values[gamma_of(how)]))
        gains.append(f"{title(rule)} {gain} at {best:.3g}")
    return f"{name}: {how}, default gamma {gamma_of(how):.3g}; points gained by the best gamma: {', '.join(gains)}."


def draw(out: Report, name: str, table: pd.DataFrame, task: Task) -> None:
    """Accuracy on the validation rows against what a node has sent, a panel for each rule; a marker is the end of a run."""
    caption = f"{name}, {task.different}, ring of {NODES}, {task.steps:,} steps"
    with out.draw(f"compression-{name}", len(RULES), caption) as axes:
        for axis, rule in zip(axes, RULES, strict=True):
            for how, marker in zip((PLAIN, *COMPRESSIONS), MARKERS, strict=False):
                eta = best_rows(table, how).eta[rule]
                same = table[(table.compress == how) & (table.rule == rule)]
                same = same[same.eta.isna() if np.isnan(eta) else same.eta == eta]
                curve = same.groupby("step")[["bytes", "validation"]].mean()
                label = "not compressed" if how == PLAIN else how
                kind, _, share = how.partition(":")
                style: Any = {"color": COLOURS[kind], "linestyle": DASHES[share == "0.01"], "linewidth": 1.4}
                style |= {"marker": marker, "ms": 5, "markevery": [-1]}
                axis.plot(curve.bytes / 1e6, curve.validation, label=label, **style)
            axis.set_xscale("log")
            axis.set_title(title(rule))
            finish(axis, AXES["mb_per_node"], "validation accuracy")


SAVED = ("compress", "rule", "eta", "seed", "steps", "step", "bytes", "validation", "test")
EXPERIMENT = Experiment("compression", parts, report, SAVED, selectable=True)
