"""The two pictures of a comparison: curves, and results against stepsizes. Both are drawn from frames of `statistics`."""

from collections.abc import Sequence
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing.plots import (
    BAR,
    CROSS,
    axis_name,
    draw_curve,
    drawable,
    end_at,
    finish,
    legend_below,
    name_decades,
    names_of,
    panels,
    shown,
    styles,
)
from dnasa.comparing.statistics import VARIANT
from dnasa.comparing.style import current
from dnasa.problems.metrics import larger_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_stepsizes", "figure_of_curves", "figure_of_stepsizes"]

AXES = {
    "step": "step",
    "epochs": "passes over the data",
    "samples": "samples of all nodes",
    "mb_per_node": "MB sent per node",
    "seconds": "seconds of training",
}
CROSSES = r"stepsize $\eta$ (x: diverged or off the axis)"
NUMBERS = ["mean", "low", "high"]
LINE = ("rule", "schedule")
MOST_NAMED = 8  # stepsizes on their axis
MOST_BARS = 8  # lines of a panel, beyond which bars over the seeds would hide them
OTHER_FONT = 0.85  # of the width of a title: a document's font may be wider than the one measured
MOST_COVERED = 10  # seeds that a band covers completely
MOST_TOGETHER = 3  # curves of a panel, beyond which their bands hide each other
WORSE = 3  # times the best of every rule: what is worse need not be shown among stepsizes
MARGIN = 0.05  # of the values, above and below them
CLOSE = 0.02  # of the axis: bars of curves that end so near to each other stand side by side
FIRST = 1 / 3  # of a curve: on a linear axis the first steps would hide the differences that remain


# color, dash and marker by rule and, where tables have it, schedule
LineStyles = dict[tuple[str, ...], dict[str, Any]]


def line_styles(table: pd.DataFrame) -> LineStyles:
    """The styles of the lines in several panels that show the same rules."""
    lines = table[[key for key in LINE if key in table]].drop_duplicates()
    return dict(zip(lines.itertuples(index=False, name=None), styles(lines.rule.tolist()), strict=True))


def _styles_of(lines: list[tuple[Any, pd.DataFrame]], given: LineStyles | None) -> list[dict[str, Any]]:
    return [given[names[:2]] for names, _ in lines] if given else styles([str(names[0]) for names, _ in lines])


def draw_curves(
    axis: "Axes", table: pd.DataFrame, x: str, metric: str, given: LineStyles | None = None, *, bars: bool = False
) -> None:
    """Draw a frame of `Comparison.curves`: a line for each variant against column `x`, a cross where a run diverged.

    Few lines have bands; with `bars`, many have a bar at their end instead.
    """
    table = shown(table.assign(x=drawable(table[x].astype(float))))
    lines = list(table.groupby(list(VARIANT), sort=False, dropna=False))
    names, looks = names_of([variant for variant, _ in lines]), _styles_of(lines, given)
    few = len(lines) <= MOST_TOGETHER
    for i, (name, style, (_, rows)) in enumerate(zip(names, looks, lines, strict=True)):
        draw_curve(axis, rows, name, few, shift=(i + 0.5) / len(lines), **style)
    if bars and not few:
        _draw_bars(axis, [rows for _, rows in lines], looks)
    if is_wide([rows.x[rows["mean"].notna()].max() for _, rows in lines]):
        axis.set_xscale("log")  # one method sends far more than another
        name_decades(axis.xaxis)
    finish(axis, AXES.get(x, x), axis_name(metric), log=not larger_is_better(metric) and is_wide(table[NUMBERS]))
    end_at(axis, table.x.max())
    if axis.get_yscale() == "linear":
        focus(axis, _kept([rows for _, rows in lines], spread=few or bars))


def _draw_bars(axis: "Axes", curves: Sequence[pd.DataFrame], looks: Sequence[dict[str, Any]]) -> None:
    """A bar over the seeds, with the marker of the mean, right of the end of each curve; side by side where ends are close."""
    from matplotlib.transforms import ScaledTranslation

    last = [rows.iloc[-1] for rows in curves]
    near = CLOSE * max(row.x for row in last)
    for i, (row, style) in enumerate(zip(last, looks, strict=True)):
        if row.runs == 1 or row[["x", *NUMBERS]].isna().any():
            continue
        place = 1 + sum(abs(row.x - other.x) <= near for other in last[:i])
        right = ScaledTranslation(1.5 * place * current().marker / 72, 0, axis.figure.dpi_scale_trans)
        look: Any = {"color": style["color"], "transform": axis.transData + right, "clip_on": False, "label": BAR}
        axis.plot([row.x, row.x], [row.low, row.high], linewidth=1, **look)
        axis.plot([row.x], [row["mean"]], marker=style["marker"], ms=current().marker, **look)


