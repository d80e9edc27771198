"""`solve` is held to the definition in `simulate`: every rule, on every problem, with every engine of one machine."""

from collections.abc import Callable, Sequence
from copy import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import eta_of
from thread_network import run_threads

from dnasa import connect, problems, rules, simulate, solve, topology
from dnasa.core import Array, InputError
from dnasa.engine import steppers
from dnasa.rules import registry
from dnasa.topology import Topology

STEPS, SEED = 25, 3
RULES = [*rules.RULES, "clip:0.5+adam+dsgt", "clip:0.5+gt_hsgd", "momentum+dnasa", "clip:0.5+sgp"]
RING = topology.ring(4, weights="lazy")


def noisy(x: Array, node: int, rng: np.random.Generator) -> Array:
    return np.arctan(x - node) + 0.1 * rng.standard_normal(len(x))


PROBLEMS: dict[str, Callable[[], Any]] = {
    "least squares": lambda: problems.LeastSquares(dim=6),
    "custom": lambda: problems.Custom(noisy, start=np.ones(6)),
}
ENGINES: dict[str, Callable[..., Any]] = {
    "simulated": lambda problem, graph, **options: solve(problem, graph, **options),
    "hidden exchanges": lambda problem, graph, **options: solve(problem, connect(graph, overlap=True), **options),
    "two processes": lambda problem, graph, **options: run_threads(
        graph,
        lambda network: solve(copy(problem), network, **options),
        2,  # which share no generators
    )[0],
}


def expected(name: str, problem: Any, graph: Topology) -> Array:
    """The answers that the definition gives, on the samples that `solve` takes."""

    def gradient(x: Array, node: int, t: int) -> Array:
        return problem.gradient(x[None, None, None], range(node, node + 1), [SEED], t)[0, 0, 0]

    variant = registry.variants(name, [eta_of(name) or 1.0])[0]
    schedules = registry.schedules_of(variant, graph.nodes, STEPS)
    rule = registry.make(registry.find(name), schedules, problem.layout)
    start = problem.start(SEED)
    return simulate(rule, graph.sparse.toarray(), gradient, start, STEPS)[-1]


def runs_on(name: str, engine: str) -> bool:
    return engine != "hidden exchanges" or registry.example(name).can_overlap


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("name", "engine"), [case for case in product(RULES, ENGINES) if runs_on(*case)])
def test_every_engine_gives_what_the_definition_gives(name: str, engine: str, problem: str) -> None:
    graph = topology.directed_exponential(4) if registry.example(name).needs.directed else RING
    made = PROBLEMS[problem]()
    done = ENGINES[engine](made, graph, rule=name, eta=eta_of(name), seed=SEED, steps=STEPS, progress=False)
    np.testing.assert_allclose(done.x, expected(name, made, graph), rtol=1e-9, atol=1e-11)


class Reusing(problems.Custom):
    """Each step overwrites the gradients of the last."""

    memory: tuple[Array, ...] = ()  # for each point of a step
    last, number = -1, 0

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        g = super().gradient(x, nodes, seeds, t)
        self.memory = self.memory or (g, g.copy())
        self.last, self.number = t, self.number + 1 if t == self.last else 0
        self.memory[self.number][...] = g
        return self.memory[self.number]


@pytest.mark.parametrize("least", [0, steppers.MIN_COPIED_LATE])
@pytest.mark.parametrize("name", [name for name in RULES if not registry.example(name).needs.directed])
def test_a_problem_may_reuse_the_memory_of_its_gradients(name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steppers, "MIN_COPIED_LATE", least)
    options: dict[str, Any] = {"rule": name, "eta": eta_of(name), "steps": STEPS, "progress": False}
    each = [solve(make(noisy, start=np.ones(6)), RING, **options).x for make in (problems.Custom, Reusing)]
    np.testing.assert_array_equal(*each)


def test_a_network_that_does_nothing_leaves_each_node_alone() -> None:
    rule = rules.dsgd(lambda t: 0.1)
    x = simulate(rule, np.eye(3), lambda x, node, t: x - node, np.zeros(2), steps=200)
    assert x.shape == (201, 3, 2)
    np.testing.assert_allclose(x[-1], [[0, 0], [1, 1], [2, 2]], atol=1e-8)
    assert (x[0] == 0).all()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("dsgd", r"takes a rule, such as rules.dsgd\(schedules.constant\(0.1\)\), not 'dsgd'"),
        (rules.dsgd, "takes a rule, such as"),
        (rules.dsgd(0.1), "a schedule is a function of t"),  # type: ignore[arg-type]
        (rules.dnasa(0.1, 0.1), "a schedule is a function of t"),  # type: ignore[arg-type]
    ],
    ids=["name", "maker", "number", "numbers"],
)
def test_what_is_no_rule_is_refused(rule: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        simulate(rule, RING.weights, lambda x, node, t: x, np.zeros(2), steps=1)


def test_a_graph_is_no_matrix() -> None:
    for graph in (RING, topology.exact(8)):
        with pytest.raises(InputError, match=r"simulate takes a matrix W: graph\.weights"):
            simulate(rules.dsgd(lambda t: 0.1), graph, lambda x, node, t: x, np.zeros(2), steps=1)
