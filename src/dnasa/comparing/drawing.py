"""The two pictures of a comparison: curves, and results against stepsizes. Both are drawn from frames of `statistics`."""

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing import plots
from dnasa.comparing.plots import axis_name, drawable, finish, legend_below, name_decades, names_of, panel_list, shown
from dnasa.comparing.statistics import METHOD, VARIANT
from dnasa.comparing.style import current
from dnasa.problems.metrics import larger_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "step": "step",
    "epochs": "passes over the data",
    "samples": "samples of all nodes",
    "mb_per_node": "MB sent per node",
    "seconds": "seconds of training",
}
CROSSES = "stepsize $\\eta$\n(x: diverged or off the axis)"
BANDS = "bands: range over the seeds"
NUMBERS = ["mean", "low", "high"]
MARGIN = 0.05  # of the values, above and below them
FIRST = 1 / 3  # of a curve: on a linear axis the first steps would hide the differences that remain

LineStyles = dict[str, dict[str, Any]]  # color, dash and marker by label
Lines = list[tuple[Any, pd.DataFrame]]  # a variant and its rows


def line_styles(variants: Iterable[Sequence[Any]]) -> LineStyles:
    """The styles of these rules with their schedules and perhaps stepsizes, for panels that show the same ones."""
    keys = list(variants)
    looks = plots.styles([str(rule) for rule, *_ in keys])
    return {plots.label(*key): look for key, look in zip(keys, looks, strict=True)}


