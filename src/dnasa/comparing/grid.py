"""Running a comparison: a grid of stepsizes for every rule, extended where its edge is best.

Stepsizes are never chosen on the test rows (`tuning.select`). In a run folder, the grid is the run itself; what is added to it
later, stepsizes or rules, has folders of its own inside it, `extension-...`.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa.comparing import tuning
from dnasa.comparing.comparison import AXES, MOST_EXTENSIONS, Comparison, with_eta
from dnasa.comparing.statistics import VARIANT, final, start
from dnasa.comparing.tuning import Selection
from dnasa.core import InputError, Interrupted, Network, choose
from dnasa.engine.loop import solve
from dnasa.engine.plan import as_list, distinct
from dnasa.files import fits
from dnasa.rules.registry import COMPARED, Variant, check_used, find, variants
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation
from dnasa.runs.own_files import LIST
from dnasa.runs.record import Record
from dnasa.runs.result import Result

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology

__all__ = ["compare"]

ENDED = ("done", "diverged")  # states of a part that is not run again
METRICS = (  # the first one available is compared; never the consensus: where nothing moves, it is perfect
    *("test_accuracy", "test_label_accuracy", "test_rmse"),
    *("test_loss", "train_loss", "grad_norm"),
)
OF_LONG_RUNS = ("evaluate", "progress")
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
        folder: Write the runs to this folder. A `RunFolder` to resume continues with what is missing, also of further rules.
        record: As for `solve`; comparisons have no callback of their own.
        **options: The other arguments of `solve`.

    Examples:
        ```python
        comparison = compare(problem, graph, ["dsgd", "dnasa"], etas=[0.01, 0.1, 1], steps=1000, seed=[0, 1, 2])
        print(comparison.table())
        ```
    """
    seeds = distinct("seed", as_list(seed))
    axes = check_axes(as_list(x))
    wanted = grid_of(rules, etas, schedule, extend)
    others = _other_seeds(problem, wanted, metric, seeds)
    runner = GridRunner(problem, network, folder, {"steps": steps, **options})
    if runner.simulated and runner.folder is not None and not runner.folder.resume:
        one_step = {name: value for name, value in options.items() if name not in OF_LONG_RUNS}
        check_metric(problem, network, wanted[0], metric, axes, record, **one_step)
    first = runner.solve("", wanted, [*seeds, *others], replace(record, callback=_checked(metric, axes)))
    _check_columns(first.history, axes)
    every = list(dict.fromkeys(first.history.seed.tolist()))  # in a folder, maybe more than these rules need
    if not {*seeds, *others} <= {*every}:
        raise InputError("These runs lack the seeds that stepsizes are chosen on: choose another folder.")
    compared = metric or _default_metric(first.history)
    selection = tuning.select(list(first.history), compared, seeds, [seed for seed in every if seed not in seeds])
    histories = [with_eta(each) for each in (first.history, *runner.added())]
    more = runner.agree(_missing(histories, wanted))
    while True:
        if more:
            histories.append(with_eta(runner.extend(more, every, record)))
        history = _of_lines(pd.concat(histories, ignore_index=True), _lines(wanted))
        choice = _choose(history, selection, wanted)
        more = runner.agree(_beyond(history, choice, wanted)) if extend else []
        if not more:
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
    grids = {rule: _grid(etas, rule, extend) for rule in distinct("rule", list(rules))}
    wanted = [variant for rule, grid in grids.items() for variant in variants(rule, grid, schedule_of(rule, schedule))]
    check_used(schedule, wanted)
    return wanted


def _grid(etas: Sequence[float] | Mapping[str, Sequence[float]], rule: str, extend: bool) -> list[float]:
    """The stepsizes of a rule."""
    grid = distinct("eta", list(etas.get(rule, ()) if isinstance(etas, Mapping) else etas))
    if extend and len(grid) == 1:
        raise InputError("Extending a grid needs its factor: give at least two stepsizes (--etas).")
    return grid


