"""The pictures of a ranking: a critical-difference diagram, and performance profiles."""

from collections.abc import Sequence
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING

import pandas as pd

from dnasa.comparing.plots import legend_below, panels, styles
from dnasa.comparing.ranking import Ranking
from dnasa.comparing.style import ACCENT, current

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 10.0  # factors shown
HIGHEST = -2.7  # the line of the critical difference, above the axis
LONGEST = 0.6  # characters of a name for each font size of the figure's width
LINE = 1.6  # the height of a line, in font sizes
FINE, COARSE = (1, 1.05, 1.1, 1.2, 1.5, 2), (1, 1.5, 2, 3, 5, 10)  # those named on the axis


def figure_of_ranks(ranking: Ranking) -> "Figure":
    """Average ranks on a line, the best on the left; bars join methods that do not differ clearly."""
    ranks, groups = ranking.ranks(), ranking.groups()
    methods, side = len(ranks), ceil(len(ranks) / 2)
    names = _in_lines(ranks.method.tolist())
    step = 1 + 0.7 * any("\n" in name for name in names)
    top = 0.7 * step + 0.35 * len(groups)  # below it, the names
    figure, axes = panels(1, width=6.4)
    figure.set_figheight(LINE * current().settings["font.size"] / 72 * (top + step * side - HIGHEST))
    axis = axes[0, 0]
    axis.set(xlim=(1, methods), ylim=(top + step * (side - 0.4), HIGHEST), yticks=[])
    axis.set_xticks(range(1, methods + 1, ceil(methods / (6 if current().printed else 8))))
    axis.grid(False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.spines["top"].set_visible(True)
    axis.spines["top"].set_position(("data", 0))
    axis.xaxis.tick_top()
    for place, (name, rank) in enumerate(zip(names, ranks["rank"], strict=True)):
        left = place < side
        height = top + step * (place if left else methods - 1 - place)
        _name(axis, name, float(rank), height, methods, left)
    for number, (low, high) in enumerate(groups):
        axis.plot([low, high], [0.35 + 0.35 * number] * 2, color=ACCENT, lw=2, solid_capstyle="butt")
    axis.text((1 + methods) / 2, -1.65, "average rank (1 is best)", ha="center", va="center")
    _critical(axis, ranking, methods)
    return figure


def _in_lines(names: list[str]) -> list[str]:
    """Names; in a narrow figure, what is in brackets is in the second line of long ones."""
    room = (current().width or inf) * 72 / current().settings["font.size"]  # in font sizes
    return [name.replace(" (", "\n(") if len(name) > LONGEST * room else name for name in names]


def _name(axis: "Axes", name: str, rank: float, height: float, methods: int, left: bool) -> None:
    edge = 1 if left else methods
    axis.plot([rank, rank, edge], [0, height, height], color="0.3", lw=0.8, clip_on=False)
    words = f"{name}  {rank:.2f} " if left else f" {rank:.2f}  {name}"
    words = words.replace("\n", " \n" if left else "\n ")
    axis.text(edge, height, words, ha="right" if left else "left", va="center", linespacing=1)


def _critical(axis: "Axes", ranking: Ranking, methods: int) -> None:
    """The length of the critical difference above the line, or that there is none."""
    critical = ranking.critical
    if not isfinite(critical):
        axis.text((1 + methods) / 2, HIGHEST, "no clear difference (Friedman test)", ha="center", va="center")
        return
    axis.plot([1, 1 + critical], [HIGHEST, HIGHEST], color="black", lw=1, marker="|", ms=5, clip_on=False)
    words = "CD" if current().printed else "critical difference"
    axis.text(1 + critical, HIGHEST, f"  {words} {critical:.2f}", va="center")


def figure_of_profiles(table: pd.DataFrame, methods: Sequence[str], rules: Sequence[str]) -> "Figure":
    """The share of cells against the factor: the higher a line, the better; `rules` of the methods have the colours."""
    figure, axes = panels(1, width=6.4, height=4.2)
    axis = axes[0, 0]
    end = max(1.1, min(MOST, 1.05 * table.factor.max()))
    for name, look in zip(methods, styles(list(rules)), strict=True):
        rows = table[table.method == name]
        last = float(rows.share[rows.factor <= end].iloc[-1])
        axis.step(
            [*rows.factor[rows.factor <= end], end],
            [*rows.share[rows.factor <= end], last],
            where="post",
            label=name,
            **(look | {"marker": ""}),
        )
    axis.set_xscale("log")
    ticks = [tick for tick in (FINE if end < FINE[-1] else COARSE) if tick <= end]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(
        xlim=(1, end), ylim=(0, 1.03), xlabel="factor of the best loss or error", ylabel="share of the cells within it"
    )
    legend_below(figure)
    return figure
