"""All runs of a folder in one table."""

import csv
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from dnasa.core import InputError
from dnasa.files import read_bytes
from dnasa.runs.folder import RunFolder
from dnasa.runs.result import parse_rows
from dnasa.tasks.sources import first_of

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.topology import Topology

CONDITIONS = {  # options that are off by default
    "weights": "{} weights",
    "compress": "messages compressed by {}",
    "message_dtype": "messages in {}",
    "drop": "links fail with probability {:g}",
    "away": "nodes unreachable for {:g} of the time",
    "stale": "staleness up to {}",
}
DATA = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "covertype": "Covertype (class 2 against the rest)",
    "miniboone": "MiniBooNE",
    "shakespeare": "Shakespeare",
}
GRAPHS = {"exact": "one-peer finite-time consensus graphs"}  # in captions
METRICS = ("test_loss", "test_accuracy", "test_label_accuracy", "test_rmse", "test_r2")


def table(folder: Path) -> "pd.DataFrame":
    """One row per run: its settings, its state, its step, and its last metrics."""
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


def experiment(options: dict[str, Any], graph: str, rounds: int) -> str:
    """What defines a run besides its rules, for titles."""
    partition, seeds = _partition(options), options["seeds"]
    where = f"{data_name(options)}, {partition}" if partition else data_name(options)
    runs = f"{options['steps']:,} steps, {seeds} seed{'s' if seeds > 1 else ''}"
    parts = [f"{options['nodes']} nodes", graph, runs, exchanges_text(rounds, options.get("every", 1))]
    return f"{where}: {', '.join([*parts, *_conditions(options)])}"


def protocol(options: dict[str, Any], graph: "Topology") -> str:
    """What defines a run besides its rules and seeds, in the words of a caption."""
    name = f"{graph_text(graph.name)} ({graph.parameters})" if graph.parameters else graph_text(graph.name)
    parts = [f"{options['nodes']} nodes", name, split_text(_partition(options)), f"{options['steps']:,} steps"]
    return f"{data_text(data_name(options))}: {', '.join([*filter(None, parts), *_conditions(options)])}"


def data_text(name: str) -> str:
    """A dataset in the words of a caption."""
    return DATA.get(name, name)


def graph_text(name: str) -> str:
    """A graph in the words of a caption."""
    return GRAPHS.get(name, f"{name} graph")


def split_text(partition: str) -> str:
    """A partition in the words of a caption."""
    if partition == "by_label":
        return "split by label"
    return f"{partition.replace('dirichlet', 'Dirichlet')} split" if partition else ""


def _partition(options: dict[str, Any]) -> str:
    """How rows were divided; empty where it goes without saying."""
    divided = not options.get("problem") and not options.get("shard_dir") and options["partition"] != "iid"
    return options["partition"] if divided else ""


def _conditions(options: dict[str, Any]) -> list[str]:
    """What is not as usual."""
    shared = _partition(options) and options["seeds"] > 1 and options.get("partition_seed") is not None
    return [
        *(["one partition for all seeds"] if shared else []),
        *(text.format(options[name]) for name, text in CONDITIONS.items() if options.get(name)),
    ]


def exchanges_of(graph: "Topology", rounds: int, every: int) -> str:
    """How nodes exchange, in the words of a protocol."""
    exact = f" and the exact average after {graph.period} of them" if graph.name == "exact" and graph.period > 1 else ""
    return exchanges_text(rounds, every) + exact


def exchanges_text(rounds: int, every: int) -> str:
    """Rounds, since some rules exchange several times per step."""
    often = f" every {every} steps" if every > 1 else ""
    return f"{rounds} mixing round{'s' if rounds > 1 else ''} per exchange{often}"


def _row(path: Path) -> dict[str, Any]:
    try:
        run = RunFolder(path, resume=True)
        options, last = run.config.get("options", {}), _last_row(path / "history.csv")
        return {
            "run": _text(path.name),
            "rule": _text(as_words(options.get("rule", options.get("rules")))),
            "data": _text(data_name(options)),
            "nodes": _text(options.get("nodes")),
            "topology": _text(options.get("topology")),
            "state": run.state,
            "step": f"{_text(last.get('step', 0))} / {_text(options.get('steps'))}",
            **{name.replace("_", " "): last[name] for name in METRICS if isinstance(last.get(name), float)},
        }
    except (InputError, OSError, ValueError, AttributeError, RecursionError, csv.Error):  # anybody may have written it
        return {"run": _text(path.name), "state": "damaged"}


def as_words(value: Any) -> Any:
    """Lists as words with commas, and dictionaries likewise."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {as_words(part)}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def changed(name: str, before: list[Any], now: list[Any]) -> str:
    """Which entries a list has that a run was not made with, or the other way round."""
    parts = {
        "now added": [str(entry) for entry in now if entry not in before],
        "now removed": [str(entry) for entry in before if entry not in now],
    }
    words = [f"{how}: {first_of(entries)}" for how, entries in parts.items() if entries]
    return f"other {name} ({'; '.join(words) or 'in another order'})"


def _last_row(path: Path) -> dict[str, Any]:
    """The mean over the seeds in the last step; of several methods or stepsizes, only the step."""
    rows = parse_rows(read_bytes(path).decode()) if path.exists() else []
    if not rows:
        return {}
    last = [row for row in rows if row.get("step") == rows[-1].get("step")]
    means = {}
    if len({tuple(row.get(name) for name in ("rule", "schedule", "eta")) for row in last}) == 1:
        for name in METRICS:
            values = [value for row in last if isinstance(value := row.get(name), float) and isfinite(value)]
            if len(values) == len(last):
                means[name] = mean(values)
    return {"step": rows[-1].get("step")} | means


def _text(value: Any) -> str:
    """Shorten a value of a config, and remove characters that cannot be encoded: pandas with pyarrow refuses them."""
    return "-" if value is None else f"{value!s:.60}".encode(errors="replace").decode()
