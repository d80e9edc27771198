"""Running a study: a comparison for each of its cells, each in a folder of its own, continued where it was stopped."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dnasa import networks, topology
from dnasa.communication import Network
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.grid import check_metric, compare, grid_of
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import final
from dnasa.comparing.study_file import Cell, Study
from dnasa.core import InputError, Interrupted
from dnasa.rules.registry import example
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.progress import Progress
from dnasa.tasks.sources import SourceOptions, make_source
from dnasa.topology.matrices import check_weights

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem

SUMMARY = "table.csv"  # of a cell: written when it is complete


class Prepared(NamedTuple):
    """What a cell compares; rules that W does not suit are left out, each with a line that says why."""

    problem: "Problem"
    network: Network
    rules: list[str]
    notes: list[str]
    evaluate: int | list[int] | None
    facts: dict[str, Any]


def check(study: Study, out: Path) -> None:
    """Make the problem and graph of every cell that is not complete, so that mistakes show before anything is run."""
    measured = set()
    for cell in study.cells:
        if (out / cell.folder / SUMMARY).exists():
            continue
        try:
            prepared = prepare(study, cell)
            variants = grid_of(prepared.rules, cell.settings["etas"], extend=cell.settings["extend"])
            if cell.problem not in measured:
                check_metric(prepared.problem, prepared.network, variants[0], cell.settings["metric"], [study.x])
        except InputError as error:
            raise InputError(f"{study.name}, {cell.title}: {error}") from error
        measured.add(cell.problem)


def prepare(study: Study, cell: Cell) -> Prepared:
    settings = cell.settings
    graph = topology.make(cell.graph, settings["nodes"], settings["weights"])
    messages = {name: settings[name] for name in ("rounds", "every", "compress")}
    network = networks.connect(graph, "simulated", **messages)
    options = settings | {"partition": cell.partition, "device": study.device}
    options["data" if cell.partition else "problem"] = cell.problem
    source = make_source(SourceOptions.of(options), range(graph.nodes), validate=True)
    rules, reasons = [], []
    for rule in settings["rules"]:
        instance, name = example(rule), title(rule.partition(":")[0])
        try:
            check_weights(instance, graph, network.settings.rounds, name, network.settings.every)
            rules.append(rule)
        except InputError as error:
            reasons.append(str(error))
    if not rules:
        raise InputError(f"no rule can be used on {cell.graph}: {reasons[0]}")
    only_end = study.figure == "stepsizes" and settings["evaluate"] is None
    return Prepared(
        source.problem,
        network,
        rules,
        notes=[f"Left out on {cell.graph}: {reason}" for reason in reasons],
        evaluate=[0, settings["steps"]] if only_end else source.evaluate,
        facts={"model": source.model},
    )


def run(
    study: Study, out: Path, progress: Progress = None, report: Callable[[str], None] = print
) -> tuple[list[tuple[Cell, Comparison]], list[str]]:
    """The comparison of every cell, and notes on rules that were left out. What is in `out` already is not run again."""
    folders = [cell_folder(cell, out) for cell in study.cells]  # refuses changed settings before anything is run
    results: list[tuple[Cell, Comparison]] = []
    notes: dict[str, None] = {}  # each once
    for number, (cell, folder) in enumerate(zip(study.cells, folders, strict=True), start=1):
        began = time.perf_counter()
        is_complete = (folder.path / SUMMARY).exists()
        if progress == "json":
            print(json.dumps({"cell": cell.folder}), flush=True)
        prepared = prepare(study, cell)
        comparison = run_cell(study, cell, prepared, folder, progress)
        runs = len(final(comparison.history))
        took = "from its folder" if is_complete else f"{time.perf_counter() - began:.1f} s"
        report(f"[{number}/{len(study.cells)}] {cell.title}: {runs} runs of {cell.settings['steps']:,} steps, {took}.")
        results.append((cell, comparison))
        notes |= dict.fromkeys(prepared.notes)
    return results, list(notes)


def cell_folder(cell: Cell, out: Path) -> RunFolder:
    """Its folder in `out`, to be continued if it has been begun with the same settings."""
    config = OwnFiles(out).inside(f"{cell.folder}/config.json")
    path = config.parent
    settings = cell.settings | {"data": cell.problem, "topology": cell.graph, "partition": cell.partition}
    del settings["checkpoint_every"]  # results do not depend on it
    settings = json.loads(json.dumps(settings))  # as they come back from a file
    if not config.exists():
        return RunFolder(path, {"command": "study", "options": settings})
    folder = RunFolder(path, resume=True)
    for key, value in settings.items():
        before = folder.options.get(key)
        if before != value:
            raise InputError(
                f"{path} was run with {key} = {before!s:.100}, not {value!s:.100}: delete this folder to run it again, or "
                "choose another --out."
            )
    return folder


def run_cell(study: Study, cell: Cell, prepared: Prepared, folder: RunFolder, progress: Progress) -> Comparison:
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
        reason = str(error).partition(";")[0]
        raise Interrupted(f"{reason} of {cell.title}; the same command continues there.") from error
    folder.own.write(SUMMARY, comparison.summary().to_csv(index=False).encode())
    return comparison
