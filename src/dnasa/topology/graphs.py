"""Graphs and their mixing matrices W: who talks to whom, and how much weight each word gets.

A topology is a function of the number of nodes. Weights default to `I - L / lambda_max(L)` (L the graph Laplacian), the
ring to 1/3 for itself and both neighbours; these reproduce the paper's rho for its four graphs of 8 nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dnasa.core import InputError, Rule, choose, whole

TOLERANCE = 1e-8
DENSE_EIGENVALUES = 1500  # up to here eigenvalues are computed exactly
DENSE_NODES = 200  # up to here, or above a density of 10 %, W is kept as a dense matrix: it multiplies faster


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected graph with a symmetric, doubly stochastic W; `weights` is a NumPy array or a SciPy CSR matrix."""

    name: str
    weights: Any

    @property
    def nodes(self) -> int:
        return self.weights.shape[0]

    @cached_property
    def sparse(self) -> sp.csr_array:
        return sp.csr_array(self.weights)

    @cached_property
    def graph(self) -> nx.Graph:
        """The graph without self-loops; every edge carries its `weight`."""
        upper = sp.triu(self.sparse, k=1).tocoo()
        graph = nx.empty_graph(self.nodes)
        graph.add_weighted_edges_from(zip(upper.row.tolist(), upper.col.tolist(), upper.data.tolist(), strict=True))
        return graph

    def neighbours(self, node: int) -> list[int]:
        """The nodes that `node` exchanges messages with."""
        row = self.sparse.indices[self.sparse.indptr[node] : self.sparse.indptr[node + 1]]
        return sorted(int(j) for j in row if j != node)

    @cached_property
    def degrees(self) -> np.ndarray:
        return np.diff(self.sparse.indptr) - (self.sparse.diagonal() != 0)

    @cached_property
    def messages(self) -> int:
        """Messages sent in one exchange by all nodes together."""
        return int(self.degrees.sum())

    @cached_property
    def rho(self) -> float:
        """The second largest modulus of W's eigenvalues: how slowly news spreads, from 0 (at once) to 1 (never)."""
        low, high = self._extremes
        return float(max(abs(low), abs(high)))

    @property
    def smallest_eigenvalue(self) -> float:
        return float(self._extremes[0])

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of W - 11'/n."""
        n = self.nodes
        if n <= DENSE_EIGENVALUES:
            values = np.linalg.eigvalsh(self.sparse.toarray() - 1 / n)
            return values[0], values[-1]
        deflated = LinearOperator((n, n), matvec=lambda y: self.sparse @ y - y.mean(), dtype=np.float64)
        return 1 - _largest(sp.eye_array(n) - self.sparse), _second_largest(self.sparse, deflated)


@dataclass(frozen=True, eq=False)
class Changing:
    """A topology that changes with time: `at(t)` repeats after `period` steps; together its graphs must be connected."""

    name: str
    each: tuple[Topology, ...]

    @property
    def nodes(self) -> int:
        return self.each[0].nodes

    @property
    def period(self) -> int:
        return len(self.each)

    def at(self, t: int) -> Topology:
        return self.each[t % self.period]

    @cached_property
    def messages(self) -> int:
        """Messages sent in one exchange by all nodes together, on average over a period."""
        return round(sum(topology.messages for topology in self.each) / self.period)

    @cached_property
    def rho(self) -> float:
        """Of the product over one period, as a rate per step."""
        whole = np.linalg.multi_dot([np.eye(self.nodes), *(each.sparse.toarray() for each in self.each)])
        return float(np.linalg.norm(whole - 1 / self.nodes, 2) ** (1 / self.period))

    @property
    def smallest_eigenvalue(self) -> float:
        return min(topology.smallest_eigenvalue for topology in self.each)

    @cached_property
    def degrees(self) -> np.ndarray:
        return np.sum([topology.degrees for topology in self.each], axis=0) // self.period

    @cached_property
    def sparse(self) -> sp.csr_array:
        """The average over a period."""
        return sp.csr_array(sum(topology.sparse for topology in self.each) / self.period)

    @property
    def weights(self) -> Any:
        return self.sparse.toarray() if self.nodes <= DENSE_NODES else self.sparse

    @property
    def graph(self) -> nx.Graph:
        """All links of a period."""
        return Topology(self.name, self.weights).graph

    def neighbours(self, node: int) -> list[int]:
        """The nodes that `node` exchanges messages with at some time of a period."""
        return sorted(self.graph.neighbors(node))


