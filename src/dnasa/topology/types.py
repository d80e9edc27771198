"""A graph with its mixing matrix W, fixed or changing with time.

An exchange computes W @ x: W[i, j] is the weight with which node i receives from node j.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Self

import networkx as nx
import numpy as np
import scipy.sparse as sp

from dnasa.arrays import crc32
from dnasa.checks import whole
from dnasa.core import InputError
from dnasa.topology import spectrum

TOLERANCE = 1e-8
MOST_NODES, MOST_LINKS = 20_000_000, 200_000_000  # what fits into memory
DENSE_NODES = 200  # up to here, or above a density of 10 %, W is stored as a dense matrix: it multiplies faster


@dataclass(frozen=True, eq=False)
class Topology:
    """A connected graph and its mixing matrix W.

    Attributes:
        name: For titles, such as "ring".
        weights: W, a NumPy array or a SciPy CSR matrix: symmetric and doubly stochastic, or, on a directed graph,
            column-stochastic.
        parameters: What defines the graph besides its name and its number of nodes, for titles, such as "p = 0.8, seed 0".
        remake: Makes the graph of fewer nodes when some are lost; None: the remaining edges stay.
        rounds: Mixing rounds per exchange where no other number is given.
        weighting: How W follows from the graph, in words; empty where that is not known.
        nodes: The number of nodes.
        sparse: W as a SciPy CSR matrix.
    """

    name: str
    weights: Any
    parameters: str = ""
    remake: "Callable[[int], Topology] | None" = None
    rounds: int = 1
    weighting: str = ""

    def __repr__(self) -> str:
        name = f"{self.name} ({self.parameters})" if self.parameters else self.name
        kind = "directed, " if self.directed else ""
        size = "1 node" if self.nodes == 1 else f"{self.nodes:,} nodes"
        return f"{name}: {size}, {kind}degree {extent(self.degrees)}, {self.mixing}"

    @property
    def nodes(self) -> int:
        return self.weights.shape[0]

    @cached_property
    def sparse(self) -> sp.csr_array:
        return sp.csr_array(self.weights)

    @cached_property
    def directed(self) -> bool:
        """Whether W is not symmetric, so that only rules for directed graphs can use it."""
        return not is_symmetric(self.sparse)

    @cached_property
    def graph(self) -> nx.Graph:
        """The graph without self-loops; every edge has its `weight`.

        For a directed topology a DiGraph whose edges lead from the sender to the receiver.
        """
        entries = (self.sparse if self.directed else sp.tril(self.sparse)).tocoo()
        edges = zip(entries.col.tolist(), entries.row.tolist(), entries.data.tolist(), strict=True)
        graph = nx.empty_graph(self.nodes, create_using=nx.DiGraph if self.directed else nx.Graph)
        graph.add_weighted_edges_from(edge for edge in edges if edge[0] != edge[1])
        return graph

    def neighbours(self, node: int) -> list[int]:
        """The nodes that `node` receives from; on an undirected graph these are also the ones it sends to.

        Args:
            node: A node, numbered from 0.
        """
        if whole("A node", node, low=0) >= self.nodes:
            raise InputError(f"There is no node {node}: nodes are numbered from 0 to {self.nodes - 1}.")
        row = self.sparse.indices[self.sparse.indptr[node] : self.sparse.indptr[node + 1]]
        return sorted(int(j) for j in row if j != node)

    @cached_property
    def degrees(self) -> np.ndarray:
        """The number of neighbors of each node."""
        return np.diff(self.sparse.indptr) - (self.sparse.diagonal() != 0)

    @cached_property
    def messages(self) -> int:
        """Messages between neighbors in one exchange, of all nodes together, on average over a period.

        A run on a complete graph sends 2 (n - 1) instead: those of an all-reduce.
        """
        return round(self.degrees.sum())

    @cached_property
    def rho(self) -> float:
        """The second largest modulus of W's eigenvalues: from 0 (one exchange averages exactly) to 1 (nothing spreads)."""
        return spectrum.second_modulus(self.sparse) if self.directed else max(map(abs, self._extremes))

    @property
    def sequence(self) -> str:
        """What a changing graph is, in words for captions; empty for one that stays the same."""
        if self.period == 1:
            return ""
        return f"{self.period} graphs in turn" + (" whose product is the exact average" if self.rho == 0 else "")

    @property
    def mixing(self) -> str:
        """How fast values come together, in words: rho, of a changing graph that of a period."""
        if self.period == 1:
            return f"rho = {self.rho:.4g}"
        return (
            f"rho = {self.rho:.4g} on average over {self.period} rounds" if self.rho else f"rho = 0 after {self.period} rounds"
        )

    @property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue of a symmetric W; NaN on a directed graph, whose eigenvalues are complex."""
        return float("nan") if self.directed else self._extremes[0]

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        return spectrum.extremes(self.sparse)

    @cached_property
    def averages(self) -> bool:
        """Whether every exchange gives all nodes the average of all: W = 11'/n in every step."""
        return self.period == 1 and bool(self.sparse.nnz == self.nodes**2 and np.ptp(self.sparse.data) < 1e-12)

    @property
    def each(self) -> tuple["Topology", ...]:
        """The graphs of a period, in order: of a graph that does not change, the graph itself."""
        return (self,)

    @property
    def period(self) -> int:
        """The number of steps after which the graphs repeat."""
        return len(self.each)

    def at(self, t: int) -> "Topology":
        """The graph of step t.

        Args:
            t: The step, from 0.
        """
        return self.each[t % self.period]

    @cached_property
    def fingerprint(self) -> str:
        """The same text for the same name and the same matrices in the same order, such as "ring 8 nodes 1a2b3c4d"."""
        return f"{self.name} {self.nodes} nodes {checksum(self.each)}"


