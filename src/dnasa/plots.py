"""Plots, all in one style."""

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dnasa.core import InputError
from dnasa.files import make_folder
from dnasa.rules.registry import CUSTOM, RULES

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.topology import Changing, Topology

LABELS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "grad_norm": "gradient norm at the mean iterate",
    "consensus": "consensus error",
    "stationarity": "stationarity",
    "tracking": "tracking error",
}
LINEAR = {"test_accuracy"}
SMALLEST, LARGEST = 1e-100, 1e100  # matplotlib's scales overflow near the limits of float64
MAX_LEGEND = 12  # lines
MAX_ARROWS = 1000  # edges of a directed graph beyond which arrowheads are too small to see

STYLE: Any = {
    "figure.dpi": 120,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
}


def panels(columns: int, rows: int = 1, width: float = 4.6, height: float = 3.4) -> tuple[Figure, np.ndarray]:
    """A figure and its axes as a two-dimensional array; the user's own style is not changed."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


def title(rule: str) -> str:
    """The title a rule is registered with; rules without a name are "custom rule 1", "custom rule 2", ..."""
    if rule in RULES:
        return RULES[rule].title or rule
    kind, _, number = rule.partition(" ")
    return f"custom rule {number}".rstrip() if kind == CUSTOM else rule


def colours(rules: Iterable[str]) -> dict[str, str]:
    """The colour of each rule: the registered one, or else one that no other of these rules has."""
    names = list(dict.fromkeys(rules))
    registered = {name: RULES[name].colour or "" for name in names if name in RULES}
    own = {name: to_hex(colour) for name, colour in registered.items() if is_color_like(colour)}
    palette = [to_hex(colour) for name in ("tab10", "tab20b") for colour in matplotlib.color_sequences[name]]
    free = cycle([colour for colour in palette if colour not in own.values()] or palette)
    return {name: own.get(name) or next(free) for name in names}


def drawable(values: Any) -> Any:
    """A pandas object without what an axis cannot show: infinite and huge values are missing, tiny ones are zero."""
    size = values.abs()
    return values.where(size <= LARGEST).mask(size < SMALLEST, 0.0)


def curve(axis: Axes, steps: Any, table: "pd.DataFrame", label: str, **style: Any) -> None:
    """The mean over the columns of `table` (one run each) and the band between the smallest and the largest.

    The mean ends where the first run diverged, since the mean of the others would be too good.
    """
    table = drawable(table)
    middle = table.mean(axis=1, skipna=False)
    marker = "o" if middle.count() == 1 else None  # a line needs two points
    (line,) = axis.plot(steps, middle, label=label, marker=marker, **style)
    if table.shape[1] > 1:
        low, high = table.min(axis=1), table.max(axis=1)
        axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.18, linewidth=0)


def by_seed(history: "pd.DataFrame", metric: str) -> "pd.DataFrame":
    """One row per evaluation, one column per seed."""
    last = history.drop_duplicates(["step", "seed"], keep="last")
    return last.pivot(index="step", columns="seed", values=metric).astype(float)


def finish(axis: Axes, x: str, y: str, log: bool = False) -> None:
    """Labels and scales; a logarithmic scale needs something positive."""
    axis.set_xlabel(x)
    if axis.get_xscale() == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_ylabel(y)
    if log and any((np.asarray(line.get_ydata()) > 0).any() for line in axis.get_lines()):
        axis.set_yscale("log")


# ---------------------------------------------------------------- histories


class Curve(NamedTuple):
    """A rule with a schedule and a stepsize: one curve of a plot."""

    label: str
    colour: str | None
    rows: "pd.DataFrame"


def draw_history(history: "pd.DataFrame") -> Figure:
    """Loss, accuracy, gradient norm and consensus of every variant against steps, mean and range over the seeds."""
    curves = _curves(history)
    groups = _metrics(history, len(curves))
    figure, axes = panels(max(1, len(groups)))
    for axis, metrics in zip(axes[0], groups, strict=False):
        for label, colour, rows in curves:
            for metric in metrics:
                table = by_seed(rows[rows.step > 0] if metric == "consensus" else rows, metric)
                name = f"{label}: {LABELS[metric]}" if len(metrics) > 1 else label
                dashed = len(metrics) > 1 and metric == "train_loss"
                curve(axis, table.index, table, name, color=colour, linestyle="--" if dashed else "-")
        finish(axis, "step", LABELS[metrics[0]] if len(metrics) == 1 else "loss", log=metrics[0] not in LINEAR)
    if 0 < len(axes[0, 0].get_lines()) <= MAX_LEGEND:
        axes[0, 0].legend(fontsize=8)
    return figure


def _curves(history: "pd.DataFrame") -> list[Curve]:
    """In the order of the history; runs that are labelled alike are numbered."""
    if history.empty:
        return []
    keys = [key for key in ("rule", "schedule", "eta") if key in history]
    number = history.groupby([*keys, "seed"], dropna=False).run.rank("dense").astype(int)
    groups = list(history.groupby([*keys, number.rename("number")], dropna=False, sort=False))
    own = colours(history.rule.astype(str)) if len(groups) == history.rule.nunique() else {}
    out = []
    for names, rows in groups:
        variant = dict(zip([*keys, "number"], names, strict=True))
        out.append(Curve(_label(**variant), own.get(str(variant["rule"])), rows))
    return out


def _label(rule: Any, schedule: Any = None, eta: Any = None, number: int = 1) -> str:
    """What distinguishes a variant: the schedule only where it is not the rule's default."""
    label = title(str(rule))
    default = next(iter(RULES[rule].schedules)) if rule in RULES else None
    if isinstance(schedule, str) and schedule not in (default, CUSTOM):
        label += f" ({schedule})"
    if isinstance(eta, float) and np.isfinite(eta):
        label += f", eta = {eta:g}"
    return label if number == 1 else f"{label}, no. {number}"


