"""Graphs by name, also from networkx and of users, and what remains of a graph when nodes are lost.

A named graph is a function of the number of nodes `n` and of `weights`: a name in `WEIGHTS`, or "lazy". Without one, weights
are `I - L / lambda_max(L)` (L the graph Laplacian), and the ring's 1/3 for a node itself and both neighbors (1/2 if there is
one); these reproduce the paper's rho for its four graphs of 8 nodes. On directed graphs a node divides its weight equally
among itself and the nodes it sends to, and `weights` must be None.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce, wraps
from itertools import pairwise
from typing import Any, Protocol

import networkx as nx
import numpy as np
import scipy.sparse as sp

from dnasa.checks import choose, whole
from dnasa.communication import Channel
from dnasa.core import InputError, Rule
from dnasa.topology.matrices import check_weights, from_matrix
from dnasa.topology.pairings import exact
from dnasa.topology.types import Topology, check_links, node_count
from dnasa.topology.weights import WEIGHTS, Weights, equal_shares, laplacian, lazy, third

TOPOLOGIES: dict[str, Callable[..., Any]] = {}
"""Graphs by name: functions of the number of nodes and of `weights`. Add your own here."""
IN_WORDS: dict[Weights, str] = {third: "1/3", equal_shares: "equal shares"}  # weights that are no option
ARGUMENTS = 'Args:\n    n: The number of nodes.\n    weights: A name in `WEIGHTS`, or "lazy"; by default those of the graph.'


class Named(Protocol):
    """A graph that has a name."""

    def __call__(self, n: int, weights: str | None = None) -> Topology: ...


def named(
    default: Weights = laplacian, parameters: Callable[[int], str] = lambda n: ""
) -> Callable[[Callable[[int], Any]], Named]:
    """Decorate a function of n that returns the adjacency matrix: its name then makes the graph.

    `adjacency[i, j]` is the number of edges over which i receives from j. `parameters` are for titles.
    """

    def add(adjacency: Callable[[int], Any]) -> Named:
        @wraps(adjacency)
        def make(n: int, weights: str | None = None) -> Topology:
            n = node_count(n)
            return _build(adjacency.__name__, adjacency(n), weights, default, parameters(n))

        del make.__wrapped__  # the signature is that of `make`
        make.__annotations__ = Named.__call__.__annotations__
        make.__doc__ = f"{adjacency.__doc__}\n\n{ARGUMENTS}"
        TOPOLOGIES[adjacency.__name__] = make
        return make

    return add


def _build(name: str, adjacency: Any, weights: str | None, default: Weights = laplacian, parameters: str = "") -> Topology:
    if default is equal_shares and weights is not None:
        raise InputError("A directed graph has weights of its own, equal shares: leave weights out.")
    rule: Weights = default if weights is None else choose("weights", weights, {**WEIGHTS, "lazy": lazy(default)})
    graph = from_matrix(rule(sp.csr_array(adjacency, dtype=np.float64)), name)
    return replace(graph, parameters=parameters, weighting=weights or IN_WORDS.get(default, "laplacian"))


def _powers_of_two(n: int) -> list[int]:
    """Those below n: none for a single node."""
    return [1 << k for k in range((n - 1).bit_length())]


def _edges(n: int, senders: np.ndarray, receivers: np.ndarray) -> sp.csr_array:
    return sp.csr_array((np.ones(len(senders)), (receivers, senders)), shape=(n, n))


def _shifts(n: int, hops: Sequence[int]) -> sp.csr_array:
    """Node i sends to i + hop mod n, for each of the hops."""
    nodes = np.tile(np.arange(n), len(hops))
    return _edges(n, nodes, (nodes + np.repeat(hops, n)) % n) if hops else sp.csr_array((n, n))


def _line(n: int) -> sp.csr_array:
    return sp.diags_array([np.ones(n - 1)] * 2, offsets=[-1, 1], shape=(n, n))


def _circle(n: int, hops: Sequence[int]) -> sp.csr_array:
    """Node i is joined to i +- hop mod n, by one edge each."""
    shifts = _shifts(n, hops)
    return (shifts + shifts.T).astype(bool).astype(np.float64)


@named(default=third)
def ring(n: int) -> sp.csr_array:
    """Each node is joined to the one before and the one after."""
    return _circle(n, _powers_of_two(n)[:1])


@named()
def ladder(n: int) -> sp.csr_array:
    """Two parallel paths, joined node by node; n is 1 or even."""
    if n % 2 and n > 1:
        raise InputError(f"A ladder has two equal sides: its number of nodes must be even, not {n}. Try {n + 1}.")
    return sp.kronsum(_line(max(n // 2, 1)), _line(min(n, 2)))


@named()
def complete(n: int) -> np.ndarray:
    """All pairs of nodes are joined: one exchange is an exact average."""
    check_links(n * n)
    return np.ones((n, n)) - np.eye(n)


def random(n: int, p: float = 0.8, seed: int = 0, weights: str | None = None) -> Topology:
    """Every pair is joined with probability p, 0.8 by default; drawn again until the graph is connected.

    Args:
        n: The number of nodes.
        p: The probability of an edge, above 0 and at most 1.
        seed: Another seed gives another graph.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    n, seed = node_count(n), whole("A seed", seed, low=0)
    if not isinstance(p, int | float) or not 0 < p <= 1:
        raise InputError(f"The probability of an edge must be a number above 0 and at most 1, not {p!r}.")
    check_links(p * n * n)
    for attempt in range(100):
        graph = nx.fast_gnp_random_graph(n, p, seed=np.random.default_rng([seed, attempt]))
        if nx.is_connected(graph):
            return _build("random", nx.to_scipy_sparse_array(graph), weights, parameters=f"p = {p:g}, seed {seed}")
    raise InputError(f"No connected graph in 100 draws with n = {n}, p = {p}. Raise p above log(n)/n.")


