"""The figures are drawn, and their tables agree with the curves."""

from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.engine.loop import solve
from dnasa.problems import LeastSquares
from dnasa.reproduce import compression, experiment, faults, fidelity, fig1, fig2, guidance, heterogeneity, theory
from dnasa.reproduce.report import Report
from dnasa.rules import dnasa, schedules

pytestmark = pytest.mark.pictures

LONG = pytest.mark.long


def test_speedup_counts_the_steps_to_the_same_gradient_norm() -> None:
    rows = [
        {"schedule": "fixed", "nodes": n, "seed": 0, "step": t, "grad_norm": 1 / (1 + n * t), "test_loss": 0.0}
        for n in (5, 10, 20)
        for t in range(0, 101)
    ]
    table = fig1.speedup(pd.DataFrame(rows)).set_index("nodes")
    assert table["speedup over n = 5"][20] == pytest.approx(4, rel=0.1)
    assert table["speedup over n = 5"][10] == pytest.approx(2, rel=0.1)


def test_the_best_stepsize_is_by_the_mean_over_seeds_and_never_a_diverged_one() -> None:
    result = solve(
        LeastSquares(dim=10), topology.ring(4), ["dsgd", "dnasa"], eta=[1e-4, 1e-2, 1e160], seed=[0, 1], steps=80
    )
    table = tuning.grid(result.history, "test_loss")
    best = tuning.best(table, "test_loss")
    assert best.loc["dsgd"].eta == 1e-2
    assert np.isnan(best.loc["dnasa"].eta)
    assert np.isinf(table[table.eta == 1e160].value).all()
    assert [tuning.diverged_text(rows) for _, rows in table.groupby("rule", sort=False)] == ["1e+160", "none"]


def test_partitions_are_drawn_when_every_run_diverged(tmp_path: Path) -> None:
    cells = [(data, how) for data in heterogeneity.DATA for how in heterogeneity.PARTITIONS]
    rows = [{"data": data, "partition": how, "rule": "dsgd", "accuracy": -np.inf} for data, how in cells]
    report = Report("partitions", "")
    heterogeneity.draw(report, pd.DataFrame(rows))
    assert [picture.stat().st_size > 10_000 for picture in report.save(tmp_path)] == [True]


def test_lines_of_a_panel_differ_in_more_than_their_colours() -> None:
    out = Report("lines", "")
    levels = pd.DataFrame([(kind, level) for kind in faults.FAULTS for level in (0, 0.2)], columns=["fault", "level"])
    faults.draw(
        out, levels.merge(pd.DataFrame({"rule": faults.RULES, "accuracy": [0.0, 1, 0.5, 0.9, 0.9, 1]}), "cross")
    )
    every = pd.DataFrame({"compress": (compression.PLAIN, *compression.COMPRESSIONS)})
    measured = {"eta": np.nan, "seed": 0, "steps": 5, "step": 5, "bytes": 1.0, "validation": 0.9, "test": 0.9}
    rows = every.merge(pd.DataFrame({"rule": compression.RULES}), "cross").assign(**measured)
    compression.draw(out, "digits", rows, compression.TASKS["digits"])
    for axis in [axis for figure in out.figures.values() for axis in figure.axes]:
        looks = [(line.get_linestyle(), line.get_marker()) for line in axis.get_lines()]
        assert len(set(looks)) == len(looks) > 5
        assert axis.get_ylabel().endswith("accuracy (%)")
    for axis in out.figures["faults"].axes:  # equal steps would hide the differences between good results
        low, middle, high = axis.transData.transform([(0, 0.5), (0, 0.9), (0, 0.98)])[:, 1]
        assert high - middle > (middle - low) / 2
        assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "50", "80", "90", "95", "98"]


def test_slope_of_a_power_law_is_its_exponent() -> None:
    T = pd.Series([10.0, 100, 1000])
    assert theory.slope(T, 3 * T**-0.25) == pytest.approx(-0.25)


def test_the_averages_of_the_theorem_leave_out_the_last_iterate() -> None:
    rows = [("dnasa", "fixed", 2, seed, step, 3.0 - step) for seed in (0, 1) for step in range(3)]
    history = pd.DataFrame(rows, columns=["rule", "schedule", "T", "seed", "step", "grad_norm"])
    runs = theory.measured(history.assign(tracking=0.0, consensus=0.0))
    assert runs.seed.tolist() == [0, 1]
    assert runs.average.tolist() == [2.5, 2.5]
    assert runs["last"].tolist() == [1.0, 1.0]


def test_the_theorem_is_about_dnasa_with_bounded_variance_and_without_h() -> None:
    assert theory.theorem("noise", "t(3)", "D-NASA (fixed)") == "-1/4"
    for case in (
        ("noise", "t(2)", "D-NASA (fixed)"),
        ("prox", "l1", "D-NASA (fixed)"),
        ("steps", "ring", "AdaNASA (linear)"),
    ):
        assert theory.theorem(*case) == "none"


def test_the_gradients_of_the_synthetic_problem_are_those_of_its_loss() -> None:
    random, problem = np.random.default_rng(0), theory.valleys(4, condition=100)
    rotation, _ = np.linalg.qr(random.standard_normal((10, 10)))
    centres, x, small = 2 + random.standard_normal((4, 10)), np.ones(10), 1e-6 * np.eye(10)

    def loss(x: np.ndarray) -> float:
        return float((np.geomspace(1, 100, 10) * np.log1p((x @ rotation - centres[3]) ** 2)).sum())

    numeric = [(loss(x + e) - loss(x - e)) / 2e-6 for e in small]
    assert problem.full_gradient is not None
    np.testing.assert_allclose(problem.full_gradient(x, 3), numeric, rtol=1e-4, atol=1e-4)


