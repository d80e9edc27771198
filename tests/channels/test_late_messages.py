"""Late and lost messages: nothing is counted twice or not at all."""

from typing import Any

import numpy as np
import pytest
import torch

import dnasa
from dnasa import rules, topology
from dnasa.channels import exchange, faulty
from dnasa.core import Array, Memory
from dnasa.networks import simulated
from dnasa.problems import Custom
from dnasa.rules import schedules
from dnasa.topology import Changing, Topology

FAULTS: list[dict[str, Any]] = [
    {"stale": 1},
    {"stale": 3},
    {"stale": 8, "drop": 0.4},
    {"stale": 2, "away": 0.3},
]
GRAPHS: dict[str, Any] = {
    "ring": topology.ring(6),
    "directed": topology.directed_exponential(6),
    "changing": topology.changing([topology.ring(6), topology.complete(6)]),
}
TARGETS = np.random.default_rng(1).standard_normal((6, 5))
CURVATURES = np.random.default_rng(2).uniform(0.5, 1.5, (6, 1))


def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    """Of c_i |x - b_i|^2 / 2."""
    return CURVATURES[node] * (x - TARGETS[node])


def in_transit(memory: Any, number: int = 0) -> Any:
    """The sum over the nodes of all changes that have not arrived yet."""
    return sum(change.sum(-2) for change in memory[number]) if memory else 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_the_sum_over_nodes_and_messages_in_transit_is_preserved(
    faults: dict[str, Any], graph: Changing | Topology, seed: int
) -> None:
    network = simulated.connect(graph, channel=faulty(**faults, seed=seed))
    rng = np.random.default_rng(seed)
    memory: Memory = ()
    y = rng.standard_normal((2, 6, 5))
    waited = False
    for t in range(40):
        y = y + rng.standard_normal(y.shape)
        before = y.sum(-2) + in_transit(memory)
        (y,), memory = exchange(network, memory, (y,), t)
        np.testing.assert_allclose(y.sum(-2) + in_transit(memory), before, atol=1e-10)
        waited |= bool(np.abs(in_transit(memory)).max() > 0.1)
    assert waited


@pytest.mark.parametrize("faults", FAULTS, ids=str)
@pytest.mark.parametrize("name", ["dsgt", "dnasa"])
def test_trackers_and_what_is_in_transit_have_the_mean_of_the_gradients(name: str, faults: dict[str, Any]) -> None:
    rule = rules.dnasa(lambda t: 0.1, lambda t: 0.5) if name == "dnasa" else rules.dsgt(lambda t: 0.1)
    network = simulated.connect(GRAPHS["ring"], channel=faulty(**faults))
    rng = np.random.default_rng(0)
    memory: Memory = ()
    state = rule.init(rng.standard_normal((6, 5)))
    for t in range(40):
        early = rule.early_messages(state, t)
        messages, state = rule.send(state, (rng.standard_normal((6, 5)),), t)
        mixed, memory = exchange(network, memory, (*early, *messages), t)
        state = rule.receive(state, mixed)
        tracked = state.u.sum(-2) + in_transit(memory, number=1)
        np.testing.assert_allclose(tracked, state.v.sum(-2), atol=1e-10)


@pytest.mark.parametrize("faults", FAULTS[:3], ids=str)
def test_nodes_that_agree_stay_where_they_are(faults: dict[str, Any]) -> None:
    network = simulated.connect(GRAPHS["ring"], channel=faulty(**faults))
    memory: Memory = ()
    y = np.tile(TARGETS[0], (6, 1))
    for t in range(30):
        (mixed,), memory = exchange(network, memory, (y,), t)
        np.testing.assert_allclose(mixed, y, atol=1e-12)


@pytest.mark.parametrize("stale", [1, 3, 8, 16])
@pytest.mark.parametrize("name", ["ring", "complete", "star", "path", "hypercube"])
def test_nodes_agree_on_their_mean_however_late_messages_are(name: str, stale: int) -> None:
    network = simulated.connect(topology.make(name, 8), channel=faulty(stale=stale))
    memory: Memory = ()
    y = np.random.default_rng(0).standard_normal((8, 3))
    mean = y.mean(0)
    for t in range(600):
        (y,), memory = exchange(network, memory, (y,), t)
    np.testing.assert_allclose(y, mean + 0 * y, atol=1e-2)


def test_tracking_finds_the_minimiser_with_late_messages() -> None:
    problem = Custom(gradient, start=np.zeros(5), fingerprint="quadratic")
    network = simulated.connect(GRAPHS["ring"], channel=faulty(stale=3))
    found = dnasa.solve(problem, network, rules.dsgt(schedules.constant(0.1)), steps=600, progress=False)
    minimiser = (CURVATURES * TARGETS).sum(0) / CURVATURES.sum()
    np.testing.assert_allclose(found.x, minimiser + 0 * TARGETS, atol=1e-6)


@pytest.mark.parametrize("faults", [{"stale": 3}, {"stale": 2, "drop": 0.3}], ids=str)
def test_push_sum_finds_the_minimiser_with_late_messages_on_a_directed_graph(faults: dict[str, Any]) -> None:
    problem = Custom(gradient, start=np.zeros(5), fingerprint="quadratic")
    network = simulated.connect(GRAPHS["directed"], channel=faulty(**faults))
    rule = rules.push_sum(rules.dsgt(schedules.constant(0.05)))
    found = dnasa.solve(problem, network, rule, steps=600, progress=False)
    minimiser = (CURVATURES * TARGETS).sum(0) / CURVATURES.sum()
    np.testing.assert_allclose(found.x, minimiser + 0 * TARGETS, atol=1e-3)


def test_numpy_and_torch_give_the_same_numbers() -> None:
    network = simulated.connect(GRAPHS["ring"], channel=faulty(stale=3, drop=0.2))
    memory: Memory = ()
    other: Memory = ()
    for t in range(10):
        y = np.random.default_rng(t).standard_normal((6, 5))
        (mixed,), memory = exchange(network, memory, (y,), t)
        (same,), other = exchange(network, other, (torch.from_numpy(y),), t)
        np.testing.assert_allclose(mixed, same.numpy(), atol=1e-14)