@named()
def star(n: int) -> sp.csr_array:
    """Node 0 is joined to all others."""
    others = np.arange(1, n)
    spokes = _edges(n, 0 * others, others)
    return spokes + spokes.T


@named()
def path(n: int) -> sp.csr_array:
    """A ring with one edge removed; it mixes slowly."""
    return _line(n)


def squarest(n: int) -> tuple[int, int]:
    """Rows and columns of the squarest grid of n nodes."""
    rows = next(r for r in range(int(n**0.5), 0, -1) if n % r == 0)
    return rows, n // rows


def _lattice(n: int, name: str, line: Callable[[int], sp.csr_array]) -> sp.csr_array:
    """The product of two paths or rings, of as many nodes as the grid has rows and columns."""
    rows, columns = squarest(n)
    if rows == 1 and n > 2:
        raise InputError(f"{n} is prime, and a {name} has rows and columns: take {n + 1} nodes, or a ring.")
    return sp.kronsum(line(columns), line(rows))


@named(parameters=lambda n: "{} x {}".format(*squarest(n)))
def grid(n: int) -> sp.csr_array:
    """The squarest rows x columns grid of n nodes; n is not a prime above 2."""
    return _lattice(n, "grid", _line)


@named(parameters=lambda n: "{} x {}".format(*squarest(n)))
def torus(n: int) -> sp.csr_array:
    """The squarest grid of n nodes with its opposite sides joined; n is not a prime above 2."""
    return _lattice(n, "torus", lambda n: _circle(n, _powers_of_two(n)[:1]))


@named()
def hypercube(n: int) -> sp.csr_array:
    """Nodes whose binary numbers differ in one digit are joined; n is a power of two."""
    if n & (n - 1):
        raise InputError(f"A hypercube needs a power of two nodes, not {n}. Try {1 << n.bit_length() - 1}.")
    return reduce(sp.kronsum, [_line(2)] * len(_powers_of_two(n)), sp.csr_array((1, 1)))


@named()
def exponential(n: int) -> sp.csr_array:
    """Node i is joined to i +- 1, 2, 4, 8, ...: few edges, and information reaches all nodes in log2(n) steps."""
    return _circle(n, _powers_of_two(n))


