"""Graphs, also from networkx, and what remains of a graph when nodes are lost.

Weights default to `I - L / lambda_max(L)` (L the graph Laplacian), the ring's to 1/3 for a node itself and both neighbours;
these reproduce the paper's rho for its four graphs of 8 nodes. On directed graphs a node divides its weight equally among
itself and the nodes it sends to.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import log2
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp

from dnasa.core import InputError, choose, whole
from dnasa.topology.matrices import from_matrix
from dnasa.topology.types import Topology, check_links, check_node, node_count
from dnasa.topology.weights import WEIGHTS, Weights, equal_shares, laplacian, lazy, third


def _build(
    name: str, adjacency: Any, weights: str | None, default: Weights = laplacian, parameters: str = ""
) -> Topology:
    """`adjacency[i, j]` is the number of edges over which i receives from j; a directed graph has `equal_shares`."""
    if default is equal_shares and weights is not None:
        raise InputError(
            "A directed graph has weights of its own, equal shares: leave weights out, or use from_matrix."
        )
    rule: Weights = default if weights is None else choose("weights", weights, {**WEIGHTS, "lazy": lazy(default)})
    return replace(from_matrix(rule(sp.csr_array(adjacency, dtype=np.float64)), name), parameters=parameters)


def _power_of_two(n: Any, graph: str) -> int:
    n = node_count(n)
    if n & (n - 1):
        raise InputError(f"{graph} needs a power of two nodes, not {n}. Try {1 << n.bit_length() - 1}.")
    check_links(n, log2(n))
    return n


def _hops(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [1 << k for k in range((n - 1).bit_length())]


def _edges(n: int, senders: np.ndarray, receivers: np.ndarray) -> sp.csr_array:
    return sp.csr_array((np.ones(len(senders)), (receivers, senders)), shape=(n, n))


def _shifts(n: int, hops: Sequence[int]) -> sp.csr_array:
    """Node i sends to i + hop mod n, for each of the hops."""
    nodes = np.tile(np.arange(n), len(hops))
    return _edges(n, nodes, (nodes + np.repeat(hops, n)) % n) if hops else sp.csr_array((n, n))


def _line(n: int) -> sp.csr_array:
    """A path."""
    return sp.diags_array([np.ones(n - 1)] * 2, offsets=[-1, 1], shape=(n, n))


def _circle(n: int, hops: Sequence[int]) -> sp.csr_array:
    """Node i is joined to i +- hop mod n, by one edge each."""
    shifts = _shifts(n, hops)
    return (shifts + shifts.T).astype(bool).astype(np.float64)


def ring(n: int, weights: str | None = None) -> Topology:
    """Each node is joined to the one before and the one after.

    Args:
        n: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default 1/3 for a node itself and each neighbour.
    """
    n = node_count(n)
    shifts = _shifts(n, [1])
    return _build("ring", shifts + shifts.T, weights, default=third)  # two edges join two nodes


def path(n: int, weights: str | None = None) -> Topology:
    """A ring with one edge removed; it mixes slowly.

    Args:
        n: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = node_count(n)
    return _build("path", _line(n), weights)


def star(n: int, weights: str | None = None) -> Topology:
    """Node 0 is joined to all others.

    Args:
        n: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = node_count(n)
    others = np.arange(1, n)
    spokes = _edges(n, 0 * others, others)
    return _build("star", spokes + spokes.T, weights)


def complete(n: int, weights: str | None = None) -> Topology:
    """All pairs of nodes are joined: one exchange is an exact average.

    Args:
        n: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = node_count(n)
    check_links(n, n)
    return _build("complete", np.ones((n, n)) - np.eye(n), weights)


def grid(n: int, weights: str | None = None) -> Topology:
    """The squarest rows x columns grid of n nodes.

    Args:
        n: The number of nodes, not a prime above 2.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    return _lattice("grid", n, "path", weights, _line)


def torus(n: int, weights: str | None = None) -> Topology:
    """The squarest grid of n nodes with its opposite sides joined.

    Args:
        n: The number of nodes, not a prime above 2.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    return _lattice("torus", n, "ring", weights, lambda n: _circle(n, _hops(n)[:1]))


