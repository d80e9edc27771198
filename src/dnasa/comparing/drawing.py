"""The two pictures of a comparison: curves, and results against stepsizes. Both are drawn from frames of `statistics`."""

from collections.abc import Iterable, Sequence
from itertools import groupby, product
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing import plots
from dnasa.comparing.plots import axis_name, drawable, finish, legend_below, name_decades, name_ticks, panel_list
from dnasa.comparing.statistics import METHOD, VARIANT
from dnasa.comparing.style import LOWEST, TALL, current
from dnasa.problems.metrics import larger_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

AXES = {
    "step": "steps",
    "epochs": "passes over the data",
    "samples": "samples of all nodes",
    "mb_per_node": "MB sent per node",
    "seconds": "seconds of training",
    "clock_seconds": "predicted seconds",
}
RANGE = "range over the seeds"
FLAT = "horizontal lines: methods that need no stepsize"
CHOSEN = "circles: chosen stepsizes"
MARKS = "markers above the axis at ``diverged'': a run diverged"
WORSE = "far worse results are off the axis"
BEYOND = "markers above the axis at ``off axis'': far worse results"
NUMBERS = ["mean", "low", "high"]
EDGE = 0.02  # of a horizontal axis, so that the first and last markers are whole
MARGIN = 0.05  # of the values, above and below them
GROWN = 10  # times the first value: more is beyond the axis
FAR_WORSE = 5  # times as many errors as the chosen stepsize of the worst rule
ROOM = 0.02  # of accuracies, at least, below the best ones
FARTHER = 4  # times as far to the right: more needs a logarithmic horizontal axis
SHARED = 1.5  # times as far to the right: up to here panels have one linear horizontal axis
FIRST = 1 / 3  # of a curve: on a linear axis the first steps would hide the differences that remain
CIRCLE = 2.7  # markers wide

LineStyles = dict[str, dict[str, Any]]  # name in the legend, color, dash and marker by label
Lines = list[tuple[Any, pd.DataFrame]]  # a variant and its rows


def line_styles(variants: Iterable[Sequence[Any]]) -> LineStyles:
    """The styles of these rules with their schedules and perhaps stepsizes, for panels that show the same ones."""
    keys = list(variants)
    looks = zip(keys, plots.names_of(keys), plots.styles([str(rule) for rule, *_ in keys]), strict=True)
    return {plots.label(*key): {"label": name} | look for key, name, look in looks}


