"""Weights by name: functions from a graph's adjacency matrix to W.

`adjacency[i, j]` is the number of edges over which i receives from j; self-loops are not part of it. W must be the same to the
bit on every machine, so what an eigenvalue or a minimization gives is rounded.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from dnasa.core import InputError
from dnasa.topology.spectrum import extremes, largest_eigenvalue, single_threaded

Weights = Callable[[sp.csr_array], sp.csr_array]
MOST_FASTEST = 300  # nodes of a graph whose fastest weights are found in seconds


def laplacian(adjacency: sp.csr_array) -> sp.csr_array:
    """I - L / lambda_max(L), L the graph Laplacian."""
    matrix = _laplacian(adjacency)
    return sp.eye_array(adjacency.shape[0]) - matrix / (_rounded(largest_eigenvalue(matrix)) or 1.0)  # 0: no edges


def best_constant(adjacency: sp.csr_array) -> sp.csr_array:
    """I - 2 L / (lambda_max(L) + lambda_2(L)): the smallest rho with one weight for all edges (Xiao and Boyd, 2004)."""
    matrix = _laplacian(adjacency)
    largest = largest_eigenvalue(matrix) or 1.0
    second = largest * (1 - extremes(sp.eye_array(adjacency.shape[0], format="csr") - matrix / largest)[1])
    return sp.eye_array(adjacency.shape[0]) - matrix * _rounded(2 / (largest + second))


@single_threaded
def fastest(adjacency: sp.csr_array) -> sp.csr_array:
    """The symmetric weights with the smallest rho, which may be negative (FDLA: Xiao and Boyd, 2004), to about 0.1 %.

    The p-norm of the eigenvalues of W - 11'/n is minimized for growing p.
    """
    from scipy.optimize import minimize  # most runs do without it

    n, edges = adjacency.shape[0], sp.triu(adjacency, k=1).tocoo()
    if n > MOST_FASTEST:
        raise InputError(f"The fastest weights of {n:,} nodes would take too long: use best_constant.")
    i, j = edges.row, edges.col

    def matrix(w: np.ndarray) -> np.ndarray:
        half = sp.coo_array((w, (i, j)), shape=(n, n))
        off = (half + half.T).toarray()
        return np.eye(n) + off - np.diag(off.sum(1))

    def logarithm(w: np.ndarray, p: int) -> tuple[float, np.ndarray]:
        """Of the p-norm, and its gradient."""
        values, vectors = np.linalg.eigh(matrix(w) - 1 / n)
        largest = np.abs(values).max()
        powers = (values / largest) ** (p - 1)
        G = (vectors * powers) @ vectors.T / (largest * (powers * values / largest).sum())
        return float(np.log(largest) + np.log((powers * values / largest).sum()) / p), 2 * G[i, j] - G[i, i] - G[j, j]

    def rho(W: sp.csr_array) -> float:
        return max(map(abs, extremes(W)))

    start = best_constant(adjacency).tocsr()
    if rho(start) < 1e-9:
        return start
    w = start[i, j]
    for p in (8, 32, 128, 512, 2048):
        w = minimize(logarithm, w, (p,), jac=True, method="L-BFGS-B").x
    found = sp.csr_array(matrix(w.round(6)))
    return found if rho(found) < rho(start) - 1e-5 else start  # start is optimal on a ring


def _laplacian(adjacency: sp.csr_array) -> sp.csr_array:
    return sp.diags_array(adjacency.sum(axis=1)) - adjacency


def _rounded(value: float) -> float:
    """Without the last digits of an eigenvalue, which differ between processors."""
    return float(f"{value:.12g}")


def third(adjacency: sp.csr_array) -> sp.csr_array:
    """1/3 for a node itself and for each of two neighbors; two nodes have 1/2 each."""
    return (adjacency + sp.eye_array(adjacency.shape[0])) / min(3, adjacency.shape[0])


def metropolis(adjacency: sp.csr_array) -> sp.csr_array:
    """1 / (1 + the larger degree) for each edge, the rest for the node itself."""
    edges = adjacency.tocoo()
    degrees = edges.sum(axis=1)
    data = 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col]))
    weights = sp.coo_array((data, (edges.row, edges.col)), shape=edges.shape)
    return sp.csr_array(weights + sp.diags_array(1 - weights.sum(axis=1)))


def equal_shares(adjacency: sp.csr_array) -> sp.csr_array:
    """A node's weight in equal shares for itself and for each node it sends to: column-stochastic."""
    shares = sp.diags_array(1 / (1 + adjacency.sum(axis=0)))
    return sp.csr_array((adjacency + sp.eye_array(adjacency.shape[0])) @ shares)


def lazy(rule: Weights) -> Weights:
    """(I + W) / 2 for the default W of the graph, so that a symmetric one has no negative eigenvalue."""
    return lambda adjacency: (sp.eye_array(adjacency.shape[0]) + rule(adjacency)) / 2


WEIGHTS: dict[str, Weights] = {each.__name__: each for each in (laplacian, metropolis, best_constant, fastest)}
"""Mixing weights of an undirected graph, by name."""
