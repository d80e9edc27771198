"""The two pictures of a comparison: curves, and results against stepsizes. Both are drawn from frames of `statistics`."""

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.plots import LABELS, draw_curve, drawable, finish, label, panels, shown, styles
from dnasa.statistics import VARIANT, larger_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_stepsizes", "figure_of_curves", "figure_of_stepsizes"]

AXES = {
    "step": "step",
    "epochs": "passes over the data",
    "bytes": "bytes sent by all nodes",
    "messages": "messages sent by all nodes",
    "seconds": "seconds of training, each method by itself",
}
NUMBERS = ["mean", "low", "high"]
LINE = ("rule", "schedule")
MOST_BARS = 8  # lines of a panel, beyond which bars over the seeds would hide them
WORSE = 3  # times the best of every rule: what is worse need not be shown among stepsizes
FIRST = 1 / 3  # of a curve: on a linear axis the first steps would hide the differences that remain


def name_of(metric: str) -> str:
    return LABELS.get(metric, metric.replace("_", " "))


LineStyles = dict[
    tuple[str, ...], dict[str, Any]
]  # colour, dash and marker by rule and, where tables have it, schedule


def line_styles(table: pd.DataFrame) -> LineStyles:
    """The styles of the lines in several panels that show the same rules."""
    lines = table[[key for key in LINE if key in table]].drop_duplicates()
    return dict(zip(lines.itertuples(index=False, name=None), styles(lines.rule.tolist()), strict=True))


def _styles_of(lines: list[tuple[Any, pd.DataFrame]], given: LineStyles | None) -> list[dict[str, Any]]:
    return [given[names[:2]] for names, _ in lines] if given else styles([str(names[0]) for names, _ in lines])


def draw_curves(axis: "Axes", table: pd.DataFrame, x: str, metric: str, given: LineStyles | None = None) -> None:
    """Draw a frame of `statistics.curves`: a line with its band for each variant, a cross where a run diverged."""
    table = shown(table)
    lines = list(table.groupby(list(VARIANT), sort=False, dropna=False))
    for style, (variant, rows) in zip(_styles_of(lines, given), lines, strict=True):
        draw_curve(axis, rows, label(*variant), **style)
    if is_wide([rows.x[rows["mean"].notna()].max() for _, rows in lines]):
        axis.set_xscale("log")  # one method sends far more than another
    log = not larger_is_better(metric) and is_wide(table[NUMBERS])
    finish(axis, AXES.get(x, x), name_of(metric), log)
    if axis.get_yscale() == "linear":
        later = table.x.astype(float) >= FIRST * drawable(table.x.astype(float)).max()
        ends = pd.concat([rows[["low", "high"]].dropna().tail(1) for _, rows in lines])
        focus(axis, np.concatenate([table["mean"][later].to_numpy(), ends.to_numpy().ravel()]))


def draw_stepsizes(
    axis: "Axes", table: pd.DataFrame, metric: str, name: str | None = None, given: LineStyles | None = None
) -> None:
    """Draw a frame of `statistics.over_seeds`: the mean against the stepsize, bars from the smallest to the largest seed.

    Rules that need no stepsize are horizontal lines. A stepsize at which a run diverged, or whose result is too large to
    draw, is a cross at the edge of bad results; chosen ones, if the table has that column, are circled. The axis shows the
    best of every rule and what is near to it.
    """
    table = shown(table)
    lines = list(table.groupby([key for key in LINE if key in table], sort=False, dropna=False))
    best = []
    for place, (style, (names, rows)) in enumerate(zip(_styles_of(lines, given), lines, strict=True)):
        best.append(rows["mean"].max() if larger_is_better(metric) else rows["mean"].min())
        edge = 0.03 * (place + 1)
        if rows.eta.isna().all():
            axis.axhline(rows["mean"].iloc[0], label=f"{label(*names)}, nothing tuned", **(style | {"marker": ""}))
        else:
            height = edge if larger_is_better(metric) else 1 - edge
            _draw_grid(axis, rows, label(*names), style, height, bars=len(lines) <= MOST_BARS)
    if (drawable(table.eta.astype(float)) > 0).any():
        axis.set_xscale("log")
    log = not larger_is_better(metric) and is_wide(table[NUMBERS])
    crosses = " (x: diverged or too large)" if table["mean"].isna().any() else ""
    finish(axis, f"stepsize eta{crosses}", name or name_of(metric), log)
    _near(axis, pd.Series(best, dtype=float).dropna(), table[NUMBERS].to_numpy(), larger_is_better(metric))


