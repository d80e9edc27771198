"""The outcome of an experiment: tables, figures, and findings in words."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.comparing.drawing import legend_below
from dnasa.files import make_folder
from dnasa.plots import LABELS, LINEAR, draw_curve, finish, panels, rendered, shown
from dnasa.runs.own_files import OwnFiles
from dnasa.statistics import curves

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass
class Report:
    """`tables` are printed and written as CSV, `data` only written, `findings` are printed under the tables."""

    name: str
    title: str
    quick: bool = False
    tables: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    data: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    figures: dict[str, "Figure"] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @contextmanager
    def draw(
        self, name: str, count: int, title: str, columns: int = 2, width: float = 4.6, height: float = 3.4
    ) -> "Iterator[list[Axes]]":
        """The panels of a new figure; what is drawn in them gets one legend below all of them.

        Args:
            name: The name of its file.
            count: The number of panels.
            title: The title; that of a quick run says so.
            columns: The number of panels in a row.
            width: The width of a panel, in inches.
            height: The height of a panel, in inches.
        """
        columns = min(columns, count)
        figure, axes = panels(columns, ceil(count / columns), width, height)
        for axis in axes.flat[count:]:
            axis.remove()
        yield list(axes.flat[:count])
        figure.suptitle(f"{title} (quick run)" if self.quick else title)
        legend_below(figure, columns=max(2, round(columns * width / 2.3)))
        self.figures[name] = figure

    def save(self, path: str | Path) -> list[Path]:
        """One CSV per table, one PNG per figure, and the findings as text; those of an earlier report are replaced.

        Args:
            path: The folder.
        """
        tables = {f"{name}.csv": table.to_csv(index=False) for name, table in (self.tables | self.data).items()}
        tables[f"{self.name}-findings.txt"] = "\n".join(self.findings) + "\n"
        pictures = {f"{name}.png": rendered(figure, "png") for name, figure in self.figures.items()}
        folder = OwnFiles(make_folder(path)).save({name: text.encode() for name, text in tables.items()} | pictures)
        return [folder / name for name in pictures]


def draw_lines(
    axis: "Axes",
    history: "pd.DataFrame",
    metric: str,
    keys: Sequence[str],
    label: Callable[..., str],
    style: Callable[..., dict[str, Any]] = lambda *names: {},
    x: str = "step",
) -> None:
    """The mean of a metric and the range over the seeds: a line for each combination of values of the columns `keys`, which
    are the arguments of `label` and `style`."""
    for names, rows in shown(curves(history, metric, x, keys)).groupby(list(keys), sort=False, dropna=False):
        draw_curve(axis, rows, label(*names), **style(*names))
    finish(axis, x, LABELS.get(metric, metric), log=metric in LABELS and metric not in LINEAR)
