"""Comparisons: stepsizes are never chosen on the test rows, grids are extended, and everything can be drawn and resumed."""

import re
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_latex import compiled

import dnasa
from dnasa import Result, data, topology
from dnasa.comparing import compare, comparison, drawing, grid, latex, plots, style, tuning
from dnasa.comparing.run_table import setup
from dnasa.comparing.statistics import curves, final, over_seeds
from dnasa.core import InputError
from dnasa.problems import Custom, LeastSquares, RobustRegression
from dnasa.problems.classification import Classification
from dnasa.problems.models import perceptron
from dnasa.rules.registry import RULES, Variant, variants
from dnasa.rules.schedules import ScheduleSpec

RING = topology.ring(4)
SMALL = LeastSquares(dim=10)


def digits() -> Classification:
    rows = data.load("digits")
    train, validation = data.hold_out(rows)
    shards = data.divide(rows, train, "iid", 4)
    parts = rows.inputs, rows.labels, shards, rows.test_inputs, rows.test_labels
    return Classification(
        lambda: perceptron(64, 8, 10), *parts, train_metrics=False, validation=data.divide_validation(validation, 4)
    )


def data_lines(axis: Any) -> list[Any]:
    """The lines of an axis without crosses and circles."""
    return [line for line in axis.get_lines() if not line.get_label().startswith("_")]