def _draw_grid(axis: "Axes", rows: pd.DataFrame, name: str, style: dict[str, Any], height: float, bars: bool) -> None:
    """`height` is that of the crosses, different for each rule so that all can be seen."""
    rows = rows.assign(eta=drawable(rows.eta.astype(float)))
    axis.plot(rows.eta, rows["mean"], label=name, ms=4, **style)
    if bars:
        axis.vlines(rows.eta, rows.low, rows.high, color=style["color"], linewidth=1)
    lost = rows.eta[rows["mean"].isna()]
    cross: Any = {"marker": "x", "ms": 7, "mew": 2, "linestyle": "", "color": style["color"], "label": "_diverged"}
    axis.plot(lost, [height % 1] * len(lost), transform=axis.get_xaxis_transform(), **cross)
    if "chosen" in rows:
        chosen = rows.chosen.astype(bool)
        axis.plot(rows.eta[chosen], rows["mean"][chosen], "o", ms=11, mfc="none", mec=style["color"], label="_chosen")


def figure_of_curves(table: pd.DataFrame, x: str, metric: str) -> "Figure":
    """One panel of `draw_curves`."""
    return _one_panel(draw_curves, table, x, metric)


def figure_of_stepsizes(table: pd.DataFrame, metric: str) -> "Figure":
    """One panel of `draw_stepsizes`."""
    return _one_panel(draw_stepsizes, table, metric)


def _one_panel(draw: Callable[..., None], *arguments: Any) -> "Figure":
    figure, axes = panels(1, width=6.4, height=4.2)
    draw(axes[0, 0], *arguments)
    legend_below(figure, 2)
    return figure


# ---------------------------------------------------------------- axes


def is_wide(values: Any) -> bool:
    """Whether these numbers need a logarithmic axis: all positive, the largest more than ten times the smallest."""
    known = drawable(pd.Series(np.ravel(values).astype(float))).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > 10 * known.min())


def focus(axis: "Axes", values: np.ndarray) -> None:
    """Limits of a linear axis around these values."""
    known = values[np.isfinite(values)]
    if len(known) and known.max() > known.min():
        margin = 0.05 * (known.max() - known.min())
        axis.set_ylim(known.min() - margin, known.max() + margin)


def _near(axis: "Axes", best: pd.Series, values: np.ndarray, larger: bool) -> None:
    """Limits around the best of every rule, with results up to three times worse; of accuracies, the errors are compared.

    At least three times as far on the worse side as the best differ, never beyond the data.
    """
    known = values[np.isfinite(values)]
    if not len(best) or not len(known):
        return
    if axis.get_yscale() == "log":
        axis.set_ylim(known.min() / 1.2, 1.2 * min(known.max(), best.max() * max(10.0, best.max() / best.min())))
        return
    span = WORSE * max(best.max() - best.min(), 0.02 * abs(best.max()))
    low = max(known.min(), min(best.min() - span, 1 - WORSE * (1 - best.min()))) if larger else known.min()
    high = known.max() if larger else min(known.max(), max(best.max() + span, WORSE * best.max()))
    focus(axis, np.array([low, high]))


def legend_below(figure: "Figure", columns: int) -> None:
    """One legend for all panels, outside of them, where it hides no line."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.set_figheight(figure.get_figheight() + 0.2 * ceil(len(handles) / columns))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)
