"""Every rule is its twin in `twins.py`, and the facts that follow from its equations hold."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from math import gcd, sqrt
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import twins
from conftest import GRAPHS, Bumpy, eta_of, take_step
from hypothesis import given, settings
from hypothesis import strategies as st

from dnasa import rules, simulate, solve, topology
from dnasa.arrays import unit
from dnasa.communication import Network
from dnasa.core import Array, InputError, Layout, Rule, Schedule, State, leaves, size, with_x
from dnasa.engine.steppers import Sequential, first_snapshot
from dnasa.networks import simulated
from dnasa.problems import LeastSquares
from dnasa.rules import registry, schedules
from dnasa.rules.adanasa import is_hidden
from dnasa.rules.demuon import direction
from dnasa.rules.weight_decay import with_weight_decay
from dnasa.runs.timing import Timeline
from dnasa.topology import Topology

STEPS = 40


def default_schedules(name: str, n: int) -> tuple[Schedule, ...]:
    known = rules.RULES[name].schedules
    return known.get("diminishing", next(iter(known.values())))(n, STEPS, eta_of(name))


def layout(dim: int) -> Layout:
    """A matrix of two rows and a vector of two."""
    return (("weight", (2, dim // 2 - 1)), ("bias", (2,)))


def make(name: str, steps: tuple[Schedule, ...], x: Array) -> Rule:
    return registry.make(rules.RULES[name], steps, layout(len(x)))


def trace(rule: Rule, gradient: Callable[..., Array], network: Network, x: Array, steps: int = STEPS) -> list[State]:
    state, out = rule.init(x), []
    for t in range(steps):
        state = take_step(rule, state, gradient, network, t)
        out.append(state)
    return out


def everyone(start: Array, n: int) -> Array:
    return np.tile(start, (n, 1))


DIRECTED: dict[str, Callable[[], Topology]] = {
    "directed ring": lambda: topology.directed_ring(5),
    "directed exponential": lambda: topology.directed_exponential(6),
    "unbalanced": lambda: topology.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)])),
}
directed = pytest.mark.parametrize("graph", DIRECTED)
PUSH_SUM = ("sgp", "push_dsgt")


def twin_of(name: str, problem: Bumpy, graph: Topology, steps: tuple[Schedule, ...], **options: Any) -> Array:
    return twins.trace(getattr(twins, name), problem.all, graph.sparse.toarray(), problem.start, STEPS, *steps, **options)


def simulated_run(rule: Rule, problem: Bumpy, graph: Topology, steps: int = STEPS) -> Array:
    """The answers after each step."""
    return simulate(rule, graph.sparse.toarray(), lambda x, i, t: problem.one(i, x, t), problem.start, steps)[1:]


@pytest.mark.parametrize(
    ("name", "graph"), [*product(rules.RULES, GRAPHS), *product(PUSH_SUM, DIRECTED)], ids=lambda part: part
)
def test_rule_equals_its_twin(name: str, graph: str) -> None:
    made = (GRAPHS | DIRECTED)[graph]()
    problem, steps = Bumpy(made.nodes), default_schedules(name, made.nodes)
    actual = simulated_run(make(name, steps, problem.start), problem, made)
    np.testing.assert_allclose(actual, twin_of(name, problem, made, steps), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dmsgd", {"beta": 0.6}),
        ("edm", {"beta": 0.6}),
        ("mt", {"beta": 0.6}),
        ("qg_dsgdm", {"beta": 0.6, "mu": 0.8}),
        ("dadam", {"beta1": 0.6, "beta2": 0.8, "eps": 1e-3}),
        ("gt_adam", {"beta1": 0.6, "beta2": 0.8, "eps": 1e-3}),
        ("kgt", {"local_steps": 4}),
        ("demuon", {"theta": 0.5, "iterations": 3}),
    ],
)
def test_hyperparameters_can_be_given(name: str, options: dict[str, Any]) -> None:
    graph, problem, etas = topology.ring(5, weights="lazy"), Bumpy(5), default_schedules(name, 5)
    named = {"K": 4} if name == "kgt" else options
    shapes = {"layout": layout(len(problem.start))} if name == "demuon" else {}
    actual = simulated_run(getattr(rules, name)(*etas, **shapes, **options), problem, graph)
    np.testing.assert_allclose(actual, twin_of(name, problem, graph, etas, **named), rtol=0, atol=1e-10)
    default = simulated_run(make(name, etas, problem.start), problem, graph)
    assert np.abs(actual[-1] - default[-1]).max() > 1e-4


@pytest.mark.parametrize("name", ["dadam", "dasagt", "dnasa", "adanasa"])
def test_a_rule_with_weight_decay_equals_its_twin(name: str) -> None:
    graph, problem, steps = topology.ring(5), Bumpy(5), default_schedules(name, 5)
    rule = with_weight_decay(make(name, steps, problem.start), schedules.constant(0.5))
    expected = twin_of(name, problem, graph, steps, decay=0.5)
    np.testing.assert_allclose(simulated_run(rule, problem, graph), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in rules.RULES if name not in ("adgt", "d2", "edm", "gt_hsgd")])
def test_weight_decay_shrinks_x_before_the_rules_own_step(name: str, bumpy: type[Bumpy]) -> None:
    network, problem = simulated.connect(topology.ring(5, weights="lazy")), bumpy(5)
    rule = make(name, default_schedules(name, 5), problem.start)
    decayed = with_weight_decay(rule, schedules.constant(0.5))
    expected = state = rule.init(everyone(problem.start, 5))
    for t in range(STEPS):
        state = take_step(decayed, state, problem.all, network, t)
        gradients = iter([problem.all(point, t) for point in rule.gradient_points(expected, t)])
        shrunk = with_x(expected, (1 - 0.5 * rule.stepsize(expected, t)) * expected.x)  # type: ignore[misc]
        expected = take_step(rule, shrunk, lambda *_, kept=gradients: next(kept), network, t)
        for name, a in leaves(state).items():
            np.testing.assert_allclose(a, leaves(expected)[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["adgt", "d2", "edm", "gt_hsgd"])
def test_rules_that_compare_iterates_have_no_weight_decay(name: str, bumpy: type[Bumpy]) -> None:
    with pytest.raises(InputError, match=f"Rule '{name}' has no weight decay: leave weight_decay out, or add an L2"):
        solve(LeastSquares(), topology.ring(4, weights="lazy"), name, eta=eta_of(name), steps=1, weight_decay=0.1)


@pytest.mark.parametrize(("name", "mixed"), [("mt", "xc"), ("gt_adam", "xy"), ("extra", "xc"), ("kgt", "c")])
def test_what_is_mixed_does_not_change_before_the_messages_arrive(name: str, mixed: str, bumpy: type[Bumpy]) -> None:
    problem, network = bumpy(4), simulated.connect(topology.ring(4))
    rule = make(name, default_schedules(name, 4), problem.start)
    before = trace(rule, problem.all, network, everyone(problem.start, 4), steps=9)[-1]
    messages, sent = rule.send(before, (problem.all(before.x, 9),), 9)
    for field in mixed:
        np.testing.assert_array_equal(getattr(sent, field), getattr(before, field))
    after = rule.receive(sent, network.multiply(messages, 9))
    assert leaves(after).keys() == leaves(before).keys()


@pytest.mark.parametrize("name", rules.RULES)
def test_rule_gives_the_same_on_torch(name: str, bumpy: type[Bumpy]) -> None:
    graph = topology.ring(6, weights="lazy")
    problem, steps, network = bumpy(6), default_schedules(name, 6), simulated.connect(topology.ring(6, weights="lazy"))
    rule = make(name, steps, problem.start)
    expected = trace(rule, problem.all, network, everyone(problem.start, graph.nodes))
    on_torch = trace(
        rule,
        lambda x, t: torch.from_numpy(problem.all(x.numpy(), t)),
        network,
        torch.from_numpy(everyone(problem.start, graph.nodes)),
    )
    np.testing.assert_allclose(on_torch[-1].x.numpy(), expected[-1].x, rtol=0, atol=1e-10)


@directed
def test_push_sum_preserves_the_sums_of_the_weights_and_of_the_trackers(graph: Any, bumpy: type[Bumpy]) -> None:
    graph = DIRECTED[graph]()
    problem, n = bumpy(graph.nodes), graph.nodes
    rule = make("push_dsgt", default_schedules("push_dsgt", n), problem.start)
    for state in trace(rule, problem.all, simulated.connect(graph), everyone(problem.start, n)):
        assert state.w.sum() == pytest.approx(n)
        np.testing.assert_allclose(state.inner.u.sum(-2), state.inner.v.sum(-2), atol=1e-9)
    again = rule.restarted(state)
    np.testing.assert_array_equal(again.w, np.ones((n, 1)))
    np.testing.assert_array_equal(again.x, rule.result(state))


EXACT = ("d2", "dsgt", "edm", "extra", "gt_adam", "gt_hsgd", "kgt", "mt", "push_dsgt")


@pytest.mark.parametrize("name", EXACT)
def test_with_a_constant_stepsize_and_no_noise_the_nodes_reach_the_minimum(name: str) -> None:
    """Of the mean of c_i |x - b_i|^2 / 2. D-SGD and the others stay apart."""
    random = np.random.default_rng(1)
    b, c = random.standard_normal((4, 6)), random.uniform(0.5, 1.5, (4, 1))
    eta = 0.005 if name in ("mt", "gt_adam") else 0.05
    made = {"gt_hsgd": (schedules.constant(eta), schedules.constant(0.1))}.get(name, (schedules.constant(eta),))
    W = topology.directed_ring(4) if name == "push_dsgt" else topology.ring(4, weights="lazy")
    x = simulate(make(name, made, b[0]), W.sparse.toarray(), lambda x, i, t: c[i] * (x - b[i]), np.zeros(6), 1500)[-1]
    np.testing.assert_allclose(x, np.tile((c * b).sum(0) / c.sum(), (4, 1)), atol=1e-6)


def test_corrections_of_kgt_have_mean_zero_and_change_at_exchanges_only(graph: Topology, bumpy: type[Bumpy]) -> None:
    problem, n = bumpy(graph.nodes), graph.nodes
    rule, x = rules.kgt(schedules.constant(0.01), local_steps=4), everyone(bumpy(n).start, n)
    before = rule.init(x)
    for t, state in enumerate(trace(rule, problem.all, simulated.connect(graph), x)):
        np.testing.assert_allclose(state.c.mean(-2), 0, atol=1e-12)
        exchanged = (t + 1) % 4 == 0
        assert (state.z == 0).all() == exchanged
        assert (state.c == before.c).all() == (not exchanged or n == 1)
        before = state


def test_kgt_and_demuon_refuse_a_number_that_is_none() -> None:
    with pytest.raises(InputError, match="local_steps must be a positive whole number"):
        rules.kgt(schedules.constant(0.1), local_steps=0)
    with pytest.raises(InputError, match="iterations must be a positive whole number"):
        rules.demuon(schedules.constant(0.1), layout=layout(6), iterations=0)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 6), (2, 3, 2)])
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_demuons_direction_has_the_singular_vectors_of_its_argument_and_singular_values_near_one(
    shape: tuple[int, ...], library: Callable[..., Any]
) -> None:
    size = int(np.prod(shape))
    v = np.random.default_rng(0).standard_normal((2, 3, size + 4))
    out = np.asarray(direction(library(v), (("bias", (4,)), ("weight", shape)), iterations=5))
    np.testing.assert_allclose(np.linalg.norm(out[..., :4], axis=-1), 1)
    for a, b in zip(out[..., 4:].reshape(6, shape[0], -1), v[..., 4:].reshape(6, shape[0], -1), strict=True):
        U, S, V = np.linalg.svd(b, full_matrices=False)
        assert S.min() > 0.01 * np.linalg.norm(S)  # smaller ones take more iterations
        inner = U.T @ a @ V.T
        values = np.diag(inner)
        np.testing.assert_allclose(inner, np.diag(values), atol=1e-10)
        assert 0.6 < values.min() <= values.max() < 1.25


@pytest.mark.parametrize("name", ["adanasa", "adgt", "demuon", "dnasa"])
def test_steps_do_not_depend_on_the_scale_of_the_loss(name: str, bumpy: type[Bumpy]) -> None:
    network, x = simulated.connect(topology.ring(5)), everyone(bumpy(5).start, 5)
    rule = make(name, default_schedules(name, 5), x[0])
    a, b = (trace(rule, bumpy(5, scale=2.0**k).all, network, x)[-1].x for k in (0, -40))
    np.testing.assert_array_equal(a, b)


def test_gt_hsgd_reduces_the_variance_of_its_estimate() -> None:
    """On a quadratic with additive noise, its estimate is nearer to the true gradient than one sample is."""
    random = np.random.default_rng(0)
    noise = random.standard_normal((400, 4, 50))
    rule = rules.gt_hsgd(*rules.RULES["gt_hsgd"].schedules["diminishing"](4, 400, 0.05))
    states = trace(rule, lambda x, t: x + noise[t], simulated.connect(topology.ring(4)), np.ones((4, 50)), steps=400)
    before = states[-2]
    assert np.linalg.norm(states[-1].v - before.x) < 0.5 * np.linalg.norm(noise[-1])


# what is 0 on average over the nodes, after every step and after a restart
BALANCED: dict[str, Callable[[State], Array]] = {
    **dict.fromkeys(("adgt", "dsgt", "dasagt", "dnasa"), lambda s: s.u - s.v),
    **dict.fromkeys(("mt", "extra"), lambda s: s.c),
    **dict.fromkeys(("gt_nsgdm", "gt_hsgd"), lambda s: s.y - s.v),
    "gt_adam": lambda s: s.y - s.g,
    "demuon": lambda s: s.v - s.m,
    "adanasa": lambda s: s.y - s.z,
    "edm": lambda s: s.psi - s.x,
}


@pytest.mark.parametrize("name", BALANCED)
def test_what_is_zero_on_average_stays_so_also_for_nodes_that_are_left(name: str, graph: Topology, bumpy: type[Bumpy]) -> None:
    n = graph.nodes
    problem, balance = bumpy(n), BALANCED[name]
    rule = make(name, default_schedules(name, n), problem.start)
    for state in trace(rule, problem.all, simulated.connect(graph), everyone(problem.start, n)):
        np.testing.assert_allclose(balance(state).mean(-2), 0, atol=1e-9)
    left = rule.restarted(type(state)(*(array[: max(1, n - 1)] for array in state)))
    np.testing.assert_allclose(balance(left).mean(-2), 0, atol=1e-9)
    assert n == 1 or np.abs(balance(state)[: n - 1].mean(-2)).max() > 1e-6  # there was something to restore


@pytest.mark.parametrize(("shape", "every"), [((20, 160), 1), ((60, 20), 2)])
def test_adanasa_orthogonalizes_hidden_matrices_and_learns_its_radius_from_a_sample(
    shape: tuple[int, int], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, ...]] = [(256, 2048), (768, 768), (256, 2049), (255, 255), (64, 64, 3, 3), (768,)]
    assert [is_hidden(each) for each in found] == [True] * 2 + [False] * 4
    monkeypatch.setattr(import_module("dnasa.rules.adanasa"), "SHORTEST", 20)
    W, steps = topology.ring(3), default_schedules("adanasa", 3)
    shapes = (("hidden", shape), ("embedding", (20, 161)), ("bias", (20_000,)))
    d = size(shapes)
    start = np.random.default_rng(0).standard_normal(d)

    def gradient(X: Array, t: int) -> Array:
        return X - np.arange(3)[:, None] + np.random.default_rng(t).standard_normal(d)

    network, rule = simulated.connect(W, every=every), rules.adanasa(*steps, layout=shapes, every=every)
    options = {"hidden": shape, "every": every}
    expected = twins.trace(twins.adanasa, gradient, W.sparse.toarray(), start, 4, *steps, **options)[-1]
    last = trace(rule, gradient, network, everyone(start, 3), 4)[-1]
    np.testing.assert_allclose(last.x, expected, rtol=0, atol=1e-12)
    assert last.S.shape == (3, -(-d // (d // 10_000)))
    np.testing.assert_allclose(last.y.mean(0), last.z.mean(0), atol=1e-12)


@pytest.mark.parametrize("seed", [36, 39, 354])
def test_one_parameter_in_single_precision_has_the_iterates_of_the_twin(seed: int) -> None:
    """Steps to the left and to the right cancel, and only rounding errors of their sum are left."""
    rng = np.random.default_rng(seed)
    n, T = int(rng.integers(1, 5)), int(rng.integers(5, 60))
    b, x = rng.normal(size=(n, 1)), rng.normal(size=1)

    def gradient(X: Array, t: int) -> Array:
        return ((X - b) + np.random.default_rng([seed, t]).normal(size=X.shape)).astype(X.dtype)

    graph, steps = topology.complete(n), schedules.adanasa(n, T)
    expected = twins.trace(twins.adanasa, gradient, graph.sparse.toarray(), x, T, *steps)[-1]
    rule, start = rules.adanasa(*steps, layout=(("x", (1,)),)), everyone(x, n).astype(np.float32)
    np.testing.assert_allclose(trace(rule, gradient, simulated.connect(graph), start, T)[-1].x, expected, atol=1e-3)


def test_adanasa_leaves_a_minimum_only_by_small_steps() -> None:
    """At a minimum the gradients are noise around 0: the radius does not grow, and neither do the steps."""
    random, d = np.random.default_rng(0), 1000
    rule = make("adanasa", schedules.adanasa(4, 200), np.zeros(d))
    network, x = simulated.connect(topology.ring(4)), np.ones((4, d))
    state = trace(rule, lambda y, t: y - 1 + random.standard_normal((4, d)), network, x, steps=100)[-1]
    far = trace(rule, lambda y, t: y + 9 + random.standard_normal((4, d)), network, x, steps=100)[-1]
    assert state.r.max() < 2 * 1e-4 * (1 + d**0.5) < 100 * far.r.min()
    assert np.abs(state.x - 1).max() < 0.2 < np.abs(far.x - 1).mean()


def test_nodes_with_different_data_learn_the_same_radius() -> None:
    """Also where one node's gradients are ten times the others'. From their own gradients they would differ fiftyfold."""
    random, d = np.random.default_rng(0), 50
    centers = 3 * random.standard_normal((4, d)) * np.array([[10], [1], [1], [1]])
    rule, network = make("adanasa", schedules.adanasa(4, 60), np.ones(d)), simulated.connect(topology.ring(4))
    state = trace(rule, lambda y, t: y - centers + random.standard_normal((4, d)), network, np.ones((4, d)), steps=60)[-1]
    assert 1 < state.r.min() < state.r.max() < 1.2 * state.r.min()


def test_averaged_adanasa_answers_with_the_weighted_average(bumpy: type[Bumpy]) -> None:
    problem, network = bumpy(4), simulated.connect(topology.ring(4))
    steps = schedules.adanasa_averaged(4)
    rule, x = make("adanasa", steps, problem.start), everyone(problem.start, 4)
    states = trace(rule, problem.all, network, x)
    expected = x
    for t, before in enumerate([x, *(state.x for state in states[:-1])]):
        expected = expected + 9 / (t + 9) * (before - expected)
    np.testing.assert_allclose(rule.result(states[-1]), expected, atol=1e-12)
    plain = trace(make("adanasa", steps[:3], problem.start), problem.all, network, x)
    np.testing.assert_array_equal(states[-1].x, plain[-1].x)


@given(order=st.permutations(range(8)), name=st.sampled_from(sorted(rules.RULES)))
@settings(max_examples=15, deadline=None)
def test_relabelling_the_nodes_relabels_the_iterates(order: Any, name: str) -> None:
    order = np.array(order)
    graph, problem = topology.random(8, p=0.6, seed=1), Bumpy(8)
    moved = topology.from_matrix(graph.weights[np.ix_(order, order)])
    rule = make(name, default_schedules(name, 8), problem.start)
    x = everyone(problem.start, 8)
    a = trace(rule, problem.all, simulated.connect(graph), x)[-1].x

    def shuffled(y: Array, t: int) -> Array:
        g = np.empty_like(y)
        for row, node in enumerate(order):
            g[row] = problem.one(node, y[row], t)
        return g

    b = trace(rule, shuffled, simulated.connect(moved), x)[-1].x
    np.testing.assert_allclose(b, a[order], atol=1e-9)


SGD, MOMENTUM = torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9)
CENTRAL: dict[str, Any] = {  # torch's optimizers; of other rules, the twin with one node
    **dict.fromkeys(("dsgd", "dsgt", "kgt", "sgp", "push_dsgt", "extra"), SGD),
    **{"dmsgd": MOMENTUM, "mt": MOMENTUM, "dadam": torch.optim.Adam},
}


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("name", rules.RULES)
def test_with_equal_gradients_on_the_complete_graph_a_rule_is_centralized(name: str, n: int, bumpy: type[Bumpy]) -> None:
    problem, eta = bumpy(1), default_schedules(name, n)
    x = problem.start
    decentral = trace(
        make(name, eta, problem.start),
        lambda y, t: np.stack([problem.one(0, row, t) for row in y]),
        simulated.connect(topology.complete(n)),
        everyone(x, n),
    )
    for state, x in zip(decentral, centralized(name, problem, eta), strict=True):
        np.testing.assert_allclose(state.x, everyone(x, n), atol=1e-9)


def centralized(name: str, problem: Bumpy, eta: tuple[Schedule, ...]) -> list[Array]:
    if name not in CENTRAL:
        alone = twins.trace(getattr(twins, name), problem.all, np.ones((1, 1)), problem.start, STEPS, *eta)
        return [X[0] for X in alone]
    x, out = torch.tensor(problem.start, requires_grad=True), []
    optimizer = CENTRAL[name]([x], lr=1.0)
    for t in range(STEPS):
        x.grad = torch.from_numpy(problem.one(0, x.detach().numpy(), t))
        optimizer.param_groups[0]["lr"] = eta[0](t)
        optimizer.step()
        out.append(x.detach().numpy().copy())
    return out


@given(n=st.integers(2, 12), p=st.floats(0.3, 1.0), seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_consensus_error_of_dnasa_obeys_the_papers_bound(n: int, p: float, seed: int) -> None:
    graph, problem = topology.random(n, p=p, seed=seed), Bumpy(n)
    eta, alpha = schedules.diminishing(n)
    rho, x = graph.rho, everyone(problem.start, n)
    before = 0.0
    for t, state in enumerate(trace(rules.dnasa(eta, alpha), problem.all, simulated.connect(graph), x)):
        after = ((state.x - state.x.mean(0)) ** 2).sum()
        assert after <= (1 + rho) / 2 * before + eta(t) ** 2 * (1 + rho**2) / (1 - rho**2) * n + 1e-12
        before = after


def disagreements(network: Network, eta: Array, gradients: Array, parts: Layout) -> Iterator[tuple[float, list[float]]]:
    """|X - mean| / sqrt(n d) after each step of AdaNASA, and the nodes' longest steps until then, the last first."""
    rule: Any = rules.adanasa(lambda t: eta[t], schedules.constant(1), schedules.constant(0.9), layout=parts)
    stepper = Sequential(rule, network, first_snapshot(rule, 0 * gradients[0]), Timeline())
    lengths: list[float] = []
    for t, g in enumerate(gradients):
        lengths.insert(0, rule.stepsize(stepper.state, t).max())
        stepper.step((g,), t)
        yield float(np.linalg.norm(stepper.x - stepper.x.mean(0))) / sqrt(g.size), lengths