def runs(**values: Any) -> pd.DataFrame:
    """(eta, validation, test) of two alike seeds for each rule; None where both diverged."""
    rows = [
        {"rule": rule, "schedule": "diminishing", "eta": eta, "seed": seed, "diverged": v is None}
        | {"validation_loss": np.nan if v is None else v, "test_loss": test}
        for rule, some in values.items()
        for eta, v, test in some
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


VALIDATED = tuning.Selection("validation_loss", (0, 1), (0, 1))


def test_stepsizes_are_chosen_on_validation_rows_and_not_on_test_rows() -> None:
    table = runs(dsgd=[(0.1, 3.0, 0.1), (1.0, 1.0, 9.0), (10.0, 2.0, 0.2)], dnasa=[(np.nan, 1.0, 1.0)])
    choice = tuning.chosen(table, VALIDATED).set_index("rule")
    assert choice.eta["dsgd"] == 1.0
    assert choice.edge.to_dict() == {"dsgd": "", "dnasa": ""}
    assert np.isnan(choice.eta["dnasa"])
    choice = tuning.chosen(runs(dsgd=[(0.1, 3.0, 1.0), (1.0, None, np.nan)]), VALIDATED)  # where another diverged
    assert choice[["eta", "edge"]].to_numpy().tolist() == [[0.1, "smallest"]]
    table = runs(dsgd=[(0.1, None, np.nan), (1.0, None, np.nan)])  # where all diverged, smaller ones are tried
    assert tuning.extension(table, tuning.chosen(table, VALIDATED)) == [Variant("dsgd", "diminishing", 0.01)]


@pytest.mark.parametrize(
    ("grid", "eta"),
    [
        ([0.1, 0.3, 1], 3),
        ([0.3, 1, 3], 10),
        ([1, 0.3, 0.1], 0.03),
        ([0.3, 0.1, 0.03], 0.01),
        ([1, 0.2, 0.1], 0.05),
        ([0.1, 0.3, 0.7], 1.6),
        ([1.01, 1.02], 1.0301),  # two digits would be the grid's own
        ([0.1], None),
    ],
)
def test_a_grid_is_extended_by_its_own_factor_with_round_stepsizes(grid: list[float], eta: float | None) -> None:
    """The last of the grid is the best."""
    table = runs(dsgd=[(step, -place, 0) for place, step in enumerate(grid)])
    more = tuning.extension(table, tuning.chosen(table, VALIDATED))
    assert more == ([Variant("dsgd", "diminishing", eta)] if eta else [])


@pytest.mark.parametrize(
    ("metrics", "metric", "by", "other"),
    [
        (["test_loss", "validation_loss"], "test_loss", "validation_loss", False),
        (["test_accuracy", "validation_accuracy", "train_loss"], "test_accuracy", "validation_accuracy", False),
        (["test_loss", "train_loss"], "test_loss", "train_loss", True),
        (["train_loss"], "train_loss", "train_loss", True),
        (["validation_loss", "grad_norm"], "grad_norm", "grad_norm", True),
    ],
)
def test_the_choice_never_uses_test_rows(metrics: list[str], metric: str, by: str, other: bool) -> None:
    selection = tuning.select(metrics, metric, [0, 1], [2, 3])
    assert selection.metric == by
    assert selection.reported == (0, 1)
    assert selection.seeds == ((2, 3) if other else (0, 1))


def test_a_network_is_tuned_on_validation_rows_of_the_same_seeds() -> None:
    found = compare(digits(), RING, ["dsgd", "dnasa"], [0.01, 1.0], steps=40, seed=[0, 1])
    assert found.selection == tuning.Selection("validation_accuracy", (0, 1), (0, 1))
    assert found.choice.eta.iloc[0] == 1.0
    assert "a tenth of the training rows" in found.notes()[0]
    last = final(found.history)
    chosen = last[(last.rule == "dsgd") & (last.eta == 1.0)]
    assert found.summary()["mean"].iloc[0] == pytest.approx(chosen.test_accuracy.mean())


@pytest.mark.parametrize(
    ("problem", "metric"),
    [
        (SMALL, "test_loss"),
        (RobustRegression(4), "train_loss"),
        (Custom(lambda x, node, rng: x + rng.normal(size=2), np.ones(2), full_gradient=lambda x, node: x), "grad_norm"),
    ],
    ids=["least squares", "robust regression", "custom"],
)
def test_streaming_problems_are_tuned_on_other_seeds(problem: Any, metric: str) -> None:
    found = compare(problem, RING, ["dsgd", "dnasa"], [0.001, 0.01], steps=20, seed=[4, 6])
    assert found.metric == metric
    assert found.selection.seeds == (7, 8)
    assert found.selection.reported == (4, 6)
    assert not found.selection.metric.startswith("test")
    assert set(found.history.seed) == {4, 6, 7, 8}
    assert found.summary().runs.tolist() == [2, 2]
    assert "of other seeds (7, 8)" in found.notes()[0]


def test_a_problem_without_a_loss_is_compared_only_by_a_metric_that_is_named() -> None:
    """By consensus, a method that does not move would be the best."""
    bare = Custom(lambda x, node, rng: x, np.ones(2))
    measured = Custom(lambda x, node, rng: x, np.ones(2), evaluate=lambda x: {"distance": abs(x).max()})
    for problem in (bare, measured):
        with pytest.raises(InputError, match="no loss to compare by: give Custom a loss"):
            compare(problem, RING, ["dsgd", "dnasa"], [0.001, 0.01], steps=5)
    assert compare(bare, RING, ["dnasa"], steps=5, metric="consensus").metric == "consensus"
    found = compare(measured, RING, ["dsgd:constant"], [0.001, 0.01], steps=5, metric="distance")
    assert found.choice.eta.tolist() == [0.01]


def test_nothing_is_run_for_a_choice_that_is_not_made() -> None:
    found = compare(SMALL, RING, ["dsgd", "dnasa"], [0.01], steps=5, seed=[0, 1])
    assert set(found.history.seed) == {0, 1}
    assert found.table().iloc[:, 2].tolist() == ["not tuned", "not tuned"]
    alone = compare(SMALL, RING, ["adanasa", "dnasa"], steps=5)
    assert alone.notes()[0] == "Nothing was tuned; results are on test samples, of one seed, so without a spread."
    assert alone.table()["stepsize"].tolist() == ["linear", "diminishing"]
    assert "diverged at" not in alone.table()


def test_stepsizes_are_those_of_the_rule_with_or_without_its_schedule() -> None:
    rules = ["dsgd:constant", "dsgd:cosine", "dnasa"]
    made = grid.grid_of(rules, {"dsgd": [0.1], "dsgd:cosine": [0.3]})
    assert [(variant.schedule, variant.eta) for variant in made[:2]] == [("constant", 0.1), ("cosine", 0.3)]
    with pytest.raises(InputError, match="'dsgt', which is not compared"):
        compare(SMALL, RING, rules, {"dsgd": [0.1], "dsgt": [0.3]}, steps=1)


def test_extending_stops_inside_the_grid_and_runs_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    original = dnasa.solve

    def recorded(problem: Any, graph: Any, rules: Any, **options: Any) -> Result:
        solved.append(rules)
        return original(problem, graph, rules, **options)

    monkeypatch.setattr(grid, "solve", recorded)
    found = compare(SMALL, RING, ["dsgd:constant", "dnasa"], [1e-4, 1e-3], steps=60, extend=True)
    assert [[run.eta for run in part] for part in solved[1:]] == [[10.0**k] for k in range(-2, len(solved) - 3)]
    assert len(solved) > 2
    assert found.choice.edge.tolist() == ["", ""]
    assert not any("edge" in note or "grid" in note for note in found.notes())
    assert set(found.stepsizes().eta.dropna()) == {1e-4, 1e-3, *(run.eta for part in solved[1:] for run in part)}


def test_an_edge_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare(SMALL, RING, ["dsgd", "dnasa"], [1e-5, 1e-4], steps=20)
    assert "a better stepsize may lie beyond: D-SGD (diminishing) 0.0001 (largest). --extend" in found.notes()[-1]
    assert "(largest tried)" in found.table().iloc[0, 2]
    monkeypatch.setattr(grid, "MOST_EXTENSIONS", 2)
    found = compare(SMALL, RING, ["dsgd"], [1e-9, 1e-8], steps=5, extend=True)
    assert found.stepsizes().eta.tolist() == pytest.approx([1e-9, 1e-8, 1e-7, 1e-6])
    assert "--etas gives another" in found.notes()[-1]


def test_a_stated_formula_is_the_schedule() -> None:
    """Evaluated as Python at several steps, with the paper's letters."""
    n, T, eta = 7, 40, 0.3
    for rule, method in RULES.items():
        for name, made in method.schedules.items():
            (variant, *_) = variants(rule, [eta], name)
            text = re.sub(r"(\d|\)) ?(?=[(a-z])(?<!sqrt)", r"\1*", variant.formula).replace("^", "**")
            text = re.sub(r"\bpi t", "pi*t", text)
            for schedule, t in product(made(n, T, eta)[:1], (0, 1, 5, 39)):
                names = {"n": n, "T": T, "t": t, "sqrt": np.sqrt, "cos": np.cos, "min": min, "pi": np.pi}
                with suppress(ZeroDivisionError), np.errstate(divide="ignore"):
                    value = eval(text, {"__builtins__": {}}, names)
                    if np.isfinite(value):
                        assert schedule(t) == pytest.approx(value, abs=1e-12), (rule, name, t)


def test_an_axis_that_the_runs_do_not_have_is_refused_at_the_first_evaluation() -> None:
    with pytest.raises(InputError, match="These runs have no epochs"):
        compare(SMALL, RING, ["dnasa"], steps=5, x="epochs")


@pytest.mark.parametrize("x", ["steps", "samples", "bytes"])
def test_curves_are_drawn_against_every_axis(x: str) -> None:
    found = compare(SMALL, RING, ["dsgd", "dnasa"], [0.001, 0.01], steps=20, seed=[0, 1], x=x)
    table = found.curves()
    assert set(table.rule) == {"dsgd", "dnasa"}
    for line, (_, rows) in zip(data_lines(found.draw_curves().axes[0]), table.groupby("rule", sort=False), strict=True):
        places = rows[comparison.AXES[x]]
        np.testing.assert_array_equal(line.get_xdata(), places)
        np.testing.assert_array_equal(line.get_ydata(), rows["mean"])
        assert places.is_monotonic_increasing
        assert places.iloc[-1] > 0
    if x == "bytes":
        figure = found.draw_curves()
        assert figure.axes[0].get_xlabel() == "MB sent per node"
        assert drawing.signs(table, found.metric) == [f"bands: {drawing.RANGE}"]
        assert table.mb_per_node.max() == pytest.approx(found.history.bytes.max() / RING.nodes / 1e6)


def test_curves_are_against_steps_and_bytes_where_methods_send_different_amounts() -> None:
    found = compare(SMALL, RING, ["dsgd", "dnasa"], [0.01], steps=20, seed=[0, 1])
    assert found.axes == ("steps", "bytes")
    assert {"step", "mb_per_node"} <= {*found.curves()}
    figure = found.draw_curves()
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("steps", "MB sent per node")
    assert (left.get_ylim(), left.get_ylabel(), right.get_ylabel()) == (right.get_ylim(), "test loss", "")
    assert len(figure.legends) == 1
    assert compare(SMALL, RING, ["dsgd", "dadam"], [0.01], steps=5).axes == ("steps",)
    assert replace(found, x=("samples",)).axes == ("samples",)


@pytest.mark.parametrize("schedule", [None, "cosine"])
def test_rules_that_name_no_schedule_are_compared_with_the_same(schedule: str | None) -> None:
    """The default of D-Adam is cosine; a rule without a stepsize keeps its own where it does not know the schedule."""
    rules = ["dsgd", "dadam", "dsgt:constant", "adanasa", "dnasa"]
    found = compare(SMALL, RING, rules, [0.001], steps=3, schedule=schedule, progress=False)
    one = schedule or "diminishing"
    assert found.choice.schedule.tolist() == [one, one, "constant", "linear", "diminishing"]
    assert found.table().method.tolist() == [*(f"D-SGD ({one})", f"D-Adam ({one})", "D-SGT (constant)"), *("AdaNASA", "D-NASA")]
    shown = {line.get_label().split(",")[0] for line in data_lines(found.draw_curves().axes[0])}
    assert shown == set(found.table().method)


@pytest.mark.pictures
def test_what_diverged_is_a_marker_above_the_axis_and_lines_to_far_worse_results_leave_it() -> None:
    table = runs(
        dsgd=[(0.1, 1.0, 0.9), (1.0, 1.0, 0.92), (3.0, 1.0, 0.2), (10.0, None, np.nan), (30.0, 1.0, 1e308)],
        dnasa=[(np.nan, 1.0, 0.95)],
    )
    table = over_seeds(table.rename(columns={"test_loss": "test_r2"}), "test_r2").assign(chosen=True)
    figure = drawing.figure_of_stepsizes(table, "test_r2")
    axis = figure.axes[0]
    (mark,) = [line for line in axis.get_lines() if line.get_label() == f"_{plots.DIVERGED}"]
    assert np.asarray(mark.get_xydata()).tolist() == [[10.0, 1.0], [30.0, 1.0]]
    assert mark.get_marker() == data_lines(axis)[0].get_marker()
    assert [text.get_text() for text in axis.texts] == [plots.DIVERGED, plots.OFF]
    assert 0.2 < axis.get_ylim()[0] < 0.9
    np.testing.assert_array_equal(data_lines(axis)[0].get_ydata(), [0.9, 0.92, np.nan, np.nan, np.nan])
    assert [*np.ravel(axis.collections[0].get_linewidth())[:3]] == [1, 1, 0]  # no bar where there is no point
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "1", "3", "10", "30"]
    (beyond,) = [line for line in axis.get_lines() if line.get_label() == f"_{plots.OFF}"]
    assert np.asarray(beyond.get_xydata()).tolist() == [[3.0, 1.0]]
    assert beyond.get_marker() == mark.get_marker()
    heights = [np.mean(line.get_transform().transform(line.get_xydata())[:, 1]) for line in (mark, beyond)]
    assert heights == pytest.approx(
        [text.get_window_extent().y0 + text.get_window_extent().height / 2 for text in axis.texts], abs=2
    )
    inside, around = [line for line in axis.get_lines() if line.get_label() == "_chosen"]
    np.testing.assert_array_equal(inside.get_ydata(), [0.9, 0.92, np.nan, np.nan, np.nan])
    assert (np.asarray(around.get_xydata()).tolist(), around.get_transform()) == ([[3.0, 1.0]], beyond.get_transform())
    both = [f"bars and bands: {drawing.RANGE}", drawing.FLAT, drawing.CHOSEN]
    assert drawing.signs(table, "test_r2") == [*both, drawing.MARKS, drawing.BEYOND]
    assert drawing.signs(table[table.eta <= 1], "test_r2") == [f"bars: {drawing.RANGE}", drawing.CHOSEN]
    assert plots.rendered(figure, "png")


