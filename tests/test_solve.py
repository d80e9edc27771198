"""The loop: what it records, what it refuses, and that a batch is nothing but its runs."""

import numpy as np
import pytest
import torch

import dnasa
from dnasa import rules, schedules, topology
from dnasa.core import InputError
from dnasa.problems import Custom, LeastSquares, RobustRegression


def quadratic(library=np, nodes=None):
    """f_i(x) = |x - i|^2 / 2 with a little noise."""

    def gradient(x, node, rng):
        noise = 0.1 * rng.standard_normal(3)
        return x - node + (noise if library is np else torch.from_numpy(noise))

    return Custom(
        gradient,
        start=library.zeros(3) if library is np else torch.zeros(3, dtype=torch.float64),
        loss=lambda x, node: float(((x - node) ** 2).sum() / 2),
        full_gradient=lambda x, node: x - node,
        nodes=nodes,
    )


def test_dnasa_finds_the_minimum_without_a_stepsize():
    result = dnasa.solve(quadratic(), topology.ring(5), steps=3000)
    np.testing.assert_allclose(result.mean, [2, 2, 2], atol=0.1)
    assert result.x.shape == (5, 3)
    assert result.final().grad_norm.item() < 0.1


@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("n", [1, 2, 6])
def test_every_rule_solves_on_any_number_of_nodes(name, n):
    graph = topology.complete(n)
    result = dnasa.solve(quadratic(), graph, name, steps=800, eta=0.2 if rules.RULES[name].needs_eta else None)
    assert result.final().grad_norm.item() < 0.5


def test_custom_gives_the_same_with_numpy_and_torch():
    a = dnasa.solve(quadratic(np), topology.ring(4), steps=50)
    b = dnasa.solve(quadratic(torch), topology.ring(4), steps=50)
    np.testing.assert_allclose(a.x, b.x.numpy(), atol=1e-12)
    assert isinstance(b.x, torch.Tensor)


def test_history_has_one_row_per_evaluation_and_the_counts_add_up():
    result = dnasa.solve(LeastSquares(dim=7), topology.ring(5), steps=40, evaluate=10)
    assert list(result.history.step) == [0, 10, 20, 30, 40]
    last = result.history.iloc[-1]
    assert last.samples == 40 * 5
    assert last.messages == 40 * 5 * 2
    assert last.bytes == 40 * 5 * 2 * 3 * 7 * 8
    assert {"train_loss", "test_loss", "grad_norm", "consensus", "tracking", "stationarity", "seconds"} <= {
        *result.history
    }


def test_metrics_are_what_they_say():
    problem = LeastSquares(dim=4)
    result = dnasa.solve(problem, topology.ring(3), steps=25)
    x, mean = result.x, result.mean
    last = result.final().iloc[0]
    assert last.consensus == pytest.approx(((x - mean) ** 2).sum() / 3)
    assert last.grad_norm == pytest.approx(2 * np.linalg.norm(mean - problem.theta))
    assert last.stationarity == pytest.approx(last.grad_norm**2 + ((x - mean) ** 2).sum())
    assert last.train_loss == pytest.approx(((mean - problem.theta) ** 2).sum() + 0.01)
    assert last.test_loss == pytest.approx(last.train_loss, rel=0.05)


def test_a_batch_of_runs_equals_separate_runs_exactly():
    problem, graph = LeastSquares(dim=20), topology.ring(6, weights="lazy")
    names, etas, seeds = list(rules.RULES), [0.001, 0.01], [0, 5]
    batch = dnasa.solve(problem, graph, names, steps=60, eta=etas, seed=seeds)
    for run, row in batch.runs.iterrows():
        eta = None if np.isnan(row.eta) else row.eta
        alone = dnasa.solve(problem, graph, row.rule, steps=60, eta=eta, seed=row.seed)
        np.testing.assert_array_equal(batch.x[run], alone.x)


def test_schedules_side_by_side_equal_separate_runs_exactly():
    problem, graph = LeastSquares(dim=20), topology.ring(6)
    both = dnasa.solve(problem, graph, steps=60, schedule=["fixed", "diminishing"])
    for run, name in enumerate(["fixed", "diminishing"]):
        np.testing.assert_array_equal(both.x[run], dnasa.solve(problem, graph, steps=60, schedule=name).x)