def _kept(curves: Sequence[pd.DataFrame], spread: bool) -> np.ndarray:
    """The values to show: curves after their first part and, with `spread`, the seeds at their end.

    A curve that has come into view stays in view.
    """
    ends = [rows[["low", "high"]].dropna().tail(int(spread)).to_numpy().ravel() for rows in curves]
    later = [rows["mean"][rows.x >= FIRST * rows.x.max()] for rows in curves]
    kept, means = known(np.concatenate([*later, *ends])), [rows["mean"].iloc[1:] for rows in curves]
    while len(kept):
        inside = [mean[mean.between(*with_margin(kept)).cummax()] for mean in means]
        more = known(np.concatenate([kept, *inside]))
        if with_margin(more) == with_margin(kept):
            break
        kept = more
    return kept


def draw_stepsizes(
    axis: "Axes", table: pd.DataFrame, metric: str, name: str | None = None, given: LineStyles | None = None
) -> None:
    """Draw a frame of `statistics.over_seeds`: the mean against the stepsize, bars from the smallest to the largest seed.

    Rules that need no stepsize are horizontal lines. The axis shows the best of every rule and what is near to it. A
    stepsize at which a run diverged, or whose result is beyond the axis, is a cross at the edge of bad results; chosen
    ones, if the table has that column, are circled.
    """
    table = shown(table).assign(eta=drawable(table.eta.astype(float)))
    lines = list(table.groupby([key for key in LINE if key in table], sort=False, dropna=False))
    names, looks = names_of([variant for variant, _ in lines]), _styles_of(lines, given)
    best, untuned = [], "" if current().printed else ", nothing tuned"
    for name_of_line, style, (_, rows) in zip(names, looks, lines, strict=True):
        best.append(rows["mean"].max() if larger_is_better(metric) else rows["mean"].min())
        if rows.eta.isna().all():
            axis.axhline(rows["mean"].iloc[0], label=name_of_line + untuned, **(style | {"marker": ""}))
        else:
            axis.plot(rows.eta, rows["mean"], label=name_of_line, ms=current().marker, **style)
    _scale_stepsizes(axis, table.eta)
    log = not larger_is_better(metric) and is_wide(table[NUMBERS])
    finish(axis, r"stepsize $\eta$", name or axis_name(metric), log)
    _near(axis, pd.Series(best, dtype=float).dropna(), table[NUMBERS].to_numpy(), larger_is_better(metric))
    for place, (style, (_, rows)) in enumerate(zip(looks, lines, strict=True), start=1):
        height = 0.05 * place if larger_is_better(metric) else 1 - 0.05 * place
        if rows.eta.notna().any():
            _mark(axis, rows, style["color"], height % 1, bars=len(lines) <= MOST_BARS)


def _scale_stepsizes(axis: "Axes", etas: pd.Series) -> None:
    """A logarithmic axis. Its ticks are the stepsizes, unless these are many; each has its name where there is room."""
    known = np.unique(etas[etas > 0])
    if not len(known):
        return
    axis.set_xscale("log")
    if len(known) > MOST_NAMED:
        return
    letter = 0.6 * current().settings["font.size"] / axis.get_window_extent().width * axis.figure.dpi / 72
    places = np.log(known / known[0]) / max(np.log(known[-1] / known[0]), 1e-9)
    names, end = [], -1.0
    for place, name in zip(places, [f"{eta:.3g}" for eta in known], strict=True):
        half = letter * len(name) / 2
        names.append(name if place - half > end else "")
        end = place + half if names[-1] else end
    axis.set_xticks(known, names)
    axis.minorticks_off()


def _mark(axis: "Axes", rows: pd.DataFrame, color: str, height: float, bars: bool) -> None:
    """Bars, circles, and crosses at this height, which differs for each rule so that all can be seen."""
    low, high = axis.get_ylim()
    inside = rows["mean"].between(low, high)
    near, lost = rows[inside], rows.eta[~inside].dropna()
    if bars:
        axis.vlines(near.eta, near.low, near.high, color=color, linewidth=1)
    size = current().marker
    cross: Any = {"marker": "x", "ms": 1.7 * size, "mew": 0.5 * size, "linestyle": "", "color": color, "label": CROSS}
    if len(lost):
        axis.plot(lost, [height] * len(lost), transform=axis.get_xaxis_transform(), **cross)
        axis.set_xlabel(CROSSES)
    if "chosen" in rows:
        chosen = near[near.chosen.astype(bool)]
        circle: Any = {"marker": "o", "ms": 2.7 * size, "mfc": "none", "mec": color, "linestyle": ""}
        axis.plot(chosen.eta, chosen["mean"], label="_chosen", clip_on=False, in_layout=False, **circle)


