"""Beyond the paper: AdaNASA and D-NASA with nothing tuned against tuned methods, on networks that people train.

Every stepsize is chosen on validation rows, a tenth of the training rows on which nobody trains; results are those on the
test rows. Results are saved in parts, one for each task, graph and partition, and one for the central reference. Each part
runs one seed after the other, so that all rules can be compared when the first is complete.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.core import Gradients, InputError, Messages, Rule, Schedule
from dnasa.data import Dataset, divide, divide_validation, hold_out
from dnasa.data.validation import validation_name
from dnasa.engine.loop import solve
from dnasa.plots import panels, title
from dnasa.problems.classification import Classification
from dnasa.reproduce.network_tasks import (
    CENTRAL,
    NODES,
    QUICK,
    TASKS,
    WITHOUT_DATA,
    Measure,
    Task,
    make_problem,
    with_data,
)
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.rules import schedules
from dnasa.rules.dadam import State, dadam
from dnasa.runs.result import Result
from dnasa.statistics import over_seeds

GRAPHS = ("ring", "exponential")
DIVISIONS = ("iid", "heterogeneous")
UNTUNED = ("adanasa", "dnasa")
TUNED = ("dsgd", "dmsgd", "dadam", "dsgt")
SEEDS = 3
WEIGHT_DECAY = 0.01  # torch's default
COLUMNS = ("rule", "eta", "seed", "steps", "validation", "test")


class Part(NamedTuple):
    """What is run and saved at a time."""

    task: str
    graph: str
    division: str = ""

    @property
    def name(self) -> str:
        return "/".join(filter(None, self))

    @property
    def rules(self) -> tuple[str, ...]:
        return (CENTRAL,) if self.graph == CENTRAL else UNTUNED + TUNED


class Study(NamedTuple):
    """How large the study is, and where its results are saved."""

    tasks: dict[str, Task]
    graphs: Sequence[str]
    seeds: int
    folder: Path
    device: str
    progress: bool | None

    def parts(self, names: Iterable[str]) -> list[Part]:
        pairs = [(graph, division) for graph in self.graphs for division in DIVISIONS]
        return [part for name in names for part in (Part(name, CENTRAL), *(Part(name, *pair) for pair in pairs))]

    def saved(self, part: Part) -> Saved:
        return Saved(self.folder / f"{'-'.join(filter(None, part))}.csv", COLUMNS)

    def missing(self, part: Part, saved: Saved, seed: int) -> list[tuple[str, list[float]]]:
        """The rules and stepsizes of this part that have not been run; NaN for rules that need no stepsize."""
        task, out = self.tasks[part.task], []
        for rule in part.rules:
            etas = task.etas.get(rule, (nan,))
            todo = [eta for eta in etas if saved.find(rule=rule, eta=eta, steps=task.steps, seed=seed).empty]
            if todo:
                out.append((rule, todo))
        return out

    def complete(self, part: Part, saved: Saved) -> list[int]:
        """The seeds with which every rule has been run."""
        return [seed for seed in range(self.seeds) if not self.missing(part, saved, seed)]

    def table(self, part: Part) -> pd.DataFrame | None:
        """The results of a part, of the seeds that are complete."""
        saved = self.saved(part)
        seeds, table = self.complete(part, saved), saved.find(steps=self.tasks[part.task].steps)
        return table[table.seed.isin(seeds)] if seeds else None


def make_study(quick: bool, folder: str | Path, device: str, progress: bool | None) -> Study:
    options: Any = {"device": device, "progress": progress}
    if quick:
        return Study(QUICK | WITHOUT_DATA, GRAPHS[:1], 1, Path(folder) / "networks-quick", **options)
    return Study(TASKS | WITHOUT_DATA, GRAPHS, SEEDS, Path(folder) / "networks", **options)


def run(
    quick: bool = False,
    progress: bool | None = None,
    device: str = "cpu",
    folder: str | Path = "figures",
    only: str | None = None,
) -> Report:
    """Runs what is missing of all parts, or of those whose names begin with `only`; reports all that are complete."""
    study = make_study(quick, folder, device, progress)
    if only:
        return make_report(study, run_parts(study, select(study, only)), quick)
    names = [name for name in study.tasks if name not in WITHOUT_DATA]
    notes = run_parts(study, study.parts(names))
    if len(notes) == len(names):
        notes += run_parts(study, study.parts(WITHOUT_DATA))
    return make_report(study, notes, quick)


def select(study: Study, only: str) -> list[Part]:
    """The parts of a task, of a task on a graph, or a single one."""
    every = study.parts(study.tasks)
    chosen = [part for part in every if f"{part.name}/".startswith(f"{only.strip('/')}/")]
    if not chosen:
        raise InputError(
            f"There is no part '{only:.60}'. Write a task ({', '.join(study.tasks)}), a task and a graph "
            f"({', '.join((*study.graphs, CENTRAL))}), or also a partition ({', '.join(DIVISIONS)}), such as {every[1].name}."
        )
    return chosen


# ---------------------------------------------------------------- runs


def run_parts(study: Study, parts: Sequence[Part]) -> list[str]:
    """Returns a line for each task whose data is not there."""
    notes: list[str] = []
    for name in dict.fromkeys(part.task for part in parts):
        todo = [part for part in parts if part.task == name]
        todo = [part for part in todo if len(study.complete(part, study.saved(part))) < study.seeds]
        if todo:
            notes += with_data(name, study.tasks[name], partial(run_each, study, todo))
    return notes


def run_each(study: Study, parts: Sequence[Part], data: Dataset) -> None:
    for part in parts:
        run_part(study, part, data)


def run_part(study: Study, part: Part, data: Dataset) -> None:
    """Stepsizes run side by side where all models are computed together; otherwise one at a time is as fast."""
    task, saved = study.tasks[part.task], study.saved(part)
    train, validation = hold_out(data)
    central = part.graph == CENTRAL
    nodes, batch = (1, NODES * task.batch) if central else (NODES, task.batch)
    shards = divide(data, train, task.how(part.division or "iid"), nodes)
    validated = divide_validation(validation, nodes)
    problem = make_problem(task, data, shards, study.device, batch, validation=validated)
    graph = topology.make("complete" if central else part.graph, nodes)
    together = isinstance(problem, Classification) and not central
    for seed in range(study.seeds):
        options: Any = {"steps": task.steps, "seed": seed, "evaluate": [task.steps], "progress": study.progress}
        for rule, etas in study.missing(part, saved, seed):
            for some in [etas] if together else [[eta] for eta in etas]:
                method = adamw(schedules.cosine(some[0], task.steps)) if central else rule
                result = solve(problem, graph, method, eta=some if rule in TUNED else None, **options)
                rows = results(result, task.measure)
                saved.add(rows.assign(rule=rule, eta=some[0]) if central else rows)


def results(result: Result, measure: Measure) -> pd.DataFrame:
    """The last metric on the validation rows and that on the test rows, NaN where a run diverged."""
    final = result.final()
    rows = {
        "rule": final.rule,
        "eta": final.get("eta", nan),
        "seed": final.seed,
        "steps": result.settings["steps"],
        "validation": final[validation_name(measure.column)],
        "test": final[measure.column],
    }
    return pd.DataFrame(rows, columns=list(COLUMNS)).reset_index(drop=True)


def adamw(eta: Schedule) -> Rule:
    """torch's AdamW: x <- (1 - eta decay) x - eta m' / (sqrt(v') + eps); Loshchilov and Hutter, 2019."""
    plain = dadam(eta)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (x,), after = plain.send(s, gradients, t)
        return (x - eta(t) * WEIGHT_DECAY * s.x,), after

    return plain._replace(send=send)


# ---------------------------------------------------------------- tables


def averages(table: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The mean over the seeds for each rule and stepsize, and the spread of the test results; where a seed diverged, the
    mean is infinitely bad."""
    worst = -np.inf * measure.scale
    runs = table.assign(diverged=table.test.isna())
    tested, validated = (over_seeds(runs, name, ["rule", "eta"]) for name in ("test", "validation"))
    return tested.assign(test=tested["mean"].fillna(worst), validation=validated["mean"].fillna(worst))


def chosen(means: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The row of each rule with the best validation result, and whether that is the first or last stepsize of its grid."""
    rows = []
    for _, same in means.groupby("rule", sort=False):
        best = same.loc[(measure.scale * same.validation).idxmax()]
        rows.append(best.to_dict() | {"edge": tuning.edge_of(same.eta, best.eta)})
    return pd.DataFrame(rows).set_index("rule")


def summary(best: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """For people: one row for each rule."""
    unit = f" ({measure.unit})" * bool(measure.unit)
    return pd.DataFrame(
        {
            "rule": [name_of(rule) for rule in best.index],
            "best eta": [tuning.eta_text(row.eta) + " (edge)" * bool(row.edge) for row in best.itertuples()],
            measure.label: best.test.map(measure.text).to_numpy(),
            f"spread{unit}": (abs(measure.scale) * best.spread).to_numpy(),
            "seeds": best.runs.to_numpy(),
            f"gain over AdaNASA{unit}": measure.gain(best.test, best.test["adanasa"]).map(measure.signed).to_numpy(),
        }
    )


def name_of(rule: Any) -> str:
    return "central AdamW" if rule == CENTRAL else title(str(rule))


# ---------------------------------------------------------------- findings


def finding(best: pd.DataFrame, measure: Measure) -> str:
    """Whether AdaNASA is within the target of the best tuned method, how it compares with D-NASA and central AdamW, and
    which stepsizes lie at an edge of their grid."""
    ours = best.test["adanasa"]
    if not np.isfinite(ours):
        return "AdaNASA diverged."
    tuned = best[best.index.isin(TUNED)]
    winner = str((measure.scale * tuned.test).idxmax())
    gain = measure.gain(ours, tuned.test[winner])
    verdict = "within" if gain >= -measure.target else "NOT within"
    others = [rule for rule in ("dnasa", CENTRAL) if rule in best.index]
    beside = [f"{compared(best, rule, measure)} {name_of(rule)} ({measure.text(best.test[rule])})" for rule in others]
    return (
        f"AdaNASA {measure.text(ours)} with nothing tuned, {compared(best, winner, measure)} the best tuned decentralised "
        f"method, {title(winner)} ({measure.text(tuned.test[winner])} at eta = {tuned.eta[winner]:g}): {verdict} the target "
        f"of {measure.amount(measure.target)}. It is {' and '.join(beside)}.{edges(best)}"
    )


def compared(best: pd.DataFrame, rule: str, measure: Measure) -> str:
    """How much better or worse AdaNASA is, in words."""
    gain = measure.gain(best.test["adanasa"], best.test[rule])
    if not np.isfinite(gain):
        return "better than"
    return f"{measure.amount(gain)} {'better' if gain >= 0 else 'worse'} than"


def edges(best: pd.DataFrame) -> str:
    """The rules whose best stepsize may lie beyond their grid."""
    at_edge = [f"{name_of(rule)} ({row.eta:g}, the {row.edge})" for rule, row in best[best.edge != ""].iterrows()]
    return f" Best stepsize at an edge of the grid: {', '.join(at_edge)}." if at_edge else ""


# ---------------------------------------------------------------- report


def make_report(study: Study, notes: list[str], quick: bool) -> Report:
    report = Report("networks", f"{NODES} nodes, stepsizes chosen on validation rows")
    report.findings += notes
    for name, task in study.tasks.items():
        tables = {part: table for part in study.parts([name]) if (table := study.table(part)) is not None}
        central = tables.pop(Part(name, CENTRAL), None)
        means = {part: averages(pd.concat([table, central]), task.measure) for part, table in tables.items()}
        best = {part: chosen(some, task.measure) for part, some in means.items()}
        if best:
            summaries = {f"{part.graph}, {part.division}": summary(rows, task.measure) for part, rows in best.items()}
            table = pd.concat(summaries, names=["part", None]).reset_index("part")
            report.tables[f"networks-{name}"] = table
            report.figures[f"networks-{name}"] = draw(name, task, means, best, quick)
        report.findings += [f"{part.name}: {finding(rows, task.measure)}" for part, rows in best.items()]
    if not report.findings:
        report.findings.append(
            "The results are saved. A table follows once a graph and a partition of the task are complete."
        )
    return report


def draw(name: str, task: Task, means: dict[Part, pd.DataFrame], best: dict[Part, pd.DataFrame], quick: bool) -> Figure:
    """The test result against the stepsize, a panel for each graph and partition."""
    columns = min(2, len(means))
    figure, axes = panels(columns, -(-len(means) // columns), width=4.6 if columns == 2 else 8.0, height=3.6)
    for axis in axes.flat[len(means) :]:
        axis.set_visible(False)
    for axis, (part, table) in zip(axes.flat, means.items(), strict=False):
        rows = table[table.rule != CENTRAL].sort_values(
            "rule", key=lambda rules: rules.map((UNTUNED + TUNED).index), kind="stable"
        )
        drawing.draw_stepsizes(axis, rows, task.measure.column)
        if CENTRAL in best[part].index:
            axis.axhline(best[part].test[CENTRAL], linestyle=":", color="black", label="central AdamW, tuned")
        axis.set_title(f"{part.graph}, {task.how(part.division)}", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(f"{name}: {task.measure.label} after {task.steps:,} steps" + " (quick run)" * quick)
    return figure
