"""What a run leaves behind: the result in memory, and its files."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.core import Array, InputError

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
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        folder = make_folder(path)
        x = self.x if isinstance(self.x, np.ndarray) else self.x.detach().cpu().numpy()
        try:
            self.history.to_csv(folder / "history.csv", index=False)
            self.runs.to_csv(folder / "runs.csv", index_label="run")
            save_file({"x": np.ascontiguousarray(x)}, folder / "x.safetensors")
            (folder / "settings.json").write_text(json.dumps(self.settings, indent=2) + "\n")
        except (OSError, SafetensorError) as error:
            raise InputError(f"Cannot write to {folder}: {error}. Make room or choose another folder.") from error
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
            return cls(x, pd.read_csv(folder / "history.csv"), runs, settings)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
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
