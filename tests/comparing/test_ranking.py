"""Ranks over cells: Demšar's numbers, ties, divergence, groups; profiles by their definition."""

import shutil
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from test_latex import compiled

from dnasa.comparing import rank_drawing
from dnasa.comparing.ranking import Ranking, costs, critical_difference

# Demšar (2006), table 5a: the critical values q of the two-tailed Nemenyi test at 0.05 for 2 to 10 classifiers.
DEMSAR = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)
# His table 6: the AUC of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets;
# 0.9751 is printed as 0.975, but ranked before the other.
AUC = """0.763 0.768 0.771 0.798
0.599 0.591 0.590 0.569
0.954 0.971 0.968 0.967
0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931
0.661 0.668 0.609 0.685
0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875
1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962
0.619 0.666 0.614 0.669
0.972 0.981 0.9751 0.975
0.957 0.978 0.946 0.970"""


def demsar() -> Ranking:
    values = np.array([[float(word) for word in line.split()] for line in AUC.splitlines()])
    return Ranking(pd.DataFrame(1 - values, columns=["C4.5", "m", "cf", "m+cf"]).round(10))


@pytest.mark.parametrize(("methods", "q"), list(enumerate(DEMSAR, start=2)))
def test_the_critical_difference_is_that_of_nemenyi(methods: int, q: float) -> None:
    assert critical_difference(methods, 14) == pytest.approx(q * sqrt(methods * (methods + 1) / (6 * 14)), abs=1e-3)


def test_the_published_example_has_its_ranks() -> None:
    ranks = demsar().ranks().set_index("method")
    assert ranks["rank"].round(3).to_dict() == {"m+cf": 1.964, "m": 2.0, "cf": 2.893, "C4.5": 3.143}
    assert ranks.critical_difference.iloc[0] == pytest.approx(1.25, abs=0.01)
    average, cells, methods = ranks["rank"], 14, 4
    plain = 12 * cells / (methods * (methods + 1)) * ((average**2).sum() - methods * (methods + 1) ** 2 / 4)
    assert plain == pytest.approx(9.28, abs=0.01)  # as published, without the correction for ties
    ties = sum(
        float((counts**3 - counts).sum()) for _, row in demsar().by_cell.iterrows() for counts in [row.value_counts()]
    )
    assert ranks.friedman.iloc[0] == pytest.approx(plain / (1 - ties / (cells * methods * (methods**2 - 1))))
    assert ranks.p.iloc[0] < 0.05


def clear_cells(count: int = 8) -> pd.DataFrame:
    return pd.DataFrame([[1.0, 2.0, 3.0, 4.0, 40.0]] * count, columns=list("abcde"))


def test_groups_are_the_longest_that_do_not_differ_clearly() -> None:
    ranking = Ranking(clear_cells())
    assert ranking.critical == pytest.approx(2.728 * sqrt(30 / 48), abs=1e-3)  # 2.157
    assert ranking.groups() == [(1, 3), (2, 4), (3, 5)]
    assert ranking.ranks().with_the_best.tolist() == [True, True, True, False, False]
    assert ranking.ranks().best_in.tolist() == [8, 0, 0, 0, 0]


