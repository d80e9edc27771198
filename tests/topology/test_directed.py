"""Directed graphs have column-stochastic weights, and rules are refused on graphs that they cannot use."""

from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dnasa
from dnasa import topology
from dnasa.core import Array, Exchange, InputError, Needs, Rule
from dnasa.problems import Custom
from dnasa.rules import RULES, d2, dsgd, edm, extra, push_sum, qg_dsgdm
from dnasa.rules.registry import make, schedules_of, variants
from dnasa.rules.schedules import constant
from dnasa.topology import Topology


def test_the_directed_ring_sends_half_of_a_nodes_weight_to_the_next() -> None:
    graph = topology.directed_ring(4)
    np.testing.assert_allclose(graph.weights, np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]) / 2)
    assert graph.directed
    assert sorted(graph.graph.edges) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert graph.graph.edges[0, 1]["weight"] == 1 / 2
    assert graph.neighbours(0) == [3]
    assert graph.messages == 4
    assert graph.degrees.tolist() == [1, 1, 1, 1]
    assert np.isnan(graph.smallest_eigenvalue)


def test_the_directed_exponential_graph_sends_equal_shares_to_powers_of_two() -> None:
    graph = topology.directed_exponential(10)
    assert sorted(graph.graph.successors(0)) == [1, 2, 4, 8]
    assert graph.neighbours(0) == [2, 6, 8, 9]
    np.testing.assert_allclose(graph.weights[graph.weights > 0], 1 / 5)
    assert graph.messages == 40


@pytest.mark.parametrize("n", [3, 50, 700])
def test_directed_graphs_have_the_rho_of_theory(n: int) -> None:
    assert topology.directed_ring(n).rho == pytest.approx(np.cos(np.pi / n), abs=1e-9)
    even = topology.directed_exponential(2 * n)
    assert even.rho == pytest.approx(1 - 2 / (1 + np.ceil(np.log2(2 * n))), abs=1e-9)  # Ying et al., 2021


def test_a_directed_networkx_graph_sends_along_its_edges() -> None:
    graph = topology.from_networkx(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("a", "a")]))
    np.testing.assert_allclose(graph.weights, [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])
    assert sorted(graph.graph.edges) == [(0, 1), (0, 2), (1, 2), (2, 0)]
    assert graph.neighbours(2) == [0, 1]
    assert graph.degrees.tolist() == [1, 1, 2]
    assert graph.messages == 4


def test_a_column_stochastic_matrix_is_a_directed_topology() -> None:
    W = np.array([[0.5, 0.3, 0], [0.5, 0, 0.6], [0, 0.7, 0.4]])
    for given_matrix in (W, sp.csr_array(W)):
        graph = topology.from_matrix(given_matrix)
        assert graph.directed
        np.testing.assert_array_equal(graph.weights, W)
        moduli = np.sort(np.abs(np.linalg.eigvals(W)))
        assert graph.rho == pytest.approx(moduli[-2])


def test_a_directed_ring_that_loses_a_node_is_closed_by_one_edge() -> None:
    rest = topology.graphs.without(topology.directed_ring(6), [2])
    np.testing.assert_allclose(rest.weights, topology.directed_ring(5).weights)


@given(n=st.integers(1, 12), p=st.floats(0, 0.4), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_remaining_nodes_of_a_directed_graph_are_connected_by_few_new_edges(n: int, p: float, seed: int) -> None:
    rest = nx.gnp_random_graph(n, p, seed=seed, directed=True)
    graph = rest.copy()
    graph.add_edges_from([(n, i) for i in range(n)] + [(i, n) for i in range(n)])
    new = topology.graphs.without(topology.from_networkx(graph), [n])
    parts = nx.number_strongly_connected_components(rest)
    assert nx.is_strongly_connected(nx.DiGraph(new.graph))
    assert new.messages <= rest.number_of_edges() + (parts if parts > 1 else 0)


class Stored(NamedTuple):
    x: Array
    g: Array


def test_push_sum_weighs_an_x_that_is_mixed_in_a_later_exchange() -> None:
    later = Rule(
        lambda x: Stored(x, 0 * x),
        lambda s, gradients, t: ((), s._replace(g=gradients[0])),
        lambda s, mixed: s,
        then=(Exchange(lambda s, t: ((s.x - 0.1 * s.g,), s), lambda s, mixed: s._replace(x=mixed[0])),),
    )
    graph = topology.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)]))
    problem = Custom(lambda x, node, rng: (1 + node) * (x - node), start=np.zeros(2))
    plain, late = (
        dnasa.solve(problem, graph, push_sum(rule), steps=100, progress=False) for rule in (dsgd(constant(0.1)), later)
    )
    np.testing.assert_allclose(late.x, plain.x)
    assert late.history.bytes.tolist() == plain.history.bytes.tolist()


