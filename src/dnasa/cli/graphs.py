"""What `dnasa topology` prints: a graph, or all graphs and weights by name."""

import inspect
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa import topology
from dnasa.core import InputError
from dnasa.networks.simulated import suits_all_reduce
from dnasa.topology.types import count, extent
from dnasa.topology.weights import laplacian, lazy

if TYPE_CHECKING:
    from dnasa.topology import Topology

NODES = 8  # of the graphs in the lists


def graph_rows(graph: "Topology") -> dict[str, str]:
    """The eigenvalues of a directed graph are complex numbers; rho is a modulus."""
    rows = {"nodes": f"{graph.nodes:,}"}
    if graph.parameters:
        rows["parameters"] = graph.parameters
    if graph.period > 1:
        rows["graphs in turn"] = f"{graph.period}; edges and degrees are averages, rho is the contraction of a period, per step"
    if graph.directed:
        rows |= {"directed edges": f"{graph.messages:,}", "nodes received from": extent(graph.degrees)}
        rows |= {"weights": "columns sum to 1: for rules for directed graphs, such as sgp and push_dsgt"}
    else:
        rows |= {"edges": count(graph.degrees.sum() / 2), "degrees": extent(graph.degrees)}
        rows |= {"weights": graph.weighting} if graph.weighting else {}
        rows |= {f"smallest eigenvalue of {'any ' * (graph.period > 1)}W": f"{round(graph.smallest_eigenvalue, 9) + 0:.6g}"}
    return rows | {"rho": f"{graph.rho:.6g}"}


def graph_table() -> pd.DataFrame:
    """The graphs by name: what a node sends, and rho."""
    rows = []
    for name, make in topology.TOPOLOGIES.items():
        try:
            graph = make(NODES)
        except InputError:
            continue  # one of a plugin may need other numbers of nodes
        messages = 2 * (NODES - 1) if suits_all_reduce(graph, None) else graph.messages * graph.rounds
        rows.append(
            {
                "graph": name,
                "edges": _first_line(make),
                "messages of a node": f"{messages / NODES:g}" + (f" in {graph.rounds} rounds" if graph.rounds > 1 else ""),
                f"rho, {NODES} nodes": f"{graph.rho:.3f}" + (f" after {graph.period} rounds" if graph.period > 1 else ""),
                "default weights": graph.weighting or "its own",
            }
        )
    return pd.DataFrame(rows)


def weight_table() -> pd.DataFrame:
    """The weights by name, with rho on three graphs."""
    rows = []
    for name, weights in (topology.WEIGHTS | {"lazy": lazy(laplacian)}).items():
        rhos = {f"rho: {graph}": f"{topology.make(graph, NODES, name).rho:.3f}" for graph in ("path", "ring", "star")}
        rows.append({"weights": name, "W": _first_line(weights if name != "lazy" else lazy)} | rhos)
    return pd.DataFrame(rows)


def _first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
