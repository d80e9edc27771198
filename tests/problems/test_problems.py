"""Problems follow their protocol, identify their data, and refuse what cannot work with one clear line."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dnasa
from dnasa import solve, topology
from dnasa.comparing import compare
from dnasa.core import Array, InputError
from dnasa.problems import Classification, Custom, LeastSquares, Problem, RobustRegression
from dnasa.problems.models import perceptron


def classification(
    nodes: int = 4, held: Sequence[int] | None = None, change: int | None = None, model: Callable[..., Any] = perceptron
) -> Classification:
    """60 rows in shards of different sizes; only the rows of the nodes `held` are here, as with shard files."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((90, 6)).astype(np.float32)
    y = np.arange(90) % 3
    if change is not None:
        x[change] += 1
    pieces = np.split(np.arange(60), np.cumsum([10, 15, 5])[: nodes - 1])
    rows = np.concatenate([pieces[node] for node in held or range(nodes)])
    places = {int(row): place for place, row in enumerate(rows)}
    shards = [np.array([places[row] for row in piece.tolist() if row in places], dtype=int) for piece in pieces]
    return Classification(lambda: model(6, 5, 3), x[rows], y[rows], shards, x[60:], y[60:], batch=8, dtype="float64")


def custom() -> Custom:
    return Custom(
        lambda x, node, rng: x - node,
        start=np.zeros(3),
        loss=lambda x, node: float(((x - node) ** 2).sum() / 2),
        full_gradient=lambda x, node: x - node,
    )


