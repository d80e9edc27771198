"""What a page shows, read from run folders. Anybody may have written them, so every part is checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dnasa.checks import first_line
from dnasa.comparing.plots import LABELS, LINEAR, Looks, colors
from dnasa.comparing.run_table import data_name
from dnasa.core import InputError
from dnasa.pages import parts
from dnasa.pages.parts import AXES, text
from dnasa.runs.folder import RunFolder

DEPTH = 3  # folders below the one that was given: studies have folders of folders


def read(path: Path) -> dict[str, Any]:
    """Everything that a page shows of the run in a folder, or of all runs that it holds."""
    folders: list[dict[str, Any]] = []
    for folder in _run_folders(path):
        name = text(folder.relative_to(path) if folder != path else folder.resolve().name)
        taken = any(each["name"] == name for each in folders)
        folders.append(_Reader(folder).contents(f"{name} ({len(folders)})" if taken else name))
    if not folders:
        missing = "run in" if path.is_dir() else "folder"
        raise InputError(f"There is no {missing} {path}: give a run's folder, or one that holds runs.")
    _name_lines(folders)
    columns: dict[str, list[Any]] = {}  # of all runs together
    for line in (line for folder in folders for line in folder["lines"]):
        for name, values in line["columns"].items():
            columns.setdefault(name, []).extend(values)
    metrics = [
        name for name, values in columns.items() if name not in AXES and any(isinstance(v, float) for v in values)
    ]
    order = [name for name in LABELS if name in metrics] + [name for name in metrics if name not in LABELS]
    return {
        "title": text(path.resolve().name),
        "folders": folders,
        "metrics": [
            {"name": name, "label": LABELS.get(name) or text(name), "log": _is_logarithmic(name, columns[name])}
            for name in order
        ],
        "axes": [axis for axis in AXES if axis in columns],
    }


def _run_folders(path: Path) -> list[Path]:
    """The run folder itself with the stepsizes that were added to it, or those below. Links are not followed."""
    try:
        if (path / "config.json").is_file():
            found = [path, *(part for part in path.glob("extension-*") if (part / "config.json").is_file())]
        else:
            found = [file.parent for depth in range(1, DEPTH + 1) for file in path.glob("*/" * depth + "config.json")]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. Choose another folder.") from error
    return sorted(folder for folder in found if not folder.name.startswith("alone-") and not _is_linked(folder, path))


def _is_linked(folder: Path, root: Path) -> bool:
    part = folder.relative_to(root)
    return any((root / place).is_symlink() for place in (part, *part.parents[:-1]))


def _name_lines(folders: list[dict[str, Any]]) -> None:
    """Give each curve its group in the legend and a color; the first curve of a rule has the rule's color."""
    groups: dict[str, str] = {}
    looks: dict[str, Any] = {}
    for folder in folders:
        looks |= folder.pop("looks")
        for line in folder["lines"]:
            line["group"] = line["name"] if len(folders) == 1 else f"{folder['name']}: {line['name']}"
            groups.setdefault(line["group"], line["rule"])
    rules = list(groups.values())
    keys = [f"{rule}, no. {i}" if rule in rules[:i] else rule for i, rule in enumerate(rules)]
    chosen = colors(keys, looks)
    by_group = {group: chosen[key] for group, key in zip(groups, keys, strict=True)}
    for folder in folders:
        for line in folder["lines"]:
            line["color"] = by_group[line["group"]]


def _is_logarithmic(metric: str, values: list[Any]) -> bool:
    return metric not in LINEAR if metric in LABELS else all(value is None or value > 0 for value in values)


class _Reader:
    """Reads one run folder. What cannot be read is reported in the page as a failure; the rest is shown."""

    def __init__(self, path: Path):
        self.path = path
        self.damage: list[str] = []

    def attempt(self, file: str, read: Callable[[], Any], default: Any) -> Any:
        try:
            return read()
        except InputError as error:
            self.damage.append(str(error))
        except Exception as error:
            self.damage.append(f"{self.path / file} is damaged ({first_line(error)[:80]}).")
        return default

    def contents(self, name: str) -> dict[str, Any]:
        path, attempt = self.path, self.attempt
        run = attempt("config.json", lambda: RunFolder(path, resume=True), None)
        config, state = (run.config, run.state) if run else ({}, "damaged")
        sites: list[str] = list(map(text, run.sites)) if run else []
        looks: Looks = run.looks if run else {}
        options = config["options"] if isinstance(config.get("options"), dict) else {}
        lines = attempt("history.csv", lambda: parts.lines(path / "history.csv", looks), [])
        stored = attempt("settings.json", lambda: parts.result_settings(path), {})
        log = attempt("log.txt", lambda: parts.log(path), [])
        graph = attempt("graph.json", lambda: parts.graph(path, sites), None)
        tests = attempt("evaluation.json", lambda: parts.tests(path), None)
        lost = [event[20:] for event in log if event[20:].startswith("Lost ")]
        out = {
            "name": name,
            "state": state,
            "step": max((line["columns"]["step"][-1] for line in lines), default=0),
            "steps": attempt("config.json", lambda: parts.short((config.get("run") or {}).get("steps")), None),
            "source": text(data_name(options)) if options else "",
            "settings": attempt("config.json", lambda: parts.settings(path, config, options), {}),
            "lines": lines,
            "looks": looks,
            "sites": sites,
            "graph": graph,
            "tests": tests,
            "nodes": parts.nodes(sites, tests, None if lost else graph, lines),
            "comparison": attempt("table.csv", lambda: parts.comparison(path, looks), []),
            "work": parts.work(stored.get("timing", {})),
            "baseline": stored.get("baseline", []),
            "events": log,
            "warnings": attempt("log.txt", lambda: parts.warnings(path), []),
        }
        diverged = attempt("runs.csv", lambda: parts.diverged(path, lines, sites), [])
        return out | {"failures": list(map(text, [*parts.ended(state, path, log), *lost, *diverged, *self.damage]))}