@pytest.mark.pictures
@pytest.mark.parametrize("metric", ["test_accuracy", "test_r2"])
@pytest.mark.parametrize("chosen", [1.0, 0.01])
def test_results_far_worse_than_those_of_chosen_stepsizes_are_above_the_axis(metric: str, chosen: float) -> None:
    table = runs(**{rule: [(0.01, 1.0, 0.12), (0.1, 1.0, 0.9), (1.0, 1.0, 0.95)] for rule in ("dsgd", "dsgt", "dadam")})
    table = over_seeds(table.rename(columns={"test_loss": metric}), metric)
    (axis,) = drawing.figure_of_stepsizes(table.assign(chosen=table.eta == chosen), metric).axes
    shows_all = chosen < 1
    assert (axis.get_ylim()[0] < 0.12) == shows_all
    assert shows_all or 0.75 < axis.get_ylim()[0] < 0.9
    marks = [line for line in axis.get_lines() if line.get_label() == f"_{plots.OFF}"]
    places = [line.get_transform().transform(line.get_xydata())[0] for line in marks]
    assert len(places) == (0 if shows_all else 3)
    across = axis.transData.transform([0.01, 1])[0]
    for i, (x, y) in enumerate(places):
        row = 1.75 * style.current().marker / 72 * axis.figure.dpi
        lead = 0.6 * style.current().font / 72 * axis.figure.dpi
        assert (x, y - axis.bbox.y1) == pytest.approx((across, lead + (i + 1) * row)), "a row for each rule"