def schedule_of(rule: str, schedule: str | None = None) -> str | None:
    """The schedule with which a rule is compared; None: the one it names, or its default."""
    method = None if ":" in rule else find(rule)
    if method is None or (method.needs_eta and schedule):
        return schedule
    wanted = schedule or (SCHEDULE if method.needs_eta else None)
    return wanted if wanted in method.schedules else None


def new_rules(config: Mapping[str, Any], rules: Sequence[str]) -> list[str]:
    """The rules that the runs of this config do not have."""
    options: Any = config.get("options")
    options = options if isinstance(options, dict) else {}
    stored = options.get("rules")
    known = stored.split(",") if isinstance(stored, str) else stored if isinstance(stored, list) else []
    names = {str(each).strip() for each in known}
    return [rule for rule in rules if not _spellings(rule, options.get("schedule")) & names]


def _spellings(rule: str, schedule: str | None) -> set[str]:
    """The rule with its schedule, and without where that is the one it has anyway."""
    name, _, own = rule.partition(":")
    usual = schedule_of(name, schedule) or next(iter(find(name).schedules))
    return {rule, name, f"{name}:{usual}"} if own in ("", usual) else {rule}


def _lines(wanted: Sequence[Variant]) -> list[tuple[str, str]]:
    """The rules and schedules of these variants."""
    labels = [variant.label() for variant in wanted]
    return list(dict.fromkeys((label["rule"], label["schedule"]) for label in labels))


def _of_lines(history: pd.DataFrame, lines: Container[tuple[str, str]]) -> pd.DataFrame:
    """The rows of these rules and schedules."""
    return history[[line in lines for line in zip(history.rule, history.schedule, strict=True)]].reset_index(drop=True)


def _missing(histories: Sequence[pd.DataFrame], wanted: Sequence[Variant]) -> list[Variant]:
    """The variants that are wanted and in none of these histories."""
    rows = pd.concat([each[list(VARIANT)] for each in histories]).drop_duplicates()
    known = {(row.rule, row.schedule, None if pd.isna(row.eta) else float(row.eta)) for row in rows.itertuples()}
    return [variant for variant in wanted if tuple(variant.label().values()) not in known]


def _choose(history: pd.DataFrame, selection: Selection, wanted: Sequence[Variant]) -> pd.DataFrame:
    """The choice, in the order in which the rules are wanted."""
    choice, lines = tuning.chosen(final(history), selection, start(history)), _lines(wanted)
    order = [lines.index(line) for line in zip(choice.rule, choice.schedule, strict=True)]
    return choice.iloc[sorted(range(len(order)), key=order.__getitem__)].reset_index(drop=True)


def _beyond(history: pd.DataFrame, choice: pd.DataFrame, wanted: Sequence[Variant]) -> list[Variant]:
    """The next stepsizes where the best is at an edge, up to the limit."""
    given, tried = Counter(variant[:2] for variant in wanted), history.groupby(tuning.LINE).eta.nunique()
    more = tuning.extension(final(history), choice)
    return [each for each in more if tried[each[:2]] < given[each[:2]] + MOST_EXTENSIONS]


def _other_seeds(problem: "Problem", wanted: Sequence[Variant], metric: str | None, seeds: Sequence[int]) -> list[int]:
    """Seeds to choose stepsizes on where there are no validation rows: as many as are reported, but different."""
    tuned = len({variant[:2] for variant in wanted}) < len(wanted)
    validated = bool(getattr(problem, "validation", ())) and (metric or "test_").startswith("test_")
    after = max(seeds) + 1
    return list(range(after, after + len(seeds))) if tuned and not validated else []


# ---------------------------------------------------------------- metrics and axes


def _default_metric(known: Container[str]) -> str:
    for name in METRICS:
        if name in known:
            return name
    raise InputError(
        "This problem has no loss to compare by: give Custom a loss or full_gradient, or evaluate and metric='...'."
    )


def metric_in(row: Mapping[str, Any], metric: str | None) -> str:
    """The metric of this name in a row of a history, or the default."""
    if metric is None:
        return _default_metric(row)
    if not isinstance(row.get(metric), float):
        counts = ("epochs", "samples", "bytes", "messages", "seconds", "eta")
        known = [name for name, value in row.items() if isinstance(value, float) and name not in counts]
        raise InputError(f"There is no metric '{metric}' to compare by. This run has: {', '.join(known)}.")
    return metric


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
        check = Record(metrics=record.metrics, callback=_checked(metric, x))
        solve(problem, network, [variant], steps=1, record=check, progress=False, **options)


