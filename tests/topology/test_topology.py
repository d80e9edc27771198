"""Graphs have the weights and the rho that theory gives them, and a bad W is refused by name."""

import os
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dnasa import topology
from dnasa.core import Array, InputError
from dnasa.topology import spectrum

DIRECTED = ["directed_ring", "directed_exponential"]


def test_the_papers_four_graphs_have_the_papers_rho_and_the_ring_its_weights() -> None:
    assert topology.ring(8).rho == pytest.approx(0.805, abs=5e-4)
    assert topology.ladder(8).rho == pytest.approx(0.892, abs=5e-4)
    assert topology.paper_random().rho == pytest.approx(0.375, abs=5e-4)
    assert topology.complete(8).rho == pytest.approx(0, abs=1e-12)
    assert topology.paper_random().graph.number_of_edges() == 24
    W = topology.ring(5).weights
    np.testing.assert_allclose(W[0], [1 / 3, 1 / 3, 0, 0, 1 / 3])
    assert topology.ring(5).rho == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 5))
    assert topology.ring(8).smallest_eigenvalue == pytest.approx(-1 / 3)


@pytest.mark.parametrize("weights", [None, *topology.WEIGHTS])
def test_the_two_nodes_of_a_ring_have_one_edge(weights: str | None) -> None:
    np.testing.assert_allclose(topology.ring(2, weights).weights, [[0.5, 0.5], [0.5, 0.5]])
    assert topology.ring(1, weights).weights.tolist() == [[1]]


def a_size_for(name: str, n: int) -> int:
    """A number of nodes that the graph can have, not above 2n where it can choose."""
    if name == "paper_random":
        return 8
    if name in ("grid", "torus"):
        return 2 * n if n > 1 else n  # not prime
    return 1 << n.bit_length() if name == "hypercube" else 2 * n if name == "ladder" else n


@pytest.mark.parametrize("name", sorted(topology.TOPOLOGIES))
def test_the_signature_of_a_graph_is_that_of_its_call(name: str) -> None:
    found = signature(topology.TOPOLOGIES[name])
    assert found.return_annotation is topology.Topology
    assert found.parameters["weights"].annotation == str | None


@given(
    name=st.sampled_from(sorted(topology.TOPOLOGIES)),
    n=st.integers(1, 40),
    weights=st.sampled_from([None, "lazy", *topology.WEIGHTS]),
)
@settings(max_examples=100, deadline=None)
def test_every_named_graph_is_stochastic_and_connected(name: str, n: int, weights: str | None) -> None:
    graph = topology.make(name, a_size_for(name, n), None if name in (*DIRECTED, "exact") else weights)
    W = graph.sparse.toarray()
    assert W.min() >= 0 or weights in ("best_constant", "fastest")
    np.testing.assert_allclose(W.sum(0), 1)
    if graph.directed:
        assert name in DIRECTED
        assert nx.is_strongly_connected(graph.graph)
    else:
        np.testing.assert_allclose(W, W.T, atol=1e-12)
        assert nx.is_connected(graph.graph)
        assert weights != "lazy" or name == "exact" or graph.smallest_eigenvalue > -1e-9
    assert graph.rho < 1
    for i in range(graph.nodes):
        senders = graph.graph.predecessors(i) if graph.directed else graph.graph.neighbors(i)
        assert graph.neighbours(i) == sorted(senders)


