"""A card: what somebody else needs to check a result, from the folder of a run, a comparison or a study."""

import csv
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from dnasa import tables
from dnasa.comparing import comparison
from dnasa.comparing.ranking import LEVEL
from dnasa.comparing.run_table import data_name, exchanges_text
from dnasa.comparing.study_file import COPY, Cell, Study, shipped
from dnasa.comparing.study_report import StudyReport
from dnasa.core import InputError
from dnasa.files import read_bytes
from dnasa.plots import label
from dnasa.runs.folder import RunFolder
from dnasa.runs.result import Result
from dnasa.statistics import VARIANT, final, labelled, over_seeds, with_interval, with_the_best
from dnasa.tasks.sources import first_of

METRICS = ("test_accuracy", "test_label_accuracy", "test_r2", "test_rmse", "test_loss", "train_loss", "grad_norm")
ENDED = ("done", "diverged")
UNKNOWN = "not stored"
NODES = {
    "simulated": "simulated, all in one process",
    "mpi": "processes connected by MPI",
    "torch": "processes connected by torch.distributed",
    "sites": "sites connected by TLS",
}
PARTITIONS = {"iid": "at random", "by_label": "by label", "contiguous": "in the order of the rows"}
FACTS = {  # of those that a resumed run is checked by, with their names in a card
    "steps": "steps",
    "the batch": "samples per node and step",
    "the number of parameters": "parameters of the model",
    "dtype": "number format",
    "the weight decay": "weight decay",
    "the loss scale": "factor on the training loss",
    "the channel": "messages changed by",
    "late": "further steps that an exchange may last",
    "the clock": "checksum of the links' speeds",
    "the own metrics": "metrics of the user",
    "the patience": "evaluations without improvement before a run stops",
    "the node weights": "weights of the nodes",
    "the starting point": "checksum of the starting points",
}
Config = Mapping[str, Any]
Card = dict[str, Any]
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, csv.Error)


def read(path: Path, command_line: Callable[[Config], str]) -> Card:
    """The sections of a card by name; of a study, what all its cells share, `ranks`, and `cells` with the rest of each.

    `command_line` makes the command that repeats a run of `dnasa train` or `dnasa compare` from its config.
    """
    if (path / "config.json").is_file():
        config = RunFolder(path, resume=True).config
        of_study = config.get("command") == "study"
        return (_study(path.parent, [config]) if of_study else {"repeat": command_line(config)}) | _read_run(path)
    folders = [part.parent for part in sorted(path.glob("*/config.json")) if not part.parent.is_symlink()]
    configs = {part: RunFolder(part, resume=True).config for part in folders}
    cells = {part: config for part, config in configs.items() if config.get("command") == "study"}
    if not cells:
        studies = [file.parent for file in sorted(path.glob(f"*/{COPY}"))]
        raise InputError(_no_run(path, [*folders, *studies]))
    shared = joined({part.name: _read_run(part) for part in cells})
    return _study(path, list(cells.values())) | {"ranks": _ranks(cells)} | shared


def _no_run(path: Path, inside: Sequence[Path]) -> str:
    """Why there is no card of this folder; `inside` are the runs and studies that it contains."""
    if not inside:
        return f"There is no run in {path}: give the folder of a run, a comparison or a study."
    return f"{path} contains runs, and a card is of one of them: give {first_of([str(part) for part in inside], 4)}."


# ---------------------------------------------------------------- a study


def _study(path: Path, configs: Sequence[Config]) -> Card:
    """The command that repeats these cells, and the file that it needs."""
    with _undamaged(f"study in {path}"):
        text = read_bytes(path / COPY).decode() if (path / COPY).exists() else UNKNOWN  # of an earlier version
        given = tomllib.loads(text) if text != UNKNOWN else {"problems": []}
        first, run = configs[0], {config["options"]["data"] for config in configs}
        quick, device = bool(first.get("quick")), first.get("device")
        name = str(first["study"]).removesuffix("-quick" if quick else "")
        words = ["dnasa", "study", name if text == UNKNOWN and name in shipped() else f"{name}.toml"]
        if not run.issuperset(given["problems"]):
            words += ["--only", ",".join(problem for problem in given["problems"] if problem in run)]
        if device not in (None, given.get("device", "cpu")):
            words += ["--device", str(device)]
    return {"repeat": shlex.join([*words, *["--quick"] * quick, "--out", "repeated"]), "study file": text}


def _ranks(cells: Mapping[Path, Config]) -> Card:
    """The methods by their average rank over all cells, and the tests; of a small study, why there are none."""
    with _undamaged(f"study in {next(iter(cells)).parent}"):
        found = [(_cell(config["options"]), comparison.read(path)) for path, config in cells.items()]
        ranking = StudyReport(Study("", [cell for cell, _ in found], "", "", ""), found, []).ranking
    if ranking.reason_to_leave_out:
        return {"note": ranking.reason_to_leave_out}
    rows = ranking.ranks()
    return {
        "note": None if rows.p[0] < LEVEL else "the Friedman test finds no clear difference",
        "cells": len(found),
        "p of the Friedman test": float(rows.p[0]),
        "critical difference of the Nemenyi test at 5 %": float(rows.critical_difference[0]),
        "left out, not run in every cell": list(ranking.left_out),
        "methods": rows[["method", "rank", "best_in"]].to_dict("records"),
    }