def test_the_form_of_published_code_is_algorithm_2_for_one_node_and_one_tensor() -> None:
    both = [dnasa(*schedules.diminishing(1)), fidelity.per_tensor(*schedules.diminishing(1), layout=(("x", (7,)),))]
    result = solve(LeastSquares(dim=7), topology.ring(1), both, steps=50)
    np.testing.assert_allclose(result.x[1], result.x[0], atol=1e-12)


def test_the_form_of_published_code_moves_every_tensor_by_eta() -> None:
    rule = fidelity.per_tensor(lambda t: 0.5, lambda t: 1.0, layout=(("a", (2, 2)), ("b", (3,)), ("c", (1,))))
    z = np.array([[3.0, 0, 4, 0, 1, 2, 2, -9]])
    (x,) = rule.early_messages(fidelity.State(0 * z, z), 0)
    np.testing.assert_allclose(x, -0.5 * np.array([[0.6, 0, 0.8, 0, 1 / 3, 2 / 3, 2 / 3, -1]]))


@pytest.mark.parametrize(
    ("module", "smaller"),
    [
        (fig1, {"NODES": (3, 6)}),
        (fig2, {"ETAS": (1e-3, 5e-3, 1e-1)}),
        (faults, {"ETAS": (0.1,), "FAULTS": {"drop": (0.0, 0.5)}, "RULES": ("d2", "dnasa")}),
        (theory, {"STEPS": (25, 50), "NODES": (1, 4), "SEEDS": 2, "CONDITIONS": (1, 100)}),
    ],
)
def test_figures_are_drawn_with_numbers_and_words(
    module: ModuleType, smaller: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in smaller.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(
        experiment, "solve", lambda *a, **k: solve(*a, **(k | {"steps": min(k["steps"], 100), "evaluate": 10}))
    )
    report = module.EXPERIMENT.run(quick=module is not theory, progress=False)
    pictures = report.save(tmp_path)
    assert all(picture.stat().st_size > 20_000 for picture in pictures)
    assert report.findings
    for name in report.tables:
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 1


@pytest.mark.long
def test_guidance_compares_untuned_with_tuned_methods_on_every_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guidance, "TUNED", ("dsgt:constant",))
    report = guidance.EXPERIMENT.run(quick=True, progress=False)
    assert report.tables["guidance"].columns.tolist() == ["method", *guidance.CASES]
    assert report.tables["guidance"].method.tolist() == ["D-SGT (constant)", "AdaNASA", "D-NASA"]
    assert all("D-NASA is" in line for line in report.findings)
    assert [picture.stat().st_size > 20_000 for picture in report.save(tmp_path)] == [True]


def test_gradients_of_the_guidance_problems_vanish_at_their_solutions() -> None:
    """Averaged over many samples; heavy tails by their median."""
    for name in ("condition", "tails"):
        problem = guidance.CASES[name].make()
        solution = 1 + np.random.default_rng(0).normal(size=(guidance.NODES, 20)).mean(0)
        (gap,) = problem.evaluate(solution[None, None], range(guidance.NODES)).values()
        assert gap.item() == pytest.approx(0, abs=1e-12)
        x = np.tile(solution, (1, 200, guidance.NODES, 1))
        drawn = problem.gradient(x, range(guidance.NODES), range(200), 0).mean(-2)
        assert abs(np.median(drawn, axis=1)).max() < 0.3


@pytest.mark.parametrize(
    "name",
    ["fig3", "fig4", "fidelity", *(pytest.param(name, marks=LONG) for name in ("fig5", "fig6", "heterogeneity"))],
)
def test_real_data_figures_are_drawn(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On small data of the same shapes, with the network and the grid cut down."""
    from dnasa import data, reproduce
    from dnasa.reproduce import fig3, fig4, network_tasks

    generator = np.random.default_rng(0)

    def load(which: str, context: int) -> Dataset:
        if which == "miniboone":
            raise InputError("missing")
        shape = (1, 28, 28) if which == "mnist" else (5,)
        x = generator.standard_normal((90, *shape)).astype(np.float32)
        return data.from_arrays(x, (x.reshape(90, -1)[:, 0] > 0).astype(int))

    monkeypatch.setattr(network_tasks, "load", load)
    monkeypatch.setattr(fig3, "ETAS", (0.5, 1e30))
    monkeypatch.setattr(fig3, "QUICK", dict.fromkeys(fig3.QUICK, 4))
    monkeypatch.setattr(fidelity, "QUICK_STEPS", 10)
    monkeypatch.setattr(fidelity, "SEEDS", {"a9a": 2})
    monkeypatch.setattr(fig4, "GRAPHS", {"ring": fig4.GRAPHS["ring"], "ladder": fig4.GRAPHS["ladder"]})
    report = reproduce.figure(name).run(quick=True, progress=False)
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    assert report.figures
    assert any("D-NASA" in line for line in report.findings)
    assert report.tables


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig6"])
def test_a_figure_without_its_data_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dnasa.reproduce import figure, network_tasks

    def load(which: str, context: int) -> NoReturn:
        raise InputError("put the file there")

    monkeypatch.setattr(network_tasks, "load", load)
    with pytest.raises(InputError, match="is left out: put the file there"):
        figure(name).run(quick=True, progress=False)
