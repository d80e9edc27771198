"""A study as a TOML file: problems x graphs x partitions, in each of which rules are compared.

The keys have the names of the options of `dnasa compare`, in the plural where they vary. A table `[problem.NAME]` replaces them
for one problem. Anybody may have written the file, so everything is checked before it is used.
"""

import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dnasa import topology
from dnasa.core import InputError
from dnasa.data.partitions import full_name
from dnasa.files import read_toml
from dnasa.rules.registry import COMPARED, example
from dnasa.tasks.sources import OF_FILES, PROBLEMS

SHIPPED = Path(__file__).parent / "files"
COPY = "study.toml"  # of the file, in the study's folder
FIGURES = ("stepsizes", "curves")
DEFAULT = "default"  # in a table of stepsizes: those of the rules that it does not name
LONGEST = 100  # names, and lists of a factor


class Kind(NamedTuple):
    """What a value must be, in words and as a check."""

    words: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()


def _is_whole(value: Any, low: int = 1) -> bool:
    return type(value) is int and low <= value < 2**31


def _are(fits: Callable[[Any], bool], value: Any) -> bool:
    """A list of different values."""
    if not isinstance(value, list) or not 0 < len(value) <= LONGEST or not all(map(fits, value)):
        return False
    return len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _are_numbers(value: Any) -> bool:
    return _are(_is_number, value)


def _is_grid(value: Any) -> bool:
    return all(map(_are_numbers, value.values())) if isinstance(value, dict) else _are_numbers(value)


WHOLE = Kind("a positive whole number", _is_whole)
FROM_ZERO = Kind("a whole number from 0 on", lambda value: _is_whole(value, 0))
TEXT = Kind("a text", _is_text)
TEXTS = Kind("a list of different texts", lambda value: _are(_is_text, value))
FLAG = Kind("true or false", lambda value: type(value) is bool)
SETTINGS: dict[str, tuple[Kind, Any]] = {  # with their defaults
    "graphs": (TEXTS, None),
    "partitions": (TEXTS, ["iid"]),
    "partition_seed": (FROM_ZERO, None),
    "rules": (TEXTS, list(COMPARED)),
    "etas": (
        Kind(f"a list of different positive numbers, or a table of such lists by rule and '{DEFAULT}'", _is_grid),
        [0.01, 0.03, 0.1, 0.3, 1, 3],
    ),
    "extend": (FLAG, False),
    "nodes": (WHOLE, 8),
    "weights": (TEXT, None),
    "weights_by": (Kind("'rows'", lambda value: value == "rows"), None),
    "class_weight": (Kind("'balanced'", lambda value: value == "balanced"), None),
    "steps": (WHOLE, 1000),
    "batch": (WHOLE, None),
    "seed": (FROM_ZERO, 0),
    "seeds": (WHOLE, 1),
    "metric": (TEXT, None),
    "evaluate": (WHOLE, None),
    "model": (TEXT, None),
    **{name: (FLAG if name.startswith("no_") else TEXT, None) for name in OF_FILES},
    "loss_scale": (Kind("a positive number or '1/n'", lambda value: value == "1/n" or _is_number(value)), 1),
    "dtype": (TEXT, None),
    "checkpoint_every": (WHOLE, None),
}
# without effect on synthetic problems
OF_DATA = ("partitions", "partition_seed", "model", "loss_scale", "weights_by", "class_weight", *OF_FILES)
OF_STUDY: dict[str, tuple[Kind, Any]] = {
    "name": (
        Kind("letters, digits, - and _", lambda value: _is_text(value) and re.fullmatch(r"[\w-]+", value) is not None),
        None,
    ),
    "problems": (TEXTS, None),
    "figure": (Kind(f"one of: {', '.join(FIGURES)}", lambda value: value in FIGURES), FIGURES[0]),
    "x": (TEXT, "steps"),
    "device": (TEXT, "cpu"),
}


class Cell(NamedTuple):
    """One problem on one graph with one partition; synthetic problems have none."""

    problem: str
    graph: str
    partition: str | None
    settings: dict[str, Any]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (source_name(self.problem), self.graph, self.partition)))

    @property
    def folder(self) -> str:
        name = re.sub(r"[^\w().,-]", "_", self.title.replace(", ", "-"))
        return name if len(os.fsencode(name)) <= LONGEST else f"{name[:50]}-{zlib.crc32(name.encode()):08x}"


class Study(NamedTuple):
    name: str
    cells: list[Cell]
    figure: str
    x: str
    device: str
    quick: bool = False
    smooth: str = "mean"


def source_name(problem: str) -> str:
    """The name of the user's file."""
    return Path(problem).stem if Path(problem).suffix else problem


# ---------------------------------------------------------------- find and read


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find(name: str) -> Path:
    """A file, or a study that comes with dnasa by its name."""
    path, known = Path(name), shipped()
    if path.suffix == ".toml":
        return path
    if name not in known:
        raise InputError(f"There is no study '{name:.60}'. Give a .toml file, or one of: {', '.join(known)}.")
    return known[name]