def test_a_rule_of_ones_own_may_sweep():
    etas = np.array([0.01, 0.02]).reshape(-1, 1, 1, 1)
    own = dnasa.solve(LeastSquares(dim=5), topology.ring(4), rules.dsgd(lambda t: etas), steps=30)
    named = dnasa.solve(LeastSquares(dim=5), topology.ring(4), "dsgd", schedule="constant", eta=[0.01, 0.02], steps=30)
    np.testing.assert_array_equal(own.x, named.x)
    with pytest.raises(InputError, match=r"\(variants, 1, 1, 1\)"):
        dnasa.solve(LeastSquares(dim=5), topology.ring(4), rules.dsgd(lambda t: etas[:, 0]), steps=30)


def test_one_start_per_node_on_request():
    start = np.arange(12.0).reshape(4, 3)
    result = dnasa.solve(quadratic(), topology.complete(4), "dsgd", eta=1e-12, steps=1, evaluate=[0], start=start)
    assert result.history.consensus.iloc[0] == pytest.approx(((start - start.mean(0)) ** 2).sum() / 4)


def test_a_diverged_run_is_recorded_and_does_not_touch_its_neighbours():
    graph, problem = topology.ring(4), LeastSquares(dim=10)
    both = dnasa.solve(problem, graph, "dsgd", eta=[1e-3, 1e160], steps=60)
    assert both.runs.diverged.isna().tolist() == [True, False]
    assert 0 < both.runs.diverged[1] < 5
    lost = both.history[both.history.run == 1]
    assert lost[lost.step >= both.runs.diverged[1]].train_loss.isna().all()
    alone = dnasa.solve(problem, graph, "dsgd", eta=1e-3, steps=60)
    np.testing.assert_array_equal(both.x[0], alone.x)


def test_the_loop_stops_when_every_run_has_diverged():
    result = dnasa.solve(LeastSquares(dim=10), topology.ring(4), "dsgd", eta=1e160, steps=10_000, evaluate=[0, 10_000])
    assert result.runs.diverged.notna().all()
    assert result.history.seconds.max() < 5


def test_several_rounds_are_w_to_the_power():
    graph = topology.ring(6)
    squared = topology.from_matrix(np.linalg.matrix_power(graph.weights, 2))
    a = dnasa.solve(LeastSquares(dim=5), graph, steps=30, rounds=2)
    b = dnasa.solve(LeastSquares(dim=5), squared, steps=30)
    np.testing.assert_allclose(a.x, b.x, atol=1e-12)


def test_a_result_survives_saving(tmp_path):
    result = dnasa.solve(LeastSquares(dim=5), topology.ring(4), ["dsgd", "dnasa"], eta=[0.01], steps=30)
    again = dnasa.Result.load(result.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.x, result.x)
    assert again.history.equals(result.history) or np.allclose(
        again.history.select_dtypes("number"), result.history.select_dtypes("number"), equal_nan=True, rtol=0, atol=0
    )
    assert again.runs.rule.tolist() == ["dsgd", "dnasa"]
    assert again.settings == result.settings
    assert (tmp_path / "run" / "history.csv").read_text().startswith("run,rule,schedule")
    with pytest.raises(InputError, match="no saved result"):
        dnasa.Result.load(tmp_path)


def test_plot_writes_a_picture(tmp_path):
    result = dnasa.solve(LeastSquares(dim=5), topology.ring(4), steps=30, seed=[0, 1])
    result.plot(tmp_path / "deep" / "picture.png")
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"Cannot draw a '\.wat' file"):
        result.plot(tmp_path / "picture.wat")


def test_spike_is_harder_in_its_first_direction():
    problem = LeastSquares(dim=3, spike=True)
    evaluated = problem.evaluate(problem.theta[None, None] + np.array([1.0, 0, 0]), range(2))
    assert np.linalg.norm(evaluated["gradient"]) == pytest.approx(200)
    assert evaluated["test_loss"].item() == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("batch", [1, 4])
def test_least_squares_gradients_are_unbiased(batch):
    problem = LeastSquares(dim=3, batch=batch)
    x = np.broadcast_to(np.array([1.0, -2, 0.5]), (1, 1, 50, 3))
    mean = np.mean([problem.gradient(x, range(50), [0], t).mean(2) for t in range(400)], axis=0)
    np.testing.assert_allclose(mean[0, 0], 2 * (x[0, 0, 0] - problem.theta), atol=0.2)