PAPER_EDGES = "1-2 2-3 3-6 4-6 4-5 5-7 7-8 1-8 1-3 3-7 4-7 4-8 2-8 2-5 5-6 1-6 1-4 2-4 2-6 6-7 1-7 1-5 5-8 3-8"  # as drawn


def paper_random(n: int = 8, weights: str | None = None) -> Topology:
    """The random graph drawn in the paper: 8 nodes, rho = 0.375.

    Args:
        n: The number of nodes, which must be 8.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian".
    """
    if n != 8:
        raise InputError(f"The paper's random graph has 8 nodes, not {n}. Use 'random' for other sizes.")
    graph = nx.Graph(edge.split("-") for edge in PAPER_EDGES.split())
    return _build("paper_random", nx.to_scipy_sparse_array(graph, sorted(graph)), weights)


@named(default=equal_shares)
def directed_ring(n: int) -> sp.csr_array:
    """Node i sends to i + 1, with half of its weight. Needs a rule for directed graphs, such as `push_sum(rule)`."""
    return _shifts(n, _powers_of_two(n)[:1])


@named(default=equal_shares)
def directed_exponential(n: int) -> sp.csr_array:
    """Node i sends to i + 1, 2, 4, 8, ..., with equal shares of its weight. Needs a rule for directed graphs."""
    return _shifts(n, _powers_of_two(n))


TOPOLOGIES |= {"random": random, "exact": exact, "paper_random": paper_random}


def from_networkx(graph: nx.Graph, weights: str | None = None, name: str | None = None) -> Topology:
    """A topology from a networkx graph; node i is the node labeled i, or, with other labels, the i-th of `graph.nodes`.

    Edges of a DiGraph lead from the sender to the receiver. Self-loops and edge attributes are ignored.

    Args:
        graph: A connected Graph, or a strongly connected DiGraph.
        weights: A name in `WEIGHTS`, or "lazy"; by default "laplacian". None for a DiGraph, whose weights are equal shares.
        name: For titles; by default that of the networkx graph, or "networkx" if it has none.

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
    """
    if topology.remake is not None:
        return topology.remake(topology.nodes - len(set(lost)))
    graph = topology.graph.copy()
    graph.remove_nodes_from(lost)
    parts = nx.strongly_connected_components(graph) if topology.directed else nx.connected_components(graph)
    nodes = [min(sorted(part), key=graph.degree) for part in parts][::-1]  # senders first: some edges are there already
    graph.add_edges_from(pairwise([*nodes, *nodes[:1]]))  # a cycle through all parts
    return from_networkx(nx.convert_node_labels_to_integers(graph, ordering="sorted"), name=topology.name)


def make(name: str, nodes: int, weights: str | None = None) -> Topology:
    """The topology of that name.

    Args:
        name: A name in `TOPOLOGIES`.
        nodes: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default those of the graph.
    """
    return choose("topology", name, TOPOLOGIES)(nodes, weights=weights)


def default_name(
    nodes: int, rules: Iterable[Rule] = (), channel: Channel | None = None, weights: str | None = None
) -> tuple[str, str | None]:
    """The graph where none is named: exact, or ring where a rule or the channel needs a fixed graph, or weights are given; or
    complete where the channel averages over all nodes.

    Returns its name and weights: lazy ones for rules that need larger eigenvalues than those of the ring.
    """
    if weights:
        return "ring", weights
    users = list(rules)
    if channel is not None and channel.averages:
        return "complete", None
    fixed_graph = channel is not None and channel.fixed_graph
    if not fixed_graph and suits(exact(nodes), users):
        return "exact", None
    return "ring", None if suits(ring(nodes), users) else "lazy"


def suits(graph: Topology, rules: Iterable[Rule]) -> bool:
    """Whether all of the rules can use the graph, with one round per exchange."""
    try:
        for rule in rules:
            check_weights(rule, graph, 1)
    except InputError:
        return False
    return True
