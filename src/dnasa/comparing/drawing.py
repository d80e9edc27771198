"""The two pictures of a comparison: curves, and results against stepsizes. Both are drawn from frames of `statistics`."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing import plots
from dnasa.comparing.plots import axis_name, drawable, finish, legend_below, name_decades, names_of, panel_list, shown
from dnasa.comparing.statistics import METHOD, VARIANT, WINDOW, window
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
    "clock_seconds": "predicted seconds",
}
DIVERGED, BELOW = "diverged", "\n(triangles: worse results, off the scale)"
BANDS = "bands: range over the seeds"
SIGNS = "circles: chosen stepsizes; crosses: a run diverged"
NUMBERS = ["mean", "low", "high"]
MARGIN = 0.05  # of the values, above and below them
STRIP = 0.06  # room for a row of triangles, as a part of the axis
FAR = 30  # how many times more a line may show than another on a linear axis that panels share
FIRST = 1 / 3  # of a curve: on a linear axis the first steps would hide the differences that remain

LineStyles = dict[str, dict[str, Any]]  # name in the legend, color, dash and marker by label
Lines = list[tuple[Any, pd.DataFrame]]  # a variant and its rows


def line_styles(variants: Iterable[Sequence[Any]]) -> LineStyles:
    """The styles of these rules with their schedules and perhaps stepsizes, for panels that show the same ones."""
    keys = list(variants)
    looks = zip(keys, names_of(keys), plots.styles([str(rule) for rule, *_ in keys]), strict=True)
    return {plots.label(*key): {"label": name} | look for key, name, look in looks}


def draw_curves(axis: "Axes", table: pd.DataFrame, x: str, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `Comparison.curves`: a line and a band for each variant, a cross where a run diverged."""
    table = shown(table.assign(**{x: drawable(table[x].astype(float))}))
    lines: Lines = list(table.groupby(list(VARIANT), sort=False, dropna=False))
    looks = styles or line_styles(variant for variant, _ in lines)
    for i, (variant, rows) in enumerate(lines):
        plots.draw_curve(axis, rows, x, shift=(i + 0.5) / len(lines), **looks[plots.label(*variant)])
    places = [line.get_xdata() for panel in axis.get_shared_x_axes().get_siblings(axis) for line in panel.lines]
    ends, longest = [rows[x][rows["mean"].notna()].max() for _, rows in lines], [pd.Series(xs).max() for xs in places]
    if is_wide(ends) or is_wide(longest, FAR):
        axis.set_xscale("log")  # one method, or a network, sends far more than another
        name_decades(axis.xaxis)
    finish(axis, AXES.get(x, x), axis_name(metric), log=not larger_is_better(metric) and is_wide(table[NUMBERS]))
    if axis.get_xscale() == "log":
        axis.set_xlim(min(value for xs in places for value in xs if value > 0) / 1.1, max(longest) * 1.1)
    elif max(longest) > 0:
        axis.set_xlim(0, max(longest))
    if axis.get_yscale() == "linear":
        later = [rows["mean"][rows[x] >= FIRST * rows[x].max()] for _, rows in lines]
        ends = [rows[["low", "high"]].dropna().tail(1).to_numpy().ravel() for _, rows in lines]
        focus(axis, np.concatenate([*later, *ends]))


