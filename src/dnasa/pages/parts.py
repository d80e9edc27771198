"""The parts of a run folder that a page shows besides the history, each read from its file and checked."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnasa.core import InputError
from dnasa.files import read_bytes, read_json
from dnasa.pages.history import History, is_number, short, text
from dnasa.plots import Looks, positions, title
from dnasa.runs.folder import node_name, node_names
from dnasa.runs.graph import MOST_EDGES
from dnasa.runs.result import parse_rows

MOST_EVENTS = 200  # of a log, the last ones
MOST_TRACED = 20  # steps of a trace that are drawn
MOST_CLASSES = 40  # of a confusion matrix
MOST_COMPARED = 200  # methods of a comparison
COMPARED = ("eta", "mean", "spread", "low", "high", "runs", "diverged", "difference")  # columns of its table
ENDED = {
    "killed": "The process ended without notice, as by SIGKILL or a power failure: `dnasa resume {}` continues the run.",
    "interrupted": "The run was interrupted: `dnasa resume {}` continues it.",
    "diverged": "Every run diverged: no result can be used. Try a smaller stepsize, or a rule that needs none.",
    "unknown": "status.json does not say how the run ended.",
    "damaged": "config.json cannot be read.",
}


def settings(path: Path, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, and in any case the model, its parameters, the batch and the seed."""
    stored, model = config.get("run"), path / "model.json"
    facts = stored if isinstance(stored, dict) else {}
    always = {
        "model": read_json(model, "model.json").get("model") if model.is_file() else None,
        "parameters": facts.get("the number of parameters"),
        "batch": facts.get("the batch"),
        "seed": options.get("seed"),
    }
    given = {name.replace("_", "-"): value for name, value in options.items() if value not in (None, False, [])}
    return given | {name: value for name, value in always.items() if value is not None}


def result_settings(path: Path) -> dict[str, Any]:
    """`settings.json`, written at the end: seconds by kind of work, and lost nodes."""
    file = path / "settings.json"
    if not file.is_file():
        return {}
    stored = read_json(file, "settings.json")
    timing, lost_nodes = stored.get("timing", {}), stored.get("lost", [])
    if not isinstance(timing, dict) or not all(map(is_number, timing.values())):
        raise _damaged(file)
    if not isinstance(lost_nodes, list) or not all(isinstance(loss, dict) for loss in lost_nodes):
        raise _damaged(file)
    return {"timing": timing, "lost": lost_nodes}


def graph(path: Path) -> dict[str, Any] | None:
    """The graph with the places of its nodes; None where the run has stored none."""
    file = path / "graph.json"
    if not file.is_file():
        return None
    stored = read_json(file, "graph.json")
    n, edges, sent = stored.get("nodes"), stored.get("edges"), stored.get("messages")
    if type(n) is not int or n < 1 or not isinstance(stored.get("name"), str):
        raise _damaged(file)
    out = {
        "name": text(stored["name"])[:60],
        "nodes": short(n),
        "directed": stored.get("directed") is True,
        "edges": None,
    }
    if edges is None:
        return out
    fits = isinstance(edges, list) and len(edges) <= MOST_EDGES and all(_is_edge(edge, n) for edge in edges)
    if not fits or not isinstance(sent, list) or len(sent) != n or not all(map(is_number, sent)):
        raise _damaged(file)
    try:
        places = positions(out["name"], n)
    except InputError:
        places = positions("", n)
    xy = [[short(float(value)) for value in places[i]] for i in range(n)]
    return out | {"rho": short(stored.get("rho")), "edges": edges, "messages": sent, "places": xy}


def tests(path: Path) -> dict[str, Any] | None:
    """What the trained model and each node's own did on the test rows."""
    if not (path / "evaluation.json").is_file():
        return None
    from dnasa.trained import evaluation
    from dnasa.trained.report import metric, of_each_node, tables

    found = evaluation.read(path)
    if found is None:
        return None
    names = list(map(text, found["names"]))
    matrix = found["task"] == "classification" and len(names) <= MOST_CLASSES
    return {
        "metric": metric(found),
        "members": evaluation.members(found),
        "nodes": {title: [short(float(value)) for value in column] for title, column in of_each_node(found).items()},
        "confusion": {"names": names, "counts": found["confusion"], "rows": short(found["rows"])} if matrix else None,
        "tables": [_table(title, frame) for title, frame in tables(found) if not _is_drawn(title, matrix)],
    }


def _is_drawn(title: str, matrix: bool) -> bool:
    """The page draws these itself."""
    return title.startswith("Each node's") or (matrix and title.startswith("Confusion matrix"))