def read(path: Path, only: Sequence[str] = (), quick: bool = False) -> Study:
    """The study in a file, checked as far as possible without its data."""
    return read_toml(
        path,
        lambda reason: f"There is no study in {path} ({reason}): give a .toml file.",
        lambda given: _study(given, path.stem, only, quick),
    )


def _study(given: dict[str, Any], stem: str, only: Sequence[str], quick: bool) -> Study:
    own = given.pop("problem", {})
    known = SETTINGS | OF_STUDY
    _check(given, known)
    if "problems" not in given:
        raise InputError("problems is missing: a list such as ['least_squares', 'digits'].")
    name = given.get("name", stem)
    if not OF_STUDY["name"][0].fits(name):
        raise InputError(f"name is missing, and the file's name is not {OF_STUDY['name'][0].words}.")
    _check_problems(own, given["problems"])
    for problem in only:
        if problem not in given["problems"]:
            raise InputError(
                f"there is no problem '{problem:.60}' (--only). Its problems: {', '.join(given['problems'])}."
            )
    whole = {key: given.get(key, default) for key, (_, default) in known.items()}
    cells = [
        cell for problem in only or given["problems"] for cell in _cells(problem, whole, own.get(problem, {}), quick)
    ]
    if len({cell.folder for cell in cells}) < len(cells):
        raise InputError("two of its problems have the same name: rename one of the files.")
    return Study(f"{name}-quick" if quick else name, cells, whole["figure"], whole["x"], whole["device"], quick)


def _check(given: Mapping[str, Any], known: Mapping[str, tuple[Kind, Any]], where: str = "") -> None:
    for key, value in given.items():
        if key not in known:
            raise InputError(
                f"unknown key '{where}{key:.40}'. The keys here: {', '.join(known)}{', problem' * (not where)}."
            )
        if not known[key][0].fits(value):
            raise InputError(f"{where}{key} must be {known[key][0].words}, not {value!r:.60}.")


def _check_problems(own: Any, problems: Sequence[str]) -> None:
    """The tables [problem.NAME]."""
    if not isinstance(own, dict):
        raise InputError("problem must be a table: write [problem.NAME] for one of the problems.")
    for name, settings in own.items():
        where = f"problem.{name:.40}."
        if name not in problems or not isinstance(settings, dict):
            raise InputError(f"[{where[:-1]}] must be a table for one of the problems: {', '.join(problems)}.")
        _check(settings, SETTINGS, where)
        unused = [key for key in settings if key in OF_DATA and name in PROBLEMS]
        if unused:
            raise InputError(f"{where}{unused[0]} has no effect: {name} has no data. Leave it out.")


# ---------------------------------------------------------------- cells


def _cells(problem: str, whole: Mapping[str, Any], own: Mapping[str, Any], quick: bool) -> list[Cell]:
    settings = {key: own.get(key, whole[key]) for key in SETTINGS}
    settings["etas"] = _etas(whole, own, settings["rules"])
    if settings["extend"] and any(len(grid) == 1 for grid in settings["etas"].values()):
        raise InputError("extend needs the factor of a grid: give at least two stepsizes in etas.")
    if problem in PROBLEMS:
        settings |= {key: SETTINGS[key][1] for key in OF_DATA}
    if problem == "robust_regression" and "batch" not in own:
        settings["batch"] = None  # has one sample per step
    if quick:
        settings |= {"steps": max(1, settings["steps"] // 10), "seeds": min(2, settings["seeds"])}
    graphs, partitions = settings.pop("graphs"), settings.pop("partitions")
    if graphs is None:
        chosen = topology.default_name(settings["nodes"], map(example, settings["rules"]), weights=settings["weights"])
        graphs, settings["weights"] = [chosen[0]], chosen[1]
    divisions = [None] if problem in PROBLEMS else [full_name(name) for name in partitions]
    return [Cell(problem, graph, division, settings) for division in divisions for graph in graphs]


def _etas(whole: Mapping[str, Any], own: Mapping[str, Any], rules: Sequence[str]) -> dict[str, list[float]]:
    """The stepsizes of every rule: the problem's own take precedence, then those that name the rule."""
    grids = _by_rule(whole["etas"], whole["rules"]) | _by_rule(own.get("etas", {}), rules)
    return {rule: [float(eta) for eta in grids.get(rule, grids.get(DEFAULT, []))] for rule in rules}


def _by_rule(etas: Any, rules: Sequence[str]) -> dict[str, list[float]]:
    grids = etas if isinstance(etas, dict) else {DEFAULT: etas}
    unknown = [rule for rule in grids if rule not in (DEFAULT, *rules)]
    if unknown:
        raise InputError(f"etas.{unknown[0]:.40} belongs to none of the rules: {', '.join(rules)}.")
    return grids
