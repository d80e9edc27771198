"""The graph of a run as it is stored in its folder."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dnasa.topology import Topology

MOST_EDGES = 5000  # stored and drawn


def graph_json(topology: "Topology") -> dict[str, Any]:
    """Name and nodes; unless it is too large, also its weighted edges and how many messages each node sends in an exchange.

    An edge is [sender, receiver, weight]; on an undirected graph it stands for both directions. Of a graph that changes with
    time, the weights and messages are averages over a period.
    """
    out: dict[str, Any] = {"name": topology.name, "nodes": topology.nodes, "directed": topology.directed}
    if topology.messages <= MOST_EDGES * (1 if topology.directed else 2):
        edges = topology.graph.edges(data="weight")
        out |= {"rho": float(topology.rho), "edges": [[int(i), int(j), float(w)] for i, j, w in edges]}
        out["messages"] = np.mean([_sent(each) for each in topology.each], axis=0).tolist()
    return out


def _sent(topology: "Topology") -> np.ndarray:
    """How many others receive from each node."""
    W = topology.sparse
    return (W != 0).sum(axis=0) - (W.diagonal() != 0)
