"""Plots, all in the current style (`dnasa.comparing.style`)."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from dnasa.comparing import statistics
from dnasa.comparing.style import DASHES, MARKERS, current, latex_program
from dnasa.core import COLUMNS, InputError
from dnasa.extras import needed_by
from dnasa.files import write_output
from dnasa.problems.metrics import in_percent
from dnasa.rules.registry import CUSTOM, Look, look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dnasa.topology import Topology

__all__ = ["draw_curve", "draw_history", "draw_topology", "panels", "save_figure"]

LABELS = {
    "train_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "test_label_accuracy": "test accuracy of the labels",
    "test_rmse": "test RMSE",
    "test_r2": "test R²",
    "grad_norm": "gradient norm at the mean iterate",
    "consensus": "consensus error",
    "stationarity": "stationarity",
    "tracking": "tracking error",
}
SYMBOLS = {"grad_norm": r"$\Vert\nabla f(\bar{x})\Vert$"}  # on axes; tables and pages have the words
LINEAR = {"test_accuracy", "validation_accuracy", "test_label_accuracy", "test_r2"}
SMALLEST, LARGEST = 1e-100, 1e100  # matplotlib's scales overflow near the limits of float64
BAND = 0.18  # opacity
PLAIN = 1e-3, 1e5  # limits of a logarithmic axis that need no powers of ten
FEW, SHORT = 5, 50  # ratios of limits: below, all digits have names, or 2 and 5
DIGITS = "123456789"
ROUND = (1, 2, 2.5, 5)  # first digits of the distance between ticks
NARROW = 2  # inches, below which a horizontal axis has fewer ticks
CROSS, BAR = "_diverged", "_seeds"  # labels of marks; a legend leaves them out
MAX_PANELS = 8  # of a history, in at most two rows
MAX_LEGEND = 12  # lines, beyond which there are no bands and markers either
PALETTE = (  # matplotlib's tab10 and tab20b
    "#1f77b4 #ff7f0e #2ca02c #d62728 #9467bd #8c564b #e377c2 #7f7f7f #bcbd22 #17becf "
    "#393b79 #5254a3 #6b6ecf #9c9ede #637939 #8ca252 #b5cf6b #cedb9c #8c6d31 #bd9e39 "
    "#e7ba52 #e7cb94 #843c39 #ad494a #d6616b #e7969c #7b4173 #a55194 #ce6dbd #de9ed6"
).split()
# What matplotlib expects in the preamble of a document, and names with an underscore; inside the group of the figure.
PGF = rb"""\makeatletter%
\def\mathdefault#1{#1}%
\catcode`\_=\active\def_{\ifmmode\sb\else\textunderscore\fi}%
"""
MAX_ARROWS = 1000  # edges of a directed graph beyond which arrowheads are too small to see


def panels(columns: int, rows: int = 1, width: float = 4.6, height: float = 3.4) -> "tuple[Figure, np.ndarray]":
    """A figure in the current style and its axes as a two-dimensional array; the user's own style is not changed.

    Args:
        columns: The number of panels in a row.
        rows: The number of rows.
        width: The width of a panel on a screen, in inches; in print, the figure has the width of the style.
        height: The height of a panel on a screen, in inches.
    """
    with needed_by("A figure"):
        from matplotlib.figure import Figure

    chosen = current()
    with chosen.applied():
        figure = Figure(figsize=chosen.size(columns, rows, width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


Looks = Mapping[str, Look]  # of rules that may not be registered here, as a run folder has stored them
NONE: Looks = {}


def look_of(rule: str, stored: Looks = NONE) -> Look:
    """The registered or stored look of a rule; rules without a name are "custom rule 1", "custom rule 2", ..."""
    kind, _, number = rule.partition(" ")
    unnamed = Look(f"custom rule {number}".rstrip() if kind == CUSTOM else rule)
    return look(rule) or stored.get(rule, unnamed)


def title(rule: str, stored: Looks = NONE) -> str:
    return look_of(rule, stored).title


def colors(rules: Iterable[str], stored: Looks = NONE) -> dict[str, str]:
    """The color of each rule: in print by its place; else the registered or stored one, or one that no other rule has."""
    names = list(dict.fromkeys(rules))
    if current().palette:
        return dict(zip(names, cycle(current().palette), strict=False))
    own: dict[str, str] = {}
    for name in names:
        color = _hex(look_of(name, stored).color)
        if color is not None and color not in own.values():
            own[name] = color
    free = cycle([color for color in PALETTE if color not in own.values()] or PALETTE)
    return {name: own.get(name) or next(free) for name in names}


def _hex(color: str | None) -> str | None:
    """Colors with names are matplotlib's; without it they count as none."""
    if color is None or re.fullmatch("#[0-9a-fA-F]{6}", color):
        return color and color.lower()
    try:
        from matplotlib.colors import to_hex

        return to_hex(color)
    except (ImportError, ValueError):
        return None


def styles(rules: Sequence[str]) -> list[dict[str, Any]]:
    """Color, dash and marker of each line: no two lines have the same look, even for the same rule."""
    names = [f"{rule}, no. {i}" if rule in rules[:i] else rule for i, rule in enumerate(rules)]
    color, kinds = colors(names), zip(cycle(DASHES), cycle(MARKERS), strict=False)
    return [
        {"color": color[name], "linestyle": dash, "marker": m} for name, (dash, m) in zip(names, kinds, strict=False)
    ]


def drawable(values: Any) -> Any:
    """A pandas object without what an axis cannot show: infinite and huge values are missing, tiny ones are zero."""
    size = values.abs()
    return values.where(size <= LARGEST).mask(size < SMALLEST, 0.0)


def shown(table: "pd.DataFrame") -> "pd.DataFrame":
    """A frame of `statistics` with only what an axis can show."""
    numbers = ["mean", "low", "high"]
    return table.assign(**drawable(table[numbers].astype(float)))


def draw_curve(
    axis: "Axes", rows: "pd.DataFrame", label: str, band: bool = True, shift: float = 0.0, **style: Any
) -> None:
    """The mean over the seeds and the band between the smallest and the largest.

    The curve ends with a cross where the first run diverged, since the mean of the others would be too good.

    Args:
        axis: Where to draw.
        rows: Rows of `shown(statistics.curves())`.
        label: The name in the legend.
        band: Whether to draw the band.
        shift: By how much of their distance the markers are shifted, so that those of several curves differ.
        **style: Options of `axis.plot`.
    """
    x, mean = rows.x.astype(float), rows["mean"]
    if rows.diverged.any():
        label += f" ({rows.diverged.max()} of {rows.runs.max()} diverged)"
    points = int(mean.count())
    distance = max(1, points // current().marked)
    last = points - max(1, distance // 4)  # the axis would cut a marker at the end
    every = [*range(int(shift * distance), max(1, last), distance)]
    looks: Any = {"ms": current().marker, "markevery": every} | style
    (line,) = axis.plot(x, mean, label=label, **looks)
    if band and rows.runs.max() > 1:
        axis.fill_between(x, rows.low, rows.high, color=line.get_color(), alpha=BAND, linewidth=0)
    if rows.diverged.any():
        _cross(axis, x, mean, line.get_color())


def _cross(axis: "Axes", x: Any, mean: Any, color: Any) -> None:
    """Draw a cross at the last point before a run diverged; at the lower edge if there is none."""
    known = mean.notna() & x.notna()
    style: Any = {"marker": "x", "ms": 8, "mew": 2, "linestyle": "", "color": color, "label": CROSS}
    if known.any():
        axis.plot(x[known].iloc[-1:], mean[known].iloc[-1:], **style)
    elif x.notna().any():
        axis.plot(x.dropna().iloc[:1], [0.03], transform=axis.get_xaxis_transform(), **style)


def finish(axis: "Axes", x: str, y: str, log: bool = False) -> None:
    """Set labels and scales; a logarithmic scale needs something positive."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_xlabel(x)
    if axis.get_xscale() == "linear":
        if axis.get_xlim()[1] >= 10_000:  # 20k, 100M
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[*ROUND, 10]))
    name_heights(axis, y)
    with np.errstate(invalid="ignore"):
        positive = any((np.asarray(line.get_ydata(), dtype=float) > 0).any() for line in data_lines(axis))
    if log and positive:
        axis.set_yscale("log")
        name_decades(axis.yaxis)
        for line in data_lines(axis):  # a zero would be a vertical line to the lower edge
            heights = np.asarray(line.get_ydata(), dtype=float)
            line.set_ydata(np.where(heights > 0, heights, np.nan))


def end_at(axis: "Axes", end: float) -> None:
    """End the horizontal axis here; a linear one begins at 0 and has a tick at its end where ticks can be round numbers."""
    from matplotlib.ticker import MaxNLocator

    if not end > 0:
        return
    if axis.get_xscale() == "log":
        axis.set_xlim(right=end)
        return
    axis.set_xlim(0, end)
    narrow = axis.get_window_extent().width < NARROW * axis.figure.dpi
    ticks = next(
        (np.linspace(0, end, n + 1) for n in ((3, 2, 4) if narrow else (5, 4, 3, 6)) if _is_round(end / n)), None
    )
    if ticks is None:
        axis.xaxis.set_major_locator(MaxNLocator(4 if narrow else 5, steps=[*ROUND, 10]))
    else:
        axis.set_xticks(ticks)


def _is_round(number: float) -> bool:
    return float(f"{number:e}".partition("e")[0]) in ROUND


def name_decades(axis: Any) -> None:
    """Name the ticks of a logarithmic x or y axis 0.1, 0.2, 0.5, 1, ... where it has few decades, else by powers of ten."""
    from matplotlib.ticker import LogFormatterMathtext

    power = LogFormatterMathtext()

    def ratio() -> float:
        low, high = sorted(axis.get_view_interval())
        return high / low if PLAIN[0] <= low and high <= PLAIN[1] else inf

    def minor(value: float, _: Any) -> str:
        named = DIGITS if ratio() < FEW else "25" if ratio() < SHORT else ""
        return f"{value:g}" if f"{value:e}"[0] in named else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}" if ratio() < SHORT else power(value))
    axis.set_minor_formatter(minor)


def name_heights(axis: "Axes", name: str) -> None:
    """Set the label of the vertical axis; accuracies are in percent, as in tables."""
    percent = in_percent(name)
    axis.set_ylabel(f"{name} (%)" if percent else name)
    if percent:
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.5g}")


def data_lines(axis: "Axes") -> list[Any]:
    """The lines without crosses at the edge, whose height is not a value, and without bars at the ends of curves."""
    return [line for line in axis.get_lines() if line.get_label() not in (CROSS, BAR)]


def legend_below(figure: "Figure", axes: "Iterable[Axes] | None" = None, note: str = "") -> None:
    """One legend for these panels, by default all, outside of them, where it hides no line; the note stands above it."""
    handles: dict[str, Any] = {}
    for axis in axes or figure.axes:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    if not handles:
        return
    size = current().settings["legend.fontsize"] / 72  # inches
    entry = size * (5 + 0.45 * max(map(len, handles)))
    rows = ceil(len(handles) / max(1, int(figure.get_figwidth() / entry)))
    columns = ceil(len(handles) / rows)
    figure.set_figheight(figure.get_figheight() + 1.6 * size * (rows + bool(note)))
    words: Any = {"fontsize": 72 * size, "title": note or None, "title_fontsize": 72 * size}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, **words)


# ---------------------------------------------------------------- histories


def draw_history(history: "pd.DataFrame") -> "Figure":
    """Loss, accuracy, gradient norm, consensus and own metrics against steps: mean and range over the seeds of a variant.

    Args:
        history: The history of a `Result`.
    """
    rows = _numbered(history)
    keys = [*statistics.VARIANT, "number"]
    variants = rows[keys].drop_duplicates() if len(rows) else rows
    groups = _metrics(history, len(variants))
    columns = current().columns(2 if len(groups) <= MAX_PANELS // 2 else ceil(len(groups) / 2))
    figure, axes = panels(min(columns, max(1, len(groups))), max(1, ceil(len(groups) / columns)))
    for axis in axes.flat[max(1, len(groups)) :]:
        axis.remove()
    for axis, metrics in zip(axes.flat, groups, strict=False):
        for metric in metrics:
            some = rows[rows.step > 0] if metric == "consensus" else rows
            _draw_variants(axis, shown(statistics.curves(some, metric, keys=keys)), keys, metric, len(metrics) > 1)
        name = metrics[0]
        finish(axis, "step", axis_name(name) if len(metrics) == 1 else "loss", log=_logarithmic(rows, name))
    if 0 < len(data_lines(axes[0, 0])) <= MAX_LEGEND:
        legend_below(figure, axes.flat[:1])
    return figure


def _draw_variants(axis: "Axes", table: "pd.DataFrame", keys: list[str], metric: str, shared: bool) -> None:
    """A line for each variant. In a panel that several metrics share, those of the training loss are dashed."""
    lines = list(table.groupby(keys, sort=False, dropna=False))
    names, few = names_of([variant for variant, _ in lines]), len(lines) <= MAX_LEGEND
    dash = {"linestyle": "--"} if shared and metric == "train_loss" else {}
    for name, style, (_, points) in zip(names, styles([str(rule) for (rule, *_), _ in lines]), lines, strict=True):
        full = f"{name}: {LABELS[metric]}" if shared else name
        draw_curve(axis, points, full, few, **(style | dash | ({} if few else {"marker": ""})))


def _numbered(history: "pd.DataFrame") -> "pd.DataFrame":
    """Number runs that have the same label."""
    if history.empty:
        return history
    rows = statistics.labelled(history)
    return rows.assign(number=rows.groupby([*statistics.VARIANT, "seed"], dropna=False).run.rank("dense").astype(int))


def label(rule: Any, schedule: Any = None, eta: Any = None, number: int = 1, stored: Looks = NONE) -> str:
    """What distinguishes a variant; of rules without a stepsize, the schedule only where it is not the default."""
    name, _, default = look_of(str(rule), stored)
    if isinstance(schedule, str) and schedule not in (default, CUSTOM):
        name += f" ({schedule})"
    if isinstance(eta, float) and np.isfinite(eta):
        name += f", eta = {eta:.3g}"
    return name if number == 1 else f"{name}, no. {number}"


def names_of(variants: Sequence[Sequence[Any]]) -> list[str]:
    """The label of each line; in print, only as much of it as distinguishes it from the others."""
    longest = max((len(variant) for variant in variants), default=0)
    lengths = [[label(*variant[:count]) for variant in variants] for count in range(1, longest + 1)]
    if not current().printed:
        lengths = lengths[-1:]
    names = [
        next((name for name in own if sum(each.count(name) for each in lengths) == own.count(name)), own[-1])
        for own in zip(*lengths, strict=True)
    ]
    return list(map(in_symbols, names))


def in_symbols(name: str) -> str:
    """A label as figures have it."""
    return name.replace("eta =", r"$\eta$ =")


def axis_name(metric: str) -> str:
    """A metric as the label of an axis."""
    return SYMBOLS.get(metric) or LABELS.get(metric) or metric.replace("_", " ")


def _metrics(history: "pd.DataFrame", variants: int) -> list[list[str]]:
    """The metrics of each panel; several variants share a panel with one loss."""
    losses = ["train_loss", "test_loss"]
    if variants > 1 and "test_loss" in history:
        losses = ["test_loss"]
    groups = [losses, ["test_accuracy"], ["test_label_accuracy"], ["test_rmse"], ["grad_norm"], ["consensus"]]
    present = [[metric for metric in group if metric in history] for group in groups]
    own = [[name] for name in history if name not in LABELS and name not in COLUMNS and history[name].dtype.kind == "f"]
    return [group for group in present if group] + own[: MAX_PANELS - sum(map(bool, present))]


def _logarithmic(rows: "pd.DataFrame", metric: str) -> bool:
    """Own metrics only where they are positive: the others are never negative, or in LINEAR."""
    return metric not in LINEAR if metric in LABELS else not (rows[metric] <= 0).any()


# ---------------------------------------------------------------- graphs


def draw_topology(axis: "Axes", topology: "Topology") -> None:
    """The graph on a circle (ladders, paths, grids and stars as such), thicker lines for heavier weights.

    Args:
        axis: Where to draw.
        topology: The graph.
    """
    graph, n, places = topology.graph, topology.nodes, positions(topology.name, topology.nodes)
    size = max(4, 2400 / max(n, 12))
    weights = np.array([graph.edges[edge]["weight"] for edge in graph.edges])
    style: Any = {"edge_color": "#555555", "width": 0.5 + 2 * weights / weights.max(initial=1e-9), "alpha": 0.8}
    if graph.is_directed():
        style["arrows"] = graph.number_of_edges() <= MAX_ARROWS
        if style["arrows"]:
            style |= {"node_size": size, "connectionstyle": "arc3,rad=0.12"}  # curved: both directions can be seen
    nx.draw_networkx_edges(graph, places, ax=axis, **style)
    nx.draw_networkx_nodes(graph, places, ax=axis, node_color="#d62728", node_size=size)
    shown = (topology.name, topology.parameters, f"$n$ = {n}", rf"$\rho$ = {topology.rho:.3f}")
    axis.set_title(", ".join(filter(None, shown)), fontsize=current().settings["axes.titlesize"])
    axis.set_aspect("equal")
    axis.axis("off")


def positions(name: str, n: int) -> dict[int, Any]:
    """The positions of the nodes in a drawing of a graph with this name."""
    if name == "star":
        angles = 2 * np.pi * np.arange(n - 1) / max(n - 1, 1)
        return {0: (0, 0)} | {i + 1: (np.sin(a), np.cos(a)) for i, a in enumerate(angles)}
    rows = {"ladder": 2, "path": 1}.get(name)
    if name in ("grid", "torus"):
        from dnasa.topology import squarest

        rows, _ = squarest(n)
    if rows and n > 1:
        columns = n // rows
        return {i: (i % columns, -(i // columns)) for i in range(n)}
    angles = 2 * np.pi * np.arange(n) / n
    return {i: (np.sin(a), np.cos(a)) for i, a in enumerate(angles)}


# ---------------------------------------------------------------- files


def rendered(figure: "Figure", kind: str) -> bytes:
    """The figure as the content of a file: png, pdf, svg, pgf, ..."""
    import matplotlib

    data = io.BytesIO()
    latex: Any = {"pgf.texsystem": latex_program()} if kind == "pgf" else {}
    with current().applied(), matplotlib.rc_context(latex):
        figure.savefig(data, format=kind)
    content = data.getvalue()
    return content.replace(b"\\makeatletter%\n", PGF, 1) if latex else content


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write the figure; the file is complete or absent. Returns its path.

    Args:
        figure: The figure.
        path: The file; its suffix is the format, such as .png, .pdf or .svg.
    """
    target = Path(path)
    known: Iterable[str] = figure.canvas.get_supported_filetypes()
    if target.suffix.lstrip(".") not in known:
        raise InputError(f"Cannot draw a '{target.suffix}' file. Choose from: .{', .'.join(sorted(known))}.")
    try:
        write_output(target, rendered(figure, target.suffix.lstrip(".")))
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror}. Choose another file.") from error
    return target