@given(name=st.sampled_from(sorted(topology.TOPOLOGIES)), n=st.integers(2, 20), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_remaining_nodes_are_connected(name: str, n: int, data: st.DataObject) -> None:
    graph = topology.make(name, a_size_for(name, n))
    lost = data.draw(st.sets(st.integers(0, graph.nodes - 1), max_size=graph.nodes - 1))
    rest = topology.graphs.without(graph, sorted(lost))
    assert rest.nodes == graph.nodes - len(lost)
    assert nx.is_strongly_connected(nx.DiGraph(rest.graph))
    left = [i for i in range(graph.nodes) if i not in lost]
    for new, old in enumerate(left if rest.remake is None else []):  # an exact graph is made again
        assert {left.index(j) for j in graph.neighbours(old) if j in left} <= set(rest.neighbours(new))


def test_weights_by_name_and_spectra_are_those_of_theory() -> None:
    star = nx.star_graph(3)
    np.testing.assert_allclose(topology.from_networkx(star, "metropolis").weights[0], [1 / 4] * 4)
    laplacian = topology.from_networkx(star).weights
    np.testing.assert_allclose(laplacian, np.eye(4) - nx.laplacian_matrix(star).toarray() / 4)
    assert topology.hypercube(16).rho == pytest.approx(1 - 2 / 8)
    assert topology.star(6).rho == pytest.approx(1 - 1 / 6)
    assert topology.torus(9).graph.degree(0) == 4
    assert sorted(topology.exponential(16).neighbours(0)) == [1, 2, 4, 8, 12, 14, 15]
    assert [d for _, d in topology.grid(6).graph.degree()] == [2, 3, 2, 2, 3, 2]


def test_large_sparse_graphs_stay_sparse_and_know_their_rho() -> None:
    graph = topology.ring(20_000)
    assert sp.issparse(graph.weights)
    exact = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 20_000)
    assert 1 - graph.rho == pytest.approx(1 - exact, rel=0.05)
    expander = topology.exponential(5000)
    assert sp.issparse(expander.weights)
    assert expander.rho < 0.95


def test_iterative_eigenvalues_agree_with_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = topology.exponential(600), topology.ring(600)
    values = [(graph.rho, graph.smallest_eigenvalue) for graph in exact]
    monkeypatch.setattr(spectrum, "DENSE_EIGENVALUES", 100)
    again = topology.exponential(600), topology.ring(600)
    for graph, (rho, smallest) in zip(again, values, strict=True):
        assert graph.rho == pytest.approx(rho, abs=1e-3)
        assert graph.smallest_eigenvalue == pytest.approx(smallest, abs=3e-3)


def half(W: Array) -> Array:
    return np.array(W) / 2


