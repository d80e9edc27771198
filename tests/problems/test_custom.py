"""Gradients of one's own: batched, node by node, or differentiated by torch; metrics of one's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from thread_network import run_threads

import dnasa
from dnasa import InputError, Result, randomness, topology
from dnasa.communication import Network
from dnasa.core import Array
from dnasa.problems import Custom, prox
from dnasa.randomness import Generators, Streams
from dnasa.topology import Topology

NODES, DIM = 5, 3
TARGETS = np.random.default_rng(0).normal(size=(NODES, DIM))
GRAPH = topology.ring(NODES)


def node_gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    noise = rng.standard_normal(DIM)
    return x - TARGETS[node] + 0.1 * noise * rng.random()


def batched_gradient(x: Array, nodes: Array, rngs: Any) -> Array:
    noise = rngs.standard_normal(DIM)
    return x - TARGETS[nodes] + 0.1 * noise * rngs.random()[..., None]


def node_loss(x: torch.Tensor, node: int, rng: np.random.Generator) -> torch.Tensor:
    noise = torch.from_numpy(0.1 * rng.standard_normal(DIM) * rng.random())
    return 0.5 * ((x - torch.from_numpy(TARGETS[node])) ** 2).sum() + noise @ x


def batched_loss(x: torch.Tensor, nodes: Array, rngs: Any) -> torch.Tensor:
    noise = torch.from_numpy(0.1 * rngs.standard_normal(DIM) * rngs.random()[..., None])
    return 0.5 * ((x - torch.from_numpy(TARGETS)[nodes]) ** 2).sum(-1) + (noise * x).sum(-1)


class Failing:
    """Counts its calls, and fails at one of them as a user's function does."""

    def __init__(self, function: Callable[..., Any], call: int):
        self.function, self.call, self.calls = function, call, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == self.call:
            return [][self.calls]
        return self.function(*args)


def quadratic(x: Any, node: int) -> Any:
    return 0.5 * ((x - TARGETS[node]) ** 2).sum()


