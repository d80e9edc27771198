"""Graphs have the weights and the rho that theory gives them, and a bad W is refused by name."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dnasa import topology
from dnasa.core import InputError


def test_the_papers_four_graphs_have_the_papers_rho():
    assert topology.ring(8).rho == pytest.approx(0.805, abs=5e-4)
    assert topology.ladder(8).rho == pytest.approx(0.892, abs=5e-4)
    assert topology.paper_random().rho == pytest.approx(0.375, abs=5e-4)
    assert topology.complete(8).rho == pytest.approx(0, abs=1e-12)
    assert topology.paper_random().graph.number_of_edges() == 24


def test_the_ring_gives_a_third_to_itself_and_both_neighbours():
    W = topology.ring(5).weights
    np.testing.assert_allclose(W[0], [1 / 3, 1 / 3, 0, 0, 1 / 3])
    assert topology.ring(5).rho == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 5))
    assert topology.ring(8).smallest_eigenvalue == pytest.approx(-1 / 3)


@pytest.mark.parametrize("weights", [None, "laplacian", "metropolis", "max_degree", "lazy"])
@pytest.mark.parametrize("name", [name for name in topology.TOPOLOGIES if name != "one_peer"])
def test_every_topology_is_a_valid_mixing_matrix(name, weights):
    graph = topology.make(name, 8, weights)
    W = graph.sparse.toarray()
    np.testing.assert_allclose(W, W.T, atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1)
    assert W.min() >= 0
    assert graph.rho < 1
    assert nx.is_connected(graph.graph)
    assert graph.messages == 2 * graph.graph.number_of_edges()
    assert graph.neighbours(3) == sorted(graph.graph.neighbors(3))
    if weights == "lazy":
        assert graph.smallest_eigenvalue > -1e-9


@pytest.mark.parametrize("name", [name for name in topology.TOPOLOGIES if name != "paper_random"])
@pytest.mark.parametrize("n", [1, 2])
def test_one_and_two_nodes_work(name, n):
    graph = topology.make(name, n)
    assert graph.nodes == n
    assert graph.rho < 1


@given(n=st.integers(1, 40), p=st.floats(0.3, 1), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_random_graphs_are_connected_and_determined_by_their_seed(n, p, seed):
    graph = topology.random(n, p=p, seed=seed)
    assert nx.is_connected(graph.graph)
    np.testing.assert_array_equal(graph.sparse.toarray(), topology.random(n, p=p, seed=seed).sparse.toarray())


def test_weights_by_name_are_what_they_say():
    star = nx.star_graph(3)
    np.testing.assert_allclose(topology.from_networkx(star, "metropolis").weights[0], [1 / 4] * 4)
    np.testing.assert_allclose(topology.from_networkx(star, "max_degree").weights[1], [1 / 4, 3 / 4, 0, 0])
    laplacian = topology.from_networkx(star).weights
    np.testing.assert_allclose(laplacian, np.eye(4) - nx.laplacian_matrix(star).toarray() / 4)


def test_known_spectra():
    assert topology.hypercube(16).rho == pytest.approx(1 - 2 / 8)
    assert topology.star(6).rho == pytest.approx(1 - 1 / 6)
    assert topology.torus(9).graph.degree(0) == 4
    assert sorted(topology.exponential(16).neighbours(0)) == [1, 2, 4, 8, 12, 14, 15]
    assert [d for _, d in topology.grid(6).graph.degree()] == [2, 3, 2, 2, 3, 2]


def test_large_sparse_graphs_stay_sparse_and_know_their_rho():
    graph = topology.ring(100_000)
    assert sp.issparse(graph.weights)
    exact = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 100_000)
    assert 1 - graph.rho == pytest.approx(1 - exact, rel=0.05)
    expander = topology.exponential(5000)
    assert sp.issparse(expander.weights)
    assert expander.rho < 0.95


def test_iterative_eigenvalues_agree_with_dense_ones(monkeypatch):
    exact = topology.exponential(600), topology.ring(600)
    values = [(graph.rho, graph.smallest_eigenvalue) for graph in exact]
    monkeypatch.setattr(topology, "DENSE_EIGENVALUES", 100)
    again = topology.exponential(600), topology.ring(600)
    for graph, (rho, smallest) in zip(again, values, strict=True):
        assert graph.rho == pytest.approx(rho, abs=1e-3)
        assert graph.smallest_eigenvalue == pytest.approx(smallest, abs=3e-3)


def half(W):
    return np.array(W) / 2


@pytest.mark.parametrize(
    ("W", "words"),
    [
        (np.ones((2, 3)) / 3, "square"),
        (np.zeros((0, 0)), "at least one node"),
        (np.ones(4), "shape"),
        (half([[1, 1], [0, 2]]), r"symmetric; W\[0, 1\] = 0.5 but W\[1, 0\] = 0"),
        ([[1.5, -0.5], [-0.5, 1.5]], r"negative; W\[0, 1\] = -0.5"),
        ([[0.5, 0.4], [0.4, 0.6]], "row 0 sums to 0.9"),
        (np.eye(3), "not connected"),
        ([[0, 1], [1, 0]], "rho = 1"),
        ([[np.nan, 1], [1, 0]], "finite"),
    ],
)
def test_a_bad_matrix_is_refused_with_its_own_message(W, words):
    with pytest.raises(InputError, match=words):
        topology.from_matrix(W)
    with pytest.raises(InputError, match=words if np.ndim(W) == 2 else "shape"):
        topology.from_matrix(sp.csr_array(np.atleast_2d(W)) if np.ndim(W) == 2 else W)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: topology.ring(0), "at least one node"),
        (lambda: topology.grid(-3), "at least one node"),
        (lambda: topology.ladder(7), "even"),
        (lambda: topology.hypercube(6), "power of two"),
        (lambda: topology.random(8, p=0), "probability"),
        (lambda: topology.random(200, p=0.001), "Raise p"),
        (lambda: topology.paper_random(9), "8 nodes"),
        (lambda: topology.make("rng", 8), "Unknown topology 'rng'. Choose from: ring, ladder"),
        (lambda: topology.ring(8, weights="wat"), "Unknown weights 'wat'. Choose from: laplacian"),
        (lambda: topology.from_networkx(nx.DiGraph([(0, 1)])), "undirected"),
        (lambda: topology.from_networkx(nx.Graph()), "at least one node"),
        (lambda: topology.from_networkx(nx.Graph([(0, 1), (2, 3)])), "not connected"),
    ],
)
def test_a_bad_topology_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_one_peer_averages_exactly_after_log_n_steps():
    graph = topology.one_peer(8)
    whole = np.linalg.multi_dot([graph.at(t).weights for t in range(3)])
    np.testing.assert_allclose(whole, np.full((8, 8), 1 / 8))
    assert graph.at(4) is graph.at(1)
    assert graph.rho < 1e-4
    assert graph.messages == 8
    assert graph.neighbours(0) == [1, 2, 4]
    assert topology.one_peer(1).rho == 0
    with pytest.raises(InputError, match="power of two"):
        topology.one_peer(6)


def test_a_changing_topology_must_be_connected_over_its_period():
    swap = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    assert topology.changing([swap, swap[::-1, ::-1]]).period == 2
    with pytest.raises(InputError, match="not connected"):
        topology.changing([swap, swap])
    with pytest.raises(InputError, match="same size"):
        topology.changing([swap, np.eye(2)])
    with pytest.raises(InputError, match="at least one"):
        topology.changing([])
