"""Pictures: one look for all of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dnasa.core import InputError
from dnasa.records import make_folder
from dnasa.rules import RULES

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.topology import Topology

COLOURS = {"dnasa": "#d62728", "dsgd": "#1f77b4", "dsgt": "#2ca02c", "dasagt": "#9467bd", "d2": "#8c564b"}
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

STYLE: Any = {
    "figure.dpi": 120,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
}


def panels(columns: int, rows: int = 1, width: float = 4.6, height: float = 3.4) -> tuple[Figure, np.ndarray]:
    """A figure with rows x columns panels, always as a two-dimensional array of axes; the user's own style stays untouched."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


def title(rule: str) -> str:
    return RULES[rule].title if rule in RULES else rule


def curve(axis: Axes, steps: Any, table: "pd.DataFrame", label: str, **style: Any) -> None:
    """The mean over the columns of `table` (one run each) and the band between the smallest and the largest.

    The mean ends where the first of the runs diverged: what is left would look better than it is.
    """
    middle, low, high = table.mean(axis=1, skipna=False), table.min(axis=1), table.max(axis=1)
    (line,) = axis.plot(steps, middle, label=label, **style)
    if table.shape[1] > 1:
        axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.18, linewidth=0)


def by_seed(history: "pd.DataFrame", metric: str) -> "pd.DataFrame":
    """One row per evaluation, one column per seed."""
    return history.pivot(index="step", columns="seed", values=metric)


def draw_history(history: "pd.DataFrame") -> Figure:
    """Loss, accuracy, gradient norm and consensus of every variant against steps, mean and range over the seeds."""
    keys = [key for key in ("rule", "schedule", "eta") if key in history]
    variants = [
        (dict(zip(keys, names, strict=True)), rows) for names, rows in history.groupby(keys, dropna=False, sort=False)
    ]
    losses = (
        ("train_loss", "test_loss")
        if len(variants) == 1
        else ("test_loss",)
        if "test_loss" in history
        else ("train_loss",)
    )
    groups = [
        [m for m in group if m in history] for group in (losses, ("test_accuracy",), ("grad_norm",), ("consensus",))
    ]
    groups = [group for group in groups if group]
    once = history.rule.nunique() == len(variants) > 1
    figure, axes = panels(len(groups))
    for axis, group in zip(axes[0], groups, strict=True):
        for variant, rows in variants:
            for metric in group:
                table = by_seed(rows[rows.step > 0] if metric == "consensus" else rows, metric)
                label = _variant_label(variant) + (f": {LABELS[metric]}" if len(group) > 1 else "")
                curve(axis, table.index, table, label, color=COLOURS.get(variant["rule"]) if once else None)
        finish(axis, "step", LABELS[group[0]] if len(group) == 1 else "loss", log=group[0] not in LINEAR)
    if len(axes[0, 0].get_lines()) <= 12:
        axes[0, 0].legend(fontsize=8)
    return figure


def _variant_label(variant: dict[str, Any]) -> str:
    label = title(variant["rule"])
    if variant.get("schedule") not in ("diminishing", "custom", None):
        label += f" ({variant['schedule']})"
    eta = variant.get("eta")
    return label if eta is None or np.isnan(eta) else f"{label}, eta = {eta:g}"


def finish(axis: Axes, x: str, y: str, log: bool = False) -> None:
    axis.set_xlabel(x)
    if axis.get_xscale() == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_ylabel(y)
    if log:
        axis.set_yscale("log")


def draw_topology(axis: Axes, topology: "Topology") -> None:
    """The graph on a circle (the ladder as a ladder, grids as grids), thicker lines for heavier weights."""
    graph, n = topology.graph, topology.nodes
    weights = np.array([graph.edges[edge]["weight"] for edge in graph.edges])
    nx.draw_networkx_edges(graph, _layout(topology), ax=axis, edge_color="#555555", width=_widths(weights), alpha=0.8)
    nx.draw_networkx_nodes(graph, _layout(topology), ax=axis, node_color="#d62728", node_size=max(4, 2400 / max(n, 12)))
    axis.set_title(f"{topology.name}, n = {n}, rho = {topology.rho:.3f}", fontsize=10)
    axis.set_aspect("equal")
    axis.axis("off")


def _widths(weights: np.ndarray) -> Any:
    return 0.5 + 2 * weights / weights.max() if len(weights) else 1.0


def _layout(topology: "Topology") -> dict[int, Any]:
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


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format its name asks for."""
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
