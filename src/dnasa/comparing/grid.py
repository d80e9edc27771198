"""Running a comparison: a grid of stepsizes for every rule, extended where its edge is best.

Stepsizes are never chosen on the test rows (`tuning.select`). In a run folder, the grid is the run itself; its extensions have
folders of their own inside it, `extension-1`, `extension-2`, ...
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa.checks import as_list, choose, distinct, seed_list
from dnasa.communication import Network, Processes
from dnasa.comparing import tuning
from dnasa.comparing.comparison import AXES, Comparison
from dnasa.comparing.statistics import final, labeled
from dnasa.core import InputError, Interrupted
from dnasa.engine.loop import solve
from dnasa.rules.registry import COMPARED, Variant, check_used, find, split_schedule, variants
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import LIST
from dnasa.runs.result import Result

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology

__all__ = ["compare"]

ENDED = ("done", "diverged")  # states of a part that is not run again
# the first one available is compared; never the consensus: where nothing moves, it is perfect
METRICS = ("test_accuracy", "test_rmse", "test_loss", "train_loss", "grad_norm")
COUNTS = ("epochs", "samples", "bytes", "messages", "seconds", "eta")  # columns that are no metrics
MOST_EXTENSIONS = 8  # stepsizes of a rule beyond its grid
RECORD = Record()
SCHEDULE = "diminishing"  # of rules with a stepsize that name none: a stepsize then means the same in all of them


def compare(
    problem: "Problem",
    network: "Network | Topology | str",
    rules: Sequence[str] = COMPARED,
    etas: Sequence[float] | Mapping[str, Sequence[float]] = (),
    *,
    steps: int,
    seed: int | Sequence[int] = 0,
    schedule: str | None = None,
    metric: str | None = None,
    x: str | Sequence[str] = (),
    extend: bool = False,
    folder: "str | Path | RunFolder | None" = None,
    record: Record = RECORD,
    **options: Any,
) -> Comparison:
    """Run every rule with every stepsize and seed, choose a stepsize for each rule and schedule, and report its results.

    Args:
        problem: What to minimize.
        network: As for `solve`.
        rules: The names of the rules; one may name its schedule, as in "dsgd:constant".
        etas: The stepsizes of all rules, or a dictionary with those of each, by its name with or without the schedule.
        steps: The number of steps.
        seed: The seed, or several, whose results are reported.
        schedule: The schedule of rules that need a stepsize and name none; by default diminishing, whatever the
            rule's own default is. Rules that need no stepsize use their default where they do not have it. One that no rule
            uses is an error.
        metric: What is compared (default: the test accuracy, else the test loss, else the training loss, ...).
        x: What curves are drawn against, one or several of "steps", "epochs", "samples", "bytes" and, if the network has a
            clock, "clock". Default: steps, and bytes too where methods send different amounts.
        extend: Continue the grid where its edge is best, at most 8 times.
        folder: Write the runs to this folder. A `RunFolder` to resume continues with what is missing.
        record: As for `solve`.
        **options: The other arguments of `solve`.

    Examples:
        ```python
        comparison = compare(problem, graph, ["dsgd", "dnasa"], etas=[0.01, 0.1, 1], steps=1000, seed=[0, 1, 2])
        print(comparison.table().to_string())
        ```
    """
    seeds = seed_list(seed)
    axes = check_axes(as_list(x))
    if isinstance(etas, Mapping) and (
        unknown := {*etas} - {name for rule in rules for name in (rule, split_schedule(rule)[0])}
    ):
        raise InputError(f"etas has stepsizes for '{min(unknown)}', which is not compared. Choose from: {', '.join(rules)}.")
    grid = grid_of(rules, etas, schedule, extend)
    others = _other_seeds(problem, grid, metric, seeds)
    folder = RunFolder(folder) if isinstance(folder, (str, Path)) else folder
    runner = GridRunner(problem, network, folder, record, {"steps": steps, "seed": [*seeds, *others], **options})
    in_one_process = not isinstance(network, Network) or network.simulated
    if in_one_process and not (folder and folder.resume):
        check_metric(problem, network, grid[0], metric, axes, **options)
    first = runner.solve("", grid)
    compared = check_row(first.history, metric, axes)
    selection = tuning.select(list(first.history), compared, seeds, others)
    if not {*selection.seeds} <= {*first.history.seed}:
        raise InputError(f"Choosing stepsizes by {selection.metric} needs runs of other seeds: choose another folder.")
    history = labeled(first.history)
    choice = tuning.chosen(final(history), selection)
    limit = MOST_EXTENSIONS if extend else 0
    for number in range(1, limit + 1):
        found = tuning.extension(history, choice)  # its last bits may differ between processes
        beyond = [Variant(*entry) for entry in runner.of_first_process(found)]
        if not beyond:
            break
        more = runner.solve(f"extension-{number}", beyond).history
        history = pd.concat([history, labeled(more)], ignore_index=True)
        choice = tuning.chosen(final(history), selection)
    return Comparison(history, compared, selection, choice, axes, first.settings, first.rank)


def check_axes(names: Sequence[str], known: Iterable[str] = AXES) -> tuple[str, ...]:
    """What curves are drawn against, each known and given once."""
    for name in names:
        choose("x", name, dict.fromkeys(known))
    return tuple(distinct("x", list(names)))


def grid_of(
    rules: Sequence[str],
    etas: Sequence[float] | Mapping[str, Sequence[float]],
    schedule: str | None = None,
    extend: bool = False,
) -> list[Variant]:
    """Every rule with each of its stepsizes, as `compare` takes them."""
    grid = []
    for rule in distinct("rule", list(rules)):
        own = etas.get(rule, etas.get(split_schedule(rule)[0], ())) if isinstance(etas, Mapping) else etas
        stepsizes = distinct("eta", list(own))
        if extend and len(stepsizes) == 1:
            raise InputError("Extending a grid needs the ratio of two stepsizes: give at least two stepsizes (--etas).")
        grid += variants(rule, stepsizes, schedule_of(rule, schedule))
    check_used(schedule, grid)
    return grid


def schedule_of(rule: str, schedule: str | None = None) -> str | None:
    """The schedule with which a rule is compared; None: the one it names, or its default."""
    if split_schedule(rule)[1]:
        return schedule
    method = find(rule)
    if not method.needs_eta:
        return schedule if schedule in method.schedules else None
    if schedule is None and SCHEDULE not in method.schedules:
        return None
    return schedule or SCHEDULE


def _other_seeds(problem: "Problem", grid: Sequence[Variant], metric: str | None, seeds: Sequence[int]) -> list[int]:
    """Seeds to choose stepsizes on where there are no validation rows: as many as are reported, but different."""
    is_tuned = len({(variant.rule, variant.schedule) for variant in grid}) < len(grid)
    is_validated = bool(getattr(problem, "validation", ())) and (metric or "test_").startswith("test_")
    if not is_tuned or is_validated:
        return []
    after = max(seeds) + 1
    return list(range(after, after + len(seeds)))


def check_row(history: pd.DataFrame, metric: str | None, x: Sequence[str]) -> str:
    """The metric that is compared; refuses one, or an axis, that the history does not have."""
    row = history.iloc[0].to_dict()
    for name in x:
        if {"steps": "step", "clock": "clock_seconds"}.get(name, name) not in row:
            raise InputError(f"These runs have no {name}: choose another x.")
    if metric is None:
        known = [name for name in METRICS if name in row]
        if not known:
            raise InputError(
                "This problem has no loss to compare by: give Custom a loss or full_gradient, your own class an evaluate "
                "that returns a train_loss or test_loss, or compare a metric='...'."
            )
        return known[0]
    if not isinstance(row.get(metric), float):
        known = [name for name, value in row.items() if isinstance(value, float) and name not in COUNTS]
        raise InputError(f"There is no metric '{metric}' to compare by. This run has: {', '.join(known)}.")
    return metric


def check_metric(
    problem: "Problem",
    network: "Network | Topology | str",
    variant: Variant,
    metric: str | None,
    x: Sequence[str],
    **options: Any,
) -> None:
    """Run to the first exchange, before a folder is made: only a run shows which metrics and axes there are."""
    if metric is None and set(x) <= {"steps"}:
        return
    steps = network.settings.every if isinstance(network, Network) else 1
    short = options | {"steps": steps, "progress": False, "evaluate": None}
    with warnings.catch_warnings(action="ignore"):  # the run itself repeats them, and K-GT sends nothing in its first step
        check_row(solve(problem, network, [variant], **short).history, metric, x)


@dataclass(frozen=True)
class GridRunner:
    """The parts of a comparison, each a call of `solve`; with a folder, parts that have ended are read from it."""

    problem: "Problem"
    network: "Network | Topology | str"
    folder: RunFolder | None
    record: Record
    options: dict[str, Any]

    @property
    def processes(self) -> Processes:
        return self.network.processes if isinstance(self.network, Network) else Processes()

    def of_first_process(self, value: Any) -> Any:
        return self.processes.allgather_json(value, lambda each: each)[0]

    def solve(self, name: str, grid: Sequence[Variant]) -> Result:
        """Run the part of this name, or read it if it has ended; the grid has no name, and the folder itself holds it."""
        part = self._part(name) if name else self.folder
        if part is not None and part.resume and part.state in ENDED:
            return replace(Result.load(part.path), rank=self.processes.rank)
        try:
            return solve(self.problem, self.network, list(grid), folder=part, record=self.record, **self.options)
        except Interrupted as error:
            assert self.folder is not None
            reason = str(error).partition(";")[0]
            command = "the same command" if self.folder.resume else f"dnasa resume {self.folder.path}"
            raise Interrupted(f"{reason}; continue with: {command}") from error

    def _part(self, name: str) -> RunFolder | None:
        if self.folder is None:
            return None
        path = self.folder.own.inside(f"{name}/{LIST}").parent
        begun = self.of_first_process((path / "config.json").exists())
        if self.processes.rank == 0:
            try:
                self.folder.own.claim([f"{name}/{LIST}"])
            except OSError as error:
                raise InputError(f"Cannot use {self.folder.path}: {error}. Choose another folder.") from error
        facts = {name: value for name, value in self.folder.settings.items() if name != "rule"}
        return RunFolder(path, {"part_of": self.folder.path.name, "run": facts}, resume=begun)