def draw_curves(axis: "Axes", table: pd.DataFrame, x: str, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `Comparison.curves`: a line and a band for each variant, a cross where a run diverged."""
    table = shown(table.assign(**{x: drawable(table[x].astype(float))}))
    lines: Lines = list(table.groupby(list(VARIANT), sort=False, dropna=False))
    variants = [variant for variant, _ in lines]
    looks = styles or line_styles(variants)
    for i, (name, (variant, rows)) in enumerate(zip(names_of(variants), lines, strict=True)):
        plots.draw_curve(axis, rows, x, name, shift=(i + 0.5) / len(lines), **looks[plots.label(*variant)])
    if is_wide([rows[x][rows["mean"].notna()].max() for _, rows in lines]):
        axis.set_xscale("log")  # one method sends far more than another
        name_decades(axis.xaxis)
    finish(axis, AXES.get(x, x), axis_name(metric), log=not larger_is_better(metric) and is_wide(table[NUMBERS]))
    if axis.get_xscale() == "linear" and table[x].max() > 0:
        axis.set_xlim(0, table[x].max())
    if axis.get_yscale() == "linear":
        later = [rows["mean"][rows[x] >= FIRST * rows[x].max()] for _, rows in lines]
        ends = [rows[["low", "high"]].dropna().tail(1).to_numpy().ravel() for _, rows in lines]
        focus(axis, np.concatenate([*later, *ends]))


def draw_stepsizes(axis: "Axes", table: pd.DataFrame, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `statistics.over_seeds`: the mean against the stepsize, bars from the smallest to the largest seed.

    Rules that need no stepsize are horizontal lines. The axis shows the best of every rule and what is near to it. A
    stepsize at which a run diverged, or whose result is beyond the axis, is a cross at the edge of bad results; chosen
    ones, if the table has that column, are circled.
    """
    table = shown(table).assign(eta=drawable(table.eta.astype(float)))
    larger = larger_is_better(metric)
    lines: Lines = list(table.groupby(METHOD, sort=False, dropna=False))
    variants = [variant for variant, _ in lines]
    looks = styles or line_styles(variants)
    for name, (variant, rows) in zip(names_of(variants), lines, strict=True):
        look = looks[plots.label(*variant)]
        if rows.eta.isna().all():
            axis.axhline(rows["mean"].iloc[0], label=name, **(look | {"marker": ""}))
        else:
            axis.plot(rows.eta, rows["mean"], label=name, ms=current().marker, **look)
    if (table.eta > 0).any():
        axis.set_xscale("log")
        name_decades(axis.xaxis)
    finish(axis, r"stepsize $\eta$", axis_name(metric), log=not larger and is_wide(table[NUMBERS]))
    best = pd.Series([rows["mean"].max() if larger else rows["mean"].min() for _, rows in lines], dtype=float)
    _show_best(axis, best.dropna(), table[NUMBERS].to_numpy(), larger)
    for place, (variant, rows) in enumerate(lines, start=1):
        if rows.eta.notna().any():
            height = 0.05 * place if larger else 1 - 0.05 * place
            _mark(axis, rows, looks[plots.label(*variant)]["color"], height % 1)


def _mark(axis: "Axes", rows: pd.DataFrame, color: str, height: float) -> None:
    """Bars, circles, and crosses at this height, which differs for each rule so that all can be seen."""
    size = current().marker
    inside = rows["mean"].between(*axis.get_ylim())
    near, lost = rows[inside], rows.eta[~inside].dropna()
    axis.vlines(near.eta, near.low, near.high, color=color, linewidth=1)
    points: Any = {"linestyle": "", "color": color}
    if len(lost):
        at_edge: Any = {"transform": axis.get_xaxis_transform(), "marker": "x", "ms": 1.7 * size, "mew": 0.5 * size}
        axis.plot(lost, [height] * len(lost), label="_diverged", **points, **at_edge)
        axis.set_xlabel(CROSSES)
    if "chosen" in rows:
        chosen = near[near.chosen.astype(bool)]
        circle: Any = {"marker": "o", "ms": 2.7 * size, "mfc": "none", "clip_on": False, "in_layout": False}
        axis.plot(chosen.eta, chosen["mean"], label="_chosen", **points, **circle)


def figure_of_curves(table: pd.DataFrame, columns: Sequence[str], metric: str) -> "Figure":
    """A pair of axes of `draw_curves` for each of these columns, with one legend."""
    size = (6.4, 4.2) if len(columns) == 1 else (4.4, 4.0)
    figure, axes = panel_list(len(columns), len(columns), *size)
    for axis, column in zip(axes, columns, strict=True):
        draw_curves(axis, table, column, metric)
        if axis is not axes[0]:
            axis.sharey(axes[0])
    finish_panels(figure, axes, note=BANDS if table.runs.max() > 1 else "")
    return figure


def figure_of_stepsizes(table: pd.DataFrame, metric: str) -> "Figure":
    figure, (axis,) = panel_list(1, 1, 6.4, 4.2)
    draw_stepsizes(axis, table, metric)
    legend_below(figure, note="bars: range over the seeds" if table.runs.max() > 1 else "")
    return figure


def finish_panels(figure: "Figure", axes: "Sequence[Axes]", titles: Sequence[str] = (), note: str = "") -> None:
    """Give panels their titles, each label of a vertical axis once in a row, and one legend."""
    font = current().font
    for axis, title in zip(axes, titles, strict=False):
        points = axis.get_window_extent().width / axis.figure.dpi * 72
        letters = int(points / (0.5 * font))
        axis.set_title(fill(title, max(10, letters)), fontsize=font, linespacing=1)
    first = axes[0]
    for axis in axes:
        if axis.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            first = axis
        elif axis.get_ylabel() == first.get_ylabel():
            axis.set_ylabel("")
    legend_below(figure, note)


def is_wide(values: Any) -> bool:
    """Whether these numbers need a logarithmic axis: all positive, the largest more than ten times the smallest."""
    known = drawable(pd.Series(np.ravel(values).astype(float))).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > 10 * known.min())


def focus(axis: "Axes", values: Any) -> None:
    """Limits of a linear axis around these values."""
    known = np.asarray(values)[np.isfinite(values)]
    if len(known) and known.max() > known.min():
        margin = MARGIN * np.ptp(known)
        axis.set_ylim(known.min() - margin, known.max() + margin)


def _show_best(axis: "Axes", best: pd.Series, values: np.ndarray, larger: bool) -> None:
    """Limits that show the best of every rule, and results up to three times worse: of accuracies, three times the error."""
    known = values[np.isfinite(values)]
    if best.empty or not len(known):
        return
    low, high = known.min(), known.max()
    if axis.get_yscale() == "log":
        worse = max(10, best.max() / best.min())
        axis.set_ylim(low / 1.2, 1.2 * min(high, worse * best.max()))
    elif larger:
        focus(axis, [max(low, 1 - 3 * (1 - best.min())), high])
    else:
        focus(axis, [low, min(high, best.max() + 2 * abs(best.max()))])
