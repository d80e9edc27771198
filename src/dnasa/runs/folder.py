"""A run on disk."""

import csv
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import InputError, RunError
from dnasa.files import check_folder, fits, make_folder, read_bytes, read_json, to_json
from dnasa.rules.registry import BUILT_IN, RULES, Look, look
from dnasa.runs import checkpoints
from dnasa.runs.checkpoints import FORMAT, Checkpoint, Damaged, check_format
from dnasa.runs.environment import commit, hardware, versions
from dnasa.runs.own_files import IN_USE, LIST, LIST_LOCK, LOCK, RUNNING, OwnFiles, acquire, is_held
from dnasa.runs.releases import KEY
from dnasa.runs.result import parse_rows

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.runs.journal import Journal

STATES = ("running", "done", "interrupted", "failed", "diverged")
RESUMABLE = ("killed", "interrupted", "failed")
JOURNALS = ("events-*.jsonl", "audit-*.jsonl")  # of each process among several; only ever appended to
NAMES = (  # what a run may write, files and folders
    *(LOCK, RUNNING, KEY, "config.json", "history.csv", "log.txt", "status.json", "checkpoints", *JOURNALS),
    *("runs.csv", "x.safetensors", "settings.json", "report.*", "history.png", "table.csv", "table.tex"),
    *("model.safetensors", "model.json", "model.py", "evaluation.json", "cohort.csv", "extension-*"),
    *(f"{name}.{kind}" for name in ("curves", "stepsizes") for kind in ("csv", "png", "pdf", "svg")),
)


class HistoryFile:
    """`history.csv`, which grows by one row per evaluation and run. Checkpoints store its length and checksum."""

    def __init__(self, files: OwnFiles):
        self.files = files
        self.length = self.crc = 0

    def append(self, rows: "pd.DataFrame") -> None:
        data = rows.to_csv(index=False, header=self.length == 0).encode()
        self.files.append("history.csv", data)
        self.length += len(data)
        self.crc = zlib.crc32(data, self.crc)

    def replace(self, rows: "pd.DataFrame") -> None:
        self.truncate(0, 0)
        if len(rows):
            self.append(rows)

    def truncate(self, length: int, crc: int) -> str:
        """Remove what comes after this length; returns the rest."""
        rows = self._read()[:length]
        self.files.write("history.csv", rows)
        self.length, self.crc = length, crc
        return rows.decode()

    def begins_with(self, length: int, crc: int) -> bool:
        """Whether it begins with complete rows of this length and checksum, each with a run and a step."""
        data = self._read()[:length]
        if len(data) != length or zlib.crc32(data) != crc:
            return False
        try:
            rows = parse_rows(data.decode())
        except (ValueError, csv.Error):
            return False
        return all(None not in row and type(row.get("run")) is type(row.get("step")) is int for row in rows)

    def _read(self) -> bytes:
        try:
            return read_bytes(self.files.path / "history.csv")
        except OSError:
            return b""