@pytest.mark.parametrize(
    ("W", "words"),
    [
        (np.ones((2, 3)) / 3, "square"),
        (np.zeros((0, 0)), "at least one node"),
        (np.ones(4), "shape"),
        ([[1, 2], [3]], "real numbers"),
        (np.eye(2) * 1j, "real numbers"),
        (half([[1, 1], [0, 1]]), "symmetric.* column 0 sums to 0.5"),
        (half([[1, 0], [1, 2]]), "not strongly connected: add edges between its 2 parts"),
        (np.roll(np.eye(3), 1, axis=0), r"rho = 1.*Use \(I \+ W\) / 2"),
        ([[1.5, -0.5], [-0.5, 1.5]], "rho = 2: with these negative weights"),
        ([[1.5, 0.5], [-0.5, 0.5]], r"symmetric if entries are negative; W\[1, 0\] = -0.5"),
        ([[0.5, 0.4], [0.4, 0.6]], "column 0 sums to 0.9"),
        (np.eye(3), "not connected: add edges between its 3 parts, such as nodes 0 and 1"),
        ([[0, 1], [1, 0]], "rho = 1"),
        ([[np.nan, 1], [1, 0]], r"must be finite.*W\[0, 0\] = nan"),
        ([[0.5, 0.5], [np.inf, 0.5]], r"W\[1, 0\] = inf"),
    ],
)
def test_a_bad_matrix_is_refused_with_its_own_message(W: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        topology.from_matrix(W)
    if isinstance(W, np.ndarray) and W.ndim == 2:
        with pytest.raises(InputError, match=words):
            topology.from_matrix(sp.csr_array(W))


def test_a_matrix_is_copied_not_changed() -> None:
    W = sp.csr_array(topology.ring(300).weights)
    W.indices, W.data = W.indices[::-1].copy(), W.data[::-1].copy()  # unsorted; the ring numbered backwards
    before = W.indices.copy()
    graph = topology.from_matrix(W)
    np.testing.assert_array_equal(W.indices, before)
    W.data[:] = 0
    np.testing.assert_allclose(graph.weights.sum(axis=0), 1)


def test_a_graph_without_self_weights_is_accepted_if_it_has_an_odd_cycle() -> None:
    assert topology.from_matrix(half([[0, 1, 1], [1, 0, 1], [1, 1, 0]])).rho == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: topology.ring(0), "at least one node"),
        (lambda: topology.ladder(7), "even"),
        (lambda: topology.hypercube(6), "power of two"),
        (lambda: topology.torus(7), "7 is prime, and a torus has rows and columns: take 8 nodes, or a ring"),
        (lambda: topology.random(8, p=0), "probability"),
        (lambda: topology.TOPOLOGIES["random"](8, p="half"), "probability .* not 'half'"),
        (lambda: topology.random(8, seed=-1), "seed"),
        (lambda: topology.TOPOLOGIES["ring"](None), "whole number of them .* not None"),
        (lambda: topology.TOPOLOGIES["star"](2.5), "whole number of them .* not 2.5"),
        (lambda: topology.ring(10**30), "up to 20,000,000"),
        (lambda: topology.complete(10**5), "10,000,000,000 are too many links"),
        (lambda: topology.ring(4).neighbours(4), "no node 4: nodes are numbered from 0 to 3"),
        (lambda: topology.ring(4).neighbours(-1), "A node must be a whole number from 0 on"),
        (lambda: topology.graphs.without(topology.ring(2), [0, 1]), "at least one node"),
        (lambda: topology.random(200, p=0.001), "Raise p"),
        (lambda: topology.paper_random(9), "8 nodes"),
        (lambda: topology.make("rng", 8), "Unknown topology 'rng'. Choose from: ring, ladder"),
        (lambda: topology.ring(8, weights="wat"), "Unknown weights 'wat'. Choose from: laplacian"),
        (lambda: topology.from_networkx(nx.DiGraph([(0, 1)])), "not strongly connected: add edges between its 2 parts"),
        (lambda: topology.from_networkx(nx.DiGraph([(0, 1), (1, 0)]), "metropolis"), "equal shares: leave weights out"),
        (lambda: topology.directed_ring(8, weights="lazy"), "equal shares: leave weights out"),
        (lambda: topology.from_networkx([(0, 1)]), "needs a networkx Graph or DiGraph, not a list"),
        (lambda: topology.from_networkx(nx.Graph()), "at least one node"),
        (lambda: topology.from_networkx(nx.Graph([(0, 1), (2, 3)])), "not connected"),
    ],
)
def test_a_bad_topology_is_refused(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_rho_of_a_large_changing_topology_needs_no_dense_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = topology.changing([topology.ring(60), topology.complete(60), topology.exponential(60)][::2])
    exact = rings.rho
    monkeypatch.setattr(spectrum, "DENSE_EIGENVALUES", 10)
    assert topology.changing(rings.each).rho == pytest.approx(exact, abs=1e-3)
    assert topology.exact(64).rho == 0


def test_a_changing_topology_takes_topologies_and_matrices_that_are_connected_over_its_period() -> None:
    swap = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    assert topology.changing([swap, swap[::-1, ::-1]]).period == 2
    with pytest.raises(InputError, match="not connected"):
        topology.changing([swap, swap])
    ring, complete = topology.ring(8), topology.complete(8)
    graph = topology.changing([ring, complete.weights, sp.csr_array(ring.weights)])
    assert graph.at(0) is ring
    np.testing.assert_array_equal(graph.at(1).weights, complete.weights)
    np.testing.assert_array_equal(graph.at(5).weights, ring.weights)
    assert not graph.directed
    assert graph.neighbours(0) == list(range(1, 8))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (lambda: [], "needs a list"),
        (lambda: topology.ring(4), "needs a list of topologies or matrices"),
        (lambda: [topology.ring(3), np.eye(2)], "same number of nodes"),
        (lambda: [topology.ring(4), topology.directed_ring(4)], "Graph 1 .* must be fixed and undirected"),
        (lambda: [topology.exact(4)], "Graph 0 .* must be fixed and undirected"),
        (lambda: ["ring"], "real numbers"),
    ],
)
def test_a_bad_changing_topology_is_refused(parts: Callable[..., Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        topology.changing(parts())


def test_a_fingerprint_names_the_graph_and_all_its_weights() -> None:
    ring = topology.ring(8)
    assert ring.fingerprint.startswith("ring 8 nodes ")
    assert ring.fingerprint == topology.ring(8).fingerprint
    others = [topology.ring(9), topology.ring(8, weights="lazy"), topology.path(8), topology.directed_ring(8)]
    assert ring.fingerprint not in [other.fingerprint for other in others]
    wide = topology.Topology("ring", sp.csr_array(ring.weights))
    wide.weights.indices, wide.weights.indptr = (a.astype(np.int64) for a in (wide.weights.indices, wide.weights.indptr))
    assert wide.fingerprint == ring.fingerprint
    a, b, c = topology.ring(8), topology.complete(8), topology.path(8)
    prints = {topology.changing(each).fingerprint for each in ([a], [a, b], [b, a], [a, c], [a, b, c])}
    assert len(prints) == 5
    assert topology.changing([a, b.weights]).fingerprint in prints


def test_weights_do_not_depend_on_the_number_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    code = "from dnasa.topology import *; graphs = exponential(400), grid(300), directed_exponential(400)\n"
    code += "for graph in graphs: print(graph.fingerprint, graph.rho)"
    environment = os.environ | {"OMP_NUM_THREADS": "2" if os.environ["OMP_NUM_THREADS"] == "1" else "1"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    exec(code, {})
    assert other.stdout.count("nodes") == 3
    assert capsys.readouterr().out == other.stdout


def test_a_networkx_graph_keeps_its_name_and_its_labels_from_0_to_n() -> None:
    assert topology.from_networkx(nx.path_graph(3)).name == "networkx"
    assert topology.from_networkx(nx.path_graph(3), name="line").name == "line"
    assert topology.from_networkx(nx.karate_club_graph()).name == "Zachary's Karate Club"
    assert topology.graphs.without(topology.ring(4), [1]).name == "ring"
    assert topology.from_networkx(nx.Graph([(2, 0), (0, 1)])).neighbours(0) == [1, 2]
    assert topology.from_networkx(nx.Graph([("b", "a"), ("a", "c")])).neighbours(1) == [0, 2]


@pytest.mark.parametrize(
    ("graph", "line"),
    [
        (topology.ring(8), "ring: 8 nodes, degree 2, rho = 0.8047"),
        (topology.random(8), "random (p = 0.8, seed 0): 8 nodes, degree 4 to 7, rho = 0.5"),
        (topology.torus(12), "torus (3 x 4): 12 nodes, degree 4, rho = 0.7143"),
        (topology.directed_ring(5), "directed_ring: 5 nodes, directed, degree 1, rho = 0.809"),
        (topology.exact(8), "exact: 8 nodes, 3 graphs in turn, degree at most 1, rho = 0 after 3 rounds"),
        (topology.ring(1), "ring: 1 node, degree 0, rho = 0"),
    ],
)
def test_a_graph_is_printed_as_one_line(graph: topology.Topology | topology.Changing, line: str) -> None:
    assert str(graph) == repr(graph) == line


@pytest.mark.parametrize("name", ["ring", "path", "star", "grid", "exponential", "paper_random"])
def test_the_fastest_weights_are_those_of_xiao_and_boyd(name: str) -> None:
    """No change of the weights makes rho smaller; with one weight for all edges, none does for best_constant."""
    fastest, constant = (topology.make(name, 8, weights) for weights in ("fastest", "best_constant"))
    graph = topology.make(name, 8)
    L = np.diag(graph.degrees) - (graph.sparse.toarray() > 0) + np.eye(8) * (graph.sparse.diagonal() > 0)
    best = minimize_scalar(lambda a: _rho(np.eye(8) - a * L), bounds=(0, 1), method="bounded").fun  # convex in a
    assert constant.rho == pytest.approx(best, abs=1e-5)
    assert fastest.rho <= constant.rho
    if name == "star":
        assert fastest.rho == pytest.approx((8 - 1) / (8 + 1), abs=1e-3)
    rng, W = np.random.default_rng(0), fastest.sparse.toarray()
    for size in np.repeat([1e-3, 1e-2], 100):
        change = np.triu(rng.normal(size=(8, 8)) * (L < 0), 1)
        change += change.T
        assert _rho(W + size * (change - np.diag(change.sum(1)))) > fastest.rho - 1e-3


def _rho(W: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(W - 1 / len(W))).max())
