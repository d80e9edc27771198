"""Comparing rules: run a grid of stepsizes, choose one for each rule, and report what the chosen ones reach.

Stepsizes are never chosen on the test rows (`tuning.select`). In a run folder, the grid is the run itself. Stepsizes and rules
that are added and runs that are timed by themselves have folders of their own inside it, `extension-1`, ..., `alone-1`, ....
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa import latex, tables
from dnasa.comparing import captions, drawing, tuning
from dnasa.comparing.tuning import Selection
from dnasa.core import InputError, Interrupted, Network, choose
from dnasa.engine.loop import solve
from dnasa.engine.plan import as_list, distinct
from dnasa.files import fits
from dnasa.latex import Column
from dnasa.plots import label
from dnasa.rules.registry import COMPARED, Variant, check_used, find, variants
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation
from dnasa.runs.own_files import LIST
from dnasa.runs.result import Result
from dnasa.statistics import SMOOTHINGS, VARIANT, curves, differences, final, over_seeds, start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology

__all__ = ["Comparison", "compare"]

MOST_EXTENSIONS = 8  # stepsizes of a rule beyond its grid
BEGUN = {"run": {"the rule": [(str, str, lambda eta: eta is None or type(eta) in (int, float))]}}
ENDED = ("done", "diverged")  # states of a part that is not run again
# What curves are drawn against, as columns of a history.
X = {"steps": "step"} | {name: name for name in ("epochs", "samples", "bytes", "messages", "seconds")}
DRAWN = X | {"bytes": "mb_per_node"}  # and as columns of their own frame
METRICS = (  # the first one available is compared; never the consensus: where nothing moves, it is perfect
    *("test_accuracy", "test_label_accuracy", "test_rmse"),
    *("test_loss", "train_loss", "grad_norm"),
)
FACTS = "compared"  # in the config of a folder
STORED: dict[str, Any] = {FACTS: {"batch": int, "model": str, "own_partitions": bool}, "run": {"rounds": int}}
OF_LONG_RUNS = ("evaluate", "stop", "patience", "checkpoint_every", "progress", "trace")
SCHEDULE = (
    "diminishing"  # for rules with a stepsize and no given schedule: a stepsize then means the same in all of them
)


@dataclass(frozen=True)
class Comparison:
    """The histories of all runs, what was chosen, and on what.

    `table` is for people, `latex` for a paper; `summary`, `curves` and `stepsizes` are frames with the numbers of the table
    and of the two figures.

    Attributes:
        history: A row for each evaluation and run.
        metric: The metric that is compared.
        selection: The metric and the seeds that stepsizes are chosen on, and the seeds that are reported.
        choice: The chosen stepsize of each rule and schedule.
        x: What curves are drawn against; empty: steps, and bytes too where methods send different amounts.
        smooth: How they are smoothed.
        extend: Whether the grid was to be extended.
        timed: The history of the chosen variants run by themselves, where curves are against seconds.
        settings: The settings of the grid's run.
        rank: The rank of this process.
        batch: The samples per node and step.
        model: The model in words, where it is known.
        own_partitions: Whether each seed draws its own partition.
    """

    history: pd.DataFrame
    metric: str
    selection: Selection
    choice: pd.DataFrame
    x: tuple[str, ...] = ()
    extend: bool = False
    timed: pd.DataFrame | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    smooth: str = "mean"
    batch: int | None = None
    model: str = ""
    own_partitions: bool = False

    def __repr__(self) -> str:
        """One line; `table` has the results."""
        return f"Comparison of {', '.join(dict.fromkeys(self.choice.rule))} by {self.metric}"

    @property
    def all_diverged(self) -> bool:
        return bool(final(self.history).diverged.all())

    def _chosen(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of the chosen variants and the reported seeds, in the order of the choice."""
        keys = self.choice[list(VARIANT)].assign(order=range(len(self.choice)))
        some = rows[rows.seed.isin(self.selection.reported)].merge(keys, on=list(VARIANT), how="inner")
        return some.sort_values("order", kind="stable").drop(columns="order").reset_index(drop=True)

    def reported(self) -> pd.DataFrame:
        """The evaluation of the answer of each chosen variant and reported seed."""
        return self._chosen(final(self.history))

    def summary(self, metric: str | None = None) -> pd.DataFrame:
        """The mean and spread of each chosen variant over the seeds, and its paired difference to the best.

        Args:
            metric: Another metric than the one compared.
        """
        return differences(self.reported(), metric or self.metric)

    def curves(self) -> pd.DataFrame:
        """The mean of each chosen variant over the seeds, and their range, at every evaluation; smoothed.

        Besides `step`, it has a column for everything that curves are drawn against; for bytes `mb_per_node`, the MB that a
        node has sent.
        """
        rows = self._chosen(with_eta(self.history if self.timed is None else self.timed))
        if "bytes" in self.axes:
            rows = rows.assign(mb_per_node=_sent(rows))
        found = {column: curves(rows, self.metric, column, smooth=self.smooth) for column in self._columns()}
        table = next(iter(found.values())).drop(columns="x")
        return table.assign(**{column: each.x for column, each in found.items()})

    @property
    def axes(self) -> tuple[str, ...]:
        """What curves are drawn against."""
        amounts = self.sent().dropna()
        differ = len(amounts) > 1 and amounts.max() > 1.01 * amounts.min()
        return self.x or (("steps", "bytes") if differ else ("steps",))

    def _columns(self) -> list[str]:
        return [DRAWN[name] for name in self.axes]

    def stepsizes(self) -> pd.DataFrame:
        """The results of all stepsizes on the reported seeds."""
        runs = final(self.history)
        table = over_seeds(runs[runs.seed.isin(self.selection.reported)], self.metric)
        keys = self.choice[list(VARIANT)].assign(chosen=True)
        order = self.choice[["rule", "schedule"]].assign(order=range(len(self.choice)))
        merged = table.merge(keys, on=list(VARIANT), how="left").merge(order, on=["rule", "schedule"])
        merged = merged.assign(chosen=merged.chosen.eq(True)).sort_values(["order", "eta"], ignore_index=True)
        return merged.drop(columns="order")

    def sent(self) -> pd.Series:
        """The MB that a node sent in the longest run of each chosen variant: the mean over the nodes."""
        rows = self._chosen(with_eta(self.history))
        if not {"bytes", "nodes"} <= {*rows}:
            return pd.Series(dtype=float)
        most = _sent(rows).groupby([rows.rule, rows.schedule]).max()
        return most.reindex(pd.MultiIndex.from_frame(self.choice[["rule", "schedule"]]))

    def draw_curves(self, panels: bool = False) -> "Figure":
        """The figure of `curves`: a pair of axes for each of `axes`, side by side.

        Args:
            panels: Draw a panel for each curve instead, against the first of `axes`.
        """
        return drawing.figure_of_curves(self.curves(), self._columns(), self.metric, self.smooth, panels)

    def draw_stepsizes(self) -> "Figure":
        """The figure of `stepsizes`."""
        return drawing.figure_of_stepsizes(self.stepsizes(), self.metric)

    # ------------------------------------------------------------ tables

    def table(self) -> pd.DataFrame:
        """One row for each rule and schedule, as text."""
        runs = final(self.history)
        summaries = {name: self.summary(name) for name in self._metrics()}
        rows = []
        for i, row in self.choice.iterrows():
            variant = Variant(row.rule, row.schedule, _eta(row.eta))
            cells = {
                "method": label(row.rule, row.schedule),
                "stepsize": variant.formula or tuning.eta_text(row.eta),
                f"chosen by {tables.metric_name(self.selection.metric)}": self._choice_text(row),
            }
            for name, some in summaries.items():
                cells[tables.metric_name(name)] = tables.with_spread(name, some.iloc[i])
                if name == self.metric:
                    cells["difference to the best"] = tables.with_interval(name, some.iloc[i])
            same = runs[(runs.rule == row.rule) & (runs.schedule == row.schedule)]
            rows.append(cells | {"diverged at": tuning.diverged_text(over_seeds(same, self.metric))})
        return pd.DataFrame(rows)

    def tried(self) -> pd.Series:
        """How many stepsizes were run of each rule and schedule; 0 where it needs none."""
        return self.history.groupby(["rule", "schedule"]).eta.nunique()

    @property
    def tuned(self) -> bool:
        """Whether a stepsize was chosen among several."""
        return bool(self.tried().max() > 1)

    def _choice_text(self, row: Any) -> str:
        if pd.isna(row.eta):
            return "nothing tuned"
        if self.tried()[row.rule, row.schedule] == 1:
            return "one stepsize"
        edge = f" ({row.edge} tried)" if row.edge else ""
        return tables.number(self.selection.metric, row.value, 4) + edge

    def latex(self, title: str = "", name: str = "comparison", exchanges: str = "") -> str:
        """The table for a paper; bold are the best and what does not differ clearly from it.

        Bytes, differences and other metrics are left out where the current style has no room for them. The protocol is a
        comment below the caption.

        Args:
            title: What was run, for the caption.
            name: The table is referred to as tab:name.
            exchanges: How often nodes exchange, for the protocol.
        """
        methods = captions.method_names([(row.rule, row.schedule) for row in self.choice.itertuples()])
        columns = [latex.names("Method", methods)]
        tuned, signs = self.choice.eta.notna(), captions.dagger(self.choice)
        if tuned.any():
            edges = [bool(edge) for edge in self.choice.edge]
            columns.append(Column(r"$\eta$", latex.stepsizes([float(eta) for eta in self.choice.eta], edges)))
        if tuned.any() and not tuned.all():
            signs.append(f"{latex.NOTHING}:~not tuned.")
        every = [*columns, *self._results()]
        columns = latex.fit(every, len(columns) + 1)
        signs += captions.explained(columns)
        seeds, schedule = len(self.selection.reported), captions.schedule(self.choice) if self.tuned else ""
        caption = captions.caption(self.metric, title, seeds, columns, signs, schedule)
        chosen = captions.tuning(self.choice, [str(self.selection)] if self.tuned else [])
        stepsizes = f"{chosen} {captions.grids(with_eta(self.history), self.extend)}".strip()
        facts = (self.model, self.batch, exchanges, self.sent(), stepsizes, seeds, self.own_partitions)
        return latex.table([columns], caption, name, captions.protocol(*facts), every[len(columns) :])

    def _results(self) -> list[Column]:
        """The compared metric first, what was sent where methods differ, then differences and other metrics."""
        columns = []
        for metric in self._metrics():
            rows = self.summary(metric)
            title = captions.column_title(metric, latex.unit(metric, rows))
            columns.append(Column(title, latex.results(metric, rows)))
            if metric == self.metric:
                columns += captions.sent_column(self.sent())
                gaps = latex.intervals(metric, rows)
                columns += [Column(captions.DIFFERENCE, gaps)] if gaps else []
        return columns

    def _metrics(self) -> list[str]:
        """The compared metric, and others that readers expect."""
        return [
            name
            for name in dict.fromkeys((self.metric, "test_accuracy", "test_r2", "test_loss"))
            if name in self.history
        ]

    def notes(self) -> list[str]:
        """What the table says, and whether a best stepsize may lie beyond its grid."""
        count = len(self.selection.reported)
        where = "the test rows" if self.metric.startswith("test_") else "these runs"
        spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed, so without a spread"
        lines = [
            f"Stepsizes were chosen by {self.selection}; results are those on {where}, {spread}.",
            "Differences are paired by seed, with their 95 % confidence interval (t distribution).",
        ]
        if not self.tuned:
            one = self.choice.eta.notna().any()
            reason = "The grid has one stepsize, so none was chosen" if one else "Nothing was tuned"
            lines[0] = f"{reason}; results are those on {where}, {spread}."
        edges = [self._edge_note(row) for row in self.choice[self.choice.edge != ""].itertuples()]
        return (lines if count > 1 else lines[:1]) + tables.baseline(self.settings) + edges + self._still_notes()

    def _still_notes(self) -> list[str]:
        """The chosen variants whose runs did not improve on the start, where that was measured."""
        table = tuning.against_start(self.reported(), self._chosen(start(self.history)), self.metric)
        name = tables.metric_name(self.metric)
        return [
            f"{label(row.rule, row.schedule)}: the {name} at the end, {tables.number(self.metric, row.end)}, is no better "
            f"than at the start, {tables.number(self.metric, row.start)}."
            for row in table[table.still].rename(columns={"mean": "end"}).itertuples()
        ]

    def _edge_note(self, row: Any) -> str:
        where = f"{label(row.rule, row.schedule)}: its best stepsize, {row.eta:.3g}, is the {row.edge} of its grid"
        if self.extend:
            return f"{where} after {MOST_EXTENSIONS} extensions, the limit: give a grid around it with --etas."
        return f"{where}, and the best may lie beyond: --extend continues the grid."

    def _repr_html_(self) -> str:
        return tables.html(self.table(), " ".join(self.notes()))