PROBLEMS = {
    "least squares": lambda: LeastSquares(dim=3),
    "robust regression": lambda: RobustRegression(4, dim=3, rows=5),
    "custom": custom,
    "classification": classification,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_weights_weigh_the_nodes_and_not_the_test(name: str) -> None:
    problem = PROBLEMS[name]()
    start = problem.start(0)
    mean = 0.3 + (start[None, None] if isinstance(start, np.ndarray) else start[None, None].clone())
    weights = [0.5, 2.0, 0.0, 1.5]
    apart = [problem.evaluate(mean, range(node, node + 1)) for node in range(4)]
    weighted = problem.evaluate(mean, range(4), weights)
    plain = problem.evaluate(mean, range(4))
    assert {"train_loss", "gradient"} <= weighted.keys()
    for key, value in weighted.items():
        if key.startswith("test"):
            np.testing.assert_allclose(value, plain[key], rtol=1e-12)
        else:
            expected = sum(w * part[key] for w, part in zip(weights, apart, strict=True)) / 4
            np.testing.assert_allclose(value, expected, rtol=1e-10)
    for key, value in problem.evaluate(mean, range(4), [1.0] * 4).items():
        np.testing.assert_allclose(value, plain[key], rtol=1e-12)


def test_the_remaining_nodes_evaluate_all_test_rows() -> None:
    problem = classification()
    mean = problem.start(0)[None, None]
    before = problem.evaluate(mean, range(4))
    problem.continue_without([0, 2])
    first, second = (problem.evaluate(mean, range(node, node + 1)) for node in (1, 3))
    for key in ("test_loss", "test_accuracy"):
        np.testing.assert_allclose((first[key] + second[key]) / 2, before[key], rtol=1e-10)


def test_processes_with_different_shards_agree_on_the_fingerprint_and_each_node_has_its_own() -> None:
    whole = classification()
    first, rest = classification(held=[0]), classification(held=[1, 2, 3])
    assert first.fingerprint == rest.fingerprint == whole.fingerprint
    gathered = [first.node_fingerprint(0), *(rest.node_fingerprint(node) for node in (1, 2, 3))]
    assert gathered == [whole.node_fingerprint(node) for node in range(4)]
    assert len(set(gathered)) == 4
    assert [first.rows(0), *(rest.rows(node) for node in (1, 2, 3))] == [10, 15, 5, 30]
    one, other = classification(), classification(change=12)
    assert one.fingerprint == other.fingerprint
    assert [one.node_fingerprint(i) == other.node_fingerprint(i) for i in range(4)] == [True, False, True, True]


def test_other_test_data_or_another_network_changes_the_fingerprint() -> None:
    def relu(*sizes: int) -> Any:
        network: Any = perceptron(*sizes)
        network[1] = torch.nn.ReLU()
        return network

    assert classification().fingerprint != classification(change=70).fingerprint
    assert classification().fingerprint != classification(model=relu).fingerprint
    assert classification().fingerprint != classification(nodes=3).fingerprint


def gradient_of(returned: Any, start: Array | None = None) -> Array:
    """The gradients of two nodes at step 5 where node 1 returns this."""
    problem = Custom(lambda x, node, rng: returned if node else x, np.ones(3) if start is None else start)
    point = problem.start(0)
    x = point[None, None, None] * (np.ones((1, 1, 2, 1)) if isinstance(point, np.ndarray) else torch.ones(1, 1, 2, 1))
    return problem.gradient(x, range(2), [0], 5)


@pytest.mark.parametrize("start", [np.ones(3), torch.ones(3)], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (1.0, r"is float: return an array of real numbers of shape \(3,\)"),
        ([1.0, 2.0], "is list: return"),
        (np.ones((3, 1)), r"is float64 of shape \(3, 1\): return"),
        (torch.ones(2), r"is torch.float32 of shape \(2,\): return"),
        (None, "is NoneType: return"),
        ([[1.0], [2.0, 3.0], 1.0], "is list: return"),
        (np.ones(3) * 1j, "is complex128 of shape"),
        (torch.ones(3) * 1j, r"is torch\.complex64 of shape"),
        (["a", "b", "c"], "is list: return"),
        ([1.0, np.nan, 0.0], "is not finite although x is"),
        (torch.tensor([1.0, torch.inf, 0.0]), "is not finite although x is"),
    ],
)
def test_an_unusable_gradient_is_refused_with_its_node(start: Array, returned: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"The gradient of node 1 {words}") as caught:
        gradient_of(returned, start)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [np.ones(3), torch.ones(3)], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    "returned",
    [
        [1, 2, 3],
        np.array([1, 2, 3]),
        np.array([3.0, 2.0, 1.0])[::-1],
        torch.tensor([1, 2, 3]),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_gradients_of_another_library_or_dtype_are_converted(start: Array, returned: Any) -> None:
    g = gradient_of(returned, start)
    assert (type(g), g.dtype) == (type(start), start.dtype)
    np.testing.assert_array_equal(g[0, 0], [[1, 1, 1], [1, 2, 3]])


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (np.zeros(0), "with one axis"),
        (torch.zeros(0), "with one axis"),
        (np.zeros(2, np.float16), "start has dtype float16: convert it to float32 or float64"),
        (torch.zeros(2, dtype=torch.bfloat16), "start has dtype bfloat16: convert"),
        (np.zeros(2, complex), "start has dtype complex128: convert"),
        (np.array([None, None]), "start has dtype object: convert"),
        ([0.0, 0.0], "with one axis"),
        (pd.Series([0.0, 0.0]), "with one axis"),
        (np.zeros((2, 2)), "with one axis"),
    ],
)
def test_an_unusable_start_is_refused(start: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Custom(lambda x, node, rng: x, start)


@pytest.mark.parametrize(("dtype", "x"), [(np.float32, 1e13), (np.float64, 1e110)])
def test_a_diverging_run_is_not_a_mistake_in_the_gradient(dtype: type[np.floating[Any]], x: float) -> None:
    problem = Custom(lambda x, node, rng: 4 * x**3, np.ones(2, dtype))
    with np.errstate(over="ignore"):
        g = problem.gradient(np.full((1, 1, 1, 2), x, dtype), range(1), [0], 9)
    assert np.isinf(g).all()


@pytest.mark.parametrize("given", [{"nodes": 5}, {"nodes": 64}, {"nodes": 0}])
def test_robust_regression_refuses_what_it_cannot_divide(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"power of two|positive whole number"):
        RobustRegression(**given)


def test_least_squares_has_no_test_loss_in_large_dimensions() -> None:
    problem = LeastSquares(dim=10_000)
    x = np.zeros((1, 1, 2, 10_000))
    assert np.isfinite(problem.gradient(x, range(2), [0], 0)).all()
    assert problem.evaluate(x[:, :, 0], range(2)).keys() == {"train_loss", "gradient"}
    assert LeastSquares(dim=50).evaluate(x[:, :, 0, :50], range(2)).keys() == {"train_loss", "test_loss", "gradient"}


class Minimal(Problem):
    """Nothing but what is required."""

    targets = np.random.default_rng(0).normal(size=(5, 3))

    def start(self, seed: int) -> Array:
        return np.zeros(3)

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        return x - self.targets[list(nodes)]


def test_a_problem_with_the_required_members_alone_runs_everywhere(tmp_path: Path) -> None:
    graph, own = topology.ring(5), Minimal()
    assert (own.nodes, own.batch, own.fingerprint, own.layout) == (None, 1, "Minimal", (("x", (3,)),))
    options: Any = {"steps": 20, "seed": [0, 1], "evaluate": 10}
    saved: Any = {"folder": tmp_path / "run", **options}

    def interrupt(evaluation: Any) -> None:
        if evaluation.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(own, graph, record=dnasa.Record(callback=interrupt, checkpoint_every=10), **saved)
    np.testing.assert_array_equal(solve(own, graph, resume=True, **saved).x, solve(own, graph, **options).x)
    compared = compare(own, graph, ["dsgd", "dnasa"], [0.1, 0.2], steps=20, metric="consensus", progress=False)
    assert set(compared.history.rule) == {"dsgd", "dnasa"}


def test_optional_members_are_used() -> None:
    class Fuller(Minimal):
        nodes, batch, prox = 5, 3, staticmethod(dnasa.problems.prox.l1(10.0))

        def rows(self, node: int) -> int:
            return 30

        def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
            return {"train_loss": (mean**2).sum(-1)}

    result = solve(Fuller(), topology.ring(5), "dsgd", eta=0.1, steps=10, evaluate=10)
    assert (result.x == 0).all()
    assert result.history[["train_loss", "epochs"]].iloc[-1].tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match="data for 5 nodes, the topology has 4"):
        solve(Fuller(), topology.ring(4), steps=1)


