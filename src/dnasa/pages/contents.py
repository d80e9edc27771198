"""What a page shows, read from run folders. Anybody may have written them, so every part is checked."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dnasa.comparing.plots import LABELS, LINEAR, colours
from dnasa.comparing.run_table import as_words, data_name
from dnasa.core import InputError
from dnasa.pages import parts
from dnasa.pages.history import AXES, History, short, text
from dnasa.runs.folder import RunFolder

REMEDY = "give a run's folder, or one that holds runs."
DEPTH = 3  # folders below the one that was given: studies have folders of folders


class Folders:
    """All runs in a folder, or the one that it holds. With `wait`, they may begin later."""

    def __init__(self, path: Path, wait: bool = False):
        self.path = path
        self.known: dict[Path, Folder] = {}
        self.update()
        if not self.known and not wait:
            missing = "run in" if path.is_dir() else "folder"
            raise InputError(f"There is no {missing} {path}: {REMEDY}")

    def update(self) -> None:
        """Find runs that are new, and read what was appended to the histories."""
        _check_place(self.path)
        known, self.known = self.known, {}
        for folder in _run_folders(self.path):
            self.known[folder] = known.get(folder) or Folder(folder, self._name(folder))
        for each in self.known.values():
            each.update()

    def _name(self, folder: Path) -> str:
        """Different folders have different names, also as text."""
        name = text(folder.relative_to(self.path) if folder != self.path else folder.resolve().name)
        taken = any(each.name == name for each in self.known.values())
        return f"{name} ({len(self.known)})" if taken else name

    def contents(self) -> dict[str, Any]:
        """Everything that the page shows."""
        histories = [folder.history for folder in self.known.values()]
        metrics = dict.fromkeys(metric for history in histories for metric in history.metrics())
        order = [name for name in LABELS if name in metrics] + [name for name in metrics if name not in LABELS]
        self._name_lines()
        return {
            "title": text(self.path.resolve().name),
            "folders": [folder.contents() for folder in self.known.values()],
            "metrics": [
                {"name": name, "label": LABELS.get(name) or text(name), "log": self._logarithmic(name)}
                for name in order
            ],
            "axes": [axis for axis in AXES if any(axis in history.columns() for history in histories)],
        }

    def _name_lines(self) -> None:
        """Give each curve its group in the legend and a color; the first curve of a rule has the rule's color."""
        groups: dict[str, str] = {}
        for folder in self.known.values():
            for line in folder.history.lines.values():
                line["group"] = line["name"] if len(self.known) == 1 else f"{folder.name}: {line['name']}"
                groups.setdefault(line["group"], line["rule"])
        rules = list(groups.values())
        keys = [f"{rule}, no. {i}" if rule in rules[:i] else rule for i, rule in enumerate(rules)]
        looks = {name: look for folder in self.known.values() for name, look in folder.history.looks.items()}
        chosen = colours(keys, looks)
        colors = {group: chosen[key] for group, key in zip(groups, keys, strict=True)}
        for folder in self.known.values():
            for line in folder.history.lines.values():
                line["color"] = colors[line["group"]]

    def _logarithmic(self, metric: str) -> bool:
        if metric in LABELS:
            return metric not in LINEAR
        values = (value for folder in self.known.values() for value in folder.history.values(metric))
        return all(value is None or value > 0 for value in values)


def _check_place(path: Path) -> None:
    """Refuse what can never be a folder of runs."""
    try:
        found = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. Choose another folder.") from error
    if not found.is_dir():
        raise InputError(f"{found} is not a folder: {REMEDY}")


def _run_folders(path: Path) -> list[Path]:
    """The run folder itself with the stepsizes that were added to it, or those below. Links are not followed."""
    if (path / "config.json").is_file():
        found = [path, *(part for part in path.glob("extension-*") if (part / "config.json").is_file())]
    else:
        found = [file.parent for depth in range(1, DEPTH + 1) for file in path.glob("*/" * depth + "config.json")]
    own = (folder for folder in found if not folder.name.startswith("alone-") and not _is_linked(folder, path))
    return sorted(own)


def _is_linked(folder: Path, root: Path) -> bool:
    return any(
        (root / part).is_symlink() for part in (folder.relative_to(root), *folder.relative_to(root).parents[:-1])
    )


class Folder:
    """One run folder. What cannot be read is reported in the page, as a failure: it never breaks that of other folders."""

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name
        self.history = History(path / "history.csv")
        self.damage: list[str] = []
        self.run: RunFolder | None = None

    def update(self) -> None:
        self.damage = []
        self.run = self._attempt(lambda: RunFolder(self.path, resume=True), None)
        self.history.looks = self.run.looks if self.run else {}
        self._attempt(self.history.update, None)

    def _attempt(self, read: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return read()
        except (InputError, OSError) as error:
            self.damage.append(str(error))
        except Exception as error:
            self.damage.append(f"{self.path} is damaged ({type(error).__name__}: {error}).")
        return otherwise

    def contents(self) -> dict[str, Any]:
        history, run = self.history, self.run
        config, sites = (run.config, list(map(text, run.sites))) if run else ({}, [])
        stored = config.get("options")
        options = stored if isinstance(stored, dict) else {}
        state = run.state if run else "damaged"
        settings = self._attempt(lambda: parts.result_settings(self.path), {})
        log = self._attempt(lambda: parts.log(self.path), [])
        lost = parts.lost(settings, log, sites)
        graph = self._attempt(lambda: parts.graph(self.path, sites), None)
        tests = self._attempt(lambda: parts.tests(self.path), None)
        out = {
            "name": self.name,
            "state": state,
            "step": history.step,
            "steps": _steps(config),
            "source": text(data_name(options)) if options else "",
            "settings": self._attempt(lambda: self._settings(config, options), {}),
            "lines": list(history.lines.values()),
            "sites": sites,
            "members": self._attempt(lambda: parts.members(self.path), []),
            "graph": graph,
            "tests": tests,
            "nodes": parts.nodes(sites, tests, None if lost else graph, list(history.lines.values())),
            "comparison": self._attempt(lambda: parts.comparison(self.path, history.looks), []),
            "work": parts.work(settings.get("timing", {})),
            "baseline": settings.get("baseline", []),
            "events": log,
            "warnings": self._attempt(lambda: parts.warnings(self.path), []),
        }
        diverged = self._attempt(lambda: parts.diverged(self.path, history, sites), [])
        failures = [*parts.ended(state, self.path, log), *lost, *diverged, *self.damage]
        return out | {"failures": list(map(text, failures))}

    def _settings(self, config: dict[str, Any], options: dict[str, Any]) -> dict[str, str]:
        given = parts.settings(self.path, config, options)
        return {text(name): text(as_words(value)) for name, value in given.items()}


def _steps(config: Mapping[str, Any]) -> int | None:
    run = config.get("run")
    steps = run.get("steps") if isinstance(run, dict) else None
    return short(steps) if type(steps) is int else None