def changing(matrices: Sequence[Any], name: str = "changing") -> Changing:
    """W(t) = matrices[t mod their number]; each symmetric and doubly stochastic, connected only all together."""
    if not len(matrices):
        raise InputError("A changing topology needs at least one matrix.")
    checked = [_matrix(matrix) for matrix in matrices]
    if len({matrix.shape for matrix in checked}) > 1:
        raise InputError("All matrices of a changing topology must have the same size.")
    _check_mixing(sp.csr_array(sum(checked) / len(checked)))
    return Changing(name, tuple(_topology(name, matrix) for matrix in checked))


def _start(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)


def _largest(matrix: Any) -> float:
    """To 3 digits: the top of a long path's or ring's spectrum is too crowded for more."""
    n = matrix.shape[0]
    return float(eigsh(matrix, k=1, which="LA", tol=1e-3, v0=_start(n), return_eigenvectors=False)[0])


def _second_largest(weights: sp.csr_array, deflated: LinearOperator) -> float:
    """Lanczos for graphs that mix well; for the others (long rings, paths) its eigenvalues cluster at 1: shift and invert."""
    n = weights.shape[0]
    try:
        return float(eigsh(deflated, k=1, which="LA", maxiter=60, v0=_start(n), return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        values = eigsh(weights.tocsc(), k=2, sigma=1 + 1e-9, which="LM", v0=_start(n), return_eigenvectors=False)
        return float(np.sort(values)[0])


# ---------------------------------------------------------------- weights: adjacency -> W


def _laplacian(adjacency: sp.csr_array) -> sp.csr_array:
    degrees = adjacency.sum(axis=1)
    laplacian = sp.diags_array(degrees) - adjacency
    n = adjacency.shape[0]
    largest = np.linalg.eigvalsh(laplacian.toarray())[-1] if n <= DENSE_EIGENVALUES else _largest(laplacian)
    return sp.eye_array(n) - laplacian / largest


def _third(adjacency: sp.csr_array) -> sp.csr_array:
    return (adjacency + sp.eye_array(adjacency.shape[0])) / 3


def _metropolis(adjacency: sp.csr_array) -> sp.csr_array:
    edges = adjacency.tocoo()
    degrees = adjacency.sum(axis=1)
    data = 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col]))
    return _fill_diagonal(sp.coo_array((data, (edges.row, edges.col)), shape=edges.shape))


def _max_degree(adjacency: sp.csr_array) -> sp.csr_array:
    return _fill_diagonal(adjacency / (1 + adjacency.sum(axis=1).max()))


def _fill_diagonal(off: Any) -> sp.csr_array:
    return sp.csr_array(off + sp.diags_array(1 - off.sum(axis=1)))


WEIGHTS: dict[str, Callable] = {
    "laplacian": _laplacian,
    "metropolis": _metropolis,
    "max_degree": _max_degree,
}


def _lazy(rule: Callable) -> Callable:
    """(I + W) / 2: half of every node's weight stays at home, and no eigenvalue is negative."""
    return lambda adjacency: (sp.eye_array(adjacency.shape[0]) + rule(adjacency)) / 2


# ---------------------------------------------------------------- checks


def from_matrix(weights: Any, name: str = "custom") -> Topology:
    """A topology from your own W, dense or sparse; it must be symmetric, doubly stochastic and connected."""
    matrix = _matrix(weights)
    _check_mixing(matrix)
    return _topology(name, matrix)


