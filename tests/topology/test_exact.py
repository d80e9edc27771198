"""Graphs that average exactly after a few steps, and several exchanges in one step."""

import warnings
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnasa
from dnasa import InputError, connect, rules, topology
from dnasa.channels import compression
from dnasa.communication import Channel
from dnasa.core import Needs
from dnasa.problems import Custom, LeastSquares
from dnasa.rules import schedules
from dnasa.rules.registry import example
from dnasa.topology.rounds import count_rounds, smallest_eigenvalue, successive
from dnasa.topology.types import Topology


def product(graph: Topology, first: int = 0) -> np.ndarray:
    """Of a period's matrices from step `first` on, applied in turn."""
    return reduce(lambda total, t: graph.at(first + t).sparse @ total, range(graph.period), np.eye(graph.nodes))


@pytest.mark.parametrize("n", range(1, 65))
def test_pairs_average_exactly_after_a_period_and_those_of_a_power_of_two_after_as_many_steps_from_any(n: int) -> None:
    graph = topology.exact(n)
    for first in range(graph.period if n.bit_count() == 1 else 1):
        np.testing.assert_allclose(product(graph, first), np.full((n, n), 1 / n), atol=1e-12)
    for each in graph.each:
        W = each.sparse.toarray()
        np.testing.assert_array_equal(W, W.T)
        np.testing.assert_allclose(W.sum(0), 1)
        assert W.min() >= 0
        assert each.degrees.max() <= 1


def test_exact_graphs_have_short_periods_and_are_exact_again_for_the_nodes_that_remain() -> None:
    periods = {n: topology.exact(n).period for n in (2, 3, 5, 6, 7, 8, 15, 24, 31, 64)}
    assert periods == {2: 1, 3: 3, 5: 5, 6: 4, 7: 6, 8: 3, 15: 9, 24: 6, 31: 12, 64: 6}
    graph = topology.exact(8)  # the one-peer exponential graph
    assert [graph.at(t).neighbours(0) for t in range(4)] == [[1], [2], [4], [1]]
    assert graph.messages == 8
    assert topology.exact(1).rho == 0
    assert topology.graphs.without(topology.exact(40), [39, 0, 7]).fingerprint == topology.exact(37).fingerprint


GRAPHS = ("ring", "path", "star", "torus", "grid", "exponential", "random", "complete")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(GRAPHS), st.sampled_from([4, 9, 16, 30]), st.integers(2, 9))
def test_rounds_are_a_polynomial_that_preserves_the_mean_and_mixes_better_than_a_power(name: str, n: int, rounds: int) -> None:
    graph = topology.make(name, n)
    P = product(successive(graph, rounds))
    np.testing.assert_allclose(P.sum(0), 1, atol=1e-8)
    np.testing.assert_allclose(P.sum(1), 1, atol=1e-8)
    norm = np.linalg.norm(P - 1 / n, 2)
    assert norm <= graph.rho**rounds + 1e-8
    assert smallest_eigenvalue(graph, rounds) == pytest.approx(np.linalg.eigvalsh((P + P.T) / 2).min(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "n", "rounds", "norm"),
    [
        *(("ring", 8, 2, 0.376), ("ring", 8, 4, 0), ("path", 8, 2, 0.745), ("path", 8, 4, 0.376), ("path", 8, 8, 0)),
        *(("ring", 32, 2, 0.927), ("ring", 32, 4, 0.754), ("ring", 32, 8, 0.388), ("torus", 16, 2, 0.2), ("star", 8, 2, 0)),
    ],
)
def test_the_polynomial_is_the_best_one(name: str, n: int, rounds: int, norm: float) -> None:
    """Values computed on their own, by a linear program for the coefficients of powers of W."""
    P = product(successive(topology.make(name, n), rounds))
    assert np.linalg.norm(P - 1 / n, 2) == pytest.approx(norm, abs=5e-4)


@pytest.mark.parametrize(("name", "n"), [("ring", 8), ("path", 16), ("ring", 64), ("grid", 36), ("path", 32)])
def test_rounding_errors_stay_small_over_many_rounds(name: str, n: int) -> None:
    graph = topology.make(name, n)
    rounds = count_rounds(graph, "exact")
    network = dnasa.connect(graph, rounds="exact")
    x = np.random.default_rng(0).normal(size=(n, 500)).astype(np.float32)
    mixed = x
    for k in network.exchanges(0):
        (mixed,) = network.multiply((mixed,), k)
    assert network.settings.rounds == rounds
    assert np.abs(mixed - x.mean(0, dtype=np.float64)).max() < 1e-4


@pytest.mark.parametrize("rule", ["dnasa", "adanasa", "dsgt", "dsgd"])
@pytest.mark.parametrize(
    "graph", [*map(topology.exact, (8, 6)), *map(topology.ring, (8, 2)), topology.complete(5, "lazy"), topology.star(2)]
)
def test_exact_rounds_are_the_complete_graph(rule: str, graph: Topology) -> None:
    problem = LeastSquares(graph.nodes)
    options: Any = {"steps": 30, "eta": None if rule.endswith("nasa") else 0.05}
    ours = dnasa.solve(problem, dnasa.connect(graph, rounds="exact"), rule, **options)
    complete = dnasa.solve(problem, topology.complete(graph.nodes), rule, **options)
    np.testing.assert_allclose(ours.x, complete.x, atol=1e-8)


