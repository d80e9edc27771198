"""Running a comparison: a grid of stepsizes for every rule, extended where its edge is best.

Stepsizes are never chosen on the test rows (`tuning.select`). In a run folder, the grid is the run itself; its extensions have
folders of their own inside it, `extension-1`, `extension-2`, ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa.checks import as_list, choose, distinct, seed_list
from dnasa.communication import Network
from dnasa.comparing import tuning
from dnasa.comparing.comparison import AXES, MOST_EXTENSIONS, Comparison
from dnasa.comparing.statistics import final, with_eta
from dnasa.core import InputError, Interrupted
from dnasa.engine.loop import solve
from dnasa.files import fits
from dnasa.rules.registry import COMPARED, Variant, check_used, find, variants
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import LIST
from dnasa.runs.result import Result

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology

__all__ = ["compare"]

ENDED = ("done", "diverged")  # states of a part that is not run again
METRICS = (  # the first one available is compared; never the consensus: where nothing moves, it is perfect
    *("test_accuracy", "test_rmse"),
    *("test_loss", "train_loss", "grad_norm"),
)
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
        etas: The stepsizes of all rules, or a dictionary with those of each.
        steps: The number of steps.
        seed: The seed, or several, whose results are reported.
        schedule: The schedule of rules that need a stepsize and name none; by default diminishing, whatever the
            rule's own default is. Rules that need no stepsize use their default where they do not have it. One that no rule
            uses is an error.
        metric: What is compared (default: the test accuracy, else the test loss, else the training loss, ...).
        x: What curves are drawn against, one or several of "steps", "epochs", "samples" and "bytes". Default: steps, and
            bytes too where methods send different amounts.
        extend: Continue the grid where its edge is best, at most 8 times.
        folder: Write the runs to this folder. A `RunFolder` to resume continues with what is missing.
        record: As for `solve`.
        **options: The other arguments of `solve`.

    Examples:
        ```python
        comparison = compare(problem, graph, ["dsgd", "dnasa"], etas=[0.01, 0.1, 1], steps=1000, seed=[0, 1, 2])
        print(comparison.table())
        ```
    """
    seeds = seed_list(seed)
    axes = check_axes(as_list(x))
    wanted = grid_of(rules, etas, schedule, extend)
    others = _other_seeds(problem, wanted, metric, seeds)
    folder = RunFolder(folder) if isinstance(folder, (str, Path)) else folder
    runner = GridRunner(problem, network, folder, {"steps": steps, "seed": [*seeds, *others], **options})
    if runner.processes is None and not (folder and folder.resume):
        check_metric(problem, network, wanted[0], metric, axes, record, **options)
    first = runner.solve("", wanted, record)
    compared = check_row(first.history, metric, axes)
    selection = tuning.select(list(first.history), compared, seeds, others)
    histories = [with_eta(first.history)]
    for number in range(1, MOST_EXTENSIONS + 2):
        history = pd.concat(histories, ignore_index=True)
        choice = tuning.chosen(final(history), selection)
        beyond = tuning.extension(history, choice) if extend and number <= MOST_EXTENSIONS else []
        if not (more := runner.agree(beyond)):
            break
        histories.append(with_eta(runner.solve(f"extension-{number}", more, record).history))
    return Comparison(history, compared, selection, choice, axes, extend, first.settings, first.rank)


# ---------------------------------------------------------------- what is run


def check_axes(names: Sequence[str]) -> tuple[str, ...]:
    """What curves are drawn against, each known and given once."""
    for name in names:
        choose("x", name, AXES)
    return tuple(distinct("x", list(names)))


def grid_of(
    rules: Sequence[str],
    etas: Sequence[float] | Mapping[str, Sequence[float]],
    schedule: str | None = None,
    extend: bool = False,
) -> list[Variant]:
    """Every rule with each of its stepsizes, as `compare` takes them."""
    wanted = []
    for rule in distinct("rule", list(rules)):
        grid = distinct("eta", list(etas.get(rule, ()) if isinstance(etas, Mapping) else etas))
        if extend and len(grid) == 1:
            raise InputError("Extending a grid needs its factor: give at least two stepsizes (--etas).")
        wanted += variants(rule, grid, schedule_of(rule, schedule))
    check_used(schedule, wanted)
    return wanted


def schedule_of(rule: str, schedule: str | None = None) -> str | None:
    """The schedule with which a rule is compared; None: the one it names, or its default."""
    method = None if ":" in rule else find(rule)
    if method is None or (method.needs_eta and schedule):
        return schedule
    wanted = schedule or (SCHEDULE if method.needs_eta else None)
    return wanted if wanted in method.schedules else None