def _table(title: str, frame: Any) -> dict[str, Any]:
    rows = [[text(cell) if isinstance(cell, str) else short(float(cell)) for cell in row] for row in frame.to_numpy()]
    return {"title": title, "columns": list(map(text, frame)), "rows": rows}


def comparison(path: Path, looks: Looks) -> list[list[Any]]:
    """The methods of `dnasa compare` or of a study's cell, with the chosen stepsize of each and its results."""
    file = path / "table.csv"
    if not file.is_file():
        return []
    rows = _rows(file)[:MOST_COMPARED]
    names = {"rule", "schedule", *COMPARED}
    if not rows or not all(
        names <= row.keys() and all(type(row[name]) in (int, float) for name in COMPARED) for row in rows
    ):
        raise _damaged(file)
    return [
        [text(title(str(row["rule"]), looks)), text(row["schedule"]), *(short(row[name]) for name in COMPARED)]
        for row in rows
    ]


def trace(path: Path) -> list[list[Any]]:
    """The first steps of `--trace FOLDER/trace.json`: kind of work, process, thread, begin and duration in milliseconds."""
    file = path / "trace.json"
    if not file.is_file():
        return []
    events = read_json(file, "trace.json").get("traceEvents")
    try:
        spans = [event for event in events if event["ph"] == "X" and 0 <= event["args"]["step"] < MOST_TRACED]  # type: ignore[union-attr]
        out = [[text(e["name"]), int(e["pid"]), int(e["tid"]), e["ts"] / 1000, e["dur"] / 1000] for e in spans]
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(file) from error
    return [[name, *map(short, numbers)] for name, *numbers in out]


def log(path: Path) -> list[str]:
    """The last lines of `log.txt`."""
    file = path / "log.txt"
    lines = read_bytes(file).decode(errors="replace").splitlines() if file.is_file() else []
    return [line[:300] for line in lines[-MOST_EVENTS:]]


# ---------------------------------------------------------------- what failed


def ended(state: str, path: Path, events: list[str]) -> list[str]:
    """Why there is no complete result, and what to do."""
    if state == "failed":
        reasons = [event for event in events if " Failed at step " in event]
        return [f"The run failed. {reasons[-1][20:] if reasons else 'log.txt does not say why.'}"]
    return [ENDED[state].format(path)] if state in ENDED else []


def lost(stored: Mapping[str, Any], events: list[str], sites: Sequence[str]) -> list[str]:
    """Nodes that left: from the settings at the end of a run, from its log before."""
    found = stored.get("lost") or []
    lines = [
        f"Lost at step {loss.get('step')}: {node_names(sites, loss.get('nodes'))} and their data." for loss in found
    ]
    return lines or [_named(event[20:], sites) for event in events if re.match(r".{19} Lost nodes ", event)]


def _named(event: str, sites: Sequence[str]) -> str:
    """The line of a log, which has numbers."""
    numbers = re.match(r"Lost nodes (\d+(?:, \d+)*) and ", event)
    if not sites or not numbers:
        return event
    names = node_names(sites, list(map(int, numbers[1].split(", "))))
    return f"Lost {names} and {event[numbers.end() :]}"


def diverged(path: Path, history: History, sites: Sequence[str]) -> list[str]:
    """Runs that diverged, with step and node where `runs.csv` has them."""
    known = {row["run"]: row for row in _runs(path / "runs.csv")}
    lines = []
    for run, evaluated in history.diverged().items():
        step, node = (known.get(run, {}).get(name) for name in ("diverged", "diverged_node"))
        when = f"at step {step:.0f}" if is_number(step) else f"before step {evaluated}"
        where = f" at {node_name(sites, int(node))}" if is_number(node) else ""
        line = history.lines[run]
        lines.append(f"{line['name']}, seed {line['seed']}, diverged {when}{where}.")
    return lines


def _runs(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    rows = _rows(file)
    if not rows or not all(type(row.get("run")) is int for row in rows):
        raise _damaged(file)
    return rows


# ---------------------------------------------------------------- checks


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        return parse_rows(read_bytes(file).decode())
    except (ValueError, csv.Error) as error:
        raise _damaged(file) from error


def _is_edge(edge: Any, n: int) -> bool:
    if not isinstance(edge, list) or len(edge) != 3:
        return False
    i, j, weight = edge
    return type(i) is type(j) is int and 0 <= i < n and 0 <= j < n and is_number(weight)


def _damaged(file: Path) -> InputError:
    return InputError(f"{file} is damaged: it does not have the form that dnasa writes.")
