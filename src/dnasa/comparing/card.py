"""A card: what somebody else needs to check a result, from the folder of a run, a comparison or a study."""

import csv
from collections.abc import Callable, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from dnasa import tables
from dnasa.comparing import comparison
from dnasa.comparing.run_table import data_name
from dnasa.core import InputError
from dnasa.plots import label
from dnasa.runs.folder import RunFolder
from dnasa.runs.result import Result
from dnasa.statistics import VARIANT, final, over_seeds, with_interval, with_the_best

METRICS = ("test_accuracy", "test_label_accuracy", "test_r2", "test_rmse", "test_loss", "train_loss", "grad_norm")
ENDED = ("done", "diverged")
UNKNOWN = "not stored"
Config = Mapping[str, Any]
Card = dict[str, Any]


def read(path: Path, command_line: Callable[[Config], str]) -> Card:
    """The sections of a card by name; of a study, what all its parts share, and `parts` with the rest of each.

    `command_line` makes the command that repeats a run from its config.
    """
    if (path / "config.json").is_file():
        return _read_run(path, command_line)
    parts = [part.parent for part in sorted(path.glob("*/config.json")) if not part.parent.is_symlink()]
    cards = {part.name: _read_run(part, command_line) for part in parts if _is_cell(part)}
    if not cards:
        raise InputError(f"There is no run in {path}: give the folder of a run, a comparison or a study.")
    return _joined(cards)


def _is_cell(part: Path) -> bool:
    return RunFolder(part, resume=True).config.get("command") == "study"


def _read_run(path: Path, command_line: Callable[[Config], str]) -> Card:
    run = RunFolder(path, resume=True)
    if run.state not in ENDED:
        raise InputError(f"The run in {path} is {run.state}: a card needs one that has ended (`dnasa resume {path}`).")
    try:
        facts, options = run.config["run"], run.config.get("options", {})
        software = dict(run.config.get("versions", {}))
        machine = {"architecture": software.pop("machine", None)}
        compared = comparison.read(path) if run.config.get("command") in ("compare", "study") else None
        history = Result.load(path).history if compared is None else compared.history
        return {
            "code": software | _code(run.config),
            "hardware": machine | run.config.get("hardware", {}),
            "data": _data(run.config, facts, options),
            "protocol": _protocol(run.config, facts, options, history, compared),
            "repeat": command_line(run.config),
            "results": _results(history, compared),
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, csv.Error) as error:
        raise InputError(f"The run in {path} is damaged: {type(error).__name__}, {error}.") from error


def _code(config: Config) -> Card:
    stored = config.get("code", {})
    return {"commit": stored.get("commit"), "checksum of dnasa's source": stored.get("source")}


def _data(config: Config, facts: Config, options: Config) -> Card:
    rows = config.get("rows") or {}
    return {
        "name": data_name(options),
        "training rows": rows.get("total"),
        "rows of a node": rows and [rows["smallest"], rows["largest"]],
        "contents": facts["the data"],
        "checksum of the nodes' rows": facts["the nodes' data"],
    }


def _protocol(
    config: Config, facts: Config, options: Config, history: pd.DataFrame, compared: comparison.Comparison | None
) -> Card:
    """The facts that a resumed run is checked by, and what they leave out."""
    drawn = options.get("partition") is not None and not options.get("problem")
    seed = options.get("partition_seed")
    other = ("the rule", "the data", "the nodes' data", "seed")
    return {
        "rules": list(dict.fromkeys(final(history).rule)),
        "stepsizes tried": _tried(history),
        "stepsizes chosen by": str(compared.selection) if compared is not None else None,
        "seeds reported": list(compared.selection.reported) if compared is not None else facts["seed"],
        "model": config.get("model", options.get("model") or UNKNOWN) or None,
        "partition": options.get("partition") if drawn else None,
        "partition seed": (seed if seed is not None else "that of the run") if drawn else None,
        "engine": config.get("engine", "simulated" if config.get("command") == "study" else UNKNOWN),
        "device": options.get("device", UNKNOWN),
        **{name.removeprefix("the "): value for name, value in facts.items() if name not in other},
    }


def _tried(history: pd.DataFrame) -> dict[str, list[float]]:
    """The stepsizes of each rule and schedule that needs one."""
    every = final(history).dropna(subset="eta").drop_duplicates(list(VARIANT))
    return {f"{rule} ({schedule})": sorted(same.eta) for (rule, schedule), same in every.groupby(["rule", "schedule"])}


def _results(history: pd.DataFrame, compared: comparison.Comparison | None) -> list[Card]:
    """Mean, standard deviation and 95 % interval over the seeds; of a comparison, also the paired difference to the best."""
    if compared is not None:
        return _rows(compared.summary(), compared.metric)
    runs = final(history)
    known = [name for name in METRICS if name in runs and runs[name].notna().any()]
    return [row for name in known for row in _rows(over_seeds(runs, name), name)]


def _rows(table: pd.DataFrame, metric: str) -> list[Card]:
    rows = with_interval(table).drop(columns=["low", "high"]).assign(metric=metric)
    if "best" in rows:
        rows = rows.assign(with_the_best=with_the_best(rows))
    plain = rows.astype(object).where(rows.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def table(results: list[Card]) -> list[Card]:
    """The results as text, as `dnasa compare` prints them, with the best and what does not differ clearly from it in bold."""
    rows = []
    for result in results:
        metric, row = str(result["metric"]), pd.Series(result, dtype=object).fillna(nan)
        mean, low, high = tables.with_spread(metric, row), row.mean_low, row.mean_high
        cells = {
            "method": label(row.rule, row.schedule, row.eta),
            "seeds": row.runs,
            "metric": tables.metric_name(metric),
            "mean ± standard deviation": f"**{mean}**" if row.get("with_the_best") else mean,
            "95 % interval": None if isnan(low) else " to ".join(tables.number(metric, end, 4) for end in (low, high)),
            "difference to the best": tables.with_interval(metric, row) if "difference" in row else None,
        }
        rows.append(cells)
    return rows


def _joined(cards: dict[str, Card]) -> Card:
    """What all cards share, section by section; `parts` has what differs."""
    first, *others = cards.values()
    shared: Card = {
        section: {name: value for name, value in entries.items() if _all_have(others, section, name, value)}
        for section, entries in first.items()
        if isinstance(entries, dict)
    }
    parts = {
        part: {section: _without(entries, shared.get(section, {})) for section, entries in card.items()}
        for part, card in cards.items()
    }
    return shared | {"parts": parts}


def _all_have(cards: list[Card], section: str, name: str, value: Any) -> bool:
    return all(name in card[section] and card[section][name] == value for card in cards)


def _without(entries: Any, shared: Card) -> Any:
    return (
        {name: value for name, value in entries.items() if name not in shared} if isinstance(entries, dict) else entries
    )