def _metrics(history: "pd.DataFrame", variants: int) -> list[list[str]]:
    """The metrics of each panel; several variants share a panel with one loss."""
    losses = ["train_loss", "test_loss"]
    if variants > 1 and "test_loss" in history:
        losses = ["test_loss"]
    groups = [losses, ["test_accuracy"], ["grad_norm"], ["consensus"]]
    present = [[metric for metric in group if metric in history] for group in groups]
    return [group for group in present if group]


# ---------------------------------------------------------------- graphs


def draw_topology(axis: Axes, topology: "Topology | Changing") -> None:
    """The graph on a circle (ladders, paths, grids and stars as such), thicker lines for heavier weights."""
    graph, n, positions = topology.graph, topology.nodes, _positions(topology)
    size = max(4, 2400 / max(n, 12))
    weights = np.array([graph.edges[edge]["weight"] for edge in graph.edges])
    style: Any = {"edge_color": "#555555", "width": _widths(weights), "alpha": 0.8}
    if graph.is_directed():
        style["arrows"] = graph.number_of_edges() <= MAX_ARROWS
        if style["arrows"]:
            style |= {"node_size": size, "connectionstyle": "arc3,rad=0.12"}  # curved: both directions can be seen
    nx.draw_networkx_edges(graph, positions, ax=axis, **style)
    nx.draw_networkx_nodes(graph, positions, ax=axis, node_color="#d62728", node_size=size)
    axis.set_title(f"{topology.name}, n = {n}, rho = {topology.rho:.3f}", fontsize=10)
    axis.set_aspect("equal")
    axis.axis("off")


def _widths(weights: np.ndarray) -> Any:
    return 0.5 + 2 * weights / weights.max() if len(weights) else 1.0


def _positions(topology: "Topology | Changing") -> dict[int, Any]:
    n = topology.nodes
    if topology.name == "star":
        angles = 2 * np.pi * np.arange(n - 1) / max(n - 1, 1)
        return {0: (0, 0)} | {i + 1: (np.sin(a), np.cos(a)) for i, a in enumerate(angles)}
    rows = {"ladder": 2, "path": 1}.get(topology.name)
    if topology.name in ("grid", "torus"):
        from dnasa.topology import squarest

        rows, _ = squarest(n)
    if rows and n > 1:
        columns = n // rows
        return {i: (i % columns, -(i // columns)) for i in range(n)}
    angles = 2 * np.pi * np.arange(n) / n
    return {i: (np.sin(a), np.cos(a)) for i, a in enumerate(angles)}


# ---------------------------------------------------------------- files


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format of the file's suffix."""
    target = Path(path)
    known: Iterable[str] = figure.canvas.get_supported_filetypes()
    if target.suffix.lstrip(".") not in known:
        raise InputError(f"Cannot draw a '{target.suffix}' file. Choose from: .{', .'.join(sorted(known))}.")
    make_folder(target.parent)
    try:
        figure.savefig(target)
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror}. Choose another file.") from error
    return target
