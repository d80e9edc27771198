"""The rule of `solve` where none is named: AdGT with full gradients, else D-NASA."""

import warnings
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from thread_network import run_threads

import dnasa
from dnasa import topology
from dnasa.core import Array
from dnasa.problems import Custom

CONVEX = SimpleNamespace(**run_path(str(Path(__file__).parents[2] / "experiments" / "convex.py")))
SLOW = "least squares, condition 2e3"
LONG = (SLOW, "ridge", "squared hinge", "gamma")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] if each in LONG else []) for each in CONVEX.losses()]
)
def test_the_default_rule_reaches_scipys_minimum(name: str) -> None:
    problem, steps = CONVEX.problem(name, CONVEX.losses()[name]), 1500 if name == SLOW else 90
    result = dnasa.solve(problem, topology.exact(CONVEX.NODES), steps=steps, evaluate=[steps], progress=False)
    assert abs(result.history.error.iloc[-1]) < 1e-3


def pull(noisy: tuple[int, ...] = ()) -> Custom:
    """Node i pulls x to i."""

    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        return x - node + (0.01 * rng.standard_normal(2) if node in noisy else 0)

    return Custom(gradient, np.zeros(2), fingerprint="pull")


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ({"compress": "float16"}, {}),
        ({"overlap": True}, {}),
        ({"late": 1, "clock": {"compute": 1, "bandwidth": 1, "latency": 1}}, {}),
        ({}, {"weight_decay": 0.1}),
    ],
)
def test_where_adgt_does_not_work_the_default_is_dnasa(network: dict[str, Any], options: dict[str, Any]) -> None:
    made = dnasa.connect(topology.ring(4), **network)
    assert dnasa.solve(pull(), made, steps=3, progress=False, **options).runs.rule.tolist() == ["dnasa"]


@pytest.mark.parametrize(("noisy", "rule"), [((), "adgt"), ((3,), "dnasa")])
def test_all_processes_choose_the_same_rule_although_one_has_noise(noisy: tuple[int, ...], rule: str) -> None:
    work = lambda network: dnasa.solve(pull(noisy), network, steps=3, progress=False)  # noqa: E731
    assert [result.runs.rule.tolist() for result in run_threads(topology.ring(4), work, 2)] == [[rule]] * 2


def test_noise_that_the_rule_cannot_have_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="AdGT needs full gradients and these have noise"):
        dnasa.solve(pull((3,)), topology.ring(4), ["clip:1+adgt", "dnasa"], steps=3, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnasa.solve(pull(), topology.ring(4), "adgt", steps=3, progress=False)


def test_a_resumed_run_has_the_rule_it_began_with(tmp_path: Path) -> None:
    options: Any = {"steps": 30, "evaluate": 10, "progress": False}
    saved: Any = {"folder": tmp_path / "run", "record": dnasa.Record(callback=lambda e: 0 / (e.step < 20), checkpoint_every=5)}
    with pytest.raises(ZeroDivisionError):
        dnasa.solve(pull(), topology.ring(4), **saved, **options)
    assert "Begun with adgt." in (tmp_path / "run" / "log.txt").read_text()
    resumed = dnasa.solve(pull(), topology.ring(4), folder=tmp_path / "run", resume=True, **options)
    np.testing.assert_array_equal(resumed.x, dnasa.solve(pull(), topology.ring(4), **options).x)
    np.testing.assert_allclose(resumed.x, 1.5, atol=1e-3)


@pytest.mark.parametrize("graph", [topology.ring(8), topology.exact(8)], ids=lambda graph: graph.name)
def test_nodes_of_very_different_scales_converge(graph: topology.Topology) -> None:
    """Their curvatures are 0.001 to 1,000; that of node 4 is 0, as is its gradient."""
    factors = np.array([0.1, 100, 0.001, 10, 0, 1000, 0.01, 1])
    problem = Custom(lambda x, i, rng: factors[i] * (x - i), np.zeros(2))
    result = dnasa.solve(problem, graph, steps=300, evaluate=[300], progress=False)
    np.testing.assert_allclose(result.x, factors @ np.arange(8) / factors.sum(), atol=1e-3)


@pytest.mark.parametrize("graph", [topology.ring(4), topology.exact(4)], ids=lambda graph: graph.name)
def test_one_node_with_an_exploding_gradient_is_no_harm(graph: topology.Topology) -> None:
    """As that of an unstable plant: the others, which are mild, must not leap with its gradient."""

    def gradient(x: Any, i: int) -> Any:
        return np.sinh(20 * (x - 1)) / 20 if i == 0 else x - 1 - i / 10

    problem = Custom(lambda x, i, rng: gradient(x, i), np.zeros(1))
    result = dnasa.solve(problem, graph, steps=300, evaluate=[300], progress=False)
    best = brentq(lambda x: sum(gradient(x, i) for i in range(4)), 0, 2)
    np.testing.assert_allclose(result.x, best, rtol=1e-3)


def test_a_run_that_ends_far_from_the_minimum_says_so() -> None:
    with pytest.warns(UserWarning, match=r"second half of the 8 steps still moved x by \S+ of its distance from the start"):
        dnasa.solve(pull(), topology.ring(4), steps=8, progress=False)
    A = np.random.default_rng(0).normal(size=(4, 60, 3)) * [1, 20, 100] + [0, 60, 1000]  # columns as they are in a table
    y = 3 + A @ [1, 0.01, 0.001]
    unscaled = Custom(
        lambda x, i, rng: np.r_[A[i].T @ (z := A[i] @ x[:3] + x[3] - y[i]), z.sum()] / 60, np.zeros(4), fingerprint="raw"
    )
    with pytest.warns(UserWarning, match="the minimum is not reached"):
        dnasa.solve(unscaled, topology.exact(4), steps=500, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnasa.solve(pull(), topology.ring(4), steps=60, progress=False)
        dnasa.solve(pull((3,)), topology.ring(4), steps=8, progress=False)  # noisy: it is not known where it ends