@given(st.integers(2, 17), st.integers(1, 6), st.integers(1, 3), st.sampled_from([1, STEPS]), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_disagreement_of_adanasa_is_bounded_by_its_last_steps_on_exact_and_by_all_of_them_on_a_fixed_graph(
    n: int, rounds: int, every: int, directions: int, seed: int
) -> None:
    """As docs/theory.md proves. The gradients grow so fast that their signs are the steps."""
    exact, random = topology.exact(n), np.random.default_rng(seed)
    eta = 10 ** random.uniform(-5, 0, STEPS)
    gradients = 100.0 ** np.arange(STEPS)[:, None, None] * random.standard_normal((directions, n, 6))
    forgotten = exact.period if n.bit_count() == 1 else 2 * exact.period - gcd(exact.period, rounds)
    network = simulated.connect(exact, rounds, every=every)
    for t, (apart, lengths) in enumerate(disagreements(network, eta, gradients, layout(6))):
        last = (forgotten - 1) // rounds * every + (t + 1) % every
        assert apart <= sum(lengths[:last]) + 1e-12
    fixed, before = topology.random(n, seed=seed), 0.0
    for apart, lengths in disagreements(simulated.connect(fixed), eta, gradients, layout(6)):
        assert apart <= fixed.rho * (before + lengths[0]) + 1e-12
        before = apart


@pytest.mark.parametrize("n", [4, 8, 16])
def test_halves_that_move_apart_at_every_step_reach_the_bound_on_exact(n: int) -> None:
    gradients = 100.0 ** np.arange(STEPS)[:, None, None] * np.repeat([1, -1], n // 2)[:, None]
    runs = disagreements(simulated.connect(topology.exact(n), 1), np.full(STEPS, 1e-5), gradients, (("bias", (1,)),))
    assert max(apart / lengths[0] for apart, lengths in runs) == pytest.approx(topology.exact(n).period - 1)


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_unit_with_a_layout_normalizes_each_part_by_itself(make: Callable[..., Any]) -> None:
    z = make([[3.0, 4.0, 0.0, 0.0, 8.0, 6.0], [0.0] * 6])
    parts = (("weight", (2, 2)), ("bias", (2,)))
    np.testing.assert_allclose(np.asarray(unit(z, parts)), [[0.6, 0.8, 0, 0, 0.8, 0.6], [0.0] * 6])


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1.0, 1e200])
@pytest.mark.parametrize("make", [np.asarray, lambda a: torch.tensor(a, dtype=torch.float64)])
def test_unit_has_length_one_at_any_scale_and_beside_any_other(make: Callable[..., Any], scale: float) -> None:
    z = make([[3 * scale, 4 * scale], [0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(np.asarray(unit(z)), [[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]], rtol=1e-12)


def test_schedules_are_the_papers() -> None:
    eta, alpha = schedules.diminishing(16)
    assert (eta(0), alpha(0)) == (0, 0)
    assert eta(81) == pytest.approx(2 / 27)
    assert (alpha(4), alpha(64)) == (1, 0.5)
    eta, alpha = schedules.fixed(16, 10_000)
    assert (eta(5), alpha(7)) == pytest.approx((2 / 1000, 0.04))
    assert schedules.root_decay(2, 9)(3) == pytest.approx(3)
    assert schedules.averaging(4)(15) == 0.3
    assert schedules.averaging(4)(399) == 0.1
    free, fixed = (rules.RULES["dsgt"].schedules[name](8, 9, 3)[0] for name in ("parameter-free", "parameter-free-fixed"))
    assert (free(0), free(9), fixed(100)) == (0, 1, 1)
    assert [schedules.cosine(3, 20)(t) for t in (0, 10, 20, 40)] == pytest.approx([1.5, 1.5, 0, 0])
    assert [schedules.linear(3, 20)(t) for t in (0, 7, 8, 14, 20, 40)] == pytest.approx([3 / 8, 3, 3, 1.5, 0, 0])
    assert schedules.fixed(100, 10)[1](0) == 1
    assert [value(7) for value in rules.RULES["gt_nsgdm"].schedules["theorem-fixed"](8, 16, 3)] == [3 / 8, 3 / 4]
    assert schedules.root_fixed(3, 4, 16)(0) == 3 * sqrt(4 / 16)


@pytest.mark.parametrize("name", ["dmsgd", "dadam", "qg_dsgdm", "edm", "gt_adam"])
def test_a_nodes_moments_survive_the_loss_of_others(name: str, bumpy: type[Bumpy]) -> None:
    """D-Adam's correction of the bias goes by t: moments that start again at 0 would give steps three times too large."""
    problem, network = bumpy(4), simulated.connect(topology.ring(4))
    rule = rules.RULES[name].make(*default_schedules(name, 4))
    state = trace(rule, problem.all, network, everyone(problem.start, 4), steps=10)[-1]
    np.testing.assert_array_equal(rule.restarted(state).m, state.m)
    assert np.abs(state.m).max() > 0.1


def test_every_built_in_rule_says_what_it_was_compared_with() -> None:
    """A rule without a comparison is experimental, and says so on its page."""
    for name in registry.BUILT_IN:
        method = rules.RULES[name]
        assert method.checked or name == "edm"  # its momentum was compared with nothing else
        assert method.equation
        assert "arXiv" in method.paper or name == "adanasa"