class RunFolder:
    """A run on disk, written as it happens and locked while in use.

    A process that writes holds `.lock`, which excludes other writers, and `.running`, by which readers see that it runs: a
    reader never touches `.lock`, so it cannot make a start fail.
    """

    def __init__(self, path: str | Path, config: dict[str, Any] | None = None, resume: bool = False, force: bool = False):
        self.path = Path(path)
        self.resume = resume
        self.force = force
        self.config = {"format": FORMAT} | (config or {})
        self.own = OwnFiles(path)
        self.history = HistoryFile(self.own)
        self.locks = ExitStack()
        self.journal: Journal | None = None  # of a process among several
        self.steps: int | None = None
        self.warnings: list[str] = []  # of what came before the run
        if resume:
            self.config = read_json(self.path / "config.json", f"{self.path} holds no run to continue")

    def check(self) -> None:
        """Check that the folder can be used: continued, or replaced with `force`, if it is ours; otherwise it must be empty.

        A run that is done, or of another version, is not continued. What the user has put into the folder must not have the
        name of a file of the run.
        """
        if self.resume:
            check_format(self.path / "config.json", self.config.get("format", 1))
            if self.state == "done":
                raise InputError(f"The run in {self.path} is done: to train longer, start a new run with more --steps.")
        check_folder(self.path)
        listed = self.own.names()
        expected = {name for name in listed if name in IN_USE or _is_one_of(name, JOURNALS)}
        if not listed & {"config.json", "x.safetensors"}:
            self._check_empty(expected | {LIST_LOCK})
        occupied = any(os.path.lexists(self.path / name) for name in listed - expected)
        if occupied and not self.resume and not self.force:
            resume = f"continue it with `dnasa resume {self.path}`, " if self.state in RESUMABLE else ""
            raise InputError(f"{self.path} holds a run already: choose another folder, {resume}or replace it with --force.")
        self.own.check(listed if self.resume else listed & IN_USE)
        folders = {name.partition("/")[0] for name in listed if "/" in name}
        if (self.path / "checkpoints").is_dir() and not (self.path / "checkpoints").is_symlink():
            folders.add("checkpoints")
        present = {path.name for path in self.path.glob("*") if _is_one_of(path.name, NAMES)}
        self.own.check_free(present - folders)  # before hours of work

    def _check_empty(self, expected: set[str]) -> None:
        if self.resume:
            raise InputError(f"{self.path} has no list of the run's files ({LIST}): start again in another folder.")
        for path in self.path.glob("*"):
            if path.name not in expected:
                raise InputError(f"{self.path} holds files such as {path.name} that are not of a run: choose a new folder.")

    def open(self) -> None:
        """Lock the folder for this process and remove what a new run replaces."""
        self.check()
        make_folder(self.path)
        try:
            self.own.claim((LOCK, RUNNING))
            lock = acquire(self.path / LOCK)
            if lock is None:
                raise InputError(f"{self.path} is in use by another run: wait for it, or choose another folder.")
            self.locks.enter_context(lock)
            self.locks.enter_context(acquire(self.path / RUNNING, wait=True) or nullcontext())
            if not self.resume:
                self.check()  # again: another run may have begun and ended since
                journals = [name for name in self.own.names() if _is_one_of(name, JOURNALS)]
                self.own.clear((LOCK, RUNNING, *journals))  # an audit stays
        except InputError:
            self.close()
            raise
        except OSError as error:
            raise InputError(f"Cannot use {self.path}: {error}. Choose another folder.") from error

    def close(self) -> None:
        self.locks.close()

    def begin(self, run: dict[str, Any], steps: int) -> None:
        """Write the config and the status before the first step."""
        self.steps = steps
        if self.resume and self.config.get("versions") != versions():
            self.log(f"Begun with other versions than {versions()}: the last digits may differ.")
        if not self.resume:
            self.config |= {"versions": versions(), "commit": commit(), "hardware": hardware(), "run": run}
            rules = dict.fromkeys(rule for rule, *_ in run.get("rule", ()))
            plugin_rules = [rule for rule in rules if rule in RULES and rule not in BUILT_IN]
            if plugin_rules:
                self.config["rules"] = {rule: look(rule) for rule in plugin_rules}
            self.own.write("config.json", to_json(self.config))
            self.log(f"Begun with {', '.join(rules)}.")
        self.status("running", self.step if self.resume else 0, steps)
        for line in self.warnings:
            self.log(line)

    def status(self, state: str, step: int, steps: int) -> None:
        self.own.write("status.json", to_json({"state": state, "step": step, "steps": steps}))

    def log(self, line: str) -> None:
        self.own.append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def save(self, step: int, arrays: dict[str, np.ndarray], notes: dict[str, Any]) -> None:
        notes = notes | {"history": [self.history.length, self.history.crc]}
        self.own.sync("history.csv")  # a checkpoint must never be newer than its history
        checkpoints.save(self.path / "checkpoints", Checkpoint(step, arrays, notes))
        self.log(f"Checkpoint of step {step}.")

    def newest(self) -> Path | None:
        """The file of the newest checkpoint that is intact and whose history is; newer ones are renamed `rejected-`."""
        listed = self.own.names()
        for path in checkpoints.newest_first(self.path / "checkpoints"):
            try:
                self._check_history(checkpoints.load(path))
                return path
            except Damaged as error:
                line = f"{error} The checkpoint before is used."
                self.log(line)
                print(line, file=sys.stderr, flush=True)
            if f"checkpoints/{path.name}" in listed:
                self.own.rename(f"checkpoints/{path.name}", f"checkpoints/rejected-{path.name}")
        return None

    def _check_history(self, checkpoint: Checkpoint) -> None:
        if self.steps is not None and checkpoint.step > self.steps:
            raise Damaged(f"The checkpoint of step {checkpoint.step} is beyond the end of the run, step {self.steps}.")
        if not self.history.begins_with(*checkpoint.notes["history"]):
            raise Damaged(f"{self.path / 'history.csv'} is not as it was at step {checkpoint.step}.")

    @property
    def options(self) -> dict[str, Any]:
        return self._part("options")

    @property
    def settings(self) -> dict[str, Any]:
        """What a resumed run must have in common with this one."""
        return self._part("run")

    def _part(self, name: str) -> dict[str, Any]:
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}

    @property
    def sites(self) -> list[str]:
        """The names of the nodes, where their data has some."""
        stored = self.config.get("sites")
        return list(map(str, stored)) if isinstance(stored, list) else []

    @property
    def looks(self) -> dict[str, Look]:
        """Title, color and default schedule of the rules that are not built in: reading them executes no plugin."""
        entries = self._part("rules").items()
        return {name: Look(*entry) for name, entry in entries if fits(entry, (str, _is_text, _is_text))}

    @property
    def state(self) -> str:
        """running, done, interrupted, failed, diverged; killed if it says running but no process runs; else unknown."""
        if is_held(self.path / RUNNING):
            return "running"
        state = self._status().get("state")
        if state not in STATES:
            return "unknown"
        return "killed" if state == "running" else str(state)

    @property
    def step(self) -> int:
        """The step of the end, or of the newest checkpoint of a run that has not ended."""
        step = self._status().get("step")
        return step if type(step) is int else 0

    def _status(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "status.json", "")
        except InputError:
            return {}


@contextmanager
def logging_warnings(log: Callable[[str], None]) -> Iterator[None]:
    """Log Python's warnings, and show them as before."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def both(message: Any, *more: Any, **options: Any) -> None:
            with suppress(RunError):  # a full disk is reported by the run itself
                log(f"Warning: {' '.join(str(message).split())}")
            show(message, *more, **options)

        warnings.showwarning = both
        yield


def _is_one_of(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)