def curves_of(values: dict[str, list[float]], metric: str) -> pd.DataFrame:
    """One run of each rule, with these values at its steps."""
    rows = [
        {"rule": rule, "schedule": "constant", "eta": 1.0, "seed": 0, "step": step, metric: value, "consensus": value}
        for rule, some in values.items()
        for step, value in enumerate(some)
    ]
    return curves(pd.DataFrame(rows), metric)


@pytest.mark.pictures
def test_a_method_that_diverged_does_not_stretch_the_axis_which_has_three_ticks() -> None:
    values = {"dsgd": [0.1, 0.3, 0.4, np.nan], "dnasa": [0.1, 0.9, 0.94, 0.95]}
    table = curves_of(values, "test_accuracy")
    (axis,) = drawing.figure_of_curves(table, ["step"], "test_accuracy").axes
    low, high = axis.get_ylim()
    assert 0.8 < low < 0.9
    assert sum(low <= tick <= high for tick in axis.get_yticks()) >= 3
    assert drawing.signs(table, "test_accuracy") == [drawing.MARKS, drawing.WORSE]


@pytest.mark.pictures
def test_panels_of_a_problem_have_the_same_scale() -> None:
    figure, axes = plots.panel_list(3, 3)
    for axis, worst in zip(axes, (3.0, 50.0, 3.0), strict=True):
        axis.plot([0, 1], [worst, 1.0])
        plots.finish(axis, "step", "test loss", log=worst > 10)
        drawing.focus(axis, np.array([1.0, worst]))
    drawing.finish_panels(figure, axes, problems=["a", "a", "b"])
    assert [axis.get_yscale() for axis in axes] == ["log", "log", "linear"]
    assert axes[0].get_ylim() == axes[1].get_ylim()