FUNCTIONS: dict[str, tuple[Callable[[Any], Custom], Callable[..., Any], int, str]] = {
    "gradient": (lambda f: Custom(f, np.zeros(DIM)), node_gradient, 2 * NODES + 4, "At step 2: The gradient of node 3"),
    "batched": (
        lambda f: Custom(f, np.zeros(DIM), batched=True),
        batched_gradient,
        3,
        "At step 2: The batched gradient of nodes 0 to 4",
    ),
    "from_loss": (lambda f: Custom.from_loss(f, np.zeros(DIM)), node_loss, NODES + 1, "At step 1: The gradient of node 0"),
    "loss": (lambda f: Custom(node_gradient, np.zeros(DIM), loss=f), quadratic, NODES + 2, "At step 4: The loss of node 1"),
    "full_gradient": (
        lambda f: Custom(node_gradient, np.zeros(DIM), full_gradient=f),
        lambda x, node: x - TARGETS[node],
        5,
        "At step 0: The full gradient of node 4",
    ),
    "evaluate": (
        lambda f: Custom(node_gradient, np.zeros(DIM), evaluate=f),
        lambda x: {"first": x[0]},
        2,
        "At step 4: The function evaluate",
    ),
    "prox": (
        lambda f: Custom(node_gradient, np.zeros(DIM), prox=f),
        lambda x, step: x / 2,
        5,  # the first two calls are before the first step
        "At step 2: prox at nodes 0 to 4",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_exception_in_a_function_is_one_line_with_node_and_step_and_its_cause(name: str) -> None:
    make, function, call, words = FUNCTIONS[name]
    with pytest.raises(InputError) as error:
        dnasa.solve(make(Failing(function, call)), GRAPH, "dsgd", eta=0.1, steps=8, evaluate=4)
    assert str(error.value) == f"{words} raised IndexError: list index out of range."
    assert isinstance(error.value.__cause__, IndexError)


def test_an_exception_in_a_stepsize_is_named() -> None:
    problem = Custom(node_gradient, np.zeros(DIM))
    with pytest.raises(InputError, match=r"The stepsize at step 3 raised IndexError: list index out of range\."):
        dnasa.solve(problem, GRAPH, "dsgd", eta=Failing(lambda t: 0.1, 4), steps=5)


def test_an_interruption_and_too_little_memory_stay_what_they_are() -> None:
    for kind in (KeyboardInterrupt, MemoryError):

        def gradient(x: Array, node: int, rng: Any, kind: type[BaseException] = kind) -> Array:
            raise kind

        with pytest.raises(kind):
            dnasa.solve(Custom(gradient, np.zeros(DIM)), GRAPH, steps=2)


@pytest.mark.parametrize("rule", ["dnasa", "gt_hsgd"])
def test_batched_gradients_give_the_iterates_of_gradients_node_by_node(rule: str) -> None:
    options: Any = {"steps": 70, "seed": [0, 3]} | ({} if rule == "dnasa" else {"eta": [0.01, 0.03]})
    one, all_at_once = (
        dnasa.solve(problem, GRAPH, rule, **options).x
        for problem in (Custom(node_gradient, np.zeros(DIM)), Custom(batched_gradient, np.zeros(DIM), batched=True))
    )
    np.testing.assert_allclose(all_at_once, one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("operator", [None, prox.l1(0.2)])
def test_processes_give_the_simulators_iterates(operator: Callable[..., Any] | None) -> None:
    def run(network: Network | Topology = GRAPH) -> Result:
        problem = Custom(
            batched_gradient, np.zeros(DIM), batched=True, prox=operator, full_gradient=lambda x, i: x - TARGETS[i]
        )
        return dnasa.solve(problem, network, steps=30, seed=[0, 1], evaluate=10)

    expected = run()
    for real in run_threads(GRAPH, run, processes=2):
        np.testing.assert_allclose(real.x, expected.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(real.history.grad_norm, expected.history.grad_norm, rtol=1e-9)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x[0], r"batched gradient is float64 of shape \(1, 5, 3\): return .* \(1, 1, 5, 3\)"),
        (lambda x: "no", "batched gradient is str: return an array of real numbers"),
        (lambda x: x * np.array([[1], [1], [np.nan], [1], [1]]) + x, "gradient of node 2 is not finite"),
    ],
)
def test_mistakes_in_batched_gradients_get_one_line(returned: Callable[..., Any], message: str) -> None:
    problem = Custom(lambda x, nodes, rngs: returned(x), np.ones(DIM), batched=True)
    with pytest.raises(InputError, match=message):
        dnasa.solve(problem, GRAPH, steps=2)


def test_a_batched_gradient_with_randomness_of_its_own_is_accepted() -> None:
    own = np.random.default_rng(0)
    problem = Custom(lambda x, nodes, rngs: x - TARGETS[nodes] + own.normal(size=x.shape), np.zeros(DIM), batched=True)
    assert dnasa.solve(problem, GRAPH, steps=2).x.shape == (NODES, DIM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": 3.0}, "gradient must be a function, not float"),
        ({"full_gradient": np.zeros(3)}, "full_gradient must be a function, not ndarray"),
        ({"evaluate": {"a": 1.0}}, "evaluate must be a function, not dict"),
    ],
)
def test_what_is_not_a_function_of_these_arguments_is_refused(options: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"gradient": node_gradient, "start": np.zeros(DIM)}
    with pytest.raises(InputError, match=message):
        Custom(**usual | options)


def several(rng: Any) -> list[Array]:
    return [
        rng.standard_normal(4),
        rng.standard_normal((2, 1)),
        rng.integers(7),  # leaves half a word in a buffer
        rng.standard_normal(2),
        rng.integers(-3, 2**40, size=(2, 1)),
        rng.integers(5, size=2),
        rng.integers(0, 10, size=3, dtype=np.int32),
        rng.standard_normal(),
        rng.standard_t(1.5, size=2),
    ]