UNBALANCED = topology.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)]))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_runs_on_a_directed_graph_or_its_refusal_has_a_remedy_that_works(name: str) -> None:
    problem = Custom(
        lambda x, nodes, rngs: x - nodes[:, None] / 2, np.full(4, 9.0), batched=True, full_gradient=lambda x, i: x - i / 2
    )
    method, options = RULES[name], dict[str, Any](eta=0.1) if RULES[name].needs_eta else {}

    def check(rule: str | Rule, **options: Any) -> None:
        found = dnasa.solve(problem, UNBALANCED, rule, steps=400, evaluate=400, **options).history.grad_norm
        assert found.iloc[-1] < 0.2 * found.iloc[0]

    if name in ("sgp", "push_dsgt"):
        return check(f"{name}:constant", **options)
    with pytest.raises(InputError, match=f"Rule '{name}' needs an undirected graph.*sgp or push_dsgt") as error:
        dnasa.solve(problem, UNBALANCED, name, steps=10, **options)
    variant = variants(name, list(options.values()), "constant" if "constant" in method.schedules else None)[0]
    rule = make(method, schedules_of(variant, 5, 400), problem.layout)
    if "rules.push_sum(rule)" in str(error.value):
        return check(push_sum(rule))
    with pytest.raises(InputError):
        dnasa.solve(problem, UNBALANCED, push_sum(rule), steps=10)


def test_push_dsgt_is_exact_where_the_graph_is_not_balanced() -> None:
    """Node 0 sends to three others: without push-sum's weights the nodes would count differently."""
    graph = topology.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)]))
    assert np.abs(graph.weights.sum(axis=1) - 1).max() > 0.2
    problem = Custom(lambda x, node, rng: (1 + node) * (x - node), start=np.zeros(2))
    done = dnasa.solve(problem, graph, "push_dsgt:constant", steps=800, eta=0.05)
    np.testing.assert_allclose(done.x, 2, atol=1e-9)  # (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / (1 + 2 + 3 + 4)


@pytest.mark.parametrize("make", [d2, edm])
def test_d2_and_edm_are_refused_where_eigenvalues_are_too_small_or_complex(make: Callable[..., Any]) -> None:
    rule = make(constant(0.1))
    with pytest.raises(InputError, match=r"above -1/3; the smallest of ring is -0\.3333\. Use .*lazy"):
        topology.matrices.check_weights(rule, topology.ring(8), 1)
    with pytest.raises(InputError, match=r"-0\.3764\. Use one round"):
        topology.matrices.check_weights(rule, topology.ring(8), 2)
    topology.matrices.check_weights(rule, topology.ring(8), 4)
    topology.matrices.check_weights(rule, topology.ring(8, weights="lazy"), 1)
    with pytest.raises(InputError, match="directed"):
        topology.matrices.check_weights(push_sum(rule), topology.directed_ring(8), 1)
    topology.matrices.check_weights(rule._replace(needs=Needs()), topology.ring(8), 1)


def two_nodes(eigenvalue: float) -> Topology:
    own = (1 + eigenvalue) / 2
    return topology.from_matrix([[own, 1 - own], [1 - own, own]])


def distance(rule: Rule, graph: Topology, steps: int = 1500) -> float:
    """Of the iterates to the minimum of (x - 0)^2 / 2 + (x - 1)^2 / 2."""
    problem = Custom(lambda x, node, rng: x - node, start=np.zeros(1))
    return abs(dnasa.solve(problem, graph, rule, steps=steps, evaluate=[steps], progress=False).x - 0.5).max()


@pytest.mark.parametrize(("make", "bound"), [(d2, -1 / 3), (edm, -1 / 3), (qg_dsgdm, -0.9135)])
def test_the_bound_on_the_eigenvalues_is_where_small_steps_become_unstable(make: Callable[..., Any], bound: float) -> None:
    rule = make(constant(2e-3))
    assert rule.needs.smallest_eigenvalue == pytest.approx(bound, abs=1e-3)
    assert distance(rule, two_nodes(bound + 0.02), 4000) < 0.03
    with pytest.raises(InputError, match="above -"):
        distance(rule, two_nodes(bound - 0.02))
    with np.errstate(all="ignore"):
        assert not distance(rule._replace(needs=Needs()), two_nodes(bound - 0.02), 4000) < 1e3


def test_extra_is_stable_for_every_undirected_graph() -> None:
    assert distance(extra(constant(0.1)), two_nodes(-0.99)) < 1e-9


@pytest.mark.parametrize("rule", [extra, d2, edm, qg_dsgdm])
def test_rules_that_need_eigenvalues_or_double_sums_are_refused_with_push_sum(rule: Callable[..., Rule]) -> None:
    with pytest.raises(InputError, match="cannot be used with push-sum"):
        push_sum(rule(constant(0.1)))
