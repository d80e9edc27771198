"""Weights by name: functions from a graph's adjacency matrix to W.

`adjacency[i, j]` is the number of edges over which i receives from j; self-loops are not part of it.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from dnasa.topology.spectrum import largest_eigenvalue

Weights = Callable[[sp.csr_array], sp.csr_array]


def laplacian(adjacency: sp.csr_array) -> sp.csr_array:
    """I - L / lambda_max(L), L the graph Laplacian."""
    matrix = sp.diags_array(adjacency.sum(axis=1)) - adjacency
    # Rounded, because the last digits of an eigenvalue differ between processors.
    largest = float(f"{largest_eigenvalue(matrix):.12g}")
    return sp.eye_array(adjacency.shape[0]) - matrix / (largest or 1.0)  # 0: a graph without edges


def third(adjacency: sp.csr_array) -> sp.csr_array:
    """1/3 for a node itself and for each of two neighbors."""
    return (adjacency + sp.eye_array(adjacency.shape[0])) / 3


def metropolis(adjacency: sp.csr_array) -> sp.csr_array:
    """1 / (1 + the larger degree) for each edge, the rest for the node itself."""
    edges = adjacency.tocoo()
    degrees = adjacency.sum(axis=1)
    data = 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col]))
    weights = sp.coo_array((data, (edges.row, edges.col)), shape=edges.shape)
    return sp.csr_array(weights + sp.diags_array(1 - weights.sum(axis=1)))


def equal_shares(adjacency: sp.csr_array) -> sp.csr_array:
    """A node's weight in equal shares for itself and for each node it sends to: column-stochastic."""
    shares = sp.diags_array(1 / (1 + adjacency.sum(axis=0)))
    return sp.csr_array((adjacency + sp.eye_array(adjacency.shape[0])) @ shares)


def lazy(rule: Weights) -> Weights:
    """(I + W) / 2, which has no negative eigenvalue if W is symmetric."""
    return lambda adjacency: (sp.eye_array(adjacency.shape[0]) + rule(adjacency)) / 2


WEIGHTS: dict[str, Weights] = {"laplacian": laplacian, "metropolis": metropolis}
"""Mixing weights of an undirected graph, by name."""
