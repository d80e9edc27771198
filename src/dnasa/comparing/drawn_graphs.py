"""Drawings of graphs, in the current style (`dnasa.comparing.style`)."""

from math import ceil
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from dnasa.comparing.plots import panel_rows
from dnasa.comparing.style import SMALL_PANEL, current

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dnasa.topology import Topology

__all__ = ["draw_topology"]

MOST_GRAPHS = 12  # in turn, each with a panel
MANY = 40  # edges of a graph beyond which they are drawn thinner
MAX_ARROWS = 1000  # edges of a directed graph beyond which arrowheads are too small to see


def figure_of_topology(topology: "Topology") -> "Figure":
    """The graph, or each graph of a sequence in a panel of its own."""
    graphs = topology.each if topology.period <= MOST_GRAPHS else (topology,)
    columns = ceil(len(graphs) / ceil(len(graphs) / 4))
    figure, axes = panel_rows([len(graphs)], current().columns(columns, SMALL_PANEL), height=4.2 if columns > 2 else 3.4)
    for number, (axis, graph) in enumerate(zip(axes, graphs, strict=True), start=1):
        draw_topology(axis, graph)
        if len(graphs) > 1:
            axis.set_title(f"round {number} of {len(graphs)}", fontsize=current().font)
    if len(graphs) > 1 and not current().printed:
        figure.suptitle(_description(topology))
    return figure


def draw_topology(axis: "Axes", topology: "Topology") -> None:
    """The graph on a circle (ladders, paths, grids and stars as such), thicker lines for heavier weights.

    Args:
        axis: Where to draw.
        topology: The graph.
    """
    from matplotlib import rcParams

    graph, n = topology.graph, topology.nodes
    weights = np.array([weight for *_, weight in graph.edges.data("weight")])
    width = (0.5 + 1.5 * weights / weights.max(initial=1e-9)) * min(1, MANY / max(1, len(weights))) * current().marker / 4
    style: Any = {"edge_color": "#777777", "width": width, "arrows": False}
    if graph.is_directed() and len(weights) <= MAX_ARROWS:
        style |= {"arrows": True, "connectionstyle": "arc3,rad=0.12"}  # curved: shows both directions
    room = 1.6 * axis.get_window_extent().width / axis.figure.dpi * 72 / n  # of a node on the circle, in points
    diameter = max(2, min(room, 1.5 * current().font))
    places = _positions(topology.name, n)
    style |= {
        "with_labels": diameter > current().font,
        "font_size": min(current().font - 1, 0.65 * diameter),
        "font_color": "white",
        "font_family": rcParams["font.family"][0],
    }
    nx.draw_networkx(graph, places, ax=axis, node_color="#d62728", node_size=diameter**2, **style)
    if not current().printed:  # where a caption says it
        axis.set_title(_description(topology), fontsize=current().font)
    axis.margins(0.12)  # nodes are whole
    axis.set_aspect("equal", adjustable="datalim")  # a path is flat
    axis.axis("off")


def _description(topology: "Topology") -> str:
    words = (topology.name, topology.parameters, f"$n$ = {topology.nodes}", topology.mixing.replace("rho", r"$\rho$"))
    return ", ".join(filter(None, words))


def _positions(name: str, n: int) -> dict[int, Any]:
    from dnasa.topology.graphs import squarest

    rows = {"ladder": 2, "path": 1, "grid": squarest(n)[0], "torus": squarest(n)[0]}.get(name)
    if rows and n > 1:
        columns = n // rows
        bend = 0.2 if name == "torus" else 0.0  # or its edges from end to end would lie on the others
        across, down = (columns - 1) / 2, (rows - 1) / 2
        places = {i: (i % columns, i // columns) for i in range(n)}
        return {i: (x + bend * (y - down) ** 2, -y - bend * (x - across) ** 2) for i, (x, y) in places.items()}
    return nx.shell_layout(range(n), [[0], range(1, n)] if name == "star" else [range(n)])