def _matrix(weights: Any) -> sp.csr_array:
    if sp.issparse(weights):
        matrix = sp.csr_array(weights, dtype=np.float64)
    else:
        try:
            dense = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("W must be a matrix of numbers.") from None
        if dense.ndim != 2:
            raise InputError(f"W must be a matrix; this array has shape {dense.shape}.")
        matrix = sp.csr_array(dense)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    _check(matrix)
    return matrix


def _topology(name: str, matrix: sp.csr_array) -> Topology:
    n = matrix.shape[0]
    sparse = n > DENSE_NODES and matrix.nnz < 0.1 * n * n
    return Topology(name, matrix if sparse else matrix.toarray())


def _check(matrix: sp.csr_array) -> None:
    rows, columns = matrix.shape
    if rows != columns:
        raise InputError(f"W must be square; this one is {rows} x {columns}.")
    if rows == 0:
        raise InputError("A network needs at least one node; W is empty.")
    if not np.isfinite(matrix.data).all():
        raise InputError("W has entries that are not finite numbers.")
    entries = matrix.tocoo()
    if entries.nnz and entries.data.min() < -TOLERANCE:
        worst = int(entries.data.argmin())
        raise InputError(
            f"W must not be negative; W[{entries.row[worst]}, {entries.col[worst]}] = {entries.data[worst]:.6g}."
        )
    skew = abs(matrix - matrix.T).tocoo()
    if skew.nnz and skew.data.max() > TOLERANCE:
        i, j = int(skew.row[skew.data.argmax()]), int(skew.col[skew.data.argmax()])
        raise InputError(f"W must be symmetric; W[{i}, {j}] = {matrix[i, j]:.6g} but W[{j}, {i}] = {matrix[j, i]:.6g}.")
    sums = matrix.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > TOLERANCE:
        raise InputError(f"Every row of W must sum to 1; row {row} sums to {sums[row]:.6g}.")


def _check_mixing(matrix: sp.csr_array) -> None:
    """rho < 1 exactly when the graph is connected and W is not a swap between two sides; both are read off the graph."""
    parts, label = sp.csgraph.connected_components(matrix, directed=False)
    if parts > 1:
        alone = [int(np.flatnonzero(label == part)[0]) for part in (0, 1)]
        raise InputError(
            f"The graph is not connected: it falls into {parts} parts (node {alone[0]} cannot reach node {alone[1]}). "
            "Add edges between them."
        )
    if matrix.shape[0] > 1 and not matrix.diagonal().any():
        distance = sp.csgraph.breadth_first_order(matrix, 0, directed=False)
        side = np.zeros(matrix.shape[0], dtype=int)
        for node in distance[0][1:]:
            side[node] = 1 - side[distance[1][node]]
        entries = matrix.tocoo()
        if (side[entries.row] != side[entries.col]).all():
            raise InputError(
                "rho = 1: no node keeps weight for itself and the graph has two sides, so their values swap forever. "
                "Use (I + W) / 2 instead of W."
            )


def check_weights(rule: Rule, topology: "Topology | Changing", rounds: int) -> None:
    """What a rule needs of W.

    W^rounds has no negative eigenvalue for even rounds; large graphs know theirs to three digits only.
    """
    if rule.smallest_eigenvalue <= -1 or rounds % 2 == 0:
        return
    margin = 1e-9 if topology.nodes <= DENSE_EIGENVALUES else 2e-3
    if topology.smallest_eigenvalue**rounds <= rule.smallest_eigenvalue + margin:
        raise InputError(
            f"This rule needs all eigenvalues of W above {rule.smallest_eigenvalue:.4g}; the smallest of this {topology.name} "
            f"is {topology.smallest_eigenvalue:.4g}. Use weights='lazy' (--weights lazy), or leave the rule out."
        )


# ---------------------------------------------------------------- graphs