def draw_curves(axis: "Axes", table: pd.DataFrame, x: str, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `Comparison.curves`: a line and a band for each variant, its marker above the axis if a run diverged."""
    table = plots.shown(table.assign(**{x: drawable(table[x].astype(float))}))
    lines = _lines(table.drop_duplicates([*VARIANT, x], keep="last"), VARIANT)  # between exchanges, bytes stay the same
    looks = styles or line_styles(variant for variant, _ in lines)
    for i, (variant, rows) in enumerate(lines):
        plots.draw_curve(axis, rows, x, shift=(i + 0.5) / len(lines), **looks[plots.label(*variant)])
    known = _of_limits(table, x, metric)
    finish(axis, AXES.get(x, x), axis_name(metric), log=not larger_is_better(metric) and is_wide(known))
    if is_wide([rows[x].max() for _, rows in lines if not rows.diverged.any()], FARTHER):
        _stretch(axis)  # one method or network sends far more than another
    elif (table[x] > 0).any():
        axis.set_xlim(-EDGE * table[x].max(), (1 + EDGE) * table[x].max())
    focus(axis, known)
    _name_marks(axis, plots.DIVERGED)


def draw_stepsizes(axis: "Axes", table: pd.DataFrame, metric: str, styles: LineStyles | None = None) -> None:
    """Draw a frame of `statistics.over_seeds`: the mean against the stepsize, bars from the smallest to the largest seed.

    Rules that need no stepsize are horizontal lines with a band. Results that are far worse than those of the chosen stepsizes
    are off the axis. Where a run diverged, the rule's marker is above the axis. Stepsizes that the table says are chosen are
    circled.
    """
    table = plots.shown(table).assign(eta=drawable(table.eta.astype(float)))
    lines = _lines(table, METHOD)
    looks = styles or line_styles(variant for variant, _ in lines)
    for variant, rows in lines:
        look: dict[str, Any] = looks[plots.label(*variant)]
        if rows.eta.isna().all():
            above = 2.0 if look["linestyle"] == "-" else 2.1  # a dashed line shows over a solid one
            axis.axhline(rows["mean"].iloc[0], **(look | {"marker": "", "zorder": above}))
            axis.axhspan(rows.low.iloc[0], rows.high.iloc[0], color=look["color"], alpha=0.15, linewidth=0)
            continue
        (line,) = axis.plot(rows.eta, rows["mean"], ms=plots.size_of(look["marker"]), gid="points", **look)
        axis.vlines(rows.eta, rows.low, rows.high, color=look["color"], linewidth=1, gid="points")
        if "chosen" in rows:
            chosen = rows[rows.chosen.astype(bool)]
            _circle(axis, chosen.eta, chosen["mean"], line)
        if rows["mean"].isna().any():
            plots.mark_above(axis, rows.eta[rows["mean"].isna()], line, plots.DIVERGED)
    known = _worth_showing(table, metric)
    if (table.eta > 0).any():
        axis.set_xscale("log")
        _name_stepsizes(axis, sorted({*table.eta[table.eta > 0]}))
    finish(axis, r"stepsize $\eta$", axis_name(metric), log=not larger_is_better(metric) and is_wide(known))
    focus(axis, known)
    _name_marks(axis, plots.DIVERGED)


def _circle(axis: "Axes", x: Any, y: Any, line: "Line2D", **where: Any) -> None:
    circle: Any = {"marker": "o", "ms": CIRCLE * current().marker, "mfc": "none", "clip_on": False, "in_layout": False}
    axis.plot(x, y, label="_chosen", linestyle="", color=line.get_color(), **circle | where)


def _stretch(axis: "Axes") -> None:
    """A logarithmic horizontal axis around all positive places."""
    places = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in axis.lines])
    if not (places > 0).any():
        return
    first = places[places > 0].min() / 1.1
    axis.set_xscale("log", nonpositive="mask")
    axis.set_xlim(first, (np.nanmax(places) / first) ** EDGE * np.nanmax(places))
    name_decades(axis.xaxis)
    for line in axis.lines:
        if line.get_label() == f"_{plots.DIVERGED}":  # perhaps at 0
            line.set_xdata(np.maximum(line.get_xdata(), first))


def _lines(table: pd.DataFrame, keys: Sequence[str]) -> Lines:
    return list(table.groupby(list(keys), sort=False, dropna=False))


def _within_reach(table: pd.DataFrame, lines: Lines, metric: str) -> pd.Series:
    """The numbers of curves that an axis has room for: of losses, at most 10 times the first, or the best last, of all."""
    numbers = table[NUMBERS].stack()
    first = [rows["mean"][rows["mean"] > 0].iloc[0] for _, rows in lines if (rows["mean"] > 0).any()]
    if not first or larger_is_better(metric):
        return numbers
    last = [rows["mean"].iloc[-1] for _, rows in lines if not rows.diverged.any() and rows["mean"].iloc[-1] > 0]
    return numbers[numbers <= GROWN * max(min(last, default=0), *first)]


def _of_limits(table: pd.DataFrame, x: str, metric: str) -> pd.Series:
    """The numbers of curves that the axis ends at: not of methods that diverged; on a linear axis, not of the first steps."""
    lines = _lines(table, VARIANT)
    lines = [(variant, rows) for variant, rows in lines if not rows.diverged.any()] or lines
    known = _within_reach(pd.concat([rows for _, rows in lines]), lines, metric)
    if is_wide(known) and not larger_is_better(metric):
        return known
    later = [rows[NUMBERS[:1]][rows[x] >= FIRST * rows[x].max()] for _, rows in lines]
    ends = [rows[NUMBERS].dropna().tail(1) for _, rows in lines]
    near = known[known.index.isin(pd.concat([*later, *ends]).stack().index)]
    return near if len(near) else known


def _worth_showing(table: pd.DataFrame, metric: str) -> pd.Series:
    """The numbers near those of the chosen stepsizes, or of the best; on a logarithmic axis, all that curves would show."""
    known = _within_reach(table, _lines(table, METHOD), metric)
    chosen = table[table.chosen.astype(bool)] if "chosen" in table else table
    means = chosen.dropna(subset="mean").groupby(METHOD, dropna=False)["mean"]
    if not len(means):
        return known
    if larger_is_better(metric):
        return known[known >= 1 - max(FAR_WORSE * (1 - means.max().min()), ROOM)]
    best = means.min().max()
    return known if is_wide(known) else known[known <= best + 2 * abs(best)]


def _name_stepsizes(axis: "Axes", etas: Sequence[float]) -> None:
    """Ticks at the stepsizes, if their names have room; else at powers of ten."""
    from matplotlib.ticker import NullLocator

    names = [f"{eta:g}" for eta in etas]
    places = np.log(etas) / (np.ptp(np.log(etas)) or 1) * axis.get_window_extent().width / axis.figure.dpi * 72
    letters = np.array([len(name) for name in names])
    if (np.diff(places) < 0.3 * current().font * (letters[1:] + letters[:-1]) + 2).any():
        return name_decades(axis.xaxis)
    axis.set_xticks(etas, names)
    axis.xaxis.set_minor_locator(NullLocator())


def _name_marks(axis: "Axes", kind: str) -> None:
    """Say what the markers of a kind above an axis mean."""
    if heights := [height for each, height in plots.rows_above(axis) if each == kind]:
        at_left: Any = {"ha": "right", "va": "center", "fontsize": current().font - 1, "textcoords": "offset points"}
        axis.annotate(kind, (0, 1), (-2 - 0.65 * current().marker, sum(heights) / len(heights)), "axes fraction", **at_left)


def _height(axis: "Axes") -> float:
    """The height of the markers above an axis, in points."""
    return max((height + current().marker for _, height in plots.rows_above(axis)), default=0.0)


def entitle(axes: "Sequence[Axes]", titles: Sequence[str], name: str = "") -> None:
    """Give the panels of a row their titles, above all markers and circles, and above these the name of the row."""
    from matplotlib import rcParams

    pad = rcParams["axes.titlepad"] + max(*map(_height, axes), CIRCLE / 2 * current().marker)
    look: Any = {"fontsize": current().font, "linespacing": 1, "pad": pad}
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, **look)
    if name:
        lines = max(1 + title.count("\n") for title in titles)
        axes[0].set_title(name + "\n" * lines, loc="left", weight="bold", **look | {"linespacing": 1.3})


def figure_of_curves(table: pd.DataFrame, columns: Sequence[str], metric: str) -> "Figure":
    """A pair of axes of `draw_curves` for each of these columns, with one legend."""
    size = (6.4, 4.2) if len(columns) == 1 else (4.4, 4.0)
    figure, axes = panel_list(len(columns), len(columns), *size)
    for axis, column in zip(axes, columns, strict=True):
        draw_curves(axis, table, column, metric)
    finish_panels(figure, axes)
    return figure


def signs(table: pd.DataFrame, metric: str) -> list[str]:
    """What the signs in a figure of these curves or stepsizes mean, for its caption."""
    of_curves = "step" in table
    known = _of_limits(plots.shown(table), "step", metric) if of_curves else _worth_showing(table, metric)
    later = (table[table.step >= FIRST * table.step.max()] if of_curves else table)["mean"].dropna()
    beyond = not later.between(known.min(), known.max()).all()
    flat, tuned = not of_curves and table.eta.isna().any(), not of_curves and table.eta.notna().any()
    shapes = " and ".join(["bars"] * bool(tuned) + ["bands"] * bool(of_curves or flat))
    found = {f"{shapes}: {RANGE}": table.runs.max() > 1, FLAT: flat, CHOSEN: tuned, MARKS: table.diverged.any()}
    return [sign for sign, applies in (found | {WORSE if of_curves else BEYOND: beyond}).items() if applies]


def mark_beyond(axis: "Axes") -> None:
    """Results of stepsizes that are off the axis are markers above it, without bars and lines to them."""
    low, high = axis.get_ylim()
    lines = [line for line in axis.lines if line.get_gid() == "points"]
    bars = [part for part in axis.collections if part.get_gid() == "points"]
    circles: list[Any] = [line for line in axis.lines if line.get_label() == "_chosen"] or [None] * len(lines)
    for line, bar, circle in zip(lines, bars, circles, strict=True):
        x, mean = np.asarray(line.get_data(), dtype=float)
        if not (off := (mean < low) | (mean > high)).any():
            continue
        line.set_ydata(np.where(off, np.nan, mean))
        bar.set_linewidth([float(there) for there in ~off])
        plots.mark_above(axis, x[off], line, plots.OFF)
        if circle and (chosen := np.isin(circle.get_xdata(), x[off])).any():
            _circle(axis, x[off & np.isin(x, circle.get_xdata())], 1, line, transform=axis.lines[-1].get_transform())
            circle.set_ydata(np.where(chosen, np.nan, circle.get_ydata()))
    _name_marks(axis, plots.OFF)


def figure_of_stepsizes(table: pd.DataFrame, metric: str) -> "Figure":
    figure, (axis,) = panel_list(1, 1, 6.4, 4.2)
    draw_stepsizes(axis, table, metric)
    finish_panels(figure, [axis])
    return figure


def finish_panels(
    figure: "Figure",
    axes: "Sequence[Axes]",
    titles: Sequence[str] = (),
    problems: Sequence[str] = (),
    names: Sequence[str] = (),
    order: Sequence[str] = (),
) -> None:
    """Give panels their titles, rows their names, outer axes their names and numbers, and all one legend.

    Those of a problem have the same vertical axis and the same horizontal scale, with curves also its limits, unless one's
    would leave another half empty. Each panel has the name of its row, which is written where it changes. The legend has the
    `order` of these labels.
    """
    kinds = [(axis.get_ylabel(), problem) for axis, problem in zip(axes, problems or [""] * len(axes), strict=True)]
    for kind in dict.fromkeys(kinds):
        alike = [axis for axis, own in zip(axes, kinds, strict=True) if own == kind]
        limits = np.array([axis.get_ylim() for axis in alike])
        scale = "log" if any(axis.get_yscale() == "log" for axis in alike) and limits.min() > 0 else "linear"
        for axis in alike:
            if axis.get_yscale() != scale:
                axis.set_yscale(scale, **({"nonpositive": "mask"} if scale == "log" else {}))
                name_ticks(axis)
            axis.set_ylim(limits[:, 0].min(), limits[:, 1].max())
            mark_beyond(axis)
    places = [(spec.rowspan.start, spec.colspan.start) for axis in axes if (spec := axis.get_subplotspec())]
    across = [(axis.get_xlabel(), problem) for axis, (_, problem) in zip(axes, kinds, strict=True)]
    for own in dict.fromkeys(across):
        _share_horizontally([axis for axis, each in zip(axes, across, strict=True) if each == own])
    for (axis, here), (other, there) in product(zip(axes, places, strict=True), repeat=2):
        if there[0] == here[0] and there[1] < here[1] and other.get_ylabel() == axis.get_ylabel():
            axis.set_ylabel("")
            axis.tick_params("y", which="both", labelleft=axis.get_ylim() != other.get_ylim())
        if there[0] > here[0] and there[1] == here[1] and other.get_xlabel() == axis.get_xlabel():
            axis.set_xlabel("")
    _entitle_rows(figure, axes, titles, names)
    lines = max(axis.get_title().count("\n") for axis in axes)
    marks = {row: max(_height(axis) for axis, place in zip(axes, places, strict=True) if place[0] == row) for row, _ in places}
    count = len(marks) * lines + len({*names})
    figure.set_figheight(figure.get_figheight() + (sum(marks.values()) + count * current().font) / 72)
    legend_below(figure, order)
    if current().printed:
        figure.set_figheight(min(figure.get_figheight(), max(TALL, LOWEST * len(marks))))


def _entitle_rows(figure: "Figure", axes: "Sequence[Axes]", titles: Sequence[str], names: Sequence[str]) -> None:
    """Titles in lines that are not wider than their panels; the name of a row where it changes."""
    if layout := figure.get_layout_engine():
        layout.execute(figure)  # so that the widths are known
    before = ""
    for _, row in groupby(zip(axes, titles, names or titles, strict=False), key=lambda each: each[0].get_position().y0):
        panels, words, (name, *_) = zip(*row, strict=True)
        letters = [int(axis.get_window_extent().width / figure.dpi * 72 / (0.5 * current().font)) for axis in panels]
        lines = [
            "\n".join(fill(part, max(10, most), break_on_hyphens=False) for part in title.split("\n"))
            for title, most in zip(words, letters, strict=True)
        ]
        entitle(panels, [text.replace(",\n", "\n") for text in lines], name if names and name != before else "")
        before = name


def _share_horizontally(axes: "Sequence[Axes]") -> None:
    """The same scale for all panels, and the same limits for those of curves, unless linear axes ended far from each other."""
    from matplotlib.ticker import FixedLocator

    if len({isinstance(axis.xaxis.get_major_locator(), FixedLocator) for axis in axes}) > 1:
        for axis in axes:
            axis.set_xscale("log")  # without the ticks at stepsizes, for which one of the panels has no room
            name_decades(axis.xaxis)
    ends = [axis.get_xlim()[1] for axis in axes]
    if is_log := is_wide(ends, FARTHER) or any(axis.get_xscale() == "log" for axis in axes):
        for axis in axes:
            if axis.get_xscale() == "linear":
                _stretch(axis)
    if axes[0].get_xlabel() not in AXES.values():
        return
    for axis in axes if is_log else ():
        axis.set_xlim(left=_first_shown(axis))
    limits = np.array([axis.get_xlim() for axis in axes])
    for axis in axes if is_log or not is_wide(ends, SHARED) else ():
        axis.set_xlim(limits[:, 0].min(), limits[:, 1].max())


def _first_shown(axis: "Axes") -> float:
    """The left end of a logarithmic axis: a little before the first point that the vertical axis, or a row above it, shows."""
    low, high = axis.get_ylim()
    rows = [(*line.get_data(), str(line.get_label()) == f"_{plots.DIVERGED}") for line in axis.lines]
    places = [np.asarray(x)[is_above | (np.asarray(y) >= low) & (np.asarray(y) <= high)] for x, y, is_above in rows]
    shown = np.concatenate(places)
    shown = shown[shown > 0]
    return float(shown.min() / 1.1) if len(shown) else axis.get_xlim()[0]


def is_wide(values: Any, times: float = 10) -> bool:
    """Whether these numbers need a logarithmic axis: all positive, the largest more than so many times the smallest."""
    known = drawable(pd.Series(np.ravel(values).astype(float))).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > times * known.min())


def focus(axis: "Axes", values: Any) -> None:
    """Limits of the vertical axis around these values."""
    known = np.asarray(values)[np.isfinite(values)]
    if not len(known):
        return
    if axis.get_yscale() == "log":
        axis.set_ylim(known.min() / 1.2, 1.2 * known.max())
    else:
        margin = MARGIN * (np.ptp(known) or abs(known.max()) or 1)
        axis.set_ylim(known.min() - margin, known.max() + margin)