def draw_stepsizes(axis: "Axes", table: pd.DataFrame, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `statistics.over_seeds`: the mean against the stepsize, bars from the smallest to the largest seed.

    Rules that need no stepsize are horizontal lines. A logarithmic axis shows all results, a linear one those near the best of
    each rule; a triangle at its edge is a worse one. Stepsizes at which a run diverged are crosses above the axis, a row for
    each rule. Chosen ones, if the table has that column, are circled.
    """
    table = shown(table).assign(eta=drawable(table.eta.astype(float)))
    larger = larger_is_better(metric)
    lines: Lines = list(table.groupby(METHOD, sort=False, dropna=False))
    looks = styles or line_styles(variant for variant, _ in lines)
    for variant, rows in lines:
        look = looks[plots.label(*variant)]
        if rows.eta.isna().all():
            axis.axhline(rows["mean"].iloc[0], **(look | {"marker": ""}))
        else:
            axis.plot(rows.eta, rows["mean"], ms=current().marker, **look)
    if (table.eta > 0).any():
        axis.set_xscale("log")
        name_decades(axis.xaxis)
    finish(axis, r"stepsize $\eta$", axis_name(metric), log=not larger and is_wide(table[NUMBERS]))
    best = pd.Series([rows["mean"].max() if larger else rows["mean"].min() for _, rows in lines], dtype=float)
    _show_best(axis, best.dropna(), table[NUMBERS].to_numpy(), larger)
    low, high = axis.get_ylim()
    room = STRIP * (high - low) * sum(((rows["mean"] < low) | (rows["mean"] > high)).any() for _, rows in lines)
    axis.set_ylim(*((low - room, high) if larger else (low, high + room)))  # a row for each rule with worse results
    for variant, rows in lines:
        if rows.eta.notna().any():
            _mark(axis, rows, looks[plots.label(*variant)]["color"], larger)
    if height := _height(axis, "_diverged"):
        at_left: Any = {"ha": "right", "va": "center", "fontsize": current().font - 1}
        middle = (height + _height(axis)) / 2
        axis.annotate(DIVERGED, (0, 1), (-2, middle), "axes fraction", textcoords="offset points", **at_left)


def _mark(axis: "Axes", rows: pd.DataFrame, color: str, larger: bool) -> None:
    """Bars and circles; triangles inside the edge of the axis and crosses above it, each in a new row."""
    from matplotlib.transforms import ScaledTranslation

    size = current().marker
    low, high = axis.get_ylim()
    known = rows[rows["mean"].notna()]
    inside = known["mean"].between(low, high)
    near, worse, lost = known[inside], known.eta[~inside].dropna(), rows.eta[rows["mean"].isna()].dropna()
    axis.vlines(near.eta, near.low.clip(lower=low), near.high.clip(upper=high), color=color, linewidth=1)

    def draw(etas: pd.Series, edge: float, up: float, **look: Any) -> None:
        place = axis.get_xaxis_transform() + ScaledTranslation(0, up / 72, axis.figure.dpi_scale_trans)
        points: Any = {"linestyle": "", "color": color, "clip_on": False, "ms": 1.5 * size, "mew": 0.4 * size}
        axis.plot(etas, [edge] * len(etas), transform=place, **points, **look)
        axis.update_datalim([(eta, edge) for eta in etas], updatey=False)
        axis.autoscale_view(scaley=False)

    if len(worse):
        up = _height(axis, "_worse")
        draw(worse, *((0.0, up) if larger else (1.0, -up)), label="_worse", marker="v" if larger else "^")
        axis.set_xlabel(rf"stepsize $\eta${BELOW}")
    if len(lost):
        draw(lost, 1.0, _height(axis, "_diverged") + _height(axis), label="_diverged", marker="x")
    if "chosen" in rows:
        chosen = near[near.chosen.astype(bool)]
        circle: Any = {"marker": "o", "ms": 2.7 * size, "mfc": "none", "clip_on": False, "in_layout": False}
        axis.plot(chosen.eta, chosen["mean"], label="_chosen", linestyle="", color=color, **circle)


def _height(axis: "Axes", name: str = "") -> float:
    """The height of a row of crosses or triangles, or of all with that label, in points."""
    rows = sum(line.get_label() == name for line in axis.get_lines()) if name else 1
    return 1.75 * current().marker * rows


def entitle(axis: "Axes", title: str) -> None:
    """Give a panel its title, above the crosses."""
    from matplotlib import rcParams

    pad = rcParams["axes.titlepad"] + _height(axis, "_diverged")
    axis.set_title(title, fontsize=current().font, linespacing=1, pad=pad)


def figure_of_curves(table: pd.DataFrame, columns: Sequence[str], metric: str) -> "Figure":
    """A pair of axes of `draw_curves` for each of these columns, with one legend."""
    size = (6.4, 4.2) if len(columns) == 1 else (4.4, 4.0)
    figure, axes = panel_list(len(columns), len(columns), *size)
    for axis, column in zip(axes, columns, strict=True):
        draw_curves(axis, table, column, metric)
        if axis is not axes[0]:
            axis.sharey(axes[0])
    finish_panels(figure, axes, note=note_on(table))
    return figure


def note_on(table: pd.DataFrame) -> str:
    """What bands mean, and that curves of many evaluations are smoothed."""
    longest = table.groupby(list(VARIANT), dropna=False).size().max()
    smoothed = f"running means over {WINDOW:.0%} of the evaluations" if window(longest) > 1 else ""
    return "; ".join(filter(None, (BANDS if table.runs.max() > 1 else "", smoothed)))


def bars(table: pd.DataFrame) -> str:
    return "bars: range over the seeds" if table.runs.max() > 1 else ""


def figure_of_stepsizes(table: pd.DataFrame, metric: str) -> "Figure":
    figure, (axis,) = panel_list(1, 1, 6.4, 4.2)
    draw_stepsizes(axis, table, metric)
    figure.set_figheight(figure.get_figheight() + _height(axis, "_diverged") / 72)
    legend_below(figure, note="; ".join(filter(None, (bars(table), "circles: chosen"))))
    return figure


def finish_panels(
    figure: "Figure", axes: "Sequence[Axes]", titles: Sequence[str] = (), note: str = "", problems: Sequence[str] = ()
) -> None:
    """Give panels their titles and one legend. Those of a problem that are next to each other have the same vertical axis."""
    for axis, title in zip(axes, titles, strict=False):
        points = axis.get_window_extent().width / axis.figure.dpi * 72
        letters = int(points / (0.5 * current().font))
        entitle(axis, fill(title, max(10, letters)))
    of_panels = zip(axes, problems or [""] * len(axes), strict=True)
    for _, row in groupby(of_panels, key=lambda pair: pair[0].get_subplotspec().rowspan.start):  # type: ignore[union-attr]
        _share(list(row))
    legend_below(figure, note)


def _share(row: "list[tuple[Axes, str]]") -> None:
    """One vertical axis for the panels of a problem with the same metric and scale; its name stands once in the row."""
    kinds = [(axis.get_ylabel(), axis.get_yscale(), problem) for axis, problem in row]
    for kind in dict.fromkeys(kinds):
        alike = [axis for (axis, _), own in zip(row, kinds, strict=True) if own == kind]
        limits = np.array([axis.get_ylim() for axis in alike])
        for axis in alike:
            axis.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    for (axis, _), (label, *_) in zip(row[1:], kinds[1:], strict=True):
        axis.set_ylabel("" if label == kinds[0][0] else label)


def is_wide(values: Any, factor: float = 10) -> bool:
    """Whether these numbers need a logarithmic axis: all positive, the largest more than `factor` times the smallest."""
    known = drawable(pd.Series(np.ravel(values).astype(float))).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > factor * known.min())


def focus(axis: "Axes", values: Any) -> None:
    """Limits of a linear axis around these values."""
    known = np.asarray(values)[np.isfinite(values)]
    if len(known) and known.max() > known.min():
        margin = MARGIN * np.ptp(known)
        axis.set_ylim(known.min() - margin, known.max() + margin)


def _show_best(axis: "Axes", best: pd.Series, values: np.ndarray, larger: bool) -> None:
    """Limits of a linear axis that show the best of every rule, and up to three times worse results; of accuracies, errors."""
    known = values[np.isfinite(values)]
    if best.empty or not len(known):
        return
    low, high = known.min(), known.max()
    if axis.get_yscale() == "log":
        axis.set_ylim(low / 1.2, 1.2 * high)
    elif larger:
        focus(axis, [max(low, 1 - 3 * (1 - best.min())), high])
    else:
        focus(axis, [low, min(high, best.max() + 2 * abs(best.max()))])
