"""Beyond the paper: short and long runs, small and large models, small and large batches.

AdaNASA, untuned, against the best of five stepsizes of D-Adam, all on the exact graph and iid data. The stepsize is the one
with the best result on the test rows, which flatters D-Adam. Results are saved in parts, one for each task, length and batch.
"""

from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing.plots import colours, drawable
from dnasa.reproduce.choosing import averages, chosen
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import (
    ADAM,
    GENERATED,
    LOSS,
    NODES,
    R2,
    SMALL_TEXT,
    TABLE,
    TASKS,
    TEXT,
    Measure,
    Task,
)
from dnasa.reproduce.report import Report

EXACT = topology.exact(NODES)
STEPS, QUICK_STEPS = (300, 500, 1500, 6000), (10, 40)
BATCHES, QUICK_BATCHES = (4, 32), (2, 8)
ETAS, QUICK_ETAS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1), (1e-3, 1e-2)  # of D-Adam; large models have those of `ADAM`
SEEDS = 3
LARGE = ("gpt", "cifar10")
ON_GPU = (*LARGE, "gpt-small", "lstm", "mnist")
GPT, SMALL_GPT = (task._replace(measure=LOSS._replace(target=0.03)) for task in (TEXT, SMALL_TEXT))
TASKS_OF_LENGTHS = {
    "gpt-small": SMALL_GPT,
    "gpt": GPT,
    "lstm": SMALL_GPT._replace(model="lstm:1,128,32"),
    "cifar10": TASKS["cifar10-group"],
    "mnist": TASKS["mnist"],
    "a9a": TASKS["a9a"],
    "covertype": TASKS["covertype"],
    "regression": Task(TABLE, measure=R2),
}
QUICK = {  # what needs no data
    "gpt-small": SMALL_GPT._replace(data=GENERATED, model="gpt:1,12,8", rows=2000),
    "lstm": SMALL_GPT._replace(data=GENERATED, model="lstm:1,16,8", rows=2000),
    "digits": Task("digits"),
    "regression": Task(TABLE, measure=R2, rows=2000),
}


def parts(quick: bool) -> list[Part]:
    tasks, steps, batches = (QUICK, QUICK_STEPS, QUICK_BATCHES) if quick else (TASKS_OF_LENGTHS, STEPS, BATCHES)

    def part(name: str, length: int, batch: int) -> Part:
        etas = QUICK_ETAS if quick else ADAM if name in LARGE else ETAS
        options: Any = {"graph": EXACT, "batch": batch}
        runs = RunSpec(length, ("adanasa", "dadam"), {"dadam": etas}, range(1 if quick else SEEDS), **options)
        return Part(f"{name}/{length}/{batch}", [runs], tasks[name], gpu=name in ON_GPU and not quick)

    return [part(name, length, batch) for name in tasks for length in steps for batch in batches]


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("lengths", f"AdaNASA and the best stepsize of D-Adam, exact graph of {NODES}, iid", found.quick)
    if found.parts:
        cells = pd.DataFrame([cell(part, found.rows[name]) for name, part in found.parts.items()])
        out.tables["lengths"] = shown(cells)
        out.findings = findings(cells)
        draw(out, cells)
    return out


def cell(part: Part, rows: pd.DataFrame) -> dict[str, Any]:
    """Both results, the chosen stepsize, and by how much AdaNASA is better."""
    (runs,), measure = part.runs, part.task.measure
    best = chosen(averages(rows.assign(validation=rows.test), measure), measure)
    ours, theirs = best.test["adanasa"], best.test["dadam"]
    gain = measure.gain(ours, theirs) if np.isfinite(ours) else -np.inf
    place = {"task": part.name.partition("/")[0], "steps": runs.steps, "batch": runs.batch, "measure": measure}
    results = {"adanasa": ours, "dadam": theirs, "eta": best.eta["dadam"], "edge": best.edge["dadam"]}
    return place | results | {"gain": gain, "within": gain >= -measure.target, "seeds": best.runs["adanasa"]}


def shown(cells: pd.DataFrame) -> pd.DataFrame:
    """The printed table."""
    rows = [
        {
            "task": row.task,
            "steps": f"{row.steps:,}",
            "batch": row.batch,
            "AdaNASA": row.measure.text(row.adanasa),
            "D-Adam (eta)": f"{row.measure.text(row.dadam)} ({row.eta:g}{', edge' if row.edge else ''})",
            "better by": row.measure.signed(row.gain),
            "within": "yes" if row.within else "NO",
            "seeds": row.seeds,
        }
        for row in cells.itertuples()
    ]
    return pd.DataFrame(rows)


def findings(cells: pd.DataFrame) -> list[str]:
    """How many cells reach the target, how many are better than D-Adam, and which miss it."""
    targets = {measure.unit: measure.amount(measure.target) for measure in cells.measure}
    allowed = " or ".join(text if unit else f"{text} in loss" for unit, text in sorted(targets.items()))
    missed = [
        f"{row.task}, {row.steps:,} steps, batch {row.batch} ({row.measure.signed(row.gain) or 'diverged'})"
        for row in cells[~cells.within].itertuples()
    ]
    first = (
        f"AdaNASA, untuned, is within {allowed} of D-Adam with its best stepsize, chosen on the test rows, in "
        f"{cells.within.sum()} of {len(cells)} cells, and better in {(cells.gain > 0).sum()}."
    )
    return [first, *([f"Not within the target: {'; '.join(missed)}."] if missed else [])]


def draw(out: Report, cells: pd.DataFrame) -> None:
    """Draw how much better AdaNASA is against the number of steps, a panel for each task and a line for each batch."""
    caption = "AdaNASA, untuned, against the best stepsize of D-Adam"
    tasks = list(cells.groupby("task", sort=False))
    with out.draw("lengths", len(tasks), caption, columns=4, width=3.3, height=2.9) as axes:
        for axis, (name, same) in zip(axes, tasks, strict=True):
            measure: Measure = same.measure.iloc[0]
            axis.axhline(0, color="black", linewidth=0.8)
            axis.axhline(-measure.target, color="black", linewidth=0.8, linestyle=":", label="target")
            for (batch, rows), style in zip(same.groupby("batch"), ("o-", "s--"), strict=False):
                axis.plot(
                    rows.steps,
                    drawable(rows.gain),
                    style,
                    color=colours(["adanasa"])["adanasa"],
                    label=f"batch {batch}",
                )
            axis.set(xscale="log", xlabel="steps", ylabel=f"better by ({measure.unit or 'loss'})", title=name)
            axis.set_xticks(same.steps.unique(), [f"{steps:,}" for steps in same.steps.unique()], minor=False)
            axis.minorticks_off()


COLUMNS = ("rule", "eta", "seed", "steps", "test")
EXPERIMENT = Experiment("lengths", parts, report, COLUMNS, selectable=True)