def _build(name: str, n: int, pairs: Any, weights: str | None, default: Callable = _laplacian) -> Topology:
    """W from pairs of nodes; a pair listed twice counts twice (the ring of two nodes)."""
    rule = default if weights is None else choose("weights", weights, {**WEIGHTS, "lazy": _lazy(default)})
    if n == 1:
        return from_matrix(np.ones((1, 1)), name)
    i, j = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    ones = np.ones(2 * len(i))
    adjacency = sp.csr_array((ones, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(n, n))
    return from_matrix(rule(adjacency), name)


MOST_LINKS = 200_000_000  # what fits into memory


def _at_least_one(n: int, links: float = 1.0) -> None:
    """A whole number of nodes, and not too many `links` per node."""
    if not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"A network needs at least one node, a whole number of them, not {n}.")
    if n * links > MOST_LINKS:
        raise InputError(f"{n:,} nodes have too many links here for the memory: use fewer nodes or a sparser graph.")


def ring(n: int, weights: str | None = None) -> Topology:
    """Everyone talks to the one before and the one after; 1/3 for each of the three."""
    _at_least_one(n)
    nodes = np.arange(n)
    return _build("ring", n, np.stack([nodes, (nodes + 1) % n], axis=1), weights, default=_third)


def path(n: int, weights: str | None = None) -> Topology:
    """A line: the slowest graph there is."""
    _at_least_one(n)
    nodes = np.arange(n - 1)
    return _build("path", n, np.stack([nodes, nodes + 1], axis=1), weights)


def star(n: int, weights: str | None = None) -> Topology:
    """Node 0 in the middle talks to all others."""
    _at_least_one(n)
    return _build("star", n, [(0, j) for j in range(1, n)], weights)


def complete(n: int, weights: str | None = None) -> Topology:
    """Everyone talks to everyone: one exchange is an exact average."""
    _at_least_one(n, links=n)
    return _build("complete", n, np.stack(np.triu_indices(n, k=1), axis=1), weights)


def grid(n: int, weights: str | None = None) -> Topology:
    """The squarest rows x columns grid of n nodes (a path when n is prime)."""
    return _build("grid", n, _product(*squarest(n), wrap=False), weights)


def torus(n: int, weights: str | None = None) -> Topology:
    """The squarest grid of n nodes with its ends joined."""
    return _build("torus", n, _product(*squarest(n), wrap=True), weights)


