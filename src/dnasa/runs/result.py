"""The outcome of a run in memory, and as a folder of files."""

import contextlib
import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.arrays import to_numpy
from dnasa.checks import first_line
from dnasa.communication import Network
from dnasa.core import Array, InputError
from dnasa.files import fits, make_folder, read_bytes, read_json, to_json
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Result:
    """The outcome of `solve`.

    Attributes:
        x: The iterates of all nodes, `(n, d)` for one run and `(runs, n, d)` for several.
        history: A row for each evaluation and run.
        runs: A row for each run: its rule, schedule, stepsize, seed and, where it diverged, the step and the node.
        settings: The settings of the run.
        rank: The rank of this process among those still there.
        statistics: Those of the problem at the last evaluation, such as of batch norm: `(m,)` or `(runs, m)`.
        writes: Whether this process prints and keeps the run.
        network: The processes that were there at the end; None if the result was read from files.
    """

    x: Array
    history: "pd.DataFrame"
    runs: "pd.DataFrame"
    settings: dict[str, Any]
    rank: int = 0
    statistics: Array | None = None
    writes: bool = True
    network: Network | None = None

    @property
    def mean(self) -> Array:
        """The mean iterate, `(d,)` or `(runs, d)`: the trained model."""
        return self.x.mean(-2)

    def final(self) -> "pd.DataFrame":
        """The evaluation of every run's answer: the last, or with early stopping the best."""
        return answered(self.history).groupby("run", sort=True).tail(1).set_index("run")

    def __repr__(self) -> str:
        """The settings, the shape of x and the last evaluation of the first and last runs."""
        last = self.final().dropna(axis="columns", how="all")
        table = last.to_string(float_format="{:.4g}".format, line_width=120, max_rows=10)
        settings = [f"{name} {self.settings.get(name)}" for name in ("nodes", "topology", "steps")]
        return f"Runs: {len(self.runs)}, {', '.join(settings)}, x {tuple(self.x.shape)}\n{table}"

    def save(self, path: str | Path) -> Path:
        """Write `history.csv`, `runs.csv`, `x.safetensors` and `settings.json`. Returns the folder.

        Files of an earlier call, which `files.json` lists, are replaced; a user's file with such a name is an error.

        Args:
            path: The folder; it is created if necessary.
        """
        from safetensors.numpy import save as serialised

        arrays = {"x": self.x} | ({} if self.statistics is None else {"statistics": self.statistics})
        files = {
            "history.csv": self.history.to_csv(index=False).encode(),
            "runs.csv": self.runs.to_csv(index_label="run").encode(),
            "x.safetensors": serialised({name: np.ascontiguousarray(to_numpy(a)) for name, a in arrays.items()}),
            "settings.json": to_json(self.settings),
        }
        return OwnFiles(make_folder(path)).save(files)

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read back what `save` wrote; `x` comes as a NumPy array.

        Args:
            path: The folder.
        """
        import pandas as pd
        from safetensors import SafetensorError
        from safetensors.numpy import load as parsed

        folder = Path(path)
        if not folder.is_dir():
            raise InputError(f"There is no folder {folder}: give the folder of a run.")
        for name in ("history.csv", "runs.csv", "x.safetensors", "settings.json"):
            if not (folder / name).is_file():
                raise InputError(f"{folder} holds no finished run, {name} is missing: `dnasa resume` it, or `report --html`.")
        try:
            runs = pd.read_csv(io.BytesIO(read_bytes(folder / "runs.csv")), index_col="run")
            with np.errstate(invalid="ignore"):  # an invalid step number is refused by `astype`
                runs = runs.astype({"diverged": "Int64", "diverged_node": "Int64"})
            arrays = parsed(read_bytes(folder / "x.safetensors", largest=inf))
            x, statistics = arrays["x"], arrays.get("statistics")
            settings = read_json(folder / "settings.json", "settings.json")
            history = pd.DataFrame(parse_rows(read_bytes(folder / "history.csv").decode()))
            _check(x, history, settings)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, csv.Error, SafetensorError) as error:
            raise InputError(f"The result in {folder} is damaged: {first_line(error)}.") from error
        return cls(x, history, runs, settings, statistics=statistics)


def answered(history: "pd.DataFrame") -> "pd.DataFrame":
    """The evaluations of which the last is that of a run's answer: with early stopping, those that improved."""
    if "improved" not in history:
        return history
    return history[(history.improved == 1) | history.consensus.isna()]


def _check(x: np.ndarray, history: "pd.DataFrame", settings: dict[str, Any]) -> None:
    """Check what tables and plots rely on."""
    if x.ndim not in (2, 3) or x.dtype.kind != "f":
        raise ValueError(f"x is {x.dtype} of shape {x.shape}")
    for name in ("run", "seed", "step"):
        if name not in history or history[name].dtype.kind != "i":
            raise ValueError(f"history.csv has no whole numbers as {name}")
    if "rule" not in history or None in history:
        raise ValueError("history.csv has no rule, or rows longer than its header")
    timing: Any = settings.get("timing")
    if not fits(timing, {}) or not all(type(value) in (int, float) and isfinite(value) for value in timing.values()):
        raise ValueError("settings.json has no timing in numbers")
    if not fits(settings.get("lost", []), [{"step": lambda step: step is not None, "nodes": list}]):
        raise ValueError("settings.json has lost nodes without a step")


def is_answer(row: Mapping[str, Any]) -> bool:
    """Whether a row of a history is of its run's answer, unless a later one is: with early stopping, where it improved."""
    return row.get("improved", 1) == 1 or row.get("consensus") != row.get("consensus")


def parse_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a history as they were written, to the last bit."""
    return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(io.StringIO(text))]


def _number(text: Any) -> Any:
    """A cell as a whole number, a number or a text; empty ones are not a number."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, TypeError):
            return kind(text or "nan")
    return text