@pytest.mark.pictures
def test_panels_of_a_problem_have_the_same_horizontal_scale() -> None:
    figure, axes = plots.panel_list(4, 2)
    for axis, most in zip(axes, (3.0, 5.0, 1.0, 3.0), strict=True):
        table = curves_of({"dsgd": [3.0, 2.0, 1.0], "dnasa": [3.0, 2.0, 1.0]}, "test_loss")
        table["mb_per_node"] = table.step * np.where(table.rule == "dsgd", 1.0, most)
        drawing.draw_curves(axis, table, "mb_per_node", "test_loss")
    assert [axis.get_xscale() for axis in axes] == ["linear", "log", "linear", "linear"]
    drawing.finish_panels(figure, axes, problems=["a", "a", "a", "b"])
    assert [axis.get_xscale() for axis in axes] == ["log", "log", "log", "linear"]
    for axis in axes[:3]:
        assert axis.get_xlim() == pytest.approx((1 / 1.1, 11**0.02 * 10))


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["screen", "paper"])
def test_marks_at_the_left_edge_are_shown_and_do_not_touch_the_word(name: str) -> None:
    """Of four rules that diverged in their first step, on a linear and on a logarithmic axis."""
    values = {name: [9.0, np.nan, np.nan] for name in ("dsgd", "dsgt", "dasagt", "dadam")}
    table = curves_of(values | {"kgt": [9.0, 5.0, 1.0], "dnasa": [9.0, 5.0, 1.0]}, "test_loss").assign(runs=2)
    table["mb_per_node"] = table.step * np.where(table.rule == "dnasa", 90.0, 1.0)
    with style.context(name):
        figure = drawing.figure_of_curves(table, ["step", "mb_per_node"], "test_loss")
        figure.draw_without_rendering()
    assert [axis.get_xscale() for axis in figure.axes] == ["linear", "log"]
    for axis in figure.axes:
        boxes = [line.get_window_extent() for line in axis.get_lines() if line.get_label() == f"_{plots.DIVERGED}"]
        assert len(boxes) == 4
        assert axis.texts[0].get_text() == plots.DIVERGED
        assert axis.texts[0].get_window_extent().x1 < min(box.x0 for box in boxes)


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["screen", "paper"])
def test_the_words_of_marks_do_not_touch_each_other_nor_numbers_of_the_axis(name: str) -> None:
    table = runs(dsgd=[(0.01, 1.0, 0.1), (0.1, 1.0, 100.0), (1.0, 1.0, 1e9), (3.0, None, np.nan)])
    with style.context(name):
        figure = drawing.figure_of_stepsizes(over_seeds(table, "test_loss"), "test_loss")
        figure.axes[0].set_ylim(0.1, 100)
        figure.draw_without_rendering()
    (axis,) = figure.axes
    ticks = [text for place, text in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True) if 0.1 <= place <= 100]
    assert [text.get_text() for text in axis.texts] == [plots.DIVERGED, plots.OFF]
    for one, other in combinations([*axis.texts, *ticks], 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent()), (one, other)


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["screen", "paper"])
def test_circles_do_not_touch_titles_nor_names_of_stepsizes_each_other(name: str) -> None:
    table = runs(dsgd=[(eta, 1.0, 0.8) for eta in (0.001, 0.003, 0.01, 100.0)], dsgt=[(0.001, 1.0, 0.9)])
    table = over_seeds(table.rename(columns={"test_loss": "test_accuracy"}), "test_accuracy").assign(chosen=True)
    with style.context(name):
        figure, axes = plots.panel_list(2, 2)
        for axis in axes:
            drawing.draw_stepsizes(axis, table, "test_accuracy")
        drawing.finish_panels(figure, axes, ["digits, ring"] * 2)
        figure.draw_without_rendering()
    for axis in axes:
        circles = [line.get_window_extent() for line in axis.get_lines() if line.get_label() == "_chosen"]
        assert len(circles) == 2
        assert not any(axis.title.get_window_extent().overlaps(circle) for circle in circles)
        names = [text.get_window_extent() for text in axis.get_xticklabels() if text.get_text()]
        assert not any(one.overlaps(other) for one, other in combinations(names, 2))