def _other_seeds(problem: "Problem", wanted: Sequence[Variant], metric: str | None, seeds: Sequence[int]) -> list[int]:
    """Seeds to choose stepsizes on where there are no validation rows: as many as are reported, but different."""
    tuned = len({variant[:2] for variant in wanted}) < len(wanted)
    validated = bool(getattr(problem, "validation", ())) and (metric or "test_").startswith("test_")
    after = max(seeds) + 1
    return list(range(after, after + len(seeds))) if tuned and not validated else []


# ---------------------------------------------------------------- metrics and axes


def metric_in(row: Mapping[str, Any], metric: str | None) -> str:
    """The metric of this name in a row of a history, or the default."""
    if metric is None and (known := [name for name in METRICS if name in row]):
        return known[0]
    if metric is None:
        raise InputError(
            "This problem has no loss to compare by: give Custom a loss or full_gradient, or evaluate and metric='...'."
        )
    if not isinstance(row.get(metric), float):
        counts = ("epochs", "samples", "bytes", "messages", "seconds", "eta")
        known = [name for name, value in row.items() if isinstance(value, float) and name not in counts]
        raise InputError(f"There is no metric '{metric}' to compare by. This run has: {', '.join(known)}.")
    return metric


def check_row(history: pd.DataFrame, metric: str | None, x: Sequence[str]) -> str:
    """The metric that is compared; refuses one, or an axis, that the history does not have."""
    row = history.iloc[0].to_dict()
    for name in x:
        if name not in row and name != "steps":
            raise InputError(f"These runs have no {name}: choose another x.")
    return metric_in(row, metric)


def check_metric(
    problem: "Problem",
    network: "Network | Topology | str",
    variant: Variant,
    metric: str | None,
    x: Sequence[str],
    record: Record = RECORD,
    **options: Any,
) -> None:
    """Take one step, before a folder is made: only a run shows which metrics and axes there are."""
    if metric is not None or not {*x} <= {"steps"}:
        short = options | {"steps": 1, "progress": False, "evaluate": None, "record": Record(metrics=record.metrics)}
        check_row(solve(problem, network, [variant], **short).history, metric, x)


# ---------------------------------------------------------------- parts


@dataclass(frozen=True)
class GridRunner:
    """The parts of a comparison, each a call of `solve`; with a folder, parts that have ended are read from it."""

    problem: "Problem"
    network: "Network | Topology | str"
    folder: RunFolder | None
    options: dict[str, Any]

    @property
    def processes(self) -> Network | None:
        return self.network if isinstance(self.network, Network) and not self.network.simulated else None

    @property
    def rank(self) -> int:
        return self.processes.rank if self.processes else 0

    def agree(self, wanted: list[Variant]) -> list[Variant]:
        """Use the variants of the first process everywhere: their last bits may differ between processes."""
        return [Variant(*entry) for entry in self._of_first_process(wanted)]

    def _of_first_process(self, value: Any) -> Any:
        return value if self.processes is None else self.processes.processes.allgather_json(value, lambda each: each)[0]

    def solve(self, name: str, wanted: Sequence[Variant], record: Record) -> Result:
        """Run the part of this name, or read it if it has ended; the grid has no name, and the folder itself holds it."""
        part = self._part(name)
        if part is not None and part.resume and part.state in ENDED:
            return replace(Result.load(part.path), rank=self.rank)
        try:
            return solve(self.problem, self.network, list(wanted), folder=part, record=record, **self.options)
        except Interrupted as error:
            assert self.folder is not None
            what = str(error).partition(";")[0]
            how = "the same command" if self.folder.resume else f"dnasa resume {self.folder.path}"
            raise Interrupted(f"{what}; continue with: {how}") from error

    def _part(self, name: str) -> RunFolder | None:
        if self.folder is None or not name:
            return self.folder
        path = self.folder.own.inside(f"{name}/{LIST}").parent
        begun = self._of_first_process((path / "config.json").exists())
        if self.rank == 0:
            try:
                self.folder.own.claim([f"{name}/{LIST}"])
            except OSError as error:
                raise InputError(f"Cannot use {self.folder.path}: {error}. Choose another folder.") from error
        of_grid = self.folder.config["run"] if fits(self.folder.config, {"run": dict}) else {}
        facts = {key: value for key, value in of_grid.items() if key != "rule"}
        return RunFolder(path, {"part_of": self.folder.path.name, "run": facts}, resume=begun)
