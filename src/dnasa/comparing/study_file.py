"""A study as a TOML file: problems x networks x partitions, in each of which rules are compared.

The keys have the names of the options of `dnasa compare`, in the plural where they vary. A table `[problem.NAME]` replaces them
for one problem, and each table `[network.NAME]` is one more network: a graph and how messages travel on it. A table
`[budget.NAME]` is a budget of bytes or, where it has links, of predicted seconds: each rule is then a cell. Anybody may have
written the file, so everything is checked before it is used.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dnasa import topology
from dnasa.channels.named import channel_of
from dnasa.checks import as_list, first_mistake, in_words, suggestion
from dnasa.core import InputError
from dnasa.data.partitions import full_name
from dnasa.files import read_toml
from dnasa.rules.registry import COMPARED, example
from dnasa.tasks.sources import OF_FILES, PROBLEMS

COPY = "study.toml"  # of the file, in the study's folder
DEFAULT = "default"  # in a table of stepsizes: those of the rules that it does not name
LONGEST = 100  # names, and lists of a factor
# without effect on synthetic problems
OF_DATA = (*OF_FILES, "partitions", "partition_seed", "model", "loss_scale", "weights_by", "class_weight")


def _check(fits: Callable[[Any], bool], words: str) -> AfterValidator:
    """A check of what pydantic has no type for; `words` say what is expected."""

    def checked(value: Any) -> Any:
        if not fits(value):
            raise ValueError(words)
        return value

    return AfterValidator(checked)


DIFFERENT = _check(lambda values: len(set(values)) == len(values), "must not repeat a value")
Whole = Annotated[int, Field(ge=1, lt=2**31)]
FromZero = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST), _check(str.isprintable, "must be printable")]
Texts = Annotated[list[Text], Field(min_length=1, max_length=LONGEST), DIFFERENT]
Grid = Annotated[list[Positive], Field(min_length=1, max_length=LONGEST), DIFFERENT]
Rounds = Annotated[Any, _check(lambda value: value == "exact" or type(value) is int, "must be a whole number or 'exact'")]
LossScale = Annotated[
    Any, _check(lambda value: value == "1/n" or (type(value) in (int, float) and 0 < value < inf), "must be positive or '1/n'")
]
Name = Annotated[str, _check(re.compile(r"[\w-]{1,100}").fullmatch, "must be letters, digits, - and _")]
Clock = Annotated[
    dict[str, Any], BeforeValidator(lambda clock: read_toml(Path(clock), "links", dict) if isinstance(clock, str) else clock)
]
ONE_OR_SEVERAL = BeforeValidator(as_list)
Figures = Annotated[list[Literal["stepsizes", "curves", "networks"]], ONE_OR_SEVERAL, Field(min_length=1), DIFFERENT]
Axes = Annotated[list[Literal["steps", "epochs", "samples", "bytes", "clock"]], ONE_OR_SEVERAL, Field(min_length=1), DIFFERENT]
Grids = Annotated[dict[str, Grid], BeforeValidator(lambda etas: {DEFAULT: etas} if isinstance(etas, list) else etas)]


class Messages(BaseModel):
    """How messages travel."""

    model_config = ConfigDict(extra="forbid", strict=True)

    weights: Text | None = None
    rounds: Rounds | None = None
    every: Whole = 1
    compress: Text | None = None
    drop: Annotated[float, Field(ge=0, lt=1)] | None = None
    clock: Clock | None = None


class NetworkSettings(Messages):
    graph: Text | None = None


class Settings(Messages):
    """The settings of a cell, each as the option of `dnasa compare` of its name."""

    graphs: Annotated[Texts | None, BeforeValidator(lambda graphs: None if graphs == [] else graphs)] = None
    partitions: Texts = ["iid"]
    partition_seed: FromZero | None = None
    rules: Texts = [*COMPARED]
    etas: Grids = {DEFAULT: [0.01, 0.03, 0.1, 0.3, 1, 3]}
    extend: bool = False
    nodes: Whole = 8
    weights_by: Literal["rows"] | None = None
    class_weight: Literal["balanced"] | None = None
    steps: Whole = 1000
    batch: Whole | None = None
    seed: FromZero = 0
    seeds: Whole = 1
    metric: Text | None = None
    evaluate: Whole | None = None
    model: Text | None = None
    target: Text | None = None
    drop_columns: Text | None = None
    id_column: Text | None = None
    task: Text | None = None
    loss_scale: LossScale = 1.0
    dtype: Text | None = None
    checkpoint_every: Whole | None = None


class StudyFile(Settings):
    problems: Texts
    name: Name
    figure: Figures = ["stepsizes"]
    x: Axes = ["steps"]
    problem: dict[str, Settings] = {}
    network: dict[Name, NetworkSettings] = {}
    budget: dict[Name, dict[str, Any]] = {}


class Cell(NamedTuple):
    """One problem on one network with one partition; synthetic problems have none. With budgets, one of these and one rule."""

    problem: str
    graph: str
    partition: str | None
    settings: dict[str, Any]
    network: str = ""  # its name; without one, that of the graph
    budget: str = ""
    rule: str = ""
    data: str = ""  # the title of a sample or of altered rows, once they are read
    setup: str = ""  # its model and batches, in words, once it is made

    @property
    def source(self) -> str:
        return self.data or source_name(self.problem)

    @property
    def network_name(self) -> str:
        return self.network or self.graph

    @property
    def network_title(self) -> str:
        return self.network_name.replace("_", " ")

    @property
    def place(self) -> str:
        """What distinguishes it from the other cells of its problem."""
        return ", ".join(filter(None, (self.network_name, self.partition)))

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.source, self.place, self.budget, self.rule)))

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w().,-]", "_", self.title.replace(", ", "-"))[:60]


class Study(NamedTuple):
    name: str
    cells: list[Cell]
    figures: tuple[str, ...] = ("stepsizes",)  # each for one of several x, as "curves-bytes"
    x: tuple[str, ...] = ("steps",)
    quick: bool = False
    device: str = "cpu"

    @property
    def budgets(self) -> bool:
        return any(cell.budget for cell in self.cells)


def source_name(problem: str) -> str:
    return Path(problem).stem if Path(problem).suffix else problem


def read(
    path: Path, only: Sequence[str] = (), quick: bool = False, device: str = "cpu", more_rules: Iterable[str] = ()
) -> Study:
    """The study in a file, and more rules, checked as far as possible without its data."""

    def parse(content: dict[str, Any]) -> Study:
        try:
            file = StudyFile.model_validate({"name": path.stem} | content)
        except ValidationError as error:
            raise InputError(_in_one_line(error)) from None
        file.rules = list(dict.fromkeys([*file.rules, *more_rules]))
        return _study(file, only, quick, device)

    return read_toml(path, "study", parse)


def _in_one_line(error: ValidationError) -> str:
    """The first mistake: where it is, and what was expected instead."""
    first = first_mistake(error)
    where = re.sub(r"^(figure|x)\.\d+$", r"\1", ".".join(f"{part!s:.40}" for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        tables: dict[Any, type[BaseModel]] = {"problem": Settings, "network": NetworkSettings}
        known = tables.get(first["loc"][0], StudyFile)
        hint = suggestion(first["loc"][-1], known.model_fields)
        if where.endswith("message_dtype"):
            hint = " Messages have 16 bits with compress = 'bfloat16'."
        return f"unknown key '{where}'. The keys here: {', '.join(known.model_fields)}.{hint}"
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return f"{where}: {cause}"
    if first["type"] == "missing":
        return f"{where} is missing: give a list such as ['least_squares', 'digits']."
    words = in_words(first)
    return f"{where.removesuffix('.[key]')} {words}{':' if 'must not' in words else ', not'} {first['input']!r:.60}."


def _study(file: StudyFile, only: Sequence[str], quick: bool, device: str) -> Study:
    for problem in only:
        if problem not in file.problems:
            raise InputError(
                f"there is no problem '{problem:.60}' (--only). The problems of this study: {', '.join(file.problems)}."
            )
    if file.budget and file.model_fields_set & {"figure", "x"}:
        raise InputError("figure and x have no effect with budgets, which are compared in a table: leave them out.")
    for name, settings in file.problem.items():
        if name not in file.problems:
            raise InputError(f"[problem.{name:.40}] is for none of the problems: {', '.join(file.problems)}.")
        for key in settings.model_fields_set & {*OF_DATA}:
            if name in PROBLEMS:
                raise InputError(f"problem.{name}.{key} has no effect: {name} has no data. Leave it out.")
    cells = [cell for problem in only or file.problems for cell in _cells(problem, file, quick)]
    if "clock" in file.x and (unclocked := [cell for cell in cells if not cell.settings["clock"]]):
        raise InputError(f'x = "clock" needs links, and {unclocked[0].title} has none: add clock = "links.toml", or a table.')
    if len({cell.folder for cell in cells}) < len(cells):
        raise InputError("two problems of this study have the same name: rename one of the files.")
    figures = {f"{name}-{x}" if file.x[1:] and name != "stepsizes" else name: None for name in file.figure for x in file.x}
    return Study(f"{file.name}-quick" if quick else file.name, cells, tuple(figures), tuple(file.x), quick, device)


def _cells(problem: str, file: StudyFile, quick: bool) -> list[Cell]:
    of_problem = file.problem.get(problem, Settings()).model_dump(exclude_unset=True)
    settings = file.model_dump(include={*Settings.model_fields}) | of_problem
    settings["etas"] = _etas(file, of_problem.get("etas", {}), settings["rules"])
    if problem in PROBLEMS:
        settings |= {key: Settings.model_fields[key].default for key in OF_DATA}
    if problem == "robust_regression" and "batch" not in of_problem:
        settings["batch"] = None  # it has one sample per step
    if quick:
        settings |= {"steps": max(1, settings["steps"] // 10), "seeds": min(2, settings["seeds"])}
    graphs, partitions = settings.pop("graphs"), settings.pop("partitions")
    networks = [("", {"graph": graph}) for graph in graphs or ([] if file.network else [None])]
    networks += [(name, own.model_dump(exclude_unset=True)) for name, own in file.network.items()]
    divisions = [None] if problem in PROBLEMS else [full_name(name) for name in partitions]
    cells = [_cell(problem, division, settings, *network) for division in divisions for network in networks]
    return [part for cell in cells for part in _parts(cell, file.budget)]


def _parts(cell: Cell, budgets: dict[str, dict[str, Any]]) -> list[Cell]:
    """The cell, or one for each budget and rule."""
    parts = [
        cell._replace(budget=name, rule=rule, settings=cell.settings | {"clock": links or None, "rules": [rule], "etas": etas})
        for name, links in budgets.items()
        for rule, etas in ((rule, {rule: cell.settings["etas"][rule]}) for rule in cell.settings["rules"])
    ]
    return parts or [cell]


def _cell(problem: str, partition: str | None, settings: dict[str, Any], network: str, own: dict[str, Any]) -> Cell:
    settings = settings | own
    if settings["drop"] and settings["rounds"] is None:
        settings["rounds"] = 1
    graph = settings.pop("graph", None)
    if graph is None:
        rules, channel = list(map(example, settings["rules"])), channel_of(settings)
        if (settings["every"] or 1) > 1:
            rules = [rule for rule in rules if not rule.needs.fixed_graph]  # the others are left out
        graph, settings["weights"] = topology.graphs.default_name(settings["nodes"], rules, channel, settings["weights"])
    return Cell(problem, graph, partition, settings, network)


def _etas(file: StudyFile, of_problem: dict[str, list[float]], rules: Sequence[str]) -> dict[str, list[float]]:
    """The stepsizes of every rule: those of the problem take precedence, then those that name the rule."""
    for grids, known in ((file.etas, file.rules), (of_problem, rules)):
        unknown = [rule for rule in grids if rule not in (DEFAULT, *known)]
        if unknown:
            raise InputError(f"etas.{unknown[0]:.40} belongs to none of the rules: {', '.join(known)}.")
    grids = file.etas | of_problem
    return {rule: [float(eta) for eta in grids.get(rule, grids.get(DEFAULT, []))] for rule in rules}