@dataclass(frozen=True, eq=False, repr=False)
class Changing(Topology):
    """An undirected topology that changes with time. Its graphs need not be connected one by one, only all together.

    As a topology it is the average over a period: its graph has all edges of the period.

    Attributes:
        each: The graphs of a period, in order.
    """

    each: tuple[Topology, ...] = ()

    @classmethod
    def of(cls, name: str, each: Sequence[Topology]) -> Self:
        average = sum(graph.sparse for graph in each) / len(each)
        return cls(name, compact(sp.csr_array(average)), each=tuple(each))

    def __repr__(self) -> str:
        most = max(graph.degrees.max() for graph in self.each)
        kind = f"{self.period} graphs in turn, degree at most {most}"
        return f"{self.name}: {self.nodes:,} nodes, {kind}, {self.mixing}"

    @cached_property
    def rho(self) -> float:
        """The norm of the product of a period, less 11'/n, to the power 1/period; 0 if it is an exact average."""
        norm = spectrum.product_norm([graph.sparse for graph in self.each])
        return norm ** (1 / self.period) if norm > TOLERANCE else 0.0

    @property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue of all matrices of a period."""
        return min(graph.smallest_eigenvalue for graph in self.each)

    @cached_property
    def degrees(self) -> np.ndarray:
        """The number of neighbors of each node, on average over a period."""
        return np.sum([graph.degrees for graph in self.each], axis=0) / self.period


def is_symmetric(matrix: sp.csr_array) -> bool:
    return bool(abs(matrix - matrix.T).max() <= TOLERANCE)


def compact(matrix: sp.csr_array) -> Any:
    n = matrix.shape[0]
    return matrix if n > DENSE_NODES and matrix.nnz < 0.1 * n * n else matrix.toarray()


def extent(numbers: np.ndarray) -> str:
    low, high = count(numbers.min()), count(numbers.max())
    return high if low == high else f"{low} to {high}"


def count(number: float) -> str:
    """A number of edges or nodes; an average of such numbers has up to two decimals."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def node_count(n: Any) -> int:
    try:
        return whole("n", n, high=MOST_NODES)
    except InputError:
        raise InputError(
            f"A network needs at least one node, a whole number of them up to {MOST_NODES:,}, not {n!r}."
        ) from None


def check_links(count: float) -> None:
    if count > MOST_LINKS:
        raise InputError(f"{count:,.0f} are too many links for the memory: use fewer nodes or a sparser graph.")


def checksum(graphs: Sequence[Topology]) -> str:
    """The checksum of the matrices in order, with 64-bit indices: SciPy stores 32 or 64."""
    parts = [(W.indptr.astype(np.int64), W.indices.astype(np.int64), W.data) for W in (graph.sparse for graph in graphs)]
    return f"{crc32(*chain.from_iterable(parts)):08x}"