def _cell(options: Config) -> Cell:
    return Cell(options["data"], options["topology"], options["partition"], dict(options))


def joined(cards: dict[str, Card]) -> Card:
    """What all these cards share, section by section; `cells` has what differs."""
    first, *others = cards.values()
    shared: Card = {
        section: {name: value for name, value in entries.items() if _all_have(others, section, name, value)}
        for section, entries in first.items()
        if isinstance(entries, dict)
    }
    cells = {
        cell: {section: _without(entries, shared.get(section, {})) for section, entries in card.items()}
        for cell, card in cards.items()
    }
    return shared | {"cells": cells}


def _all_have(cards: list[Card], section: str, name: str, value: Any) -> bool:
    return all(name in card[section] and card[section][name] == value for card in cards)


def _without(entries: Any, shared: Card) -> Any:
    return (
        {name: value for name, value in entries.items() if name not in shared} if isinstance(entries, dict) else entries
    )


# ---------------------------------------------------------------- a run


def _read_run(path: Path) -> Card:
    run = RunFolder(path, resume=True)
    if run.state not in ENDED:
        raise InputError(f"The run in {path} is {run.state}: a card needs one that has ended (`dnasa resume {path}`).")
    with _undamaged(f"run in {path}"):
        facts, options = run.config["run"], run.config.get("options", {})
        software = dict(run.config.get("versions", {}))
        machine = {"architecture": software.pop("machine", None)}
        compared = comparison.read(path) if run.config.get("command") in ("compare", "study") else None
        for part in comparison.unfinished(path, {*compared.choice.rule}) if compared is not None else ():
            raise InputError(
                f"{part} has not ended, and a card needs all its runs: repeat the command that made {path}."
            )
        history = Result.load(path).history if compared is None else compared.history
        return {
            "code": software | _code(path, run.config),
            "hardware": machine | run.config.get("hardware", {}) | _time(history),
            "data": _data(run.config, facts, options),
            "protocol": _protocol(run.config, facts, options, history, compared),
            "results": _results(history, compared),
        }