@pytest.mark.parametrize(
    ("problem", "words"),
    [(Minimal.gradient, "and <function .* is not"), (None, "and None is not"), (Custom, "and <class .* is not")],
)
def test_what_is_no_problem_is_refused(problem: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"must be an object of a subclass of .*{words}"):
        solve(problem, topology.ring(5), steps=1)


@pytest.mark.parametrize("start", [[0.0, 0.0], np.zeros((2, 2))])
def test_a_start_that_is_no_vector_is_refused(start: Any) -> None:
    class Wrong(Minimal):
        def start(self, seed: int) -> Array:
            return start

    with pytest.raises(InputError, match="start must return a one-dimensional NumPy array or torch tensor"):
        solve(Wrong(), topology.ring(5), steps=1)


@pytest.mark.parametrize(
    ("member", "function", "words"),
    [
        ("start", lambda self: np.zeros(2), r"The problem's start\(seed\) raised TypeError"),
        ("rows", lambda self: 3, r"rows\(node\) raised TypeError"),
        ("gradient", lambda self, x, nodes: x, r"The problem's gradient\(x, nodes, seeds, t\) of .* raised TypeError"),
        ("gradient", lambda self, x, nodes, seeds, t: None, "The problem's gradient is NoneType"),
        ("evaluate", lambda self, mean: {}, r"The problem's evaluate\(mean, nodes, weights=None\) raised TypeError"),
        ("evaluate", lambda self, mean, nodes: None, "must return a dictionary of arrays, not NoneType"),
        ("evaluate", lambda self, mean, nodes: {"loss": 1.0}, "'loss' of .* must be an array of shape \\(1, 1\\)"),
        ("evaluate", lambda self, mean, nodes: {"loss": mean}, "must be an array of shape \\(1, 1\\)"),
        ("evaluate", lambda self, mean, nodes: {"gradient": mean[0]}, "must be an array of shape \\(1, 1, 3\\)"),
    ],
)
def test_a_member_with_the_wrong_arguments_or_result_is_named(member: str, function: Any, words: str) -> None:
    problem: Any = type("Wrong", (Minimal,), {member: function})()
    with pytest.raises(InputError, match=words):
        solve(problem, topology.ring(5), steps=2)


def test_a_graph_by_name_needs_a_number_of_nodes() -> None:
    with pytest.raises(InputError, match=r"give the graph's size, such as topology.ring\(8\), or set `nodes` in your"):
        solve(Minimal(), "ring", steps=1)