def test_robust_regression_gradient_is_that_of_its_loss():
    problem = RobustRegression(4, dim=3, rows=10)
    x, h = np.array([[[0.3, -0.2, 0.9]]]), 1e-6
    gradient = problem.evaluate(x, range(4))["gradient"][0, 0]
    for j in range(3):
        shift = h * np.eye(3)[j]
        up, down = (problem.evaluate(x + sign * shift, range(4))["train_loss"].item() for sign in (1, -1))
        assert gradient[j] == pytest.approx((up - down) / (2 * h), abs=1e-6)
    points = np.broadcast_to(x[:, :, None], (1, 1, 4, 3))
    drawn = np.mean([problem.gradient(points, range(4), [0], t).mean(2) for t in range(4000)], axis=0)
    np.testing.assert_allclose(drawn[0, 0], gradient, atol=0.05)


def test_robust_regression_is_the_same_function_for_any_number_of_nodes():
    x = np.full((1, 1, 10), 0.4)
    losses = [RobustRegression(n).evaluate(x, range(n))["train_loss"].item() for n in (1, 4, 32)]
    np.testing.assert_allclose(losses, losses[0])


def broken(gradient):
    return Custom(gradient, start=np.zeros(3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, g: dnasa.solve(p, g, steps=0), "steps must be a positive whole number"),
        (lambda p, g: dnasa.solve(p, g, steps=2.5), "whole number"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", steps=5), "needs a stepsize"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=-1, steps=5), "eta must be a positive number"),
        (lambda p, g: dnasa.solve(p, g, "dsgd", eta=float("nan"), steps=5), "eta must be a positive number"),
        (lambda p, g: dnasa.solve(p, g, "dsdg", eta=1, steps=5), "Unknown rule 'dsdg'. Choose from: dsgd, d2"),
        (lambda p, g: dnasa.solve(p, g, schedule="constant", steps=5), "Unknown schedule for dnasa 'constant'"),
        (lambda p, g: dnasa.solve(p, g, [], steps=5), "No rule given"),
        (lambda p, g: dnasa.solve(p, g, "dnasa", eta=0.1, steps=5), "takes no stepsize"),
        (lambda p, g: dnasa.solve(p, g, rules.dsgd(lambda t: 1), eta=0.1, steps=5), "leave eta and schedule out"),
        (lambda p, g: dnasa.solve(p, g, steps="a"), "steps must be a positive whole number"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=None), "A seed must be"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=[]), "No seed given"),
        (lambda p, g: dnasa.solve(p, g, steps=5, evaluate=[1.5]), "evaluation step must be"),
        (lambda p, g: LeastSquares(noise=-1), "noise must be"),
        (lambda p, g: LeastSquares(dtype="float16"), "Unknown dtype 'float16'"),
        (lambda p, g: dnasa.solve(p, g, steps=5, seed=-1), "seed"),
        (lambda p, g: dnasa.solve(p, g, steps=5, evaluate=[9]), "between 0 and 5"),
        (lambda p, g: dnasa.solve(p, g, steps=5, start=np.zeros(4)), r"start has shape \(4,\)"),
        (lambda p, g: dnasa.solve(p, g, steps=5, rounds=0), "at least one round"),
        (lambda p, g: dnasa.solve(quadratic(nodes=3), g, steps=5), "data for 3 nodes, the topology has 8"),
        (lambda p, g: dnasa.solve(p, g, "d2", eta=0.1, steps=5), r"above -0\.3333.*lazy"),
        (lambda p, g: dnasa.solve(broken(lambda x, i, r: x[:2]), g, steps=5), r"node 0 has shape \(2,\)"),
        (lambda p, g: dnasa.solve(broken(lambda x, i, r: 1.0), g, steps=5), "node 0 has shape"),
        (lambda p, g: dnasa.solve(broken(lambda x, i, r: x * np.nan), g, steps=5), "node 0 at step 0 is not finite"),
        (lambda p, g: Custom(lambda x, i, r: x, start=[0, 0]), "one-dimensional"),
        (lambda p, g: RobustRegression(5), "power of two"),
        (lambda p, g: LeastSquares(dim=0), "dim must be a positive whole"),
        (lambda p, g: LeastSquares(batch=0), "batch must be a positive whole"),
    ],
)
def test_a_users_mistake_has_its_own_message(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call(LeastSquares(dim=5), topology.ring(8))
    assert "\n" not in str(caught.value)


def test_schedules_cover_long_runs():
    eta, alpha = schedules.diminishing(4)
    table = schedules.side_by_side([eta, alpha], np.zeros(1))
    for t in (0, 1, 1023, 1024, 5000, 3):
        np.testing.assert_allclose(table(t).ravel(), [eta(t), alpha(t)])


def test_wishart_has_the_moments_of_real_samples():
    from dnasa.problems.least_squares import wishart_root

    def wishart(*given):
        root = wishart_root(*given)
        return root @ root.T

    generator = np.random.default_rng(0)
    drawn = np.stack([wishart(generator, 3, 50) for _ in range(3000)])
    real = np.stack([(rows := generator.standard_normal((50, 3))).T @ rows for _ in range(3000)])
    np.testing.assert_allclose(drawn.mean(0), 50 * np.eye(3), atol=0.8)
    np.testing.assert_allclose(drawn.std(0), real.std(0), rtol=0.06)


def test_a_hopeless_comparison_ends_in_rows_that_say_so():
    result = dnasa.solve(LeastSquares(dim=5), topology.ring(4), "dsgd", eta=[1e150, 1e160], steps=100, evaluate=[100])
    assert result.final().test_loss.isna().all()
    assert result.runs.diverged.notna().all()


def test_a_diverging_custom_run_leaves_the_others_alone():
    problem = Custom(lambda x, node, rng: 4 * x**3, start=3 * np.ones(2), loss=lambda x, node: float((x**4).sum()))
    result = dnasa.solve(problem, topology.ring(4), "dsgd", eta=[0.001, 1.0], steps=100)
    assert result.runs.diverged.isna().tolist() == [True, False]
    assert result.final().train_loss[0] < 81


def test_a_gradient_function_may_do_as_it_likes_with_its_x():
    def gradient(x, node, rng):
        x -= 1
        return 2 * x

    result = dnasa.solve(Custom(gradient, start=np.zeros(2)), topology.ring(4), "dsgd", eta=0.05, steps=300)
    np.testing.assert_allclose(result.mean, [1, 1], atol=0.05)


def test_a_start_with_gradients_is_not_recorded():
    problem = Custom(lambda x, node, rng: x - 1, start=torch.zeros(2, requires_grad=True))
    assert not dnasa.solve(problem, topology.ring(3), steps=5).x.requires_grad


def test_what_is_counted_belongs_to_each_rule_and_round():
    both = dnasa.solve(LeastSquares(dim=7), topology.ring(5), ["dsgd", "dnasa"], eta=0.01, steps=10, rounds=3).final()
    assert both.bytes.tolist() == [10 * 10 * 3 * 7 * 8, 10 * 10 * 3 * 3 * 7 * 8]
    assert both.messages.tolist() == [10 * 10 * 3] * 2
    assert both.tracking.isna().tolist() == [True, False]
    alone = dnasa.solve(LeastSquares(dim=7), topology.ring(5), steps=10, rounds=3).final()
    assert both.tracking[1] == pytest.approx(alone.tracking[0])


def test_d2_is_allowed_where_the_rounds_make_w_positive():
    assert dnasa.solve(LeastSquares(dim=5), topology.ring(4), "d2", eta=0.01, steps=5, rounds=2).x.shape == (4, 5)
    with pytest.raises(InputError, match="lazy"):
        dnasa.solve(LeastSquares(dim=5), topology.ring(2000), "d2", eta=0.01, steps=5)


def test_a_network_of_ones_own_needs_three_things():
    graph = topology.ring(4)
    network = dnasa.Network(4, lambda *arrays: tuple(graph.weights @ a for a in arrays), lambda a: a.mean(-2))
    own = dnasa.solve(LeastSquares(dim=5), graph, steps=20, network=network)
    np.testing.assert_allclose(own.x, dnasa.solve(LeastSquares(dim=5), graph, steps=20).x, atol=1e-12)