@pytest.mark.pictures
@pytest.mark.parametrize("wild", [1e99, 6e5, 2.0])
@pytest.mark.parametrize("diverges", [False, True])
def test_a_curve_that_blows_up_does_not_stretch_the_axis(wild: float, diverges: bool) -> None:
    values = {"dsgd": [85.0, wild, np.nan if diverges else wild], "dnasa": [85.0, 9.0, 1.0]}
    table = curves_of(values, "test_loss")
    (axis,) = drawing.figure_of_curves(table, ["step"], "test_loss").axes
    low, high = axis.get_ylim()
    assert (axis.get_yscale(), 0.5 < low < 1, 85 < high < 850) == ("log", True, True)
    signs = {drawing.MARKS: diverges, drawing.WORSE: wild > 850}
    assert drawing.signs(table, "test_loss") == [sign for sign, applies in signs.items() if applies]
    if diverges and wild > 850:  # nor where all did
        (axis,) = drawing.figure_of_curves(table[table.rule == "dsgd"], ["step"], "test_loss").axes
        assert axis.get_ylim()[1] < 850


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["screen", "paper"])
@pytest.mark.parametrize("metric", ["test_accuracy", "test_loss"])
def test_marks_of_many_rules_hide_nothing_and_are_in_the_figure(name: str, metric: str) -> None:
    cost = [(0.1, 1.0, 0.1), (1.0, 1.0, 0.05), (3.0, 1.0, 0.9), (10.0, None, np.nan)]
    some = [(eta, v, 1 - test if metric == "test_accuracy" else test - 0.08) for eta, v, test in cost]
    rules = ("dsgd", "dsgt", "dasagt", "kgt", "dadam", "d2")
    table = over_seeds(runs(**dict.fromkeys(rules, some)).rename(columns={"test_loss": metric}), metric)
    with style.context(name):
        figure = drawing.figure_of_stepsizes(table, metric)
        drawing.entitle(figure.axes, ["A title"])
        figure.draw_without_rendering()
    (axis,) = figure.axes
    title = axis.title.get_window_extent()
    marks = [line for line in axis.get_lines() if line.get_label() == f"_{plots.DIVERGED}"]
    places = [line.get_transform().transform(line.get_xydata())[0] for line in marks]
    assert len(marks) == len(rules)
    for one, other in combinations(places, 2):
        assert np.hypot(*(one - other)) * 72 / figure.dpi >= marks[0].get_markersize()
    assert all(figure.bbox.padded(-2).contains(*place) and not title.contains(*place) for place in places)
    assert all(y > axis.bbox.y1 for _, y in places)


