"""Running a study: a comparison for each of its cells, each in a folder of its own, continued where it was stopped."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dnasa import networks, topology
from dnasa.communication import Network
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.grid import check_metric, compare, schedule_of
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import final
from dnasa.comparing.study_file import Cell, Study
from dnasa.core import InputError, Interrupted
from dnasa.rules import registry
from dnasa.rules.registry import RULES, variants
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.progress import Progress
from dnasa.tasks.sources import SourceOptions, make_source

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem

UNCOMPARED = ("checkpoint_every",)  # settings that do not change results
SUMMARY = "table.csv"  # of a cell: written when it is complete


class Prepared(NamedTuple):
    """What a cell compares; rules that W does not suit are left out, each with a line that says why."""

    problem: "Problem"
    network: Network
    rules: list[str]
    notes: list[str]
    evaluate: Any
    facts: dict[str, Any]


def check(study: Study, out: Path) -> None:
    """Make the problem and graph of every cell that is not complete, so that mistakes show before anything is run."""
    seen = set()
    for cell in study.cells:
        if (out / cell.folder / SUMMARY).exists():
            continue
        try:
            problem, network, rules, *_ = prepare(study, cell)
            if cell.problem not in seen:
                check_metric(problem, network, _variant(cell, rules[0]), cell.settings["metric"], [study.x])
        except InputError as error:
            raise InputError(f"{study.name}, {cell.title}: {error}") from error
        seen.add(cell.problem)


def prepare(study: Study, cell: Cell) -> Prepared:
    settings = cell.settings
    graph = topology.make(cell.graph, settings["nodes"], settings["weights"])
    messages = {name: settings[name] for name in ("rounds", "every", "compress")}
    network = networks.connect(graph, "simulated", **messages)
    own = {"data": cell.problem, "problem": None} if cell.partition else {"data": None, "problem": cell.problem}
    options = settings | own | {"partition": cell.partition, "device": study.device}
    source = make_source(SourceOptions.of(options), range(graph.nodes), validate=True)
    reasons = {rule: _unsuitable(cell, rule, source.problem, network) for rule in settings["rules"]}
    rules = [rule for rule, reason in reasons.items() if not reason]
    if not rules:
        raise InputError(f"no rule can be used on {cell.graph}: {next(iter(reasons.values()))}")
    notes = [f"Left out on {cell.graph}: {reason}" for reason in reasons.values() if reason]
    at_end = study.figure == "stepsizes" and settings["evaluate"] is None
    evaluate = [0, settings["steps"]] if at_end else source.evaluate
    return Prepared(source.problem, network, rules, notes, evaluate, {"model": source.model})


def _variant(cell: Cell, rule: str) -> registry.Variant:
    return variants(rule, cell.settings["etas"][rule], schedule_of(rule))[0]


def _unsuitable(cell: Cell, rule: str, problem: "Problem", network: Network) -> str:
    """Why the rule cannot be used on this network; empty if it can."""
    variant, graph = _variant(cell, rule), network.topology
    assert graph is not None
    schedules = registry.schedules_of(variant, graph.nodes, cell.settings["steps"])
    try:
        built = registry.make(RULES[variant.rule], schedules, problem.layout, problem.prox)
        topology.check_weights(built, graph, network.settings.rounds, title(variant.rule), network.settings.every)
    except InputError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- runs


def run(
    study: Study, out: Path, progress: Progress = None, report: Callable[[str], None] = print
) -> tuple[list[tuple[Cell, Comparison]], list[str]]:
    """The comparison of every cell, and notes on rules that were left out. What is in `out` already is not run again."""
    folders = [cell_folder(cell, out) for cell in study.cells]
    results: list[tuple[Cell, Comparison]] = []
    notes: dict[str, None] = {}
    for number, (cell, folder) in enumerate(zip(study.cells, folders, strict=True), start=1):
        began, complete = time.perf_counter(), (folder.path / SUMMARY).exists()
        if progress == "json":
            print(json.dumps({"cell": cell.folder}), flush=True)
        prepared = prepare(study, cell)
        comparison = run_cell(study, cell, prepared, folder, progress)
        runs = len(final(comparison.history))
        took = "from its folder" if complete else f"{time.perf_counter() - began:.1f} s"
        report(f"[{number}/{len(study.cells)}] {cell.title}: {runs} runs of {cell.settings['steps']:,} steps, {took}.")
        results.append((cell, comparison))
        notes |= dict.fromkeys(prepared.notes)
    return results, list(notes)


def cell_folder(cell: Cell, out: Path) -> RunFolder:
    """Its folder in `out`, to be continued if it has been begun with the same settings."""
    path, settings = OwnFiles(out).inside(f"{cell.folder}/config.json").parent, stored(cell)
    if not (path / "config.json").exists():
        return RunFolder(path, {"command": "study", "options": settings})
    folder = RunFolder(path, resume=True)
    saved = folder.config.get("options")
    for key, value in settings.items():
        before = saved.get(key) if isinstance(saved, dict) else None
        if before != value:
            raise InputError(
                f"{path} was run with {key} = {before!s:.100}, not {value!s:.100}: delete this folder to run it again, or "
                "choose another --out."
            )
    return folder


def stored(cell: Cell) -> dict[str, Any]:
    """The settings that results depend on, as they come back from a file."""
    names = {"data": cell.problem, "topology": cell.graph, "partition": cell.partition}
    return json.loads(json.dumps(names | {key: value for key, value in cell.settings.items() if key not in UNCOMPARED}))


def run_cell(study: Study, cell: Cell, prepared: Prepared, folder: RunFolder, progress: Progress) -> Comparison:
    """All its rules, stepsizes and seeds side by side."""
    settings = cell.settings
    if not folder.resume:
        folder.config |= {"study": study.name, "quick": study.quick, "device": study.device} | prepared.facts
    try:
        comparison = compare(
            prepared.problem,
            prepared.network,
            prepared.rules,
            settings["etas"],
            steps=settings["steps"],
            seed=range(settings["seed"], settings["seed"] + settings["seeds"]),
            metric=settings["metric"],
            x=study.x,
            extend=settings["extend"],
            folder=folder,
            evaluate=prepared.evaluate,
            node_weights=settings["weights_by"],
            record=Record(checkpoint_every=settings["checkpoint_every"]),
            progress=progress,
        )
    except Interrupted as error:
        what = str(error).partition(";")[0]
        raise Interrupted(f"{what} of {cell.title}; the same command continues there.") from error
    folder.own.write(SUMMARY, comparison.summary().to_csv(index=False).encode())
    return comparison
