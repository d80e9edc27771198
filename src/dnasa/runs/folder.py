"""What a run leaves behind: the result in memory, and its folder."""

import contextlib
import csv
import fcntl
import io
import json
import os
import platform
import shutil
import time
import zlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa import checkpoints
from dnasa.checkpoints import Checkpoint, Damaged, write_durably
from dnasa.core import Array, InputError, RunError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The outcome of `solve`.

    `x` is `(n, d)` for one run and `(runs, n, d)` for several; `history` has one row per evaluation and run, `runs` one
    row per run: its rule, schedule, stepsize, seed and, where it diverged, the step at which it did.
    """

    x: Array
    history: "pd.DataFrame"
    runs: "pd.DataFrame"
    settings: dict[str, Any]
    rank: int = 0  # of this process among those still there

    @property
    def mean(self) -> Array:
        """The mean iterate, `(d,)` or `(runs, d)`: the trained model."""
        return self.x.mean(-2)

    def final(self) -> "pd.DataFrame":
        """The last evaluation of every run."""
        return self.history.groupby("run", sort=True).tail(1).set_index("run")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """The curves of all runs; saved when a path is given."""
        from dnasa.plots import draw_history, save_figure

        figure = draw_history(self.history)
        if path:
            save_figure(figure, path)
        return figure

    def save(self, path: str | Path) -> Path:
        """Write `history.csv`, `runs.csv`, `x.safetensors` and `settings.json` into the folder."""
        from safetensors.numpy import save as serialised

        folder = make_folder(path)
        x = self.x if isinstance(self.x, np.ndarray) else self.x.detach().cpu().numpy()
        files = {
            "history.csv": self.history.to_csv(index=False).encode(),
            "runs.csv": self.runs.to_csv(index_label="run").encode(),
            "x.safetensors": serialised({"x": np.ascontiguousarray(x)}),
            "settings.json": pretty(self.settings),
        }
        try:
            for name, data in files.items():
                write_durably(folder / name, data)
        except OSError as error:
            raise RunError(
                f"Cannot write to {folder}: {error.strerror}. Make room or choose another folder."
            ) from error
        return folder

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read back what `save` wrote; `x` comes as a NumPy array."""
        import pandas as pd
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(path)
        for name in ("history.csv", "runs.csv", "x.safetensors", "settings.json"):
            if not (folder / name).is_file():
                raise InputError(f"{folder} holds no saved result: {name} is missing.")
        try:
            runs = pd.read_csv(folder / "runs.csv", index_col="run")
            runs["diverged"] = runs["diverged"].astype("Int64")
            x = load_file(folder / "x.safetensors")["x"]
            settings = json.loads((folder / "settings.json").read_text())
            return cls(x, pd.DataFrame(parse_rows((folder / "history.csv").read_text())), runs, settings)
        except (OSError, ValueError, KeyError, TypeError, csv.Error, SafetensorError) as error:
            raise InputError(f"The result in {folder} is damaged: {str(error).splitlines()[0]}.") from error


def make_folder(path: str | Path) -> Path:
    """The folder, made if it is not there, or a clear word why nothing can be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}. Choose another folder.") from error
    return folder


def parse_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a history as they were written, to the last bit."""
    return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(io.StringIO(text))]


def _number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text or "nan")
    return text


def pretty(thing: Any) -> bytes:
    return (json.dumps(thing, indent=2, default=lambda number: number.item()) + "\n").encode()