def test_without_a_significant_friedman_test_nothing_differs() -> None:
    table = pd.DataFrame([[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [3, 2, 1]], columns=list("abc"), dtype=float)
    ranking = Ranking(table)
    assert ranking.critical == inf
    assert len(ranking.groups()) == 1
    assert "no clear difference (Friedman test, p = " in ranking.notes()[0]
    assert r"\best{" not in ranking.latex("a").partition("tabular")[2]
    assert Ranking(table * 0).friedman == (0.0, 1.0)


def test_costs_are_errors_or_losses_and_a_diverged_run_is_last() -> None:
    assert costs("test_accuracy", pd.Series([0.9, np.nan])).tolist() == [0.1, inf]
    assert costs("test_loss", pd.Series([0.3, 0.1 + 0.2])).nunique() == 1
    found = Ranking.of({str(i): pd.Series({"a": 1.0, "b": 2.0, "c": inf}) for i in range(5)})
    assert found.ranks().method.tolist() == ["a", "b", "c"]


def test_methods_that_miss_a_cell_and_small_studies_are_left_out_with_a_line() -> None:
    cells = {str(i): pd.Series({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}) for i in range(5)}
    cells["4"] = cells["4"].drop("d")
    whole = Ranking.of(cells)
    assert list(whole.table) == ["a", "b", "c"]
    assert whole.notes()[-1] == "Ranks leave out d: not run in every cell."
    assert Ranking.of({name: cells[name] for name in "0123"}).notes() == [
        "Ranks and profiles are left out: they need 3 methods in 5 cells, and here 4 are in all of 4."
    ]


def test_a_profile_is_the_share_of_cells_within_a_factor() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 0.0, inf], "b": [2.0, 2.0, 1.0, inf]})
    found = Ranking(table).profiles().set_index(["method", "factor"]).share
    assert found.to_dict() == {("a", 1.0): 0.75, ("a", 2.0): 0.75, ("b", 1.0): 0.25, ("b", 2.0): 0.5}
    assert Ranking(table - 5).profiles().empty


@settings(deadline=None, max_examples=20)
@given(some.lists(some.lists(some.floats(0.01, 100), min_size=4, max_size=4), min_size=5, max_size=9))
def test_profiles_grow_with_the_factor_and_ranks_have_their_mean(values: list[list[float]]) -> None:
    ranking = Ranking(pd.DataFrame(values, columns=list("abcd")))
    assert ranking.ranks()["rank"].mean() == pytest.approx(2.5)
    for _, rows in ranking.profiles().groupby("method"):
        assert rows.share.is_monotonic_increasing
        assert rows.share.iloc[-1] == 1
    first = ranking.profiles().query("factor == 1").set_index("method").share * len(values)
    assert first.round().to_dict() == ranking.ranks().set_index("method").best_in.to_dict()


def test_the_table_of_ranks_has_its_tests_and_fits_a_column(tmp_path: Path) -> None:
    text = Ranking(clear_cells().rename(columns={"a": "D-SGD with momentum (diminishing)"})).latex("my_study")
    assert "% Friedman test: chi^2_4 = 32.0, p < 0.001; critical difference of the Nemenyi test at 5 %: 2.16.\n" in text
    assert text.count(r"\best{") == 3
    assert (r"\label{tab:my-study-ranks}" in text, r"\begin{table}" in text) == (True, True)
    if shutil.which("pdflatex"):
        assert "Overfull" not in compiled(tmp_path, text, columns=True)


@pytest.mark.pictures
def test_the_diagram_has_every_name_at_its_rank_and_a_bar_for_each_group() -> None:
    axis = rank_drawing.figure_of_ranks(Ranking(clear_cells())).axes[0]
    words = [text.get_text().strip() for text in axis.texts]
    assert words == [
        "a  1.00",
        "b  2.00",
        "c  3.00",
        "4.00  d",
        "5.00  e",
        "average rank (1 is best)",
        "critical difference 2.16",
    ]
    lines = [np.asarray(line.get_xdata()).tolist() for line in axis.get_lines()]
    assert lines[:5] == [[1, 1, 1], [2, 2, 1], [3, 3, 1], [4, 4, 5], [5, 5, 5]]
    assert lines[5:8] == [[1, 3], [2, 4], [3, 5]]  # bars end at the ranks that they join
    assert len(lines) == 5 + 3 + 1


@pytest.mark.pictures
def test_profiles_are_drawn_up_to_a_factor_of_ten() -> None:
    table = Ranking(clear_cells()).profiles()
    axis = rank_drawing.figure_of_profiles(table, list("abcde"), ["dsgd", "dsgt", "d2", "dnasa", "adanasa"]).axes[0]
    assert [line.get_label() for line in axis.get_lines()] == list("abcde")
    assert [np.asarray(line.get_ydata())[-1] for line in axis.get_lines()] == [1, 1, 1, 1, 0]
    assert axis.get_xlim() == (1, 10)
