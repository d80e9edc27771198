"""The outcome of an experiment: tables, figures, and findings in words."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.comparing.drawing import AXES, is_wide
from dnasa.comparing.plots import (
    LABELS,
    LINEAR,
    axis_name,
    draw_curve,
    finish,
    legend_below,
    panel_list,
    rendered,
    shown,
)
from dnasa.comparing.statistics import curves
from dnasa.comparing.style import DASHES, current
from dnasa.files import make_folder
from dnasa.runs.own_files import OwnFiles

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
    def draw(self, name: str, count: int, title: str, columns: int = 2) -> "Iterator[list[Axes]]":
        """The panels of a new figure with one legend below all of them; in print, the title is left to the caption."""
        figure, axes = panel_list(count, columns)
        yield axes
        words = [title] * (not current().printed) + ["(quick run)"] * self.quick
        figure.suptitle(" ".join(words))
        legend_below(figure)
        self.figures[name] = figure

    def save(self, path: str | Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
        """One CSV per table, one file per figure and format, and the findings as text; earlier ones are replaced."""
        tables = {f"{name}.csv": table.to_csv(index=False) for name, table in (self.tables | self.data).items()}
        tables[f"{self.name}-findings.txt"] = "\n".join(self.findings) + "\n"
        pictures = {f"{name}.{kind}": rendered(figure, kind) for name, figure in self.figures.items() for kind in kinds}
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
    """The mean of a metric and its range over the seeds: a line for each combination of values of the columns `keys`.

    These values are the arguments of `label` and `style`.
    """
    table = shown(curves(history, metric, x, keys))
    lines = table.groupby(list(keys), sort=False, dropna=False)
    for (names, rows), dash in zip(lines, cycle(DASHES), strict=False):
        draw_curve(axis, rows, label(*names), **({"linestyle": dash} | style(*names)))
    finish(axis, AXES[x], axis_name(metric), log=metric in LABELS and metric not in LINEAR and is_wide(table["mean"]))
