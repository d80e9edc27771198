"""How every experiment is run. It declares parts, which hold the runs of one task, and how their results are reported.

Results are saved after each run. A stopped experiment continues with what is missing, and reports the seeds that are complete.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from dnasa import topology
from dnasa.channels import faulty
from dnasa.comparing import tuning
from dnasa.core import InputError, Layout, Rule
from dnasa.data import Dataset, divide, divide_validation, hold_out
from dnasa.data.validation import validation_name
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.problems.problem import Problem
from dnasa.problems.supervised import Supervised, cross_entropy
from dnasa.reproduce.choosing import averages, chosen
from dnasa.reproduce.network_tasks import NODES, Etas, Measure, Task, read
from dnasa.reproduce.report import Report
from dnasa.reproduce.saved import Saved
from dnasa.rules.registry import variants
from dnasa.runs.result import Result
from dnasa.tasks import models, tasks
from dnasa.topology import Topology

# ---------------------------------------------------------------- declarations


RuleMakers = Mapping[str, Callable[[float, Layout], Rule]]  # from a stepsize and the layout of x
RING = topology.ring(NODES)


@dataclass(frozen=True, eq=False)
class RunSpec:
    """Every rule with each of its stepsizes and every seed, side by side where the problem computes all models together."""

    steps: int
    rules: Sequence[str] = ("dnasa",)
    etas: Etas = field(default_factory=dict)  # the stepsizes of each rule that needs one
    seeds: Sequence[int] = (0,)
    labels: Mapping[str, Any] = field(default_factory=dict)  # columns that tell these runs from others of the part
    graph: Topology = RING
    partition: str = "iid"
    rounds: int | str = 1  # of mixing per exchange
    every: int = 1  # steps from one that exchanges to the next
    evaluate: int | Sequence[int] | None = None  # by default at the last step
    batch: int | None = None  # by default the task's
    validation: bool = False  # whether a tenth of the training rows is held out
    loss_scale: str | float = 1.0
    train_metrics: bool = False
    schedules: Sequence[str] | None = None  # if not the default
    compress: str | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)  # arguments of `channels.faulty`
    problem: Callable[[], Problem] | None = None  # makes the problem of runs without data
    rule_makers: RuleMakers = field(default_factory=dict)  # of rules without a name
    chosen_by: "RunSpec | None" = None  # take the stepsizes with the best validation results in these runs of the part
    tuned_on: "RunSpec | None" = None  # take the stepsizes that are best in these runs; each rule is run alone
    start_from: "RunSpec | None" = None  # start from the model that these runs end with
    last_layer: bool = False  # train only the last layer and all biases of that model

    def table(self) -> pd.DataFrame:
        """One row for each run; eta is NaN for rules that need none."""
        every = [(rule, eta, seed) for rule in self.rules for eta in self.etas.get(rule, (nan,)) for seed in self.seeds]
        return pd.DataFrame(every, columns=["rule", "eta", "seed"]).assign(**self.labels, steps=self.steps)


def tuning_first(every: Sequence[RunSpec], task: Task) -> list[RunSpec]:
    """Each of these in two: the seeds that choose the stepsize, then the others with the chosen one."""
    parts = []
    for runs in every:
        choosing = replace(runs, seeds=runs.seeds[: task.tuning_seeds])
        parts.append(choosing)
        if rest := runs.seeds[task.tuning_seeds :]:
            parts.append(replace(runs, seeds=rest, chosen_by=choosing))
    return parts


def evaluation_steps(steps: int, count: int) -> list[int]:
    """Steps from 0 to the last at which to evaluate, one more than `count`; rounded down, as in the published results."""
    return sorted({int(t) for t in np.linspace(0, steps, count + 1)})


class Part(NamedTuple):
    """What `--only` selects; its results are saved in one file."""

    name: str
    runs: Sequence[RunSpec]
    task: Task = Task("")  # without data
    gpu: bool = False  # on the CPU it is run only if `--only` names it
    fallback: bool = False  # run where the data of no other part is there

    def table(self, saved: Saved) -> pd.DataFrame:
        """All runs; with every stepsize where the best is not known yet."""
        known = (settled(runs, saved, self.task.measure) or runs for runs in self.runs)
        return pd.concat([runs.table() for runs in known], ignore_index=True)


def settled(runs: RunSpec, saved: Saved, measure: Measure) -> RunSpec | None:
    """The runs with their chosen stepsizes; None until those that choose are complete."""
    if runs.chosen_by is None:
        return runs
    choosing = runs.chosen_by.table()
    if len(saved.missing(choosing)):
        return None
    best = chosen(averages(saved.of(choosing), measure), measure).eta.dropna()
    return replace(runs, etas={rule: (eta,) for rule, eta in best.items()})


def seeds_text(rows: pd.DataFrame) -> str:
    count = rows.seed.nunique()
    return f"{count} seed{'s' * (count > 1)}"


class Found(NamedTuple):
    """What a report is made of: the parts with results, and their rows for the seeds that are complete."""

    quick: bool
    parts: dict[str, Part]
    rows: dict[str, pd.DataFrame]

    @property
    def table(self) -> pd.DataFrame:
        return pd.concat(self.rows.values(), ignore_index=True)

    @property
    def seeds(self) -> str:
        return seeds_text(self.table) if self.rows else ""

    @property
    def last_step(self) -> int:
        return int(self.table.step.max()) if self.rows else 0


@dataclass(frozen=True)
class Experiment:
    """What `dnasa reproduce` makes under this name."""

    name: str
    parts: Callable[[bool], Sequence[Part]]  # of the quick or the full version
    report: Callable[[Found], Report]
    columns: tuple[str, ...] = ()  # saved of each evaluation; where there are none, nothing is saved
    metric: str = "test"  # the column of these with the task's measure on the test rows
    on_gpu: bool = True
    selectable: bool = False  # whether parts can be run by themselves

    def run(
        self,
        quick: bool = False,
        progress: bool | None = None,
        device: str = "cpu",
        folder: str | Path = "figures",
        only: str | None = None,
    ) -> Report:
        """Run what is missing, and report all that is complete.

        Args:
            quick: Whether to run a short version.
            progress: As in `solve`.
            device: "cpu" or "cuda".
            folder: Results are saved in a folder of this one.
            only: The part to run, or the beginning of its name up to a "/".
        """
        parts = self.parts(quick)
        usual = [part for part in parts if not part.fallback and (device == "cuda" or not part.gpu)]
        chosen = select(parts, only) if only else usual
        place = Path(folder) / (f"{self.name}-quick" if quick else self.name)
        saved = {part.name: Saved(place / f"{part.name.replace('/', '-')}.csv", self.columns) for part in parts}
        notes = self._run_parts(chosen, saved, device, progress)
        if not only and len(notes) == len(chosen):
            notes += self._run_parts([part for part in parts if part.fallback], saved, device, progress)
        rows = {part.name: rows for part in parts if (rows := complete(part, saved[part.name])) is not None}
        if notes and not rows:
            raise InputError(notes[0])
        report = self.report(Found(quick, {part.name: part for part in parts if part.name in rows}, rows))
        report.findings[:0] = dict.fromkeys(notes)
        if not report.findings:
            report.findings.append("The results are saved. A table follows once all that it compares is complete.")
        return report

    def _run_parts(
        self, parts: Sequence[Part], saved: dict[str, Saved], device: str, progress: bool | None
    ) -> list[str]:
        """Returns a line for each part whose data is not there."""
        notes: list[str] = []
        todo = [part for part in parts if len(saved[part.name].missing(part.table(saved[part.name])))]
        for task, same in groupby(todo, key=lambda part: part.task):
            try:
                data = read(task) if task.data else None
            except InputError as error:
                notes += [f"{task.data} is left out: {error}" for _ in same]
                continue
            for part in same:
                run_part(part, Runner(task, data, device, progress), saved[part.name], self.metric)
        return notes


def select(parts: Sequence[Part], only: str) -> list[Part]:
    """A part, or all parts whose names begin with `only` and a slash."""
    chosen = [part for part in parts if f"{part.name}/".startswith(f"{only.strip('/')}/")]
    if not chosen:
        choices = ", ".join(dict.fromkeys(part.name.partition("/")[0] for part in parts))
        example = next((f", or a part of them, such as {part.name}" for part in parts if part.name.count("/") > 1), "")
        raise InputError(f"Unknown part '{only:.60}'. Choose from: {choices}{example}.")
    return chosen


def complete(part: Part, saved: Saved) -> pd.DataFrame | None:
    """The rows of the seeds with which everything has been run."""
    if not saved.columns:
        return None if saved.table.empty else saved.table
    every = part.table(saved)
    done = every[~every.seed.isin(saved.missing(every).seed)]
    return saved.of(done) if len(done) else None


# ---------------------------------------------------------------- runs


def run_part(part: Part, runner: "Runner", saved: Saved, metric: str) -> None:
    """What is missing; deep models, where nothing is gained side by side, one seed after the other, so that all rules can be
    compared when the first is complete."""
    measure = part.task.measure.column
    seeds = sorted({seed for runs in part.runs for seed in runs.seeds})
    for some in [seeds] if runner.side_by_side else [[seed] for seed in seeds]:
        for runs in filter(None, (settled(runs, saved, part.task.measure) for runs in part.runs)):
            every = runs.table()
            for history in runner.run(runs, saved.missing(every[every.seed.isin(some)])):
                if saved.columns:
                    found = {metric: history[measure], "validation": history.get(validation_name(measure))}
                    by_node = history.bytes / runs.graph.nodes
                    history = history.assign(**found, bytes=by_node, steps=runs.steps)[list(saved.columns)]
                saved.add(history)


class Runner:
    """Runs on the data of one task; models to start from and chosen stepsizes are made once."""

    def __init__(self, task: Task, data: Dataset | None, device: str, progress: bool | None):
        self.task = task
        self.data = data
        self.device = device
        self.progress = progress
        stacked = data is None or models.batched(task.model or models.default(data), data)
        self.side_by_side = stacked or task.side_by_side
        self._problem: tuple[Any, Problem] | None = None
        self._results: dict[RunSpec, Result] = {}

    def run(self, runs: RunSpec, todo: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """The histories of these runs with their labels, one for each call of `solve`."""
        if runs.tuned_on is not None:
            best = tuning.best(tuning.grid(self._result(runs.tuned_on).history, "test_accuracy"), "test_accuracy").eta
            todo = todo.assign(eta=todo.rule.map(best))

        def together(run: tuple[str, float, list[int]]) -> Any:
            rule, _, seeds = run
            alone = not self.side_by_side or runs.tuned_on is not None or rule in runs.rule_makers
            return run if alone else seeds

        every = [(*pair, [*same.seed]) for pair, same in todo.groupby(["rule", "eta"], sort=False, dropna=False)]
        for _, some in groupby(every, key=together):
            group = list(some)
            rule, eta, seeds = group[0]
            history = self._solve(runs, [(name, value) for name, value, _ in group], seeds).history
            made = {"rule": rule, "eta": eta} if rule in runs.rule_makers else {"eta": history.get("eta", nan)}
            yield history.assign(**made, **runs.labels)

    def _result(self, runs: RunSpec) -> Result:
        if runs not in self._results:
            pairs = runs.table()[["rule", "eta"]].drop_duplicates().itertuples(index=False, name=None)
            self._results[runs] = self._solve(runs, list(pairs), runs.seeds)
        return self._results[runs]

    def _solve(self, runs: RunSpec, pairs: Sequence[tuple[str, float]], seeds: Sequence[int]) -> Result:
        """The rules with these stepsizes; a rule without a name comes alone."""
        problem, (rule, eta) = self._made_problem(runs), pairs[0]
        options: Any = {"steps": runs.steps, "seed": seeds, "evaluate": runs.evaluate or [runs.steps]}
        if runs.faults:
            options["network"] = simulated.connect(runs.graph, runs.rounds, faulty(**runs.faults))
        else:
            options |= {"rounds": runs.rounds, "every": runs.every}
        if runs.start_from is not None and not runs.last_layer:
            options["start"] = self._result(runs.start_from).mean
        wanted: Any = [
            variant
            for rule, eta in pairs
            if rule not in runs.rule_makers
            for variant in variants(rule, () if isnan(eta) else (eta,), runs.schedules)
        ]
        wanted = wanted or runs.rule_makers[rule](eta, problem.layout)
        return solve(problem, runs.graph, wanted, compress=runs.compress, progress=self.progress, **options)

    def _made_problem(self, runs: RunSpec) -> Problem:
        """The last one is kept, since most runs of a part differ in the rule alone."""
        of_data = (runs.graph.nodes, runs.partition, runs.batch, runs.validation, runs.last_layer)
        key = (*of_data, runs.loss_scale, runs.train_metrics, runs.problem)
        if self._problem is None or self._problem[0] != key:
            self._problem = key, runs.problem() if runs.problem else self._problem_on_data(runs)
        return self._problem[1]

    def _problem_on_data(self, runs: RunSpec) -> Problem:
        assert self.data is not None
        task, data, nodes = self.task, self.data, runs.graph.nodes
        train, validation = hold_out(data) if runs.validation else (np.arange(len(data.labels)), None)
        shards = divide(data, train, runs.partition, nodes)
        if runs.last_layer and runs.start_from is not None:
            return of_last_layer(task, data, shards, self._result(runs.start_from).mean, self.device)
        return tasks.on_shards(
            data,
            shards,
            runs.batch or task.batch,
            runs.loss_scale,
            device=self.device,
            train_metrics=runs.train_metrics,
            model=task.model,
            augment=task.augment,
            validation=() if validation is None else divide_validation(validation, nodes),
        )


def of_last_layer(task: Task, data: Dataset, shards: list[np.ndarray], weights: Tensor, device: str) -> Supervised:
    """The model with these parameters, of which the last layer and all biases are trained."""
    network = models.make(task.model or models.default(data), data)()
    vector_to_parameters(weights.cpu(), network.parameters())
    last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or parameter is last.weight)
    return Supervised(
        network, cross_entropy, data, shards, task.batch, task.augment, device=device, train_metrics=False
    )
