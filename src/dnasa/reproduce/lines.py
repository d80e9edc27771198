"""Curves with a band over the seeds, one for each value of some columns of a history."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from dnasa.plots import LABELS, LINEAR, draw_curve, finish, shown
from dnasa.statistics import curves


def draw_lines(
    axis: Axes,
    history: pd.DataFrame,
    metric: str,
    keys: Sequence[str],
    label: Callable[..., str],
    style: Callable[..., dict[str, Any]] = lambda *names: {},
    x: str = "step",
) -> None:
    """The mean of a metric and the range over the seeds.

    Args:
        axis: Where to draw.
        history: Rows of a history.
        metric: What is drawn.
        keys: A line for each combination of the values of these columns.
        label: The name of a line, by these values.
        style: Its colour and dash, by these values.
        x: What it is drawn against.
    """
    for names, rows in shown(curves(history, metric, x, keys)).groupby(list(keys), sort=False, dropna=False):
        draw_curve(axis, rows, label(*names), **style(*names))
    finish(axis, x, LABELS.get(metric, metric), log=metric in LABELS and metric not in LINEAR)