def versions() -> dict[str, str]:
    """What this run is made with."""
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("dnasa", "numpy", "torch"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    return out


class RunFolder:
    """A run on disk, written to as it happens and locked while in use.

    `config.json` has everything needed to repeat the run, `history.csv` grows by one row per evaluation and run,
    `checkpoints/` holds the last few states, `log.txt` says what happened when, and `status.json` how it ended.
    """

    OWN = (
        *("config.json", "history.csv", "runs.csv", "x.safetensors", "settings.json", "log.txt", "status.json"),
        *("history.png", "stepsizes.png"),
    )

    def __init__(
        self, path: str | Path, config: dict[str, Any] | None = None, resume: bool = False, force: bool = False
    ):
        self.path, self.resume, self.force = Path(path), resume, force
        self.config = config or {}
        self.bytes = self.checksum = 0  # of history.csv
        if resume:
            self.config = self.read_config()

    def check(self) -> None:
        """A run that is there already is not replaced unless asked for, and one that is done is not continued."""
        if self.resume and self.state == "done":
            raise InputError(f"The run in {self.path} is done: there is nothing to continue.")
        make_folder(self.path)
        occupied = any((self.path / name).exists() for name in ("config.json", "history.csv", "x.safetensors"))
        if occupied and not self.resume and not self.force:
            raise InputError(
                f"{self.path} holds a run already: choose another folder, continue it with `dnasa resume {self.path}`, or "
                "replace it with --force."
            )

    def open(self) -> None:
        """Take the folder for this process; whatever a new run would replace goes."""
        self.check()
        self.lock = open(self.path / ".lock", "a")  # noqa: SIM115 (held until the process ends, however it ends)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.path} is in use by another run: wait for it, or choose another folder.") from None
        for draft in (*self.path.glob(".*.safetensors.*"), *(self.path / "checkpoints").glob(".*")):
            draft.unlink(missing_ok=True)  # what a killed process was writing
        if not self.resume:
            for name in self.OWN:
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def close(self) -> None:
        self.lock.close()

    def begin(self, run: dict[str, Any], steps: int) -> None:
        """Say what is about to happen."""
        if self.resume:
            made, here = self.config.get("versions", {}), versions()
            other = [f"{name} {made[name]}, now {here.get(name)}" for name in made if made[name] != here.get(name)]
            if other:
                self.log(f"Begun with {'; '.join(other)}: the last digits may differ.")
        else:
            self.config |= {"versions": versions(), "run": run}
            self._write("config.json", pretty(self.config))
        self.status("running", 0, steps)

    def _write(self, name: str, data: bytes) -> None:
        try:
            write_durably(self.path / name, data)
        except OSError as error:
            raise RunError(f"Cannot write {self.path / name}: {error.strerror}. Make room, then resume.") from error

    def status(self, state: str, step: int, steps: int) -> None:
        self._write("status.json", pretty({"state": state, "step": step, "steps": steps}))

    def log(self, line: str) -> None:
        self._append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def _append(self, name: str, data: bytes) -> None:
        try:
            with open(self.path / name, "ab") as file:
                file.write(data)
        except OSError as error:
            raise RunError(f"Cannot write {self.path / name}: {error.strerror}. Make room, then resume.") from error

    # ------------------------------------------------------------ history and checkpoints

    def append(self, rows: "pd.DataFrame") -> None:
        data = rows.to_csv(index=False, header=self.bytes == 0).encode()
        self._append("history.csv", data)
        self.bytes += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def take_over(self, rows: "pd.DataFrame", t: int) -> None:
        """Go on with a history that another process may have written: its rows before step t, and those it could not write."""
        path = self.path / "history.csv"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        steps = [row["step"] for row in parse_rows(b"".join(whole).decode())]
        kept = b"".join(whole[:1] + [line for line, step in zip(whole[1:], steps, strict=True) if step < t])
        self._write("history.csv", kept)
        self.bytes, self.checksum = len(kept), zlib.crc32(kept)
        missing = rows[~rows.step.isin(steps) & (rows.step < t)]
        if len(missing):
            self.append(missing)

    def save(self, step: int, arrays: dict[str, np.ndarray], notes: dict[str, Any]) -> None:
        notes = notes | {"history": [self.bytes, self.checksum]}
        folder = self.path / "checkpoints"
        try:
            with open(self.path / "history.csv", "ab") as file:
                os.fsync(file.fileno())  # it must outlast whatever the checkpoint outlasts
        except OSError as error:
            raise checkpoints.not_written(folder, step, error) from error
        checkpoints.save(folder, Checkpoint(step, arrays, notes))
        self.log(f"Checkpoint of step {step}.")

    def newest(self) -> Path | None:
        """The file of the newest checkpoint that is whole and whose part of the history is; newer ones are put aside."""
        folder = self.path / "checkpoints"
        chosen = checkpoints.newest(folder, self._report, self._matches)
        for path in checkpoints.found(folder):
            if path == chosen:
                break
            path.rename(path.with_name(f"rejected-{path.name}"))
        return chosen

    def _report(self, line: str) -> None:
        self.log(line)
        print(line, flush=True)

    def _matches(self, checkpoint: Checkpoint) -> None:
        length, checksum = checkpoint.notes["history"]
        try:
            with open(self.path / "history.csv", "rb") as file:
                data = file.read(length)
        except OSError:
            data = b""
        if length and (len(data) != length or zlib.crc32(data) != checksum):
            raise Damaged(f"{self.path / 'history.csv'} is not as it was at step {checkpoint.step}.")

    def history_of(self, checkpoint: Checkpoint | None) -> str:
        """history.csv up to there; what came after is cut off, since it will happen again."""
        self.bytes, self.checksum = checkpoint.notes["history"] if checkpoint else (0, 0)
        with open(self.path / "history.csv", "ab") as file:
            file.truncate(self.bytes)
        return (self.path / "history.csv").read_text()

    # ------------------------------------------------------------ looking at it later

    def read_config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json", f"{self.path} holds no run to continue")

    @property
    def state(self) -> str:
        """running, done, interrupted, failed, diverged, or killed: begun, not ended, and nobody there."""
        try:
            with open(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
        except OSError:
            pass  # no lock was ever taken
        try:
            state = str(read_json(self.path / "status.json", "").get("state"))
        except InputError:
            return "unknown"
        return "killed" if state == "running" else state


def read_json(path: Path, what: str) -> dict[str, Any]:
    """An object from a file, or a clear word."""
    try:
        thing = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{what}: cannot read {path} ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {str(error).splitlines()[0]}.") from error
    if not isinstance(thing, dict):
        raise InputError(f"{path} must hold one JSON object.")
    return thing