def _lattice(name: str, n: int, line: str, weights: str | None, adjacency: Callable[[int], sp.csr_array]) -> Topology:
    """The product of two graphs, paths or rings, of as many nodes as the grid has rows and columns."""
    rows, columns = squarest(n)
    if rows == 1 and n > 2:
        sizes = f"{n - 1} or {n + 1}" if n > 3 else "4"
        raise InputError(
            f"{n} is prime, so a {name} of {n} nodes would be a {line}: take {sizes} nodes, or the {line}."
        )
    joined = sp.kronsum(adjacency(columns), adjacency(rows))
    return _build(name, joined, weights, parameters=f"{rows} x {columns}")


def ladder(n: int, weights: str | None = None) -> Topology:
    """Two parallel paths, joined node by node.

    Args:
        n: The number of nodes, 1 or even.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = node_count(n)
    if n % 2 and n > 1:
        raise InputError(f"A ladder has two equal sides: its number of nodes must be even, not {n}. Try {n + 1}.")
    return _build("ladder", sp.kronsum(_line(max(n // 2, 1)), _line(min(n, 2))), weights)


def hypercube(n: int, weights: str | None = None) -> Topology:
    """Nodes whose binary numbers differ in one digit are joined.

    Args:
        n: The number of nodes, a power of two.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = _power_of_two(n, "A hypercube")
    return _build("hypercube", reduce(sp.kronsum, [_line(2)] * len(_hops(n)), sp.csr_array((1, 1))), weights)


def exponential(n: int, weights: str | None = None) -> Topology:
    """Node i is joined to i +- 1, 2, 4, 8, ...: few edges, and information reaches all nodes in log2(n) steps.

    Args:
        n: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n = node_count(n)
    check_links(n, 2 * log2(n))
    return _build("exponential", _circle(n, _hops(n)), weights)


def random(n: int, p: float = 0.8, seed: int = 0, weights: str | None = None) -> Topology:
    """Every pair is joined with probability p; drawn again until the graph is connected.

    Args:
        n: The number of nodes.
        p: The probability of an edge, above 0 and at most 1.
        seed: Another seed gives another graph.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".

    Returns:
        The topology.

    Raises:
        InputError: If none of 100 draws is connected.
    """
    n, p, seed = node_count(n), _probability(p), whole("A seed", seed, low=0)
    check_links(n, p * n)
    for attempt in range(100):
        graph = nx.fast_gnp_random_graph(n, p, seed=np.random.default_rng([seed, attempt]))
        if nx.is_connected(graph):
            return _build("random", nx.to_scipy_sparse_array(graph), weights, parameters=f"p = {p:g}, seed {seed}")
    raise InputError(f"No connected graph in 100 draws with n = {n}, p = {p}. Raise p above log(n)/n.")


def _probability(p: Any) -> float:
    try:
        value = float(p)
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f"The probability of an edge must be a number above 0 and at most 1, not {p!r}.")
    return value


PAPER_EDGES = (
    "1-2 2-3 3-6 4-6 4-5 5-7 7-8 1-8 1-3 3-7 4-7 4-8 2-8 2-5 5-6 1-6 1-4 2-4 2-6 6-7 1-7 1-5 5-8 3-8"  # as drawn
)


def paper_random(n: int = 8, weights: str | None = None) -> Topology:
    """The random graph drawn in the paper: 8 nodes, rho = 0.375.

    Args:
        n: The number of nodes, which must be 8.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    if node_count(n) != 8:
        raise InputError(f"The paper's random graph has 8 nodes, not {n}. Use 'random' for other sizes.")
    graph = nx.Graph(edge.split("-") for edge in PAPER_EDGES.split())
    return _build("paper_random", nx.to_scipy_sparse_array(graph, sorted(graph)), weights)