def ladder(n: int, weights: str | None = None) -> Topology:
    """Two paths side by side, joined by rungs."""
    _at_least_one(n)
    if n % 2 and n > 1:
        raise InputError(f"A ladder has two equal sides: its number of nodes must be even, not {n}.")
    return _build("ladder", n, _product(2, n // 2, wrap=False), weights)


def hypercube(n: int, weights: str | None = None) -> Topology:
    """Nodes whose binary numbers differ in one digit talk to each other."""
    _at_least_one(n)
    if n & (n - 1):
        raise InputError(f"A hypercube needs a power of two nodes, not {n}. Try {1 << n.bit_length() - 1}.")
    nodes = np.arange(n)
    pairs = [np.stack([nodes, nodes ^ (1 << k)], axis=1) for k in range(n.bit_length() - 1)]
    return _build("hypercube", n, _upward(pairs), weights)


def exponential(n: int, weights: str | None = None) -> Topology:
    """Node i talks to i +- 1, 2, 4, 8, ...: few links, and news still spreads in log2(n) steps."""
    _at_least_one(n)
    nodes = np.arange(n)
    hops = [1 << k for k in range(max(1, (n - 1).bit_length()))]
    pairs = np.concatenate([np.stack([nodes, (nodes + hop) % n], axis=1) for hop in hops])
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    return _build("exponential", n, pairs[pairs[:, 0] != pairs[:, 1]], weights)


def random(n: int, p: float = 0.8, seed: int = 0, weights: str | None = None) -> Topology:
    """Every pair is joined with probability p; drawn again until the graph is connected."""
    if not 0 < p <= 1:
        raise InputError(f"The probability of an edge must lie in (0, 1], not {p}.")
    _at_least_one(n, links=p * n)
    seed = whole("A seed", seed, low=0)
    for attempt in range(100):
        graph = nx.fast_gnp_random_graph(n, p, seed=np.random.default_rng([seed, attempt]))
        if nx.is_connected(graph):
            return _build("random", n, list(graph.edges), weights)
    raise InputError(f"No connected graph in 100 draws with n = {n}, p = {p}. Raise p above log(n)/n.")


def one_peer(n: int, weights: str | None = None) -> Changing | Topology:
    """One-peer exponential graph: at step t, node i averages with the node whose number differs in digit t mod log2(n).

    One message per node and step, and after log2(n) steps everyone has heard from everyone exactly.
    """
    _at_least_one(n)
    if n & (n - 1):
        raise InputError(f"The one-peer exponential graph needs a power of two nodes, not {n}.")
    if weights:
        raise InputError("The one-peer exponential graph has weights of its own, one half each: leave weights out.")
    if n == 1:
        return ring(1)
    nodes, half = np.arange(n), np.full(n, 0.5)
    swaps = [sp.csr_array((half, (nodes, nodes ^ (1 << k))), shape=(n, n)) for k in range(n.bit_length() - 1)]
    return changing([sp.eye_array(n) / 2 + swap for swap in swaps], "one_peer")


PAPER_EDGES = (
    "1-2 2-3 3-6 4-6 4-5 5-7 7-8 1-8 1-3 3-7 4-7 4-8 2-8 2-5 5-6 1-6 1-4 2-4 2-6 6-7 1-7 1-5 5-8 3-8"  # as drawn
)


def paper_random(n: int = 8, weights: str | None = None) -> Topology:
    """The random graph drawn in the paper: 8 nodes, rho = 0.375."""
    if n != 8:
        raise InputError(f"The paper's random graph has 8 nodes, not {n}. Use 'random' for other sizes.")
    pairs = [[int(node) - 1 for node in edge.split("-")] for edge in PAPER_EDGES.split()]
    return _build("paper_random", 8, pairs, weights)


def from_networkx(graph: nx.Graph, weights: str | None = None) -> Topology:
    """A topology from an undirected networkx graph; node i is the i-th of `graph.nodes`, self-loops are ignored."""
    if graph.is_directed():
        raise InputError("The graph must be undirected: use graph.to_undirected().")
    n = graph.number_of_nodes()
    _at_least_one(n)
    number = {node: i for i, node in enumerate(graph.nodes)}
    pairs = {tuple(sorted((number[a], number[b]))) for a, b in graph.edges() if a != b}
    return _build("networkx", n, sorted(pairs), weights)


def without(topology: Topology | Changing, lost: Sequence[int]) -> Topology:
    """What is left of a graph without some of its nodes, joined with the fewest new edges if it fell apart."""
    graph = nx.Graph(topology.graph)
    graph.remove_nodes_from(lost)
    if not graph:
        raise InputError("No node is left.")
    parts = [min(part, key=graph.degree) for part in map(sorted, nx.connected_components(graph))]
    graph.add_edges_from(pairwise(parts))
    return from_networkx(nx.convert_node_labels_to_integers(graph, ordering="sorted"))


def squarest(n: int) -> tuple[int, int]:
    """Rows and columns of the squarest grid of n nodes."""
    _at_least_one(n)
    rows = next(r for r in range(int(n**0.5), 0, -1) if n % r == 0)
    return rows, n // rows


def _product(rows: int, columns: int, wrap: bool) -> np.ndarray:
    number = np.arange(rows * columns).reshape(rows, columns)
    pairs = [
        np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1),
        np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1),
    ]
    if wrap and columns > 2:
        pairs.append(np.stack([number[:, 0], number[:, -1]], axis=1))
    if wrap and rows > 2:
        pairs.append(np.stack([number[0], number[-1]], axis=1))
    return np.concatenate(pairs)


def _upward(pairs: list[np.ndarray]) -> np.ndarray:
    both = np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64)
    return both[both[:, 0] < both[:, 1]]


TOPOLOGIES: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (ring, ladder, complete, random, star, path, grid, torus, hypercube, exponential, one_peer, paper_random)
}


def make(name: str, nodes: int, weights: str | None = None) -> Any:
    """The topology of that name."""
    return choose("topology", name, TOPOLOGIES)(nodes, weights=weights)
