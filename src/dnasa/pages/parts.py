"""The parts of a run folder that a page shows, each read from its file. What has another form raises an error."""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from dnasa.comparing import tables as results
from dnasa.comparing.plots import Looks, label, positions, title
from dnasa.comparing.run_table import as_words
from dnasa.core import COLUMNS, InputError
from dnasa.files import fits, read_bytes, read_json
from dnasa.runs.folder import MOST_EDGES
from dnasa.runs.names import node_name
from dnasa.runs.result import is_answer, parse_rows

AXES = ("step", "epochs", "seconds", "clock_seconds", "messages", "bytes")  # what a curve can be drawn against
DIGITS = 7  # of the numbers in a page
WHOLE = 2**53  # whole numbers below it are exact in a browser
LARGEST_NUMBER = 1e300  # sums of a few smaller numbers do not overflow
MOST_EVENTS = 200  # of a log, the last ones
MOST_CLASSES = 40  # of a confusion matrix
MOST_COMPARED = 200  # methods of a comparison
COMPARED = ("eta", "mean", "spread", "low", "high", "runs", "diverged", "difference")  # columns of its table
WORK = {"gradient": "#4c78a8", "exchange": "#e45756", "rule": "#54a24b", "evaluation": "#b279a2", "waiting": "#f58518"}
ENDED = {
    "killed": "The process ended without notice, as by SIGKILL or a power failure: `dnasa resume {}` continues the run.",
    "interrupted": "The run was interrupted: `dnasa resume {}` continues it.",
    "diverged": "Every run diverged: no result can be used. Try a smaller stepsize, or a rule that needs none.",
    "unknown": "status.json does not say how the run ended.",
    "damaged": "config.json cannot be read.",
}


def lines(file: Path, looks: Looks) -> list[dict[str, Any]]:
    """The runs of a history, each with its name, seed, answer and columns; none before the first evaluation."""
    data = read_bytes(file) if os.path.lexists(file) else b""
    complete = data[: data.rfind(b"\n") + 1].decode()  # of a run under way, the last row may not be
    found: dict[int, dict[str, Any]] = {}
    names: set[tuple[str, Any]] = set()
    shown = ("consensus", *AXES)
    for number, row in enumerate(parse_rows(complete), start=1):
        if None in row or not all(type(row.get(name)) is int and abs(row[name]) < WHOLE for name in ("run", "step")):
            raise ValueError(f"row {number} is not an evaluation")
        run, seed = row["run"], short(row.get("seed"))
        if run not in found:
            eta = float(row["eta"]) if isinstance(row.get("eta"), int) else row.get("eta")
            variant = row.get("rule"), row.get("schedule"), eta
            numbered = (text(label(*variant, i, looks)) for i in count(1))  # runs with the same name are numbered
            name = next(name for name in numbered if (name, seed) not in names)
            names.add((name, seed))
            own = {"run": run, "name": name, "seed": seed, "rule": str(row.get("rule"))}
            found[run] = own | {"answer": {}, "columns": {}}
        values = {name: short(value) for name, value in row.items() if name in shown or name not in COLUMNS}
        for name, value in values.items():
            found[run]["columns"].setdefault(name, []).append(value)
        if is_answer(row):
            found[run]["answer"] = values
    return list(found.values())


def settings(path: Path, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, str]:
    """The options that were given, and in any case the model, its parameters, the batch and the seed."""
    facts = config["run"] if isinstance(config.get("run"), dict) else {}
    always = {"model": (_stored(path, "model.json") or {}).get("model"), "seed": options.get("seed")}
    always |= {name: facts.get(name) for name in ("parameters", "batch")}
    shown = {name.replace("_", "-"): value for name, value in options.items() if value not in (None, False, [])}
    shown |= {name: value for name, value in always.items() if value is not None}
    return {text(name): text(as_words(value)) for name, value in shown.items()}


