"""Minimising f + h: proximal operators, and where in a step each rule applies them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import twins
from conftest import eta_of
from sklearn.linear_model import Lasso

import dnasa
from dnasa import InputError, rules, topology
from dnasa.core import Array, Prox
from dnasa.problems import Custom, prox
from dnasa.rules import registry
from dnasa.rules.registry import RULES, Variant, schedules_of

PROXIMAL = [name for name, method in RULES.items() if method.takes_prox]
NODES, DIM = 5, 4
GRAPH = topology.ring(NODES)
TARGETS = np.random.default_rng(2).normal(size=(NODES, DIM)) + np.array([3.0, -0.05, 0.0, 1.0])


def quadratic(operator: Prox | None, **options: Any) -> Custom:
    def gradient(x: Array, nodes: Array, rngs: Any) -> Array:
        return x - TARGETS[nodes] + 0.1 * rngs.standard_normal(DIM)

    return Custom(gradient, np.full(DIM, 2.0), batched=True, prox=operator, **options)


def objective(y: Array, x: Array, step: float, h: Callable[[Array], Any]) -> Any:
    return h(y) + ((y - x) ** 2).sum() / (2 * step)


@pytest.mark.parametrize("step", [0.1, 2.0])
@pytest.mark.parametrize(
    ("operator", "h", "feasible"),
    [
        (prox.l1(0.5), lambda y: 0.5 * abs(y).sum(), lambda y: y),
        (prox.l1([0.5, 0.0, 2.0]), lambda y: abs(y) @ [0.5, 0.0, 2.0], lambda y: y),
        (prox.box(-0.5, [1.0, np.inf, 0.2]), lambda y: 0.0, lambda y: np.clip(y, -0.5, [1.0, np.inf, 0.2])),
        (prox.ball(0.7), lambda y: 0.0, lambda y: y / max(1, np.linalg.norm(y) / 0.7)),
    ],
    ids=["l1", "weighted l1", "box", "ball"],
)
def test_a_proximal_operator_minimises_its_objective(
    operator: Callable[..., Any], h: Callable[..., Any], feasible: Callable[..., Any], step: float
) -> None:
    generator = np.random.default_rng(0)
    for x in 2 * generator.normal(size=(5, 3)):
        y = operator(x, step)
        np.testing.assert_allclose(feasible(y), y, rtol=1e-12)
        others = [feasible(y + 0.3 * generator.normal(size=3)) for _ in range(200)]
        assert min(objective(other, x, step, h) for other in others) >= objective(y, x, step, h) - 1e-12


@pytest.mark.parametrize("operator", [prox.l1(0.5), prox.l1([0.5, 0, 2]), prox.box(-1, [1, 2, 0]), prox.ball(0.7)])
def test_operators_work_on_all_nodes_and_in_torch(operator: Callable[..., Any]) -> None:
    x = np.random.default_rng(1).normal(size=(2, 1, 4, 3)).astype(np.float32)
    step = np.linspace(0.1, 1, 4, dtype=np.float32)[:, None]
    together = operator(x, step)
    np.testing.assert_allclose(together[1, 0, 2], operator(x[1, 0, 2], step[2]), rtol=1e-6)
    on_torch = operator(torch.from_numpy(x), torch.from_numpy(step))
    assert on_torch.dtype == torch.float32
    np.testing.assert_allclose(on_torch, together, rtol=1e-6)
    assert (operator(0 * x, step) == 0).all()


@pytest.mark.parametrize(
    "make",
    [lambda: prox.l1(-1), lambda: prox.l1("a"), lambda: prox.box(1, 0), lambda: prox.box(np.nan, 1), lambda: prox.ball(0)],
)
def test_impossible_operators_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(InputError):
        make()


def soft_threshold(x: Array, step: Any) -> Array:
    return np.sign(x) * np.maximum(abs(x) - 0.3 * step, 0)


@pytest.mark.parametrize("name", PROXIMAL)
def test_a_proximal_step_is_that_of_the_twin(name: str) -> None:
    def gradient(X: Array, t: int) -> Array:
        return np.arange(1, NODES + 1)[:, None] * np.sin(X - TARGETS) + 0.01 * t

    variant = Variant(name, next(iter(RULES[name].schedules)), eta_of(name))
    etas, start, W = schedules_of(variant, NODES, 30), np.full(DIM, 2.0), GRAPH.sparse.toarray()
    expected = twins.trace(getattr(twins, name), gradient, W, start, 30, *etas, prox=soft_threshold)
    rule = registry.make(RULES[name], etas, (("x", (DIM,)),), prox.l1(0.3))
    actual = dnasa.simulate(rule, W, lambda x, i, t: gradient(np.tile(x, (NODES, 1)), t)[i], start, 30)[1:]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PROXIMAL)
def test_box_constraints_hold_at_every_iterate(name: str) -> None:
    seen = []

    def gradient(x: Array, nodes: Array, rngs: Any) -> Array:
        seen.append(x.copy())
        noise = 0 if name == "adgt" else 0.1
        return x - TARGETS[nodes] + noise * rngs.standard_normal(DIM)

    problem = Custom(gradient, np.zeros(DIM), batched=True, prox=prox.box(-0.1, 1.0))
    result = dnasa.solve(problem, GRAPH, name, steps=200, eta=eta_of(name))
    iterates = np.concatenate([*seen, result.x[None, None]], axis=2)
    assert iterates.min() >= -0.1 - 1e-12
    assert iterates.max() <= 1 + 1e-12
    np.testing.assert_allclose(result.mean, np.clip(TARGETS.mean(0), -0.1, 1), atol=0.15)


ROWS = 20
INPUTS = np.random.default_rng(3).normal(size=(NODES, ROWS, 10))
LABELS = INPUTS @ np.array([2.0, -1.0, 0.5, *np.zeros(7)]) + 0.1 * np.random.default_rng(4).normal(size=(NODES, ROWS))


def lasso_gradient(x: Array, nodes: Array, rngs: Any) -> Array:
    residual = (INPUTS[nodes] @ x[..., None])[..., 0] - LABELS[nodes]
    return (residual[..., None, :] @ INPUTS[nodes])[..., 0, :] / ROWS


@pytest.mark.parametrize(
    ("name", "options", "accuracy"),
    [("dsgt:constant", {"eta": 0.1}, 1e-6), ("dasagt:constant", {"eta": 0.05}, 1e-6), ("dnasa", {}, 2e-3), (None, {}, 1e-6)],
)
def test_lasso_reaches_the_solution_of_scikit_learn(name: str | None, options: dict[str, Any], accuracy: float) -> None:
    exact = Lasso(alpha=0.2, fit_intercept=False, tol=1e-12).fit(INPUTS.reshape(-1, 10), LABELS.ravel()).coef_

    def full(x: Array, node: int) -> Array:
        return lasso_gradient(x[None], np.array([node]), None)[0]

    problem = Custom(lasso_gradient, np.zeros(10), batched=True, prox=prox.l1(0.2), full_gradient=full)
    result = dnasa.solve(problem, GRAPH, name, steps=3000, **options)
    np.testing.assert_allclose(result.mean, exact, atol=accuracy)
    last = result.history.iloc[-1]
    assert last.grad_norm < 10 * accuracy  # of the gradient mapping: the gradient of f itself is not 0
    assert np.linalg.norm(np.mean([full(exact, i) for i in range(NODES)], axis=0)) > 0.2


def test_rules_without_a_proximal_step_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'AdaNASA' has no proximal step: choose from adgt, dasagt, dnasa, dsgd, dsgt"):
        dnasa.solve(quadratic(prox.l1(0.1)), GRAPH, "adanasa", steps=5)
    with pytest.raises(InputError, match="decorate the maker with @rule"):
        dnasa.solve(quadratic(prox.l1(0.1)), GRAPH, rules.dsgd(lambda t: 0.1), steps=5)


@pytest.mark.parametrize(
    ("operator", "got"), [(lambda x, step: x[0], r"float64 of shape \(1, 5, 4\)"), (lambda x, step: None, "NoneType")]
)
def test_a_prox_that_returns_something_else_gets_one_line(operator: Callable[..., Any], got: str) -> None:
    with pytest.raises(InputError, match=f"The result of prox at nodes 0 to 4 is {got}: return an array"):
        dnasa.solve(quadratic(operator), GRAPH, steps=5)


@pytest.mark.parametrize("operator", [prox.l1([1, 2]), prox.box([0], 1), prox.box(0, np.ones(5))])
def test_an_operator_for_another_number_of_coordinates_is_refused_before_the_first_step(operator: Callable[..., Any]) -> None:
    problem = Custom(lambda x, node, rng: pytest.fail("a step was taken"), np.ones(DIM), prox=operator)
    with pytest.raises(InputError, match=r"has \d numbers and x has 4: give one number, or one for each coordinate"):
        dnasa.solve(problem, GRAPH, steps=5)