def measured(*rules: str) -> comparison.Comparison:
    """A comparison by test accuracy of five seeds, whose messages differ."""
    rows = [
        {"rule": name, "schedule": schedule or "diminishing", "eta": eta, "seed": seed, "step": 100, "consensus": 0.0}
        | {"test_accuracy": 0.9 + 0.01 * i + 0.001 * seed, "test_loss": 0.3 - 0.01 * i + 0.001 * seed}
        | {"validation_accuracy": 0.9 + eta, "nodes": 8, "bytes": 10**8 * (i + 1)}
        for i, (name, _, schedule) in enumerate(rule.partition(":") for rule in rules)
        for seed in range(5)
        for eta in (0.01, 0.03)
    ]
    history = pd.DataFrame(rows)
    selection = tuning.select(list(history), "test_accuracy", range(5), ())
    return comparison.Comparison(history, "test_accuracy", selection, tuning.chosen(final(history), selection))


def test_stepsizes_of_a_rule_without_a_formula_name_their_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = ScheduleSpec(lambda n, T, eta: (lambda t: eta,))
    monkeypatch.setitem(RULES, "mine", RULES["dsgd"]._replace(schedules={"flat": flat}))
    found = compare(SMALL, RING, ["mine", "clip:1+adam:0.9+dsgd", "dnasa"], [0.01], steps=3)
    assert found.table().stepsize.tolist() == ["0.01", "0.01", "diminishing"]
    assert r"Clip 1 + Adam 0.9 + D-SGD" in found.latex()


FEW = ("dsgd", "dsgt", "dadam", "adanasa", "dnasa")


def test_a_wide_table_spans_both_columns_of_a_paper(tmp_path: Path) -> None:
    text = measured(*FEW, "gt_nsgdm:cosine", "push_dsgt:cosine").latex("digits: 8 nodes")
    assert r"{@{}lrrrrr@{}}" in text
    assert r"\begin{table*}" in text
    assert r"vs.\ best" in text
    if which("pdflatex"):
        assert "Overfull" not in compiled(tmp_path, text, columns=True)


def test_a_latex_table_says_what_was_measured_what_signs_mean_and_how_stepsizes_were_chosen() -> None:
    text = measured(*FEW).latex("a9a: 8 nodes")
    (caption,) = re.findall(r"\\caption{(.*)}", text)
    assert caption == (
        r"Test accuracy (\%) on a9a: 8 nodes, mean $\pm$ std over 5 seeds. Bold: the best result and those that do not differ "
        r"clearly from it (paired $t$-test, $p \ge 0.05$). "
        r"Stepsizes $\eta_t$: diminishing, $\eta \sqrt{n/(t+1)}$ (step $t$, $n$ nodes). "
        r"$^\dagger$~The stepsize is at an edge of its grid. MB: megabytes that each node sent. "
        r"vs.\ best: mean paired difference and its 95\% confidence interval ($t$ distribution). "
        r"Stepsizes were chosen by the validation accuracy (a tenth of the training rows, held out)."
    )
    found = measured("dsgd", "dnasa")
    assert "& MB &" in found.latex()
    assert "each node sent" not in replace(found, history=found.history.assign(bytes=1)).latex()


