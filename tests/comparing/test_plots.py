"""Every history and every graph can be drawn and saved, with labels and colors from the registered rules."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from dnasa import topology
from dnasa.comparing import drawn_graphs, plots
from dnasa.rules.registry import BUILT_IN, RULES
from dnasa.topology import Changing, Topology

pytestmark = pytest.mark.pictures
METRICS = ("train_loss", "test_loss", "test_accuracy", "grad_norm", "consensus")


def history(values: Iterable[float], rule: str = "dnasa", seeds: int = 1, first: int = 0, **more: Any) -> pd.DataFrame:
    """A history whose metrics all have these values, one per evaluation; its runs are numbered from `first`."""
    rows = [
        {"run": first + s, "rule": rule, "schedule": "diminishing", "seed": s, "step": 10 * t} | dict.fromkeys(METRICS, value)
        for t, value in enumerate(values)
        for s in range(seeds)
    ]
    return pd.DataFrame(rows).assign(**more)


def labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    "values",
    [
        *([1.0, -np.inf, np.nan], [np.inf, np.inf], [np.nan, np.nan], [1.0, 1e308, 1e-308], [-1e308, 1e308], [1e308]),
        *([5e-324, 1e-320], [0.0, 0.0], [-1.0, -2.0], [2.0], []),
    ],
    ids=str,
)
def test_any_values_can_be_drawn_and_saved(values: list[float], tmp_path: Path) -> None:
    """As a single run, and as the mean of several; losses and gradient norms are drawn as the consensus error is."""
    table = pd.concat([history(values, "dsgd"), history(values, seeds=3, first=1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib only warns of data that it cannot show
        figure = plots.draw_history(table.drop(columns=["train_loss", "test_loss", "grad_norm"], errors="ignore"))
        path = plots.save_figure(figure, tmp_path / "history.png")
    assert path.stat().st_size > 5_000


def test_own_metrics_have_panels_of_their_own() -> None:
    table = history([3.0, 2.0]).assign(distance=[1.0, 0.5], balance=[-1.0, 1.0], seconds=[0.0, 1.0])
    figure = plots.draw_history(table)
    *_, distance, balance = figure.axes
    assert [axis.get_ylabel() for axis in figure.axes[3:]] == ["consensus error", "distance", "balance"]
    assert (distance.get_yscale(), balance.get_yscale()) == ("log", "linear")
    np.testing.assert_array_equal(distance.get_lines()[0].get_ydata(), [1.0, 0.5])
    many = {f"metric {i}": [2.0, 1.0] for i in range(20)}
    assert len(plots.draw_history(history([3.0, 2.0]).assign(**many)).axes) == plots.MAX_PANELS == 8


def test_runs_with_the_same_label_have_curves_of_their_own() -> None:
    table = pd.concat([history([3.0, 2.0], rule="dsgd", run=run, schedule="custom", eta=None) for run in (0, 1)])
    assert labels(plots.draw_history(table)) == ["D-SGD", "D-SGD, no. 2"]


def test_lines_over_each_other_are_told_apart_by_their_markers() -> None:
    figure = plots.draw_history(pd.concat([history(range(100), rule=rule) for rule in ("dsgd", "dsgt", "dnasa")]))
    assert len({line.get_markevery() for line in figure.axes[0].get_lines()}) == 3


def test_the_mean_ends_where_the_first_run_diverged() -> None:
    table = history([3.0, 2.0, 1.0], seeds=2)
    table.loc[(table.seed == 1) & (table.step == 20), "grad_norm"] = np.inf
    figure = plots.draw_history(table)
    line, mark = figure.axes[2].get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [3.0, 2.0, np.nan])
    assert (mark.get_marker(), mark.get_color()) == (line.get_marker(), line.get_color())
    np.testing.assert_array_equal(mark.get_xydata(), [[10.0, 1.0]])  # above the axis


def test_a_registered_rule_has_its_own_title_and_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "mine", RULES["dsgd"]._replace(title="My rule", color="#FFA500"))
    figure = plots.draw_history(pd.concat([history([2.0, 1.0], rule=rule) for rule in ("mine", "dnasa")]))
    assert labels(figure) == ["My rule (diminishing)", "D-NASA"]
    assert [to_hex(line.get_color()) for line in figure.axes[0].get_lines()] == ["#ffa500", RULES["dnasa"].color]


def test_every_rule_has_a_title_and_a_color_of_its_own_or_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, color in {"first": None, "second": None, "third": "no color"}.items():
        monkeypatch.setitem(RULES, name, RULES["dsgd"]._replace(color=color))
    names = ["first", "dsgd", "second", "third", "custom 1"]
    colors = plots.colors(names)
    assert list(colors) == names
    assert len(set(colors.values())) == len(names)
    assert colors["dsgd"] == RULES["dsgd"].color
    assert len({RULES[name].color for name in BUILT_IN}) == len(BUILT_IN)
    assert all(plots.title(rule) != rule and plots.colors([rule])[rule] == RULES[rule].color for rule in BUILT_IN)
    assert len(plots.colors(f"custom {i}" for i in range(100))) == 100


def test_stepsizes_and_schedules_are_in_the_label() -> None:
    fixed = history([2.0, 1.0], rule="dsgd", schedule="fixed", eta=0.1)
    usual = history([2.0, 1.0], rule="dsgd", eta=0.3)
    assert labels(plots.draw_history(pd.concat([fixed, usual]))) == [
        *(r"D-SGD (fixed), $\eta$ = 0.1", r"D-SGD (diminishing), $\eta$ = 0.3")
    ]


def drawn(graph: Topology | Changing, path: Path) -> Any:
    figure, axes = plots.panels(1)
    drawn_graphs.draw_topology(axes[0, 0], graph)
    plots.save_figure(figure, path)
    assert path.stat().st_size > 1_000
    return axes[0, 0]


def test_every_edge_of_a_torus_can_be_seen() -> None:
    graph = topology.torus(16)
    places = {i: np.array(place) for i, place in drawn_graphs._positions("torus", 16).items()}
    for i, j in graph.graph.edges:
        along = places[j] - places[i]
        for k in {*places} - {i, j}:
            to = places[k] - places[i]
            off = abs(along[0] * to[1] - along[1] * to[0]) / np.hypot(*along)
            assert off > 0.1 or not 0 < to @ along < along @ along, (i, j, k)


GRAPHS = ("ring", "ladder", "star", "path", "grid", "torus", "complete", "exponential", "exact")


@pytest.mark.parametrize(("name", "n"), [("ring", 1), ("star", 2), ("grid", 2), *((name, 16) for name in GRAPHS)])
def test_graphs_are_drawn(name: str, n: int, tmp_path: Path) -> None:
    assert f"$n$ = {n}" in drawn(topology.make(name, n), tmp_path / "graph.png").get_title()


def test_graphs_in_turn_have_panels_of_their_own_and_few_nodes_have_numbers() -> None:
    graph = topology.exact(12)
    axes = drawn_graphs.figure_of_topology(graph).axes
    assert [axis.get_title() for axis in axes] == [f"round {i} of 5" for i in range(1, 6)]
    for axis, each in zip(axes, graph.each, strict=True):
        assert [text.get_text() for text in axis.texts] == [*map(str, range(12))]
        assert len(axis.collections[1].get_paths()) == each.graph.number_of_edges()
    (axis,) = drawn_graphs.figure_of_topology(topology.ring(90)).axes
    assert not axis.texts
    assert "$n$ = 90" in axis.get_title()


def test_a_path_has_room_around_it_and_many_edges_are_thin(tmp_path: Path) -> None:
    low, high = drawn(topology.path(12), tmp_path / "path.png").get_ylim()
    assert high - low > 5  # nodes are 1 apart
    few, many = (drawn(topology.random(n), tmp_path / "random.png").collections[1] for n in (8, 40))
    assert max(many.get_linewidths()) < min(few.get_linewidths()) / 4


def test_a_directed_graph_has_an_arrow_for_every_edge(tmp_path: Path) -> None:
    graph = topology.directed_exponential(6)
    assert len(drawn(graph, tmp_path / "graph.png").patches) == graph.graph.number_of_edges()
    assert not drawn(topology.exponential(6), tmp_path / "graph.png").patches
    assert not drawn(topology.directed_ring(drawn_graphs.MAX_ARROWS + 1), tmp_path / "graph.png").patches  # too small to see


def test_a_zero_on_a_logarithmic_axis_is_a_gap_and_no_vertical_line() -> None:
    assert plots.draw_history(history([0.0, 0.0])).axes[2].get_yscale() == "linear"  # nothing is positive
    axis = plots.draw_history(history([1.0, 0.0, 0.1])).axes[2]
    assert (axis.get_ylabel(), axis.get_yscale()) == (plots.SYMBOLS["grad_norm"], "log")
    (line,) = axis.get_lines()
    assert np.isfinite(line.get_transform().transform(line.get_xydata())[:, 1]).tolist() == [True, False, True]


def test_an_axis_shows_accuracies_in_percent() -> None:
    figure = plots.draw_history(history([0.25, 0.5]))
    figure.draw_without_rendering()
    names = {axis.get_ylabel(): [text.get_text() for text in axis.get_yticklabels()] for axis in figure.axes}
    assert {"30", "40"} <= {*names["test accuracy (%)"]}
    assert "consensus error" in names


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ((8.0, 90.0), ["10", "20", "50"]),
        ((0.15, 0.6), ["0.2", "0.3", "0.4", "0.5", "0.6"]),
        ((0.01, 10.0), ["10^{-2}", "10^{-1}", "10^{0}", "10^{1}"]),
    ],
)
def test_ticks_of_a_short_logarithmic_axis_are_plain_numbers(limits: tuple[float, float], names: list[str]) -> None:
    figure, axes = plots.panels(1)
    axis = axes[0, 0]
    axis.set(yscale="log", ylim=limits)
    plots.name_decades(axis.yaxis)
    figure.draw_without_rendering()
    ticks = [*axis.yaxis.get_major_ticks(), *axis.yaxis.get_minor_ticks()]
    inside = sorted((tick.get_loc(), tick.label1.get_text()) for tick in ticks)
    shown = [text for place, text in inside if text and limits[0] <= place <= limits[1] * 1.0001]
    assert len(shown) == len(names)
    assert all(name in text for name, text in zip(names, shown, strict=True))
