"""All runs of a folder in one table."""

import csv
import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from dnasa.checks import counted
from dnasa.core import InputError
from dnasa.files import read_bytes
from dnasa.runs.folder import RESUMABLE, RunFolder
from dnasa.runs.result import is_answer, parse_rows

if TYPE_CHECKING:
    import pandas as pd

CONDITIONS = {  # options that are off by default
    "weights": "{} weights",
    "compress": "messages compressed by {}",
    "private": "secure summation",
    "drop": "links fail with probability {:g}",
}
METRICS = ("test_loss", "test_accuracy", "test_rmse", "test_r2")


def table(folder: Path) -> "pd.DataFrame":
    """One row per run: its settings, its state, and the step and the metrics of its answer.

    A run that was stopped shows the step it reached; of a killed one, that of its newest checkpoint is known.
    """
    import pandas as pd

    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: give the folder that holds your runs.")
    rows = [_row(path.parent) for path in sorted(folder.glob("*/config.json")) if not path.parent.is_symlink()]
    if not rows:
        raise InputError(f"There is no run in {folder}: `dnasa train --out {folder}/first` makes one.")
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def data_name(options: Mapping[str, Any]) -> str:
    """What a run is trained on: its problem, its folder of shards, or its data."""
    if options.get("problem"):
        return str(options["problem"])
    if options.get("shard_dir"):
        return Path(str(options["shard_dir"])).name
    data = str(options.get("data", "-"))
    return Path(data).name or data


def experiment(options: Mapping[str, Any], graph: str, rounds: int) -> str:
    """What defines a run besides its rules and seeds, for titles and captions."""
    where, every = data_name(options), options.get("every", 1)
    if not options.get("problem") and not options.get("shard_dir") and options["partition"] != "iid":
        where += f" ({options['partition']})"
    exchanges = f"{counted(rounds, 'mixing round')} per exchange"
    if every > 1:
        exchanges += f" every {every} steps"
    conditions = [text.format(options[name]) for name, text in CONDITIONS.items() if options.get(name)]
    parts = [counted(options["nodes"], "node"), graph, f"{options['steps']:,} steps", exchanges, *conditions]
    return f"{where}: {', '.join(parts)}"


def setup(model: str, batch: int) -> str:
    """The model and the batches of a run, for captions."""
    widths = re.fullmatch(r"mlp(?::([\d,]+))?", model)
    if widths:
        first, *more = (widths[1] or "64").split(",")
        model = f"hidden layers of {', '.join([first, *more])} units" if more else f"one hidden layer of {first} units"
    elif model:
        model = f"{model} model"
    return ", ".join(filter(None, (model, f"batches of {batch} per node")))


def _row(path: Path) -> dict[str, Any]:
    try:
        run = RunFolder(path, resume=True)
        options, last = run.config.get("options", {}), _last_row(path / "history.csv")
        saved = run.step if run.state in RESUMABLE else 0
        return {
            "run": _text(path.name),
            "rule": _text(as_words(options.get("rule", options.get("rules")))),
            "data": _text(data_name(options)),
            "nodes": _text(options.get("nodes")),
            "topology": _text(options.get("topology")),
            "state": run.state,
            "step": f"{_text(saved or last.get('step', 0))} / {_text(options.get('steps'))}",
            **{name.replace("_", " "): last[name] for name in METRICS if isinstance(last.get(name), float)},
        }
    except (InputError, OSError, ValueError, AttributeError, RecursionError, csv.Error):  # anybody may have written it
        return {"run": _text(path.name), "state": "damaged"}


def as_words(value: Any) -> Any:
    """Lists as words with commas, and dictionaries with semicolons."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _last_row(path: Path) -> dict[str, Any]:
    """The mean over the seeds of the answers, with their steps; of several methods or stepsizes, only the last step."""
    rows = parse_rows(read_bytes(path).decode()) if path.exists() else []
    answers = list({row.get("run"): row for row in rows if is_answer(row)}.values())
    variants = {(row.get("rule"), row.get("schedule"), row.get("eta")) for row in answers}
    if len(variants) != 1:
        return {"step": rows[-1].get("step")} if rows else {}
    last: dict[str, Any] = {"step": ", ".join(dict.fromkeys(str(row.get("step")) for row in answers))}
    for name in METRICS:
        values: list[Any] = [row.get(name) for row in answers]
        if all(isinstance(value, float) and isfinite(value) for value in values):
            last[name] = mean(values)
    return last


def _text(value: Any) -> str:
    """Shorten a value of a config, and remove characters that cannot be encoded: pandas with pyarrow refuses them."""
    return "-" if value is None else f"{value!s:.60}".encode(errors="replace").decode()