def figure_of_curves(table: pd.DataFrame, columns: Sequence[str], metric: str) -> "Figure":
    """A pair of axes of `draw_curves` for each of these columns, with one legend."""
    across = current().columns(len(columns))
    size = (6.4, 4.2) if len(columns) == 1 else (4.4, 4.0)
    figure, axes = panels(across, ceil(len(columns) / across), *size)
    for i, (axis, column) in enumerate(zip(axes.flat, columns, strict=False)):
        draw_curves(axis, table, column, metric, bars=i == 0)
        if i:
            axis.sharey(axes[0, 0])
        if i % across:
            axis.set_ylabel("")
            axis.tick_params(labelleft=False)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    legend_below(figure, note=spread_note(table))
    return figure


def spread_note(table: pd.DataFrame) -> str:
    """What the bands or bars of `draw_curves` show."""
    if table.runs.max() == 1:
        return ""
    few = len(table[list(VARIANT)].drop_duplicates()) <= MOST_TOGETHER
    covered = "range over the seeds" if table.runs.max() <= MOST_COVERED else "at least 80 % of the seeds"
    return f"{'band' if few else 'bars at the end'}: {covered}"


def figure_of_stepsizes(table: pd.DataFrame, metric: str) -> "Figure":
    """One panel of `draw_stepsizes`."""
    figure, axes = panels(1, width=6.4, height=4.2)
    draw_stepsizes(axes[0, 0], table, metric)
    barred = table.runs.max() > 1 and len(table[[*LINE]].drop_duplicates()) <= MOST_BARS
    legend_below(figure, note="bars: range over the seeds" if barred else "")
    return figure


def finish_panels(figure: "Figure", axes: np.ndarray, titles: Sequence[str], note: str = "") -> None:
    """Give panels their titles, one label for each column and row, and one legend; hide the panels that are left."""
    for axis in axes.flat[len(titles) :]:
        axis.set_visible(False)
    for axis, title in zip(axes.flat, titles, strict=False):
        set_title(axis, title)
    for column in axes.T:
        used = [axis for axis in column if axis.get_visible()]
        label = max((axis.get_xlabel() for axis in used), key=len)  # the longest says what crosses are
        for axis in used:
            axis.set_xlabel(label.replace(" (", "\n(") if axis is used[-1] else "", linespacing=1)
    for first, *others in axes:
        for axis in others:
            if axis.get_ylabel() == first.get_ylabel():
                axis.set_ylabel("")
    legend_below(figure, note=note)


def set_title(axis: "Axes", title: str) -> None:
    """A title in as many lines as its panel needs."""
    words = axis.set_title(title, fontsize=current().settings["axes.titlesize"], linespacing=1)
    room = axis.get_window_extent().width / words.get_window_extent().width
    room *= OTHER_FONT if current().printed else 1
    if room < 1:
        words.set_text(fill(title, int(room * len(title))))


# ---------------------------------------------------------------- axes


def is_wide(values: Any) -> bool:
    """Whether these numbers need a logarithmic axis: all positive, the largest more than ten times the smallest."""
    known = drawable(pd.Series(np.ravel(values).astype(float))).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > 10 * known.min())


def focus(axis: "Axes", values: np.ndarray) -> None:
    """Limits of a linear axis around these values."""
    some = known(values)
    if len(some) and some.max() > some.min():
        axis.set_ylim(*with_margin(some))


def known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def with_margin(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest of these values, and a little more."""
    low, high = float(values.min()), float(values.max())
    return low - MARGIN * (high - low), high + MARGIN * (high - low)


def _near(axis: "Axes", best: pd.Series, values: np.ndarray, larger: bool) -> None:
    """Limits around the best of every rule, with results up to three times worse; of accuracies, the errors are compared.

    At least three times as far on the worse side as the best differ, never beyond the data.
    """
    some = known(values)
    if not len(best) or not len(some):
        return
    if axis.get_yscale() == "log":
        axis.set_ylim(some.min() / 1.2, 1.2 * min(some.max(), best.max() * max(10.0, best.max() / best.min())))
        return
    span = WORSE * max(best.max() - best.min(), 0.02 * abs(best.max()))
    low = max(some.min(), min(best.min() - span, 1 - WORSE * (1 - best.min()))) if larger else some.min()
    high = some.max() if larger else min(some.max(), max(best.max() + span, WORSE * best.max()))
    focus(axis, np.array([low, high]))