def _eta(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _sent(history: pd.DataFrame) -> pd.Series:
    """The MB sent per node: the mean over the nodes."""
    return history.bytes / history.nodes / 1e6


def with_eta(history: pd.DataFrame) -> pd.DataFrame:
    """Add a column eta where no rule has one."""
    return history if "eta" in history else history.assign(eta=float("nan"))


# ---------------------------------------------------------------- runs


def compare(
    problem: "Problem",
    topology: "Topology",
    rules: Sequence[str] = COMPARED,
    etas: Sequence[float] | Mapping[str, Sequence[float]] = (),
    *,
    steps: int,
    seed: int | Sequence[int] = 0,
    schedule: str | None = None,
    metric: str | None = None,
    x: str | Sequence[str] = (),
    smooth: str = "mean",
    extend: bool = False,
    folder: "str | Path | RunFolder | None" = None,
    **options: Any,
) -> Comparison:
    """Run every rule with every stepsize and seed, choose a stepsize for each rule and schedule, and report its results.

    Args:
        problem: What to minimize.
        topology: The graph.
        rules: The names of the rules; one may name its schedule, as in "dsgd:constant".
        etas: The stepsizes of all rules, or a dictionary with those of each.
        steps: The number of steps.
        seed: The seed, or several, whose results are reported.
        schedule: The schedule of rules that need a stepsize and name none; by default diminishing, whatever the
            rule's own default is. Rules that need no stepsize use their default where they do not have it. One that no rule
            uses is an error.
        metric: What is compared (default: the test accuracy, else the test loss, else the training loss, ...).
        x: What curves are drawn against, one or several of "steps", "epochs", "samples", "bytes", "messages" and "seconds";
            for seconds the chosen variants are run again, each by itself. Default: steps, and bytes too where methods send
            different amounts.
        smooth: What is drawn of every run: its running "mean", the "best" or the "average" so far, or with "none" the values
            themselves.
        extend: Continue the grid where its edge is best, at most 8 times.
        folder: Write the runs to this folder. A `RunFolder` to resume continues with what is missing, also of further rules.
        **options: The other arguments of `solve`.

    Examples:
        ```python
        comparison = compare(problem, graph, ["dsgd", "dnasa"], etas=[0.01, 0.1, 1], steps=1000, seed=[0, 1, 2])
        print(comparison.table())
        ```
    """
    seeds = distinct("seed", as_list(seed))
    axes = check_axes(as_list(x))
    choose("smoothing", smooth, SMOOTHINGS)
    wanted = grid_of(rules, etas, schedule, extend)
    others = _other_seeds(problem, wanted, metric, seeds)
    runs = GridRunner(problem, topology, folder, {"steps": steps, **options})
    facts = runs.describe()
    if runs.simulated and runs.folder is not None and not runs.folder.resume:
        one_step = {name: value for name, value in options.items() if name not in OF_LONG_RUNS}
        check_metric(problem, topology, wanted[0], metric, axes, **one_step)
    first = runs.solve("", wanted, [*seeds, *others], callback=_checked(metric, axes))
    _check_columns(first.history, axes)
    every = list(
        dict.fromkeys(first.history.seed.tolist())
    )  # of a finished comparison, maybe more than these rules need
    if not {*seeds, *others} <= {*every}:
        raise InputError("These runs lack the seeds that stepsizes are chosen on: choose another folder.")
    compared = metric or _default_metric(first.history)
    selection = tuning.select(list(first.history), compared, seeds, [seed for seed in every if seed not in seeds])
    histories = [first.history, *runs.added(wanted, every)]
    more = runs.agree(missing(histories, wanted))
    while True:
        if more:
            histories.append(runs.extend(more, every))
        history = _joined(histories, wanted)
        choice = _choose(history, selection, wanted)
        more = runs.agree(_beyond(history, choice, wanted)) if extend else []
        if not more:
            break
    timed = runs.alone(choice, seeds) if "seconds" in axes else None
    return Comparison(
        history,
        compared,
        selection,
        choice,
        axes,
        extend,
        timed,
        first.settings,
        first.rank,
        smooth,
        **facts,
    )


def check_axes(names: Sequence[str]) -> tuple[str, ...]:
    """What curves are drawn against, each known and given once."""
    for name in names:
        choose("x", name, X)
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


def _lines(wanted: Sequence[Variant]) -> list[tuple[str, str]]:
    """The rules and schedules of these variants."""
    labels = [variant.label() for variant in wanted]
    return list(dict.fromkeys((label["rule"], label["schedule"]) for label in labels))


def _all(histories: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows; runs that are in several, since somebody removed a part between others, are in it once."""
    history = pd.concat([with_eta(each) for each in histories], ignore_index=True)
    return history.drop_duplicates([*VARIANT, "seed", "step"], ignore_index=True)


def _joined(histories: Sequence[pd.DataFrame], wanted: Sequence[Variant]) -> pd.DataFrame:
    """All rows of the rules and schedules that are wanted."""
    history, lines = _all(histories), _lines(wanted)
    return history[[line in lines for line in zip(history.rule, history.schedule, strict=True)]].reset_index(drop=True)


def missing(histories: Sequence[pd.DataFrame], wanted: Sequence[Variant]) -> list[Variant]:
    """The variants that are wanted and in none of these histories."""
    rows = pd.concat([with_eta(each)[list(VARIANT)] for each in histories]).drop_duplicates()
    known = {(row.rule, row.schedule, _eta(row.eta)) for row in rows.itertuples()}
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


def finished(path: Path, x: tuple[str, ...], smooth: str, wanted: Sequence[Variant], extend: bool) -> Comparison | None:
    """The comparison in a folder, without its problem; None where something is left to run, or of an earlier version."""
    folder, rules = _resumed(path), {variant.rule for variant in wanted}
    if "seconds" in x or folder.state not in ENDED or not fits(folder.config, STORED) or unfinished(path, rules):
        return None
    found = read(path)
    history = _joined([found.history], wanted)
    choice = _choose(history, found.selection, wanted)
    more = extend and _beyond(history, choice, wanted)
    if more or not {X[name] for name in x} <= {*history}:
        return None
    return replace(found, history=history, choice=choice, x=x, smooth=smooth, extend=extend)


def extensions(path: Path) -> list[Path]:
    """The folders of what was added to a comparison, in this order."""
    parts = [config.parent for config in path.glob("extension-*/config.json") if not config.parent.is_symlink()]
    return sorted(parts, key=lambda part: (len(part.name), part.name))


def unfinished(path: Path, rules: Collection[str]) -> list[Path]:
    """The folders of additions that were stopped and have only these rules: one with another rule was given up."""
    stopped = [part for part in map(_resumed, extensions(path)) if part.state not in ENDED]
    return [part.path for part in stopped if {variant.rule for variant in _begun_with(part)} <= {*rules}]


def _resumed(path: Path) -> RunFolder:
    return RunFolder(path, resume=True)


def _begun_with(part: RunFolder) -> list[Variant]:
    if not fits(part.config, BEGUN):
        raise InputError(f"{part.path / 'config.json'} is damaged: it does not say which rules were run.")
    return [Variant(*entry) for entry in part.config["run"]["the rule"]]


def read(path: Path) -> Comparison:
    """The comparison in the folder of a run of `dnasa compare`, or of a cell of a study."""
    config = _resumed(path).config
    options, every = config["options"], config["run"]["seed"]
    first = Result.load(path)
    more = [Result.load(part).history for part in extensions(path) if _resumed(part).state in ENDED]
    history = _all([first.history, *more])
    metric = options.get("metric") or _default_metric(history)
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    selection = tuning.select(list(history), metric, seeds, [seed for seed in every if seed not in seeds])
    choice = tuning.chosen(final(history), selection, start(history))
    extend, facts = bool(options.get("extend")), config[FACTS] if fits(config, STORED) else {}
    found = Comparison(history, metric, selection, choice, extend=extend, settings=first.settings)
    return replace(found, **{name: facts[name] for name in facts if name in STORED[FACTS]})


def schedule_of(rule: str, schedule: str | None = None) -> str | None:
    """The schedule with which a rule is compared; None: the one it names, or its default."""
    method = None if ":" in rule else find(rule)
    if method is None or (method.needs_eta and schedule):
        return schedule
    wanted = schedule or (SCHEDULE if method.needs_eta else None)
    return wanted if wanted in method.schedules else None


def _grid(etas: Sequence[float] | Mapping[str, Sequence[float]], rule: str, extend: bool) -> list[float]:
    """The stepsizes of a rule."""
    grid = distinct("eta", list(etas.get(rule, ()) if isinstance(etas, Mapping) else etas))
    if extend and len(grid) == 1:
        raise InputError("Extending a grid needs its factor: give at least two stepsizes (--etas).")
    return grid


def _other_seeds(problem: "Problem", wanted: Sequence[Variant], metric: str | None, seeds: Sequence[int]) -> list[int]:
    """Seeds to choose stepsizes on where there are no validation rows: as many as are reported, but different."""
    tuned = len({variant[:2] for variant in wanted}) < len(wanted)
    validated = bool(getattr(problem, "validation", ())) and (metric or "test_").startswith("test_")
    after = max(seeds) + 1
    return list(range(after, after + len(seeds))) if tuned and not validated else []


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
        known = [name for name, value in row.items() if isinstance(value, float) and name not in (*X, "eta")]
        raise InputError(f"There is no metric '{metric}' to compare by. This run has: {', '.join(known)}.")
    return metric


def check_metric(
    problem: "Problem", topology: "Topology", variant: Variant, metric: str | None, x: Sequence[str], **options: Any
) -> None:
    """Take one step, before a folder is made: only a run shows which metrics and axes there are."""
    if metric is not None or not {*x} <= {"steps", "seconds"}:
        check = _checked(metric, x)
        solve(problem, topology, [variant], steps=1, callback=check, progress=False, **options)


def _checked(metric: str | None, x: Sequence[str]) -> Any:
    """A callback that refuses a metric or an axis at the first evaluation, not at the end."""

    def check(evaluation: Evaluation) -> bool:
        row = evaluation.rows[0]
        metric_in(row, metric)
        _check_columns(row, x)
        return False

    return check


def _check_columns(known: Container[str], x: Sequence[str]) -> None:
    for name in x:
        if X[name] not in known:
            raise InputError(f"These runs have no {name}: choose another x.")


class GridRunner:
    """The parts of a comparison, each a call of `solve`; with a folder, parts that are done are read from it."""

    def __init__(
        self,
        problem: "Problem",
        topology: "Topology",
        folder: "str | Path | RunFolder | None",
        options: dict[str, Any],
    ):
        self.problem = problem
        self.topology = topology
        self.options = options
        self.folder = RunFolder(folder) if isinstance(folder, (str, Path)) else folder
        self.network: Network | None = options.get("network")

    def describe(self) -> dict[str, Any]:
        """What a comparison says of its problem; the folder of a new run has it in its config."""
        config = {} if self.folder is None else self.folder.config
        facts = {
            "batch": getattr(self.problem, "batch", 1),
            "model": captions.model_name(str(config.get("model", "")), getattr(self.problem, "layout", ())),
            "own_partitions": getattr(self.problem, "by_seed", False),
        }
        if self.folder is not None and not self.folder.resume:
            config[FACTS] = facts
        return facts

    @property
    def simulated(self) -> bool:
        return self.network is None or self.network.simulated

    def agree(self, wanted: list[Variant]) -> list[Variant]:
        """Use the variants of the first process everywhere: their last bits may differ between processes."""
        if self.network is None or self.network.simulated:
            return wanted
        return self.network.allgather_json(wanted, lambda given: [Variant(*entry) for entry in given])[0]

    def added(self, wanted: Sequence[Variant], seeds: Sequence[int]) -> list[pd.DataFrame]:
        """The histories of what was added to the grid, finished now where it was stopped, unless a rule is unwanted by now."""
        histories, rules = [], {variant.rule for variant in wanted}
        for number in count(1):
            name = f"extension-{number}"
            begun = self._begun(name)
            if not begun:
                break
            if _resumed(self._path(name)).state in ENDED or {variant.rule for variant in begun} <= rules:
                histories.append(self.solve(name, begun, seeds).history)
        return histories

    def extend(self, wanted: Sequence[Variant], seeds: Sequence[int]) -> pd.DataFrame:
        """Add these to the grid."""
        return self.solve(self._free("extension", wanted), wanted, seeds).history

    def solve(self, name: str, wanted: Sequence[Variant], seeds: Sequence[int], **more: Any) -> Result:
        """Run the part of this name, or read it if it has ended; the grid has no name, and the folder itself holds it."""
        part = self._part(name)
        if part is not None and part.resume and part.state in ENDED:
            return replace(Result.load(part.path), rank=self.network.rank if self.network else 0)
        own: Any = {"seed": list(seeds), "folder": part} | self.options | more
        try:
            return solve(self.problem, self.topology, list(wanted), **own)
        except Interrupted as error:
            assert self.folder is not None
            what = str(error).partition(";")[0]
            how = "the same command" if self.folder.resume else f"dnasa resume {self.folder.path}"
            raise Interrupted(f"{what}; continue with: {how}") from error

    def _part(self, name: str) -> RunFolder | None:
        if self.folder is None or not name:
            return self.folder
        begun = bool(self._begun(name))
        if self.network is None or self.network.rank == 0:
            try:
                self.folder.own.claim([f"{name}/{LIST}"])
            except OSError as error:
                raise InputError(f"Cannot use {self.folder.path}: {error}. Choose another folder.") from error
        of_grid = self.folder.config["run"] if fits(self.folder.config, {"run": dict}) else {}
        facts = {key: value for key, value in of_grid.items() if key not in ("the rule", "seed")}
        return RunFolder(self._path(name), {"part of": self.folder.path.name, "run": facts}, resume=begun)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder.own.inside(f"{name}/{LIST}").parent

    def _begun(self, name: str) -> list[Variant]:
        """What the part of this name was begun with, as the first process sees it; empty where it was not."""
        if self.folder is None:
            return []
        path = self._path(name)
        return self.agree(_begun_with(_resumed(path)) if (path / "config.json").exists() else [])

    def _free(self, kind: str, wanted: Sequence[Variant]) -> str:
        """The name of the part of this kind that has these variants, or else the first that is not in use."""
        names = (f"{kind}-{number}" for number in count(1))
        return next(name for name in names if self._begun(name) in ([], list(wanted)))

    def alone(self, choice: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
        """Run each chosen variant by itself: runs side by side share their seconds."""
        results = []
        for row in choice.itertuples():
            wanted = self.agree([Variant(str(row.rule), str(row.schedule), _eta(row.eta))])
            results.append(self.solve(self._free("alone", wanted), wanted, seeds).history)
        return pd.concat([with_eta(history) for history in results], ignore_index=True)