def test_schedules_are_in_the_rows_where_they_differ_and_their_formulas_in_the_captions() -> None:
    found = measured("dsgd", "dsgt:cosine", "dnasa")
    cosine = r"cosine, $\eta \min(1, 10(t+1)/T) (1 + \cos(\pi t/T))/2$"
    both = rf"Stepsizes $\eta_t$: diminishing, $\eta \sqrt{{n/(t+1)}}$; {cosine} (step $t$, $T$ steps, $n$ nodes)."
    assert both in found.latex()
    assert ("D-SGD (diminishing) &" in found.latex(), "D-SGT (cosine) &" in found.latex()) == (True, True)
    with style.context("paper"):
        names = [text.get_text() for text in found.draw_stepsizes().legends[0].get_texts()]
    assert names == ["D-SGD (diminishing)", "D-SGT (cosine)", "D-NASA"]
    same = measured("dsgd:cosine", "dsgt:cosine", "dnasa")
    assert "D-SGD &" in same.latex()
    assert f"{cosine} (step $t$, $T$ steps)." in same.latex()
    assert r"Settings and stepsizes: Table~\ref{tab:ours}.}" in same.caption("curves", name="ours")
    assert r"\label{fig:ours-curves}" in same.caption("curves", name="ours")
    assert latex.methods([("dsgd", "diminishing"), ("adanasa", "averaged")]) == ["D-SGD", "AdaNASA (averaged)"]
    assert latex.methods([("dnasa", "diminishing"), ("dnasa", "fixed")]) == ["D-NASA", "D-NASA (fixed)"]


def test_captions_say_what_was_run_and_how_stepsizes_were_chosen_in_words() -> None:
    found = compare(SMALL, RING, ["dsgd", "dnasa"], [0.001, 0.01], steps=20, seed=[0, 1], metric="grad_norm")
    setting = f"{RING.nodes} nodes, ring graph, 20 steps"
    assert f"Gradient norm at the mean iterate on ours: {setting}, mean" in found.latex("ours")
    assert f"Gradient norm at the mean iterate: {setting}, mean" in found.latex()
    assert f"Runs: {setting}." in found.caption("curves")
    assert f"{RING.nodes} nodes" not in found.latex("ours: as above")
    assert "chosen by the gradient norm of other seeds" in found.latex()
    made = [setup(name, 8) for name in ("mlp:64", "mlp", "mlp:128,64", "mlp:64,relu", "linear", "")]
    words = ["one hidden layer of 64 units"] * 2 + ["hidden layers of 128, 64 units", "mlp:64,relu model", "linear model"]
    assert made == [*(f"{each}, batches of 8 per node" for each in words), "batches of 8 per node"]


def test_formulas_of_schedules_are_latex(monkeypatch: pytest.MonkeyPatch) -> None:
    assert latex._formula("n^(1/4)/t^(3/4)") == "n^{1/4}/t^{3/4}"
    assert latex._formula("0.4 sqrt(n) min((t+1)/100, 10/sqrt(t+1))") == r"0.4 \sqrt{n} \min((t+1)/100, 10/\sqrt{t+1})"
    odd = ScheduleSpec(lambda n, T, eta: (lambda t: eta,), "eta_{$")
    monkeypatch.setitem(RULES, "mine", RULES["dsgd"]._replace(schedules={"odd": odd}))
    choice = pd.DataFrame({"rule": ["mine"], "schedule": ["odd"]})
    assert latex.schedules(choice) == r"Stepsizes $\eta_t$: odd."


@pytest.mark.pictures
def test_one_node_and_one_evaluation_can_be_compared_and_drawn(tmp_path: Path) -> None:
    found = compare(SMALL, topology.ring(1), ["dsgd", "dnasa"], [0.01, 1e160], steps=3, evaluate=[3])
    assert plots.save_figure(found.draw_curves(), tmp_path / "a.png").stat().st_size > 5_000
    assert plots.save_figure(found.draw_stepsizes(), tmp_path / "b.png").stat().st_size > 5_000
