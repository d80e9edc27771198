"""Running a study: a comparison for each of its cells, each in a folder of its own, continued where it was stopped."""

import json
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dnasa import networks, topology
from dnasa.channels.named import channel_of
from dnasa.communication import Network
from dnasa.comparing.budgets import affordable_steps
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.grid import check_metric, compare, grid_of
from dnasa.comparing.plots import title
from dnasa.comparing.run_table import setup
from dnasa.comparing.statistics import final
from dnasa.comparing.study_file import Cell, Study
from dnasa.core import InputError, Interrupted
from dnasa.rules.registry import example, split_schedule
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.progress import Progress
from dnasa.tasks.sources import SourceOptions, make_source
from dnasa.topology.matrices import check_weights

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem

same_source = lru_cache(maxsize=1)(make_source)  # the cells of a problem and partition follow each other
SUMMARY = "table.csv"  # of a cell: written when it is complete


class Prepared(NamedTuple):
    """What a cell compares; rules that W does not suit are left out, each with a line that says why."""

    problem: "Problem"
    network: Network
    rules: list[str]
    notes: list[str]
    evaluate: int | list[int] | None
    facts: dict[str, Any]
    data: str


def check(study: Study, out: Path, known: Collection[str] = ()) -> None:
    """Make the network of every cell, and the problem of those that are not complete: mistakes show before anything is run."""
    measured = set()
    for cell in study.cells:
        try:
            reasons = left_out(cell)
            if cell.folder in known or (out / cell.folder / SUMMARY).exists() or (cell.rule and reasons):
                continue
            prepared = prepare(study, cell)
            variants = grid_of(prepared.rules, cell.settings["etas"], extend=cell.settings["extend"])
            if cell.problem not in measured:
                check_metric(prepared.problem, prepared.network, variants[0], cell.settings["metric"], study.x)
        except InputError as error:
            raise InputError(f"{study.name}, {cell.title}: {error}") from error
        measured.add(cell.problem)


def connect(cell: Cell) -> Network:
    settings = cell.settings
    graph = topology.make(cell.graph, settings["nodes"], settings["weights"])
    options = {name: settings[name] for name in ("rounds", "every", "clock")}
    return networks.connect(graph, "simulated", channel=channel_of(settings), **options)


def left_out(cell: Cell) -> dict[str, str]:
    """The rules that W does not suit, each with a line that says why."""
    network, reasons = connect(cell), {}
    for rule in cell.settings["rules"]:
        name, made = title(split_schedule(rule)[0]), example(rule)
        try:
            check_weights(made, network.topology, network.settings.rounds, name, network.settings.every)
        except InputError as error:
            reasons[rule] = str(error)
    return reasons


def prepare(study: Study, cell: Cell) -> Prepared:
    settings, network, reasons = cell.settings, connect(cell), left_out(cell)
    rules = [rule for rule in settings["rules"] if rule not in reasons]
    if not rules:
        raise InputError(f"no rule can be used on {cell.graph}: {next(iter(reasons.values()))}")
    options = settings | {"partition": cell.partition, "device": study.device}
    options["data" if cell.partition else "problem"] = cell.problem
    source = same_source(SourceOptions.of(options), range(network.nodes), validate=True)
    only_end = study.figures == ("stepsizes",) and settings["evaluate"] is None
    return Prepared(
        source.problem,
        network,
        rules,
        notes=notes_on(cell, reasons),
        evaluate=[0, settings["steps"]] if only_end else source.evaluate,
        facts={"model": source.model},
        data=source.altered.get("data", ""),
    )


def notes_on(cell: Cell, reasons: dict[str, str]) -> list[str]:
    return [f"Left out on {cell.network_name}: {reason}" for reason in reasons.values()]


def run(
    study: Study,
    out: Path,
    progress: Progress = None,
    report: Callable[[str], None] = print,
    known: Collection[str] = (),
) -> tuple[list[tuple[Cell, Comparison]], list[str]]:
    """The comparison of every cell, and notes on rules that were left out. What is in `out` already is not run again.

    Cells of which the folder is `known` are left out.
    """
    cells = [cell for cell in study.cells if cell.folder not in known]
    folders = [cell_folder(cell, out) for cell in cells]  # refuses changed settings before anything is run
    results: list[tuple[Cell, Comparison]] = []
    notes: dict[str, None] = {}  # each once
    for number, (cell, folder) in enumerate(zip(cells, folders, strict=True), start=1):
        if cell.rule and (reasons := left_out(cell)):
            notes |= dict.fromkeys(notes_on(cell, reasons))
            continue
        began = time.perf_counter()
        is_complete = (folder.path / SUMMARY).exists()
        if progress == "json":
            print(json.dumps({"cell": cell.folder}), flush=True)
        prepared = prepare(study, cell)
        comparison = run_cell(study, cell, prepared, folder, progress)
        runs = final(comparison.history)
        took = "from its folder" if is_complete else f"{time.perf_counter() - began:.1f} s"
        report(f"[{number}/{len(cells)}] {cell.title}: {len(runs)} runs of {runs.step.max():,} steps, {took}.")
        made = setup(prepared.facts["model"], prepared.problem.batch)
        results.append((cell._replace(data=prepared.data, setup=made), comparison))
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
                f"{path} was run with {key} = {before!s:.100}, not {value!s:.100}: choose another --out, or delete this folder "
                "to run it again."
            )
    return folder


def run_cell(study: Study, cell: Cell, prepared: Prepared, folder: RunFolder, progress: Progress) -> Comparison:
    settings, steps, evaluate = cell.settings, cell.settings["steps"], prepared.evaluate
    if cell.budget:
        if folder.resume:
            steps = folder.config["run"]["steps"]
        else:
            variant = grid_of(prepared.rules, settings["etas"])[0]
            steps = affordable_steps(prepared.problem, prepared.network, variant, cell)
        evaluate = [0, steps]
    if not folder.resume:
        folder.config |= {"study": study.name, "quick": study.quick, "device": study.device} | prepared.facts
    try:
        comparison = compare(
            prepared.problem,
            prepared.network,
            prepared.rules,
            {rule: settings["etas"][rule] for rule in prepared.rules},
            steps=steps,
            seed=range(settings["seed"], settings["seed"] + settings["seeds"]),
            metric=settings["metric"],
            x=study.x,
            extend=settings["extend"],
            folder=folder,
            evaluate=evaluate,
            node_weights=settings["weights_by"],
            record=Record(checkpoint_every=settings["checkpoint_every"]),
            progress=progress,
        )
    except Interrupted as error:
        reason = str(error).partition(";")[0]
        raise Interrupted(f"{reason} of {cell.title}; the same command continues there.") from error
    folder.own.write(SUMMARY, comparison.summary().to_csv(index=False).encode())
    return comparison