def test_a_step_on_a_changing_graph_takes_successive_graphs() -> None:
    """Six steps of one exchange and three of two end at the same mean of plain messages."""
    graph = topology.exact(6)
    x = np.random.default_rng(0).normal(size=(6, 3))
    networks = {rounds: dnasa.connect(graph, rounds=rounds) for rounds in (1, 2)}
    for rounds, network in networks.items():
        mixed = x
        for t in range(6 // rounds):
            for k in network.exchanges(t):
                (mixed,) = network.multiply((mixed,), k)
        np.testing.assert_allclose(mixed, graph.at(0).sparse @ product(graph) @ x, atol=1e-12)


def test_exact_rounds_on_a_fixed_graph_need_messages_as_they_are() -> None:
    with pytest.raises(InputError, match="On ring, compressed rounds are not exact"):
        dnasa.connect(topology.ring(8), rounds="exact", channel=compression("bfloat16"))
    assert dnasa.connect(topology.exact(8), rounds="exact", channel=compression("bfloat16")).settings.rounds == 3


@pytest.mark.parametrize(
    ("graph", "rounds", "words"),
    [
        (topology.directed_ring(4), "exact", "use the graph 'exact'"),
        (topology.changing([topology.ring(4), topology.star(4)]), "exact", "No number of rounds"),
        (topology.ring(4), "most", "must be a positive whole number"),
        (topology.ring(4), 0, "must be a positive whole number"),
        (topology.ring(4), 1.5, "must be a positive whole number"),
    ],
)
def test_impossible_rounds_are_refused(graph: Topology, rounds: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        dnasa.connect(graph, rounds=rounds)
    with pytest.raises(InputError, match="weights of its own"):
        topology.exact(6, weights="lazy")
    with pytest.raises(InputError, match="at least one node"):
        topology.exact(0)


def test_the_default_graph_is_exact() -> None:
    fixed = ("d2", "edm", "extra", "kgt")
    assert topology.graphs.default_name(8, [example(name) for name in rules.RULES if name not in fixed])[0] == "exact"
    assert topology.graphs.default_name(33, [example("qg_dsgdm")])[0] == "ring"  # exact(33) has an eigenvalue of -31/33


@pytest.mark.parametrize("rule", ["d2", "edm", "extra", "kgt"])
def test_rules_that_need_a_fixed_graph_are_refused_on_a_changing_one(rule: str) -> None:
    with pytest.raises(InputError, match=f"Rule '{rule}' needs a graph that stays the same, and exact changes"):
        dnasa.solve(LeastSquares(8), topology.exact(8), rule, eta=0.01, steps=5)
    topology.matrices.check_weights(example(rule), topology.exact(8), 3)  # three rounds are the complete graph


@pytest.mark.parametrize(("rule", "eta", "n"), [("d2", 0.1, 8), ("edm", 0.1, 8), ("extra", 0.05, 12), ("kgt", 0.02, 5)])
def test_rules_that_need_a_fixed_graph_fail_on_a_changing_one(rule: str, eta: float, n: int) -> None:
    """D-SGT finds the solution there; these diverge, and pairs of K-GT that meet at every tenth step are always the same."""
    targets, factors = np.random.default_rng(0).normal(size=(n, 3)), np.linspace(0.5, 2, n)[:, None]
    problem = Custom(lambda x, node, rng: factors[node] * (x - targets[node]), np.zeros(3))
    solution = (factors * targets).sum(0) / factors.sum()

    def distance(name: str, graph: Topology) -> float:
        made = getattr(rules, name)(schedules.constant(eta))._replace(needs=Needs())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(
                np.abs(dnasa.solve(problem, dnasa.connect(graph, rounds=1), made, steps=800, evaluate=[800]).x - solution).max()
            )

    assert distance("dsgt", topology.exact(n)) < 1e-6
    assert distance(rule, topology.ring(n, weights="lazy")) < 0.01
    assert not distance(rule, topology.exact(n)) < 0.1


@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("channel", [None, compression("sign")])
@pytest.mark.parametrize("name", rules.RULES)
def test_every_rule_can_use_its_default_graph(name: str, channel: Channel | None, nodes: int) -> None:
    graph_name, weights = topology.graphs.default_name(nodes, [example(name)], channel)
    graph = topology.make(graph_name, nodes, weights)
    topology.matrices.check_weights(example(name), graph, graph.rounds)
    connect(graph, channel=channel)


@pytest.mark.parametrize(("rule", "weights"), [("d2", "lazy"), ("edm", "lazy"), ("extra", None), ("kgt", None)])
def test_rules_that_need_a_fixed_graph_have_a_ring_by_default_lazy_only_where_needed(rule: str, weights: str | None) -> None:
    assert topology.graphs.default_name(8, [example("dnasa"), example(rule)]) == ("ring", weights)
    assert topology.graphs.default_name(8, [example(rule)], weights="metropolis") == ("ring", "metropolis")


def test_compression_and_weights_have_a_ring_by_default() -> None:
    assert topology.graphs.default_name(8, channel=compression("sign"))[0] == "ring"
    for name in ("bfloat16", "moniqua"):
        assert topology.graphs.default_name(8, channel=compression(name))[0] == "exact"
    assert topology.graphs.default_name(8, weights="lazy") == ("ring", "lazy")
    assert [network.topology.name for network in (connect(), connect(compress="sign"))] == ["exact", "ring"]