def result_settings(path: Path) -> dict[str, Any]:
    """`settings.json`, written at the end: seconds by kind of work, and a sentence about the baseline."""
    stored = _stored(path, "settings.json") or {}
    timing = stored.get("timing", {})
    _check(fits(timing, {}) and all(map(is_number, timing.values())))
    return {"timing": timing, "baseline": results.baseline(stored)}


def work(timing: Mapping[str, float]) -> list[dict[str, Any]]:
    """The seconds of each kind of work, their share, and a color."""
    seconds = {name.removesuffix("_seconds"): value for name, value in timing.items() if name.endswith("_seconds")}
    total = sum(value for value in seconds.values() if value > 0)
    return [
        {"kind": text(kind), "seconds": short(value), "share": value / total, "color": WORK.get(kind, "#888888")}
        for kind, value in seconds.items()
        if value > 0
    ]


def graph(path: Path, sites: Sequence[str]) -> dict[str, Any] | None:
    """The graph with the places of its nodes in a drawing; None where the run has stored none."""
    stored = _stored(path, "graph.json")
    if stored is None:
        return None
    _check(fits(stored, {"nodes": int, "name": str}) and stored["nodes"] >= 1)
    n, edges, sent = stored["nodes"], stored.get("edges"), stored.get("messages", [])
    directed = stored.get("directed") is True
    out = {"name": text(stored["name"])[:60], "nodes": short(n), "directed": directed, "edges": None, "messages": []}
    if edges is None:
        return out
    _check(fits(edges, [(int, int, is_number)]) and fits(sent, [is_number]) and len(edges) <= MOST_EDGES)
    _check(len(sent) == n and all(0 <= i < n for edge in edges for i in edge[:2]))
    names, places = [node_name(sites, i) for i in range(n)], _places(out["name"], n)
    heaviest = max((edge[2] for edge in edges), default=0) or 1
    return out | {
        "rho": short(stored.get("rho")),
        "messages": sent,
        "size": max(3, min(16, 55 / n**0.5)),
        "places": [{"name": names[i], "x": x, "y": y} for i, (x, y) in enumerate(places.round(1).tolist())],
        "edges": [
            {"between": f"{names[i]} {'→' if directed else '–'} {names[j]}", "weight": weight}
            | {"path": _path(places[i], places[j]), "width": 0.5 + 5 * weight / heaviest}
            for i, j, weight in edges
        ],
    }


def _places(name: str, n: int) -> np.ndarray:
    """The nodes' places in a drawing of 480 x 360 pixels."""
    try:
        found = positions(name, n)
    except InputError:
        found = positions("", n)
    places = np.array([found[i] for i in range(n)], float)
    low, high = places.min(0), places.max(0)
    scale = ((np.array([480, 360]) - 56) / np.maximum(high - low, 1e-9)).min()
    return np.array([240, 180]) + scale * (places - (low + high) / 2) * [1, -1]


def _path(start: np.ndarray, end: np.ndarray) -> str:
    """A line with a point at three quarters of its way, where a directed edge has its arrow."""
    return "M{:.1f},{:.1f}L{:.1f},{:.1f}L{:.1f},{:.1f}".format(*start, *(start + 3 * end) / 4, *end)