@pytest.mark.parametrize("way", ["compiled", "not compiled"])
def test_draws_for_all_nodes_are_those_of_each_stream(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "not compiled":
        monkeypatch.setattr(randomness, "compiled", None)
    rngs = Generators("custom", [0, 9], range(3, 6))
    for t in (0, 63, 64, 65, 2):
        rngs.at(t)
        drawn = several(rngs)
        for s, seed in enumerate((0, 9)):
            for k, node in enumerate(range(3, 6)):
                for a, b in zip(drawn, several(Streams("custom").at(seed, node, t)), strict=True):
                    np.testing.assert_array_equal(a[s, k], b)


@pytest.mark.parametrize(("loss", "batched"), [(node_loss, False), (batched_loss, True)])
@pytest.mark.parametrize("start", [np.zeros(DIM), torch.zeros(DIM, dtype=torch.float64)])
def test_from_loss_differentiates(loss: Callable[..., Any], batched: bool, start: Array) -> None:
    problem = Custom.from_loss(loss, start, batched=batched)
    result = dnasa.solve(problem, GRAPH, "dsgt", eta=[0.01, 0.02], steps=20, seed=[0, 1])
    by_hand = dnasa.solve(Custom(node_gradient, np.zeros(DIM)), GRAPH, "dsgt", eta=[0.01, 0.02], steps=20, seed=[0, 1])
    np.testing.assert_allclose(result.x, by_hand.x, rtol=1e-12, atol=1e-14)


def test_the_fingerprint_is_that_of_the_user_or_has_the_names_of_functions_and_the_start() -> None:
    problems = [
        Custom.from_loss(node_loss, np.zeros(DIM)),
        Custom.from_loss(batched_loss, np.zeros(DIM)),
        Custom(node_gradient, np.zeros(DIM)),
        Custom(partial(node_gradient), np.ones(DIM)),
        *(Custom(node_gradient, np.zeros(DIM), prox=each) for each in (prox.l1(0.1), prox.l1(0.2), prox.ball(0.1))),
    ]
    prints = [problem.fingerprint for problem in problems]
    assert len(set(prints)) == len(prints)
    assert "custom node_loss, start" in prints[0]
    assert "custom node_gradient, start" in prints[3]
    assert Custom(node_gradient, np.zeros(DIM), fingerprint="set 7").fingerprint == "set 7"


@pytest.mark.parametrize(
    ("loss", "batched", "message"),
    [
        (lambda x, node, rng: x.detach().sum(), False, "loss of node 0 must be a real tensor, computed from x by torch"),
        (lambda x, node, rng: x, False, "loss of node 0 must be a real tensor, .* with a single number"),
        (lambda x, nodes, rngs: x.sum(), True, r"one number for each row of x, \(1, 1, 5\)"),
        (lambda x, node, rng: x.sum() * 1j, False, "must be a real tensor"),
        (lambda x, nodes, rngs: torch.dot(x[0, 0, 0], TARGETS[0]), True, "batched gradient .* raised TypeError: dot"),
    ],
)
def test_mistakes_in_a_loss_get_one_line(loss: Callable[..., Any], batched: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dnasa.solve(Custom.from_loss(loss, np.zeros(DIM), batched=batched), GRAPH, steps=2)


def test_evaluate_adds_metrics_to_the_history() -> None:
    center = TARGETS.mean(0)
    problem = Custom(batched_gradient, np.zeros(DIM), batched=True, evaluate=lambda x: {"distance": np.linalg.norm(x - center)})
    result = dnasa.solve(problem, GRAPH, "dsgt:constant", eta=[0.01, 0.1], seed=[0, 1], steps=60)
    last = result.history[result.history.step == 60]
    np.testing.assert_allclose(last.distance, [np.linalg.norm(x.mean(0) - center) for x in result.x])
    assert last.distance.max() < np.linalg.norm(center)


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda x: 3.0, "must return a dictionary of numbers"),
        (lambda x: {"name": "word"}, "metric 'name' is of type str: return a single number"),
        (lambda x: {"ratio": float("nan")}, "'ratio' is nan although x is finite"),
        (lambda x: {"near" if abs(x).max() < 1e-9 else "far": 1.0}, "same names"),
        (lambda x: {"consensus": 1.0}, "column of every history"),
    ],
)
def test_mistakes_in_evaluate_get_one_line(evaluate: Callable[..., Any], message: str) -> None:
    problem = Custom(batched_gradient, np.zeros(DIM), batched=True, evaluate=evaluate)
    with pytest.raises(InputError, match=message):
        dnasa.solve(problem, GRAPH, "dsgt:constant", eta=[0.01, 1e-300], steps=3)


@pytest.mark.parametrize("start", [np.zeros(DIM), torch.zeros(DIM, dtype=torch.float64)], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"loss": lambda x, node: np.nan if node == 2 else 1.0}, "At step 0: The loss of node 2 is nan although x is"),
        (
            {"full_gradient": lambda x, node: x * (np.inf if node == 3 else 1) + x},
            "At step 0: The largest entry of the full gradient of node 3 is (inf|nan) although x is",
        ),
    ],
    ids=["loss", "full gradient"],
)
def test_what_is_measured_must_be_finite_where_x_is(function: dict[str, Any], message: str, start: Array) -> None:
    problem = Custom(lambda x, node, rng: x, start, **function)
    with pytest.raises(InputError, match=message):
        dnasa.solve(problem, GRAPH, steps=2)


def test_a_diverging_run_may_have_a_loss_that_is_not_finite() -> None:
    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        return -(x**3)

    problem = Custom(gradient, np.ones(DIM), loss=lambda x, node: (x**4).sum())
    result = dnasa.solve(problem, GRAPH, "dsgd:constant", eta=10.0, steps=20, evaluate=1)
    assert result.runs.diverged[0] > 0
