"""The pictures of a run, in its folder."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from dnasa.cli.rendering import COLUMNS
from dnasa.core import RunError
from dnasa.files import write_durably

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dnasa.runs.result import Result

NAMES = {"train": ("history.png",), "compare": ("history.png", "stepsizes.png")}


def missing(folder: Path, command: str) -> list[str]:
    """Pictures that a run killed at its very end did not draw."""
    return [name for name in NAMES[command] if not (folder / name).exists()]


def save(folder: Path, command: str, result: "Result") -> None:
    """Each file is complete or absent."""
    for name, figure in zip(NAMES[command], draw(command, result), strict=True):
        data = io.BytesIO()
        figure.savefig(data, format="png")
        try:
            write_durably(folder / name, data.getvalue())
        except OSError as error:
            raise RunError(
                f"Cannot write {folder / name}: {error.strerror}. Free some space, then run `dnasa resume {folder}`."
            ) from error


def draw(command: str, result: "Result") -> list["Figure"]:
    if command == "train":
        return [result.plot()]
    from dnasa.plots import panels
    from dnasa.studies import tuning

    metric = compared_metric(result)
    table = tuning.grid(result, metric)
    figure, axes = panels(1, width=6)
    tuning.draw_stepsizes(axes[0, 0], table, COLUMNS[metric], log=metric == "test_loss")
    axes[0, 0].legend(fontsize=8)
    return [tuning.draw_best(result, table, metric), figure]


def compared_metric(result: "Result") -> str:
    return "test_accuracy" if "test_accuracy" in result.history else "test_loss"
