"""A rule with changed gradients is its twin with these gradients, in every engine."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import twins
from conftest import Bumpy, eta_of
from test_rules import STEPS, default_schedules, layout, make, simulated_run

from dnasa import core, rules, simulate, topology
from dnasa.core import Array, InputError
from dnasa.rules import registry, schedules
from dnasa.runs.folder import RunFolder

GRAPH = topology.ring(5, weights="lazy")
ETA = schedules.constant(0.05)


class Changed:
    """The gradients that a rule gets, node by node; some twins ask for those of a step twice."""

    def __init__(self, kind: str, problem: Bumpy):
        self.kind, self.problem, self.m, self.v = kind, problem, 0.0, 0.0
        self.known: dict[tuple[bytes, int], Array] = {}

    def __call__(self, X: Array, t: int) -> Array:
        key = X.tobytes(), t
        if key not in self.known:
            self.known[key] = self.changed(self.problem.all(X, t), t)
        return self.known[key]

    def changed(self, g: Array, t: int) -> Array:
        if self.kind == "clip:2":
            return np.array([row if np.linalg.norm(row) <= 2 else 2 * row / np.linalg.norm(row) for row in g])
        if self.kind == "momentum:0.7":
            self.m = 0.7 * self.m + g
            return self.m
        self.m, self.v = 0.8 * self.m + 0.2 * g, 0.9 * self.v + 0.1 * g * g
        return self.m / (1 - 0.8 ** (t + 1)) / (np.sqrt(self.v / (1 - 0.9 ** (t + 1))) + 1e-8)


@pytest.mark.parametrize(("kind", "name"), list(product(["clip:2", "momentum:0.7", "adam:0.8:0.9"], rules.RULES)))
def test_a_rule_with_changed_gradients_is_its_twin_with_these(kind: str, name: str) -> None:
    problem, steps = Bumpy(5), default_schedules(name, 5)
    made = registry.make(registry.find(f"{kind}+{name}"), steps, layout(len(problem.start)))
    if name == "gt_hsgd" and kind != "clip:2":
        with pytest.raises(InputError, match="Rules with two gradients per step take no momentum and no moments: use clipping"):
            simulated_run(made, problem, GRAPH)
        return
    expected = twins.trace(getattr(twins, name), Changed(kind, problem), GRAPH.sparse.toarray(), problem.start, STEPS, *steps)
    np.testing.assert_allclose(simulated_run(made, problem, GRAPH), expected, rtol=0, atol=1e-9)
    plain = simulated_run(make(name, steps, problem.start), problem, GRAPH)
    assert np.abs(plain[-1] - expected[-1]).max() > 1e-7


def test_adam_before_dsgd_is_dadam_and_momentum_before_dsgd_is_dmsgd() -> None:
    problem, dsgd = Bumpy(5), rules.dsgd(ETA)
    for composed, rule in ((rules.with_adam(dsgd), rules.dadam(ETA)), (rules.with_momentum(dsgd, 0.9), rules.dmsgd(ETA))):
        np.testing.assert_allclose(simulated_run(composed, problem, GRAPH), simulated_run(rule, problem, GRAPH), atol=1e-12)
    X = np.tile(problem.start, (5, 1))
    _, after = rules.with_adam(dsgd).send(rules.with_adam(dsgd).init(X), (problem.all(X, 0),), 0)
    _, expected = rules.dadam(ETA).send(rules.dadam(ETA).init(X), (problem.all(X, 0),), 0)
    np.testing.assert_array_equal(after.memory, (expected.m, expected.v))
    assert rules.with_adam(rules.dsgt(ETA)).estimate is None  # its tracker follows the changed gradients


def test_gradients_are_changed_from_left_to_right() -> None:
    """Behind momentum, a clipped direction is at most as long as the clip; before it, it may be longer."""
    start, g, lengths = np.zeros((1, 2)), np.array([[30.0, 40.0]]), []
    for name in ("clip:1+momentum+dsgd", "momentum+clip:1+dsgd"):
        variant = registry.variants(name, [1.0], "constant")[0]
        rule = registry.make(registry.find(variant.rule), registry.schedules_of(variant, 1, 2), layout(2))
        x = simulate(rule, np.eye(1), lambda x, i, t: g[i], start[0], 2)
        lengths.append(np.linalg.norm(x[2] - x[1]))
    assert lengths == pytest.approx([1.9, 1.0])


def test_own_changes_may_have_a_memory() -> None:
    def change(memory: Any, g: Array, t: int) -> tuple[Array, Any]:
        (total,) = memory
        total = total + g**2
        return g / (total**0.5 + 1e-8), (total,)

    problem = Bumpy(5)
    adagrad = rules.with_gradients(rules.dsgd(ETA), change, lambda x: (0 * x,))
    X, total, W = np.tile(problem.start, (5, 1)), 0.0, GRAPH.sparse.toarray()
    for t in range(STEPS):
        g = problem.all(X, t)
        total = total + g * g
        X = W @ (X - 0.05 * g / (np.sqrt(total) + 1e-8))
    np.testing.assert_allclose(simulated_run(adagrad, problem, GRAPH)[-1], X, rtol=0, atol=1e-12)


def test_tables_find_the_rule_inside_and_its_schedule() -> None:
    assert registry.split_schedule("clip:1+adam:0.9:0.99+dsgt:constant") == ("clip:1+adam:0.9:0.99+dsgt", "constant")
    assert registry.look("clip:1+dsgt") == ("Clip 1 + D-SGT", None, None)
    assert registry.look("clip:1+unheard-of") is None
    assert "clip:1+dsgt" not in rules.RULES
    assert eta_of("adam+dnasa") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clap:1+dsgd", "Unknown change of gradients 'clap'. Choose from: clip, momentum, adam, decay. Did you mean clip"),
        ("clip:x+dsgd", "'clip:x' cannot be used: write it as clip:1"),
        ("clip:+dsgd", "'clip:' cannot be used: write it as clip:1"),
        ("clip+dsgd", "'clip' cannot be used: write it as clip:1"),
        ("clip:-1+dsgd", "The length of clip must be a positive number, not -1.0"),
        ("momentum:1+dsgd", "beta of momentum must be at least 0 and below 1, not 1.0"),
        ("adam:0.9:nan+dsgd", "beta2 of adam must be at least 0 and below 1, not nan"),
        ("decay:1+d2", "This rule has no weight decay"),
        ("clip:1+nope", "Unknown rule 'nope'"),
    ],
)
def test_mistakes_in_a_name_are_named(name: str, words: str) -> None:
    with pytest.raises(core.InputError) as caught:
        registry.example(name)
    assert words in str(caught.value)


def test_a_run_with_moments_resumes_to_the_last_bit(tmp_path: Path) -> None:
    from test_resume import fail_at, small

    options: Any = {"rule": "clip:1+adam+dsgt:constant", "eta": 0.1}
    fail_at(45, tmp_path / "a", **options)
    resumed = small(tmp_path / "a", resume=True, **options)
    np.testing.assert_array_equal(resumed.x, small(**options).x)
    assert "rules" not in RunFolder(tmp_path / "a", resume=True).config
