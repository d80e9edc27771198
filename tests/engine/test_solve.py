"""The loop: what it records, what it refuses, and that a batch is nothing but its runs."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from thread_network import run_threads

import dnasa
from dnasa import Result, rules, topology
from dnasa.communication import Network
from dnasa.core import Array, InputError, Rule, Schedule
from dnasa.data import Dataset
from dnasa.problems import Classification, Custom, LeastSquares, Supervised
from dnasa.problems.losses import cross_entropy
from dnasa.rules import schedules
from dnasa.runs.history import Evaluation


def quadratic(library: ModuleType = np, nodes: int | None = None) -> Custom:
    """f_i(x) = |x - i|^2 / 2 with a little noise."""

    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        noise = 0.1 * rng.standard_normal(3)
        return x - node + (noise if library is np else torch.from_numpy(noise))

    return Custom(
        gradient,
        start=library.zeros(3) if library is np else torch.zeros(3, dtype=torch.float64),
        loss=lambda x, node: float(((x - node) ** 2).sum() / 2),
        full_gradient=lambda x, node: x - node,
        nodes=nodes,
    )


def test_history_has_one_row_per_evaluation_and_the_counts_add_up() -> None:
    result = dnasa.solve(LeastSquares(dim=7), topology.ring(5), steps=40, evaluate=10)
    assert list(result.history.step) == [0, 10, 20, 30, 40]
    last = result.history.iloc[-1]
    assert result.history[["samples", "messages", "bytes"]].iloc[0].tolist() == [0, 0, 0]
    assert last.samples == 40 * 5
    assert last.messages == 40 * 5 * 2
    assert last.bytes == 40 * 5 * 2 * 3 * 7 * 8
    assert {"train_loss", "test_loss", "grad_norm", "consensus", "tracking", "stationarity", "seconds"} <= {*result.history}


def test_metrics_are_what_they_say() -> None:
    problem = LeastSquares(dim=4)
    result = dnasa.solve(problem, topology.ring(3), steps=25)
    x, mean = result.x, result.mean
    last = result.final().iloc[0]
    assert last.consensus == pytest.approx(((x - mean) ** 2).sum() / 3)
    assert last.grad_norm == pytest.approx(2 * np.linalg.norm(mean - problem.theta))
    assert last.stationarity == pytest.approx(last.grad_norm**2 + ((x - mean) ** 2).sum())
    assert last.train_loss == pytest.approx(((mean - problem.theta) ** 2).sum() + 0.01)
    assert last.test_loss == pytest.approx(last.train_loss, rel=0.05)


def test_a_batch_of_runs_equals_separate_runs_exactly() -> None:
    problem, graph = LeastSquares(dim=20), topology.ring(6, weights="lazy")
    names, etas, seeds = list(rules.RULES), [0.001, 0.01], [0, 5]
    batch = dnasa.solve(problem, graph, names, steps=12, eta=etas, seed=seeds)
    for run, row in batch.runs.iterrows():
        eta = None if np.isnan(row.eta) else row.eta
        alone = dnasa.solve(problem, graph, row.rule, steps=12, eta=eta, seed=row.seed)
        np.testing.assert_array_equal(batch.x[run], alone.x)


def test_a_rule_of_ones_own_may_sweep_and_nodes_may_start_apart() -> None:
    etas = np.array([0.01, 0.02]).reshape(-1, 1, 1, 1)
    each = [rules.dsgd(schedules.constant(eta)) for eta in (0.01, 0.02)]
    own = dnasa.solve(LeastSquares(dim=5), topology.ring(4), each, steps=30)
    named = dnasa.solve(LeastSquares(dim=5), topology.ring(4), "dsgd:constant", eta=[0.01, 0.02], steps=30)
    np.testing.assert_array_equal(own.x, named.x)
    with pytest.raises(InputError, match="give a list of rules"):
        dnasa.solve(LeastSquares(dim=5), topology.ring(4), rules.dsgd(lambda t: etas), steps=30)
    start = np.arange(12.0).reshape(4, 3)
    result = dnasa.solve(quadratic(), topology.complete(4), "dsgd", eta=1e-12, steps=1, evaluate=[0], start=start)
    assert result.history.consensus.iloc[0] == pytest.approx(((start - start.mean(0)) ** 2).sum() / 4)


def test_a_diverged_run_is_recorded_leaves_the_others_and_ends_the_loop_if_it_is_the_last() -> None:
    graph, problem = topology.ring(4), LeastSquares(dim=10)
    both = dnasa.solve(problem, graph, "dsgd", eta=[1e-3, 1e160], steps=60)
    assert both.runs.diverged.isna().tolist() == [True, False]
    assert 0 < both.runs.diverged[1] < 5
    lost = both.history[both.history.run == 1]
    assert lost[lost.step >= both.runs.diverged[1]].train_loss.isna().all()
    alone = dnasa.solve(problem, graph, "dsgd", eta=1e-3, steps=60)
    np.testing.assert_array_equal(both.x[0], alone.x)
    result = dnasa.solve(LeastSquares(dim=10), topology.ring(4), "dsgd", eta=1e160, steps=10_000, evaluate=[0, 10_000])
    assert result.runs.diverged.notna().all()
    assert result.history.seconds.max() < 5


def test_several_rounds_are_the_polynomial_of_w() -> None:
    """A ring of 4 has the eigenvalues 1, 1/3, 1/3 and -1/3: two rounds are an exact average."""
    a = dnasa.solve(LeastSquares(dim=5), dnasa.connect(topology.ring(4), rounds=2), steps=30)
    b = dnasa.solve(LeastSquares(dim=5), topology.complete(4), steps=30)
    np.testing.assert_allclose(a.x, b.x, atol=1e-12)


def test_only_every_third_step_exchanges() -> None:
    """D-SGD on a graph that changes: the next of its matrices in every third step, the identity in the others."""
    graph, targets = topology.exact(8), np.random.default_rng(0).standard_normal((8, 3))
    pull = Custom(lambda x, node, rng: x - targets[node], start=np.ones(3), nodes=8)
    found = dnasa.solve(pull, dnasa.connect(graph, rounds=1, every=3), "dsgd:constant", eta=0.1, steps=8, evaluate=1)
    x = np.ones((8, 3))
    for t in range(8):
        x = x - 0.1 * (x - targets)
        x = graph.at(t // 3).weights @ x if t in (2, 5) else x
    np.testing.assert_allclose(found.x, x)
    assert found.history.messages.tolist() == [0, 0, 0, 8, 8, 8, 16, 16, 16]


def test_a_result_survives_saving(tmp_path: Path) -> None:
    result = dnasa.solve(LeastSquares(dim=5), topology.ring(4), ["dsgd", "dnasa"], eta=[0.01], steps=30)
    again = dnasa.Result.load(result.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.x, result.x)
    assert again.history.equals(result.history) or np.allclose(
        again.history.select_dtypes("number"), result.history.select_dtypes("number"), equal_nan=True, rtol=0, atol=0
    )
    assert again.runs.rule.tolist() == ["dsgd", "dnasa"]
    assert again.settings == result.settings
    assert (tmp_path / "run" / "history.csv").read_text().startswith("run,rule,schedule")
    with pytest.raises(InputError, match="no finished run"):
        dnasa.Result.load(tmp_path)


def test_spike_is_harder_in_its_first_direction() -> None:
    problem = LeastSquares(dim=3, spike=True)
    evaluated = problem.evaluate(problem.theta[None, None] + np.array([1.0, 0, 0]), range(2))
    assert np.linalg.norm(evaluated["gradient"]) == pytest.approx(200)
    assert evaluated["test_loss"].item() == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("batch", [1, 4])
def test_least_squares_gradients_are_unbiased(batch: int) -> None:
    problem = LeastSquares(dim=3, batch=batch)
    x = np.broadcast_to(np.array([1.0, -2, 0.5]), (1, 1, 50, 3))
    mean = np.mean([problem.gradient(x, range(50), [0], t).mean(2) for t in range(400)], axis=0)
    np.testing.assert_allclose(mean[0, 0], 2 * (x[0, 0, 0] - problem.theta), atol=0.2)


def bad(value: Any) -> Any:
    """Of the wrong type on purpose."""
    return value


def test_a_process_that_is_alone_is_warned_that_a_graph_by_name_has_one_node() -> None:
    with pytest.warns(UserWarning, match=r"this one is alone: give its size, such as topology\.ring\(8\)"):
        dnasa.connect("ring")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, g: dnasa.solve(p, g, steps=0), "steps must be a positive whole number"),
        (lambda p, g: dnasa.solve(p, g, steps=bad(2.5)), "whole number"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", steps=5), "needs a stepsize"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=-1, steps=5), "eta must be a positive number"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=float("nan"), steps=5), "eta must be a positive number"),
        (lambda p, g: dnasa.solve(p, g, "dsdg", eta=1, steps=5), "Unknown rule 'dsdg'. Choose from: adanasa, adgt, d2"),
        (lambda p, g: dnasa.solve(p, g, "dnasa:constant", steps=5), "Unknown schedule 'constant' for dnasa"),
        (lambda p, g: dnasa.solve(p, g, [], steps=5), "No rule given"),
        (lambda p, g: dnasa.solve(p, g, "dnasa", eta=0.1, steps=5), "takes no stepsize"),
        (lambda p, g: dnasa.solve(p, g, rules.dsgd(lambda t: 1), eta=0.1, steps=5), "leave eta out"),
        (lambda p, g: dnasa.solve(p, g, steps=bad("a")), "steps must be a positive whole number"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=bad(None)), "A seed must be"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=[]), "No seed given"),
        (lambda p, g: dnasa.solve(p, g, steps=5, evaluate=[bad(1.5)]), "evaluation step must be"),
        (lambda p, g: dnasa.solve(p, g, bad(5), steps=5), "Unknown rule '5'"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=bad(np.ones((2, 2))), steps=5), r"eta must be .* shape \(2, 2\)"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=bad(lambda t: "a"), steps=5), "stepsize at step 0 is 'a'"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=bad(lambda t: None), steps=5), "stepsize at step 0 is None"),
        (lambda p, g: dnasa.solve(p, dnasa.connect(g, rounds=bad(1.5)), steps=5), "must be a positive whole number, not 1.5"),
        (lambda p, g: dnasa.solve(p, g, steps=5, start=bad("a")), "start must be an array of real numbers"),
        (lambda p, g: dnasa.solve(p, g, steps=5, start=bad([[1], [1, 2]])), "start must be an array of real numbers"),
        (lambda p, g: dnasa.solve(p, g, steps=5, record=dnasa.Record(callback=bad(3))), "callback must be a function"),
        (lambda p, g: LeastSquares(noise=-1), "noise must be"),
        (lambda p, g: LeastSquares(dtype="float16"), "Unknown dtype 'float16'"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=-1), "seed"),
        (lambda p, g: dnasa.solve(p, g, steps=5, evaluate=[9]), "between 0 and 5"),
        (lambda p, g: dnasa.solve(p, g, steps=5, start=np.zeros(4)), r"start has shape \(4,\)"),
        (lambda p, g: dnasa.solve(p, dnasa.connect(g, rounds=0), steps=5), "must be a positive whole number, not 0"),
        (lambda p, g: dnasa.solve(p, dnasa.connect(g, every=0), steps=5), "every must be a positive whole number, not 0"),
        (lambda p, g: dnasa.solve(p, dnasa.connect(g, every=6), steps=5), "every is 6, but the run has 5 steps"),
        (lambda p, g: dnasa.solve(p, dnasa.connect(g, every=2), "extra", eta=0.1, steps=5), "needs an exchange in every step"),
        (lambda p, g: dnasa.solve(quadratic(nodes=3), g, steps=5), "data for 3 nodes, the topology has 8"),
        (lambda p, g: dnasa.solve(p, g, "d2", eta=0.1, steps=5), r"above -1/3.*lazy"),
        (lambda p, g: LeastSquares(dim=0), "dim must be a positive whole"),
        (lambda p, g: LeastSquares(batch=0), "batch must be a positive whole"),
    ],
)
def test_a_users_mistake_has_its_own_message(call: Callable[..., Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call(LeastSquares(dim=5), topology.ring(8))
    assert "\n" not in str(caught.value)


def test_wishart_has_the_moments_of_real_samples() -> None:
    from dnasa.problems.least_squares import wishart_root

    def wishart(*given: Any) -> Array:
        root = wishart_root(*given)
        return root @ root.T

    generator = np.random.default_rng(0)
    drawn = np.stack([wishart(generator, 3, 50) for _ in range(3000)])
    real = np.stack([(rows := generator.standard_normal((50, 3))).T @ rows for _ in range(3000)])
    np.testing.assert_allclose(drawn.mean(0), 50 * np.eye(3), atol=0.8)
    np.testing.assert_allclose(drawn.std(0), real.std(0), rtol=0.06)


def test_a_gradient_function_may_do_as_it_likes_with_its_x() -> None:
    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        x -= 1
        return 2 * x

    result = dnasa.solve(Custom(gradient, start=np.zeros(2)), topology.ring(4), "dsgd", eta=0.05, steps=300)
    np.testing.assert_allclose(result.mean, [1, 1], atol=0.05)


def test_a_start_of_ones_own_with_gradients_is_not_recorded() -> None:
    start = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    result = dnasa.solve(quadratic(torch), topology.ring(4), "dsgd", eta=0.1, steps=5, start=start)
    assert not result.x.requires_grad


def test_what_is_counted_belongs_to_each_rule_and_round() -> None:
    both = dnasa.solve(
        LeastSquares(dim=7), dnasa.connect(topology.ring(5), rounds=3), ["dsgd", "dnasa"], eta=0.01, steps=10
    ).final()
    assert both.bytes.tolist() == [10 * 10 * 3 * 7 * 8, 10 * 10 * 3 * 3 * 7 * 8]
    assert both.messages.tolist() == [10 * 10 * 3] * 2
    assert both.tracking.isna().tolist() == [True, False]
    alone = dnasa.solve(LeastSquares(dim=7), dnasa.connect(topology.ring(5), rounds=3), steps=10).final()
    assert both.tracking[1] == pytest.approx(alone.tracking[0])


def test_d2_is_allowed_where_the_rounds_make_w_positive() -> None:
    assert dnasa.solve(LeastSquares(dim=5), dnasa.connect(topology.ring(4), rounds=2), "d2", eta=0.01, steps=5).x.shape == (
        4,
        5,
    )
    with pytest.raises(InputError, match="lazy"):
        dnasa.solve(LeastSquares(dim=5), topology.ring(2000), "d2", eta=0.01, steps=5)


def test_a_network_of_ones_own_needs_three_things_and_its_graph() -> None:
    graph = topology.ring(4)
    network = dnasa.Network(4, lambda messages, t: tuple(graph.weights @ m for m in messages), lambda a: a.mean(-2))
    with pytest.raises(InputError, match="must be one of dnasa"):
        dnasa.solve(LeastSquares(dim=5), network, steps=20)
    own = dnasa.solve(LeastSquares(dim=5), replace(network, topology=graph), steps=20)
    np.testing.assert_allclose(own.x, dnasa.solve(LeastSquares(dim=5), graph, steps=20).x, atol=1e-12)


class SameBuffer(LeastSquares):
    """Returns the same array at every step."""

    buffer: Any = None

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        g = super().gradient(x, nodes, seeds, t)
        self.buffer = g if self.buffer is None else self.buffer
        self.buffer[...] = g
        return self.buffer


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rule", ["dnasa", "dasagt", "dsgt", "d2"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_problem_may_return_the_same_buffer_at_every_step(rule: str, rounds: int, overlap: bool) -> None:
    if overlap and rule not in ("dnasa", "dasagt"):
        pytest.skip("cannot be hidden")
    eta = None if rule == "dnasa" else 0.01
    network = dnasa.connect(topology.ring(5, weights="lazy"), rounds=rounds, overlap=overlap)
    a, b = (dnasa.solve(kind(dim=4), network, rule, steps=30, eta=eta) for kind in (SameBuffer, LeastSquares))
    np.testing.assert_array_equal(a.x, b.x)


@pytest.mark.parametrize("name", sorted(rules.registry.BUILT_IN - {"adgt"}))
@pytest.mark.parametrize("number", [1, np.float64(0.1)])
def test_a_rule_made_from_a_number_says_what_a_schedule_is(name: str, number: Any) -> None:
    make: Any = getattr(rules, name)
    given = {key: number for key, parameter in signature(make).parameters.items() if parameter.default is parameter.empty}
    rule = make(**given | ({"layout": (("x", (3,)),)} if "layout" in given else {}))
    graph = topology.ring(8, weights="lazy")
    with pytest.raises(InputError, match=r"This rule calls a number: a schedule is a function of t, such as lambda t: 0.1"):
        dnasa.solve(quadratic(), graph, rule, steps=20)
    if rule.can_overlap:
        with pytest.raises(InputError, match="a schedule is a function of t"):
            dnasa.solve(quadratic(), dnasa.connect(graph, overlap=True), rule, steps=20)


def test_what_fails_in_a_rule_names_it_and_says_that_its_stepsize_may_be_an_array(registered: None) -> None:
    @rules.rule("capped")
    def capped(eta: Any) -> Rule:
        return rules.dsgd(eta)._replace(form=None, send=lambda s, g, t: ((s.x - min(eta(t), 1.0) * g[0],), s))

    with pytest.raises(ValueError, match="ambiguous") as caught:
        dnasa.solve(quadratic(), topology.ring(8), "capped", eta=[0.1, 2.0], steps=3)
    (note,) = caught.value.__notes__
    assert re.match(r"In .*capped.*, eta\(t\) may be an array: several stepsizes run side by side\.", note)


@pytest.mark.parametrize("library", [np, torch])
def test_large_finite_gradients_are_not_divergence(library: ModuleType) -> None:
    start = np.zeros(8, np.float32) if library is np else torch.zeros(8)
    problem = Custom(lambda x, node, rng: x * 0 + 3e37, start=start)
    result = dnasa.solve(problem, topology.ring(4), steps=5)
    assert result.runs.diverged.isna().all()


def test_a_run_that_ends_with_an_absurd_loss_has_diverged_though_it_is_finite(tmp_path: Path) -> None:
    """x <- -2 x: the loss is 4^t / 2, above 1e6 from step 12 on; a run that has come back has not diverged."""
    problem = Custom(lambda x, node, rng: x, start=np.ones(1), loss=lambda x, node: float(x @ x) / 2)

    def exploding(t: int) -> float:
        return 3.0

    def recovering(t: int) -> float:
        return 3.0 if t < 15 else 1.0

    etas = [exploding, recovering]
    result = dnasa.solve(problem, topology.complete(2), "dsgd", eta=etas, steps=20, evaluate=4, folder=tmp_path / "a")
    assert result.runs.diverged.fillna(-1).tolist() == [12, -1]
    assert result.runs.diverged_node.isna().all()
    lost, back = (result.history[result.history.run == run].set_index("step") for run in (0, 1))
    assert lost.consensus.isna().tolist() == lost.train_loss.isna().tolist() == [False] * 3 + [True] * 3
    assert back.train_loss[12] > 1e6
    assert back.train_loss[20] == 0
    assert Result.load(tmp_path / "a").history.consensus.isna().tolist() == result.history.consensus.isna().tolist()
    late = dnasa.solve(problem, topology.complete(2), "dsgd", eta=exploding, steps=20, evaluate=[20])
    assert late.runs.diverged.isna().all(), "The start was not measured, so nobody knows how large is absurd."


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_divergence_in_one_process_is_recorded_with_its_step_and_node(processes: int) -> None:
    class Broken(LeastSquares):
        def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
            g = super().gradient(x, nodes, seeds, t)
            if t == 7 and 3 in nodes:
                g[:, :, nodes.index(3)] = np.nan
            return g

    graph = topology.ring(5)
    work = lambda network: dnasa.solve(Broken(dim=3), network, steps=20, evaluate=10)  # noqa: E731
    for result in run_threads(graph, work, processes):
        assert (result.runs.diverged[0], result.runs.diverged_node[0]) == (7, 3)


@pytest.mark.parametrize(
    "options",
    [{"seed": [1, 1]}, {"rule": ["dnasa", "dnasa"]}, {"rule": "dsgd", "eta": [0.1, 0.1]}],
    ids=["seeds", "rules", "etas"],
)
def test_repeated_values_are_refused(options: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"rule": "dnasa", "steps": 3}
    with pytest.raises(InputError, match="is given twice"):
        dnasa.solve(LeastSquares(dim=3), topology.ring(4), **usual | options)


def test_a_callback_sees_every_evaluation_and_may_stop_the_run() -> None:
    seen = []

    def callback(evaluation: Evaluation) -> bool:
        seen.append(evaluation)
        return evaluation.step >= 30

    result = dnasa.solve(LeastSquares(dim=3), topology.ring(4), steps=100, evaluate=10, record=dnasa.Record(callback=callback))
    assert [evaluation.step for evaluation in seen] == [0, 10, 20, 30]
    assert result.history.step.tolist() == [0, 10, 20, 30]
    assert seen[-1].rows[0]["test_loss"] == result.history.test_loss.iloc[-1]
    np.testing.assert_allclose(seen[-1].mean[0], result.mean)


def test_processes_stop_together() -> None:
    graph = topology.ring(4)

    def work(network: Network) -> Result:
        return dnasa.solve(
            LeastSquares(dim=3), network, steps=500, evaluate=5, record=dnasa.Record(callback=lambda e: e.step == 20)
        )

    steps = [result.history.step.iloc[-1] for result in run_threads(graph, work, 2)]
    assert steps == [20, 20]


def test_eta_may_be_a_function_of_t() -> None:
    problem, graph = LeastSquares(dim=3), topology.ring(4)

    def warm(t: int) -> float:
        return 0.01 * min(1, t / 10)

    both = dnasa.solve(problem, graph, "dsgt", eta=[warm, 0.02], steps=40)
    own = dnasa.solve(problem, graph, rules.dsgt(warm), steps=40)
    assert both.runs.schedule.tolist() == ["diminishing", "warm"]
    np.testing.assert_array_equal(both.x[1], own.x)
    with pytest.raises(InputError, match="schedule of its own"):
        dnasa.solve(problem, graph, "dsgt:fixed", eta=warm, steps=4)


@pytest.mark.parametrize("overlap", [False, True])
def test_eta_needs_no_values_beyond_the_last_step(overlap: bool) -> None:
    etas = [0.1] * 10
    assert dnasa.solve(
        quadratic(), dnasa.connect(topology.ring(4), overlap=overlap), "dasagt", eta=lambda t: etas[t], steps=10
    ).x.shape == (4, 3)


def test_own_rules_run_beside_named_ones() -> None:
    problem, graph = LeastSquares(dim=3), topology.ring(4)
    both = dnasa.solve(problem, graph, [rules.dsgd(lambda t: 0.01), "dnasa"], steps=30)
    assert both.runs.rule.tolist() == ["custom", "dnasa"]
    same = rules.dsgd(lambda t: 0.01)
    assert dnasa.solve(problem, graph, [same, same, "dnasa", same], steps=3).runs.rule.tolist() == [
        *("custom 1", "custom 2", "dnasa", "custom 3")
    ]
    np.testing.assert_array_equal(both.x[1], dnasa.solve(problem, graph, steps=30).x)


@pytest.fixture
def registered() -> Iterator[None]:
    from dnasa.rules import registry

    before = dict(registry.RULES)
    yield
    registry.RULES.clear()
    registry.RULES.update(before)


def test_registered_rules_are_equals(registered: None) -> None:
    rules.rule("mine", title="Mine", color="#123456")(rules.dsgd)

    @rules.rule("free", schedules={"half": lambda n, T, eta: (lambda t: 0.01,)}, needs_eta=False)
    def free(eta: Schedule) -> Rule:
        return rules.dsgd(eta)

    problem, graph = LeastSquares(dim=3), topology.ring(4)
    result = dnasa.solve(problem, graph, ["mine", "dsgd", "free"], eta=[0.01, 0.02], steps=30)
    assert result.runs.rule.tolist() == ["mine", "mine", "dsgd", "dsgd", "free"]
    np.testing.assert_array_equal(result.x[:2], result.x[2:4])
    with pytest.raises(InputError, match=r"Unknown rule 'other'\. Choose from: .*mine"):
        dnasa.solve(problem, graph, "other", steps=3)
    for name, words in (("dnasa", "built-in"), ("a b", "letters"), ("", "letters")):
        with pytest.raises(InputError, match=words):
            rules.rule(name)(rules.dsgd)


def test_nodes_may_count_differently() -> None:
    """f_i = |x - i|^2 / 2 with weights p has its minimum at the weighted mean, and so do the metrics."""
    weights = [1.0, 2.0, 3.0, 4.0]
    result = dnasa.solve(quadratic(), topology.ring(4), "dsgt", eta=0.1, steps=2000, node_weights=weights)
    expected = np.average(range(4), weights=weights)
    np.testing.assert_allclose(result.mean, [expected] * 3, atol=0.05)
    final = result.final().iloc[0]
    losses = [((result.mean - i) ** 2).sum() / 2 for i in range(4)]
    assert final.train_loss == pytest.approx(np.average(losses, weights=weights))
    assert final.grad_norm == pytest.approx(np.linalg.norm(result.mean - expected), abs=1e-9)
    wrong: Any
    for wrong in ([1, 2, 3], [1, 2, 3, -4], [1, 2, 3, np.nan], 3.0, "rows", "size"):
        unknown = "or 'rows' where nodes have rows; not " if isinstance(wrong, str) else "node weight"
        with pytest.raises(InputError, match=unknown):
            dnasa.solve(quadratic(), topology.ring(4), steps=3, node_weights=wrong)


def test_rows_are_node_weights() -> None:
    """With p_i = rows_i / rows the train loss is the mean over all rows, wherever they are."""
    x = np.random.default_rng(0).standard_normal((60, 3))
    y = (x[:, 0] > 0).astype(int)
    uneven = [np.arange(40), np.arange(40, 55), np.arange(55, 60)]
    each = []
    for shards in (uneven, [np.arange(i, 60, 3) for i in range(3)]):
        problem = Classification(lambda: torch.nn.Linear(3, 2), x, y, shards, x, y, batch=4, dtype="float64")
        each.append(dnasa.solve(problem, topology.ring(3), steps=3, node_weights="rows").history.iloc[0])
    assert each[0].train_loss == pytest.approx(each[1].train_loss, rel=1e-12)
    assert each[0].grad_norm == pytest.approx(each[1].grad_norm, rel=1e-12)
    linear = torch.nn.Linear(3, 2)  # for all threads: initialising it uses a generator that they share

    def make() -> Classification:  # one for each thread, as processes have
        return Classification(linear, x, y, uneven, x, y, batch=4, dtype="float64")

    by_rows, by_number, alike = (
        dnasa.solve(make(), topology.ring(3), "dsgt", eta=0.1, steps=20, node_weights=weights)
        for weights in ("rows", [40, 15, 5], None)
    )
    assert torch.equal(by_rows.x, by_number.x)
    assert not torch.equal(by_rows.x, alike.x)
    for real in run_threads(
        topology.ring(3), lambda network: dnasa.solve(make(), network, "dsgt", eta=0.1, steps=20, node_weights="rows")
    ):
        np.testing.assert_allclose(real.x, by_rows.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(real.history.train_loss, by_rows.history.train_loss, rtol=1e-12)


def test_nodes_with_few_and_with_many_rows_are_warned_about_unless_rows_count(tmp_path: Path) -> None:
    x, y, options = np.eye(300, 3), np.arange(300) % 2, {"steps": 2, "progress": False}
    linear = torch.nn.Linear(3, 2)

    def solve(least: int, **more: Any) -> None:
        problem = Classification(linear, x, y, np.split(np.arange(300), [least]), x, y)
        dnasa.solve(problem, topology.ring(2), **options | more)

    with pytest.warns(UserWarning, match="Nodes have 2 to 298 rows and count the same.*node_weights='rows', --weights-by rows"):
        solve(2, folder=tmp_path / "run")
    assert "Nodes have 2 to 298 rows" in (tmp_path / "run" / "log.txt").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(2, node_weights="rows")
        solve(3)


@pytest.mark.parametrize("where", ["problem", "nodes"])
def test_a_start_that_is_not_finite_is_refused(where: str) -> None:
    start = np.zeros((4, 3))
    start[2, 1] = np.nan
    problem = Custom(lambda x, node, rng: x, start[2] if where == "problem" else np.zeros(3))
    with pytest.raises(InputError, match=r"start is nan at \[1\]" if where == "problem" else r"start is nan at \[2, 1\]"):
        dnasa.solve(problem, topology.ring(4), steps=5, start=None if where == "problem" else start)


def test_a_run_that_gets_worse_than_trained_weights_warns_once() -> None:
    problem, graph = LeastSquares(), topology.ring(4)
    options: Any = {"steps": 40, "evaluate": 10, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = dnasa.solve(problem, graph, "dsgd", eta=0.003, **options | {"steps": 400})
        dnasa.solve(problem, graph, "dsgd", eta=1e-6, start=trained.mean, **options)
    with pytest.warns(UserWarning, match="test loss is .* at step 10, .* at the start") as warned:
        dnasa.solve(problem, graph, "dsgd:constant", eta=0.05, start=trained.mean, **options)
    assert len(warned) == 1


def test_a_run_that_ends_with_a_larger_loss_than_it_began_with_warns() -> None:
    problem = dnasa.problems.Custom(lambda x, node, rng: 2 * x, start=np.ones(2), loss=lambda x, node: float(x @ x))
    etas, words = [0.1, 1.1, 1.2], "the train loss is .* at step 20, 2 at the start. Try .* or the rule dnasa"
    with pytest.warns(UserWarning, match=words) as warned:
        dnasa.comparing.compare(problem, topology.ring(4), ["dsgd:constant"], etas, steps=20, evaluate=5, progress=False)
    assert str(warned[0].message).startswith("Rule dsgd (constant), eta = 1.1, seed 0, and 3 more runs: ")
    assert warned[0].filename == __file__
    wrong = dnasa.problems.Custom(lambda x, node, rng: -2 * x, start=np.ones(2), loss=lambda x, node: float(x @ x))
    with pytest.warns(
        UserWarning, match=r"Rule dnasa \(.*\), seed 0: the train loss is .* Are the gradients those of the loss\?"
    ):
        dnasa.solve(wrong, topology.ring(4), "dnasa", steps=20, progress=False)


def test_a_model_that_comes_trained_and_gets_worse_warns_at_the_end() -> None:
    """Nobody said that it is trained, but it is better than the most frequent class."""
    inputs = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    classes = (inputs[:, 0] > 0).astype(int)
    module = torch.nn.Linear(1, 2, bias=False)
    module.weight.data = torch.tensor([[-1.0], [1.0]])
    wrong = Dataset("wrong", inputs, 1 - classes, inputs, classes)
    problem = Supervised(module, cross_entropy, wrong, [np.arange(20), np.arange(20, 40)])
    with pytest.warns(UserWarning, match="the test accuracy is 0 at step 60, 1 at the start"):
        dnasa.solve(problem, topology.ring(2), "dsgd", eta=1, steps=60, evaluate=20, progress=False)