def nodes(
    sites: Sequence[str], measured: dict[str, Any] | None, graph: dict[str, Any] | None, lines: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """A row for each node: what was measured of it, and what it has sent in the first run.

    Every message of a step has the same size, so a node's share of the messages is its share of the bytes.
    """
    columns = dict(measured["nodes"]) if measured else {}
    sent, bars, note = graph["messages"] if graph else [], list(columns), ""
    totals = {name: (lines[0]["columns"].get(name) or [None])[-1] for name in ("messages", "bytes")} if lines else {}
    members = measured["members"] if columns and measured else range(len(sent))
    if sum(sent) and None not in totals.values():
        columns |= {f"{name} sent": [total * sent[i] / sum(sent) for i in members] for name, total in totals.items()}
        note = f"Messages and bytes of {lines[0]['name']}, seed {lines[0]['seed']}." if len(lines) > 1 else ""
    if not columns:
        return None
    rows = [[node_name(sites, i), *values] for i, *values in zip(members, *columns.values(), strict=True)]
    return {"columns": list(columns), "rows": rows, "bars": bars, "note": note}


def tests(path: Path) -> dict[str, Any] | None:
    """What the trained model did on the test rows, and at each site."""
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
    """Whether the page draws this table itself."""
    return title.startswith("Each node's") or (matrix and title.startswith("Confusion matrix"))


def _table(title: str, frame: Any) -> dict[str, Any]:
    rows = [[text(cell) if isinstance(cell, str) else short(float(cell)) for cell in row] for row in frame.to_numpy()]
    return {"title": title, "columns": list(map(text, frame)), "rows": rows}


def comparison(path: Path, looks: Looks) -> list[list[Any]]:
    """The methods of `dnasa compare` or of a study's cell, with the chosen stepsize of each and its results."""
    rows = _rows(path / "table.csv")[:MOST_COMPARED]
    _check(all(type(row.get(name)) in (int, float) for row in rows for name in COMPARED))
    return [
        [text(title(str(row["rule"]), looks)), text(row.get("schedule")), *(short(row[name]) for name in COMPARED)]
        for row in rows
    ]


def log(path: Path) -> list[str]:
    """The last lines of `log.txt`."""
    return [line[:300] for line in _lines(path)[-MOST_EVENTS:]]


def warnings(path: Path) -> list[str]:
    """The warnings in `log.txt`, each once."""
    found = dict.fromkeys(line[29:] for line in _lines(path) if line[19:29] == " Warning: ")
    return [text(line) for line in found][:MOST_EVENTS]


def _lines(path: Path) -> list[str]:
    file = path / "log.txt"
    return read_bytes(file).decode(errors="replace").splitlines() if file.is_file() else []


# ---------------------------------------------------------------- what failed


def ended(state: str, path: Path, events: list[str]) -> list[str]:
    """Why there is no complete result, and what to do."""
    if state == "failed":
        reasons = [event for event in events if " Failed at step " in event]
        return [f"The run failed. {reasons[-1][20:] if reasons else 'log.txt does not say why.'}"]
    return [ENDED[state].format(path)] if state in ENDED else []


def diverged(path: Path, lines: list[dict[str, Any]], sites: Sequence[str]) -> list[str]:
    """Runs that diverged, with step and node where `runs.csv` has them."""
    known = {int(row["run"]): row for row in _rows(path / "runs.csv")}
    out = []
    for line in lines:
        steps, consensus = line["columns"]["step"], line["columns"].get("consensus", ())
        without = [step for step, value in zip(steps, consensus, strict=False) if value is None]
        if without:
            step, node = (known.get(line["run"], {}).get(name) for name in ("diverged", "diverged_node"))
            when = f"at step {step:.0f}" if is_number(step) else f"before step {without[0]}"
            where = f" at {node_name(sites, int(node))}" if is_number(node) else ""
            out.append(f"{line['name']}, seed {line['seed']}, diverged {when}{where}.")
    return out


# ---------------------------------------------------------------- values


def text(value: Any) -> str:
    """Shorten text for a page, and remove characters that cannot be encoded."""
    return " ".join(f"{value!s:.300}".split()).encode(errors="replace").decode()


def short(value: Any) -> Any:
    """Round a number to a few digits for a page; None where there is none."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a number is finite in a browser, whose whole numbers overflow too."""
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER


def _stored(path: Path, name: str) -> dict[str, Any] | None:
    file = path / name
    return read_json(file, name) if file.is_file() else None


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = parse_rows(read_bytes(file).decode()) if file.is_file() else []
    _check(bool(rows) or not file.is_file())
    return rows


def _check(fitting: bool) -> None:
    if not fitting:
        raise ValueError("it does not have the form that dnasa writes")