def directed_ring(n: int, weights: str | None = None) -> Topology:
    """Node i sends to i + 1, with half of its weight. Needs a rule for directed graphs, such as `push_sum(rule)`.

    Args:
        n: The number of nodes.
        weights: Must be None: the weights are equal shares.
    """
    n = node_count(n)
    return _build("directed_ring", _shifts(n, _hops(n)[:1]), weights, equal_shares)


def directed_exponential(n: int, weights: str | None = None) -> Topology:
    """Node i sends to i + 1, 2, 4, 8, ..., with equal shares of its weight. Needs a rule for directed graphs.

    Args:
        n: The number of nodes.
        weights: Must be None: the weights are equal shares.
    """
    n = node_count(n)
    check_links(n, log2(n))
    return _build("directed_exponential", _shifts(n, _hops(n)), weights, equal_shares)


def from_networkx(graph: nx.Graph, weights: str | None = None, name: str | None = None) -> Topology:
    """A topology from a networkx graph; node i is the node labelled i, or, with other labels, the i-th of `graph.nodes`.

    Edges of a DiGraph lead from the sender to the receiver. Self-loops and edge attributes are ignored.

    Args:
        graph: A connected Graph, or a strongly connected DiGraph.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian". None for a DiGraph, whose weights are equal shares.
        name: For titles; by default that of the networkx graph, or "networkx" if it has none.

    Returns:
        The topology, with its mixing matrix as `.weights` and its `.rho`.

    Example:
        >>> round(from_networkx(nx.petersen_graph(), weights="metropolis").rho, 3)
        0.5
    """
    if not isinstance(graph, nx.Graph):
        raise InputError(f"from_networkx needs a networkx Graph or DiGraph, not a {type(graph).__name__}.")
    n = node_count(graph.number_of_nodes())
    labels = range(n) if set(graph.nodes) == set(range(n)) else graph.nodes
    edges = nx.to_scipy_sparse_array(graph, labels, weight=None, dtype=np.float64)
    adjacency = (edges - sp.diags_array(edges.diagonal())).astype(bool).astype(np.float64)
    default = equal_shares if graph.is_directed() else laplacian
    return _build(name or str(graph.name) or "networkx", adjacency.T, weights, default)


def without(topology: Topology, lost: Sequence[int]) -> Topology:
    """The graph of the remaining nodes, with new edges that make it (strongly) connected, and default weights.

    The remaining nodes are numbered again from 0, in the same order. A graph that averages exactly is made again for them.

    Args:
        topology: The graph before the loss.
        lost: The nodes to remove.
    """
    for node in lost:
        check_node(node, topology.nodes)
    if topology.remake is not None and len(set(lost)) < topology.nodes:
        return topology.remake(topology.nodes - len(set(lost)))
    graph = topology.graph.copy()
    graph.remove_nodes_from(lost)
    if not graph:
        raise InputError("No node is left.")
    graph.add_edges_from(_missing_directed(graph) if topology.directed else _missing(graph))
    return from_networkx(nx.convert_node_labels_to_integers(graph, ordering="sorted"), name=topology.name)


def _missing(graph: nx.Graph) -> list[tuple[int, int]]:
    """The fewest edges that make the graph connected, between nodes with few edges."""
    return list(pairwise(_lowest_degree(graph, part) for part in nx.connected_components(graph)))


def _missing_directed(graph: nx.DiGraph) -> list[tuple[int, int]]:
    """A cycle through all strongly connected parts, which makes the graph strongly connected."""
    parts = reversed(list(nx.strongly_connected_components(graph)))  # senders first: some edges are there already
    nodes = [_lowest_degree(graph, part) for part in parts]
    return list(zip(nodes, [*nodes[1:], nodes[0]], strict=True)) if len(nodes) > 1 else []


def _lowest_degree(graph: nx.Graph, nodes: set[int]) -> int:
    return min(sorted(nodes), key=graph.degree)


def squarest(n: int) -> tuple[int, int]:
    """Rows and columns of the squarest grid of n nodes.

    Args:
        n: The number of nodes.
    """
    n = node_count(n)
    rows = next(r for r in range(int(n**0.5), 0, -1) if n % r == 0)
    return rows, n // rows
