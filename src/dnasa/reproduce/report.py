"""The outcome of an experiment: tables, figures, and notes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dnasa.comparing.drawing import draw_curves
from dnasa.comparing.plots import legend_below, panel_list, rendered
from dnasa.comparing.statistics import curves
from dnasa.comparing.style import current
from dnasa.files import make_folder
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass
class Report:
    """`tables` are printed and written as CSV, `data` only written, `notes` are printed under the tables."""

    title: str
    quick: bool = False
    tables: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    data: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    figures: dict[str, "Figure"] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def draw(self, name: str, count: int, title: str) -> "Iterator[list[Axes]]":
        """The panels of a new figure with one legend below all of them; in print, the title is left to the caption."""
        figure, axes = panel_list(count, 3 if count == 3 else 2)
        yield axes
        words = "" if current().printed else title
        figure.suptitle(f"{words} (quick run)" if self.quick else words)
        legend_below(figure)
        self.figures[name] = figure

    def save(self, path: str | Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
        """One CSV per table, and one file per figure and format; earlier ones are replaced."""
        numbers = self.tables | self.data
        tables = {f"{name}.csv": table.to_csv(index=False).encode() for name, table in numbers.items()}
        pictures = {f"{name}.{kind}": rendered(figure, kind) for name, figure in self.figures.items() for kind in kinds}
        folder = OwnFiles(make_folder(path)).save(tables | pictures)
        return [folder / name for name in pictures]


def draw_lines(axis: "Axes", history: "pd.DataFrame", metric: str, x: str = "step") -> None:
    """The mean of a metric and its range over the seeds: a line for each rule and stepsize."""
    draw_curves(axis, curves(history.assign(schedule=None), metric, [x]), x, metric)