@contextmanager
def _undamaged(what: str) -> Iterator[None]:
    """Say in one line what cannot be read: anybody may have written the files."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"The {what} is damaged: {type(error).__name__}, {error}.") from error


def _code(path: Path, config: Config) -> Card:
    """What made the runs; what was added later may have been made by another version."""
    parts = [RunFolder(part, resume=True).config for part in comparison.extensions(path)]
    stored = [each.get("code", {}) for each in (config, *parts)]
    known = {name: dict.fromkeys(code[name] for code in stored if code.get(name)) for name in ("commit", "source")}
    return {
        "commit": ", ".join(known["commit"]) or None,
        "checksum of dnasa's source": ", ".join(known["source"]) or None,
    }


def _time(history: pd.DataFrame) -> Card:
    """The seconds of the history; where the step falls, those of an extended grid begin again."""
    if "seconds" not in history:
        return {}
    part = (history.step.diff() < 0).cumsum()
    return {"seconds of all runs together, without evaluations": float(history.seconds.groupby(part).max().sum())}


def _data(config: Config, facts: Config, options: Config) -> Card:
    """What was trained on. The rows of a node are stored for seed 0, their checksum is of all seeds."""
    rows, own = config.get("rows") or {}, _own_partitions(options)
    return {
        "data": data_name(options),
        "files": config.get("files"),
        "training rows": rows.get("total"),
        "rows of a node": rows and f"{rows['smallest']:,} to {rows['largest']:,}{' in the partition of seed 0' * own}",
        "problem": facts["the data"],
        "checksum of the nodes' rows": facts["the nodes' data"] + " over the partitions of all seeds" * own,
    }


def _protocol(
    config: Config, facts: Config, options: Config, history: pd.DataFrame, compared: comparison.Comparison | None
) -> Card:
    """How the result was made, in words that need no knowledge of dnasa."""
    engine = config.get("engine", "simulated" if config.get("command") == "study" else UNKNOWN)
    model = str(config.get("model", options.get("model") or UNKNOWN))
    tuned = compared is not None and compared.tuned
    return {
        "methods": [label(rule) for rule in dict.fromkeys(final(history).rule)],
        "stepsizes chosen by": str(compared.selection) if compared is not None and tuned else None,
        "seeds": list(compared.selection.reported) if compared is not None else facts["seed"],
        "model": re.sub("^mlp:.*", r"\g<0> (perceptron; widths of hidden layers)", model) or None,
        "partition": _partition(options),
        "graph": _graph(facts),
        "nodes": NODES.get(engine, engine),
        "device": options.get("device", config.get("device", UNKNOWN)),
        **{words: facts[name] for name, words in FACTS.items() if name in facts},
        "evaluations": re.sub(r"^(\d+) up to (\d+), \w+$", r"\1, up to step \2", str(facts["the evaluation steps"])),
    }


def _graph(facts: Config) -> str:
    exchanges = exchanges_text(facts["rounds"], facts.get("the steps between exchanges", 1))
    return re.sub(r"^(.*) (\d+) nodes (\w+)$", rf"\1, \2 nodes, {exchanges} (checksum \3)", str(facts["the topology"]))


def _partition(options: Config) -> str | None:
    how, seed = options.get("partition"), options.get("partition_seed", 0)
    if how is None or options.get("problem") or options.get("shard_dir"):
        return None
    drawn = "each seed draws its own" if _own_partitions(options) else f"one for all seeds, drawn with seed {seed}"
    return PARTITIONS.get(how, str(how)) + ("" if how == "contiguous" else f" ({drawn})")


def _own_partitions(options: Config) -> bool:
    """Whether each seed draws its own partition; older configs have one, of seed 0."""
    divided = not options.get("problem") and not options.get("shard_dir")
    return divided and options.get("partition") not in (None, "contiguous") and options.get("partition_seed", 0) is None


# ---------------------------------------------------------------- results


def _results(history: pd.DataFrame, compared: comparison.Comparison | None) -> list[Card]:
    """Mean, standard deviation, 95 % interval and the value of each seed; of a comparison, also how eta was chosen."""
    if compared is not None:
        rows = _with_choice(compared.summary(), compared)
        return _rows(rows, compared.reported(), history, compared.metric)
    runs = final(history)
    known = [name for name in METRICS if name in runs and runs[name].notna().any()]
    return [row for name in known for row in _rows(over_seeds(runs, name), runs, history, name)]


def _with_choice(table: pd.DataFrame, compared: comparison.Comparison) -> pd.DataFrame:
    """The stepsizes that were tried, and the value that one was chosen by."""
    every = labelled(compared.history)
    tried = every.eta.groupby([every.rule, every.schedule], sort=False).agg(lambda etas: sorted({*etas.dropna()}))
    choice = compared.choice.rename(columns={"value": "chosen_value"})
    rows = table.merge(tried.rename("tried").reset_index(), on=["rule", "schedule"], how="left")
    rows = rows.merge(choice[[*VARIANT, "chosen_value"]], on=list(VARIANT), how="left")
    rows["chosen_value"] = rows.chosen_value.where(rows.tried.map(len) > 1)
    return rows.assign(chosen_by=compared.selection.metric, with_the_best=with_the_best(table))


def _rows(table: pd.DataFrame, runs: pd.DataFrame, history: pd.DataFrame, metric: str) -> list[Card]:
    keys = list(VARIANT)
    values = runs.sort_values("seed").groupby(keys, sort=False, dropna=False)[metric].agg(list).rename("values")
    rows = with_interval(table).drop(columns=["low", "high"]).merge(values.reset_index(), on=keys, how="left")
    if {"bytes", "nodes"} <= {*history}:
        every = labelled(history)
        sent = (every.bytes / every.nodes / 1e6).groupby([every[key] for key in keys], dropna=False).max()
        rows = rows.merge(sent.rename("sent_mb").reset_index(), on=keys, how="left")
    return [
        {str(name): _plain(value) for name, value in row.items()}
        for row in rows.assign(metric=metric).to_dict("records")
    ]


def _plain(value: Any) -> Any:
    """What JSON can hold: there is no number where a run diverged."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def table(results: list[Card]) -> list[Card]:
    """The results as text, as `dnasa compare` prints them, with the best and what does not differ clearly from it in bold."""
    return [_cells(result, str(result["metric"])) for result in results]


def _cells(result: Card, metric: str) -> Card:
    row = pd.Series(result, dtype=object).fillna(nan)
    mean, low, high = tables.with_spread(metric, row), row.mean_low, row.mean_high
    return {
        "method": label(row.rule, row.schedule, row.eta),
        "stepsizes tried": ", ".join(f"{eta:g}" for eta in result.get("tried", ())) or None,
        "chosen by": _choice_text(result),
        "metric": tables.metric_name(metric),
        "mean ± standard deviation": f"**{mean}**" if row.get("with_the_best") else mean,
        "each seed": ", ".join(tables.number(metric, nan if value is None else value, 4) for value in result["values"]),
        "95 % interval": None if isnan(low) else " to ".join(tables.number(metric, end, 4) for end in (low, high)),
        "difference to the best": tables.with_interval(metric, row) if "difference" in row else None,
        "MB sent by a node": f"{row.sent_mb:.3g}" if "sent_mb" in row else None,
    }


def _choice_text(result: Card) -> str | None:
    if result.get("chosen_value") is None:
        return None
    metric = result["chosen_by"]
    return f"{tables.metric_name(metric)} {tables.number(metric, result['chosen_value'], 4)}"