def _checked(metric: str | None, x: Sequence[str]) -> Callable[[Evaluation], bool]:
    """A callback that refuses a metric or an axis at the first evaluation, not at the end."""

    def check(evaluation: Evaluation) -> bool:
        row = evaluation.rows[0]
        metric_in(row, metric)
        _check_columns(row, x)
        return False

    return check


def _check_columns(known: Container[str], x: Sequence[str]) -> None:
    for name in x:
        if name not in known and name != "steps":
            raise InputError(f"These runs have no {name}: choose another x.")


# ---------------------------------------------------------------- parts


class GridRunner:
    """The parts of a comparison, each a call of `solve`; with a folder, parts that have ended are read from it."""

    def __init__(
        self,
        problem: "Problem",
        network: "Network | Topology | str",
        folder: "str | Path | RunFolder | None",
        options: dict[str, Any],
    ):
        self.problem = problem
        self.where = network
        self.options = options
        self.folder = RunFolder(folder) if isinstance(folder, (str, Path)) else folder
        self.network = network if isinstance(network, Network) else None

    @property
    def simulated(self) -> bool:
        return self.network is None or self.network.simulated

    def agree(self, wanted: list[Variant]) -> list[Variant]:
        """Use the variants of the first process everywhere: their last bits may differ between processes."""
        return [Variant(*entry) for entry in self._of_first_process(wanted)]

    def _of_first_process(self, value: Any) -> Any:
        if self.network is None or self.network.simulated:
            return value
        return self.network.processes.allgather_json(value, lambda given: given)[0]

    def added(self) -> Iterator[pd.DataFrame]:
        """The histories of everything that was added to the grid earlier."""
        for config in sorted(self.folder.path.glob("extension-*/config.json")) if self.folder else ():
            part = RunFolder(self._path(config.parent.name), resume=True)
            if part.state in ENDED:
                yield Result.load(part.path).history

    def extend(self, wanted: Sequence[Variant], seeds: Sequence[int], record: Record) -> pd.DataFrame:
        """Add these to the grid. Their folder is named after them, so a part that was stopped is found again."""
        name = f"extension-{zlib.crc32(json.dumps(wanted).encode()):08x}"
        return self.solve(name, wanted, seeds, record).history

    def solve(self, name: str, wanted: Sequence[Variant], seeds: Sequence[int], record: Record) -> Result:
        """Run the part of this name, or read it if it has ended; the grid has no name, and the folder itself holds it."""
        part = self._part(name)
        if part is not None and part.resume and part.state in ENDED:
            return replace(Result.load(part.path), rank=self.network.rank if self.network else 0)
        own: Any = {"seed": list(seeds), "folder": part, "record": record} | self.options
        try:
            return solve(self.problem, self.where, list(wanted), **own)
        except Interrupted as error:
            assert self.folder is not None
            what = str(error).partition(";")[0]
            how = "the same command" if self.folder.resume else f"dnasa resume {self.folder.path}"
            raise Interrupted(f"{what}; continue with: {how}") from error

    def _part(self, name: str) -> RunFolder | None:
        if self.folder is None or not name:
            return self.folder
        path = self._path(name)
        begun = self._of_first_process((path / "config.json").exists())
        if self.network is None or self.network.rank == 0:
            try:
                self.folder.own.claim([f"{name}/{LIST}"])
            except OSError as error:
                raise InputError(f"Cannot use {self.folder.path}: {error}. Choose another folder.") from error
        of_grid = self.folder.config["run"] if fits(self.folder.config, {"run": dict}) else {}
        facts = {key: value for key, value in of_grid.items() if key not in ("rule", "seed")}
        return RunFolder(path, {"part_of": self.folder.path.name, "run": facts}, resume=begun)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder.own.inside(f"{name}/{LIST}").parent
