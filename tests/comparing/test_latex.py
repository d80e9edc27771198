"""LaTeX tables: bold by the paired test, and a document that compiles without a line too wide."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dnasa.comparing import latex

needs_latex = pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")


def rows(means: list[float], spreads: list[float], **more: Any) -> pd.DataFrame:
    """As of `statistics.differences`: the first is the best, the second does not differ clearly, the others do."""
    count = len(means)
    usual: dict[str, Any] = {"mean": means, "spread": spreads, "runs": 5, "diverged": 0}
    usual |= {"best": [True] + [False] * (count - 1)}
    usual |= {"difference_low": [0.0, -0.02] + [-0.1234] * (count - 2)}
    usual |= {"difference_high": [0.0, 0.01] + [-0.01] * (count - 2)}
    return pd.DataFrame(usual | more)


def cells(metric: str, table: pd.DataFrame, edges: list[bool] | None = None) -> list[str]:
    return latex.results(metric, table, edges or ())


def test_the_best_and_what_does_not_differ_clearly_from_it_are_bold() -> None:
    numbers = [0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.1234]
    assert cells("test_accuracy", rows(*numbers), [False, True, False]) == [
        r"\textbf{96.84} $\pm$ 0.16\phantom{$^\dagger$}",
        r"\textbf{96.66} $\pm$ 0.56$^\dagger$",
        r"80.00 $\pm$ 12.34\phantom{$^\dagger$}",
    ]
    few = cells("test_accuracy", rows(*numbers, runs=4))  # a paired test of few seeds decides little
    assert few[:2] == [r"\textbf{96.84} $\pm$ 0.16", r"96.66 $\pm$ 0.56"]


@pytest.mark.parametrize("runs", [1, 4, 5])
def test_results_that_are_printed_as_the_best_are_bold_too(runs: int) -> None:
    table = rows([0.96841, 0.8, 0.96838], [0.0016, 0.1, 0.0021], runs=runs, difference_low=-0.2, difference_high=-0.1)
    assert [r"\textbf{96.84}" in cell for cell in cells("test_accuracy", table)] == [True, False, True]
    table = rows([0.012041, 0.5, 0.012039], [np.nan] * 3, runs=runs, difference_low=np.nan)
    assert ["textbf" in cell for cell in cells("test_loss", table)] == [True, False, True]


def test_single_seeds_have_no_spread_and_lost_runs_no_number() -> None:
    nothing = [np.nan] * 2
    table = rows([0.5, 0.4], nothing, runs=1, difference_low=nothing, difference_high=nothing)
    assert cells("test_accuracy", table) == [r"\textbf{50.00}", "40.00"]
    table = rows([0.5, np.nan, np.nan], [0.1, np.nan, np.nan], diverged=[0, 2, np.nan], difference_low=np.nan)
    assert cells("test_accuracy", table)[1:] == ["diverged", "--"]


def test_intervals_are_those_of_the_others_and_stepsizes_at_an_edge_have_a_dagger() -> None:
    table = rows([0.9684, 0.9666], [0.0016, 0.0056], difference=[0.0, -0.0018])
    assert latex.intervals("test_accuracy", table) == ["best", "$-$0.18 [$-$2.00, +1.00]"]
    assert latex.numbers("1.5e-09 ± 2e-10") == r"$1.5 \cdot 10^{-9}$ $\pm$ $2 \cdot 10^{-10}$"
    assert latex.numbers("1e+06") == "$10^{6}$"
    tiny = cells("test_loss", rows([1.64e-7, 0.5], [np.nan] * 2, difference_low=0.1))
    assert tiny == [r"\textbf{\boldmath$1.64 \cdot 10^{-7}$}", r"$5.00 \cdot 10^{-1}$"]
    choice = pd.DataFrame({"eta": [0.03, 1.0, np.nan], "edge": ["smallest", "", ""]})
    assert latex.stepsizes(choice) == [r"0.03$^\dagger$", r"1\phantom{$^\dagger$}", r"--\phantom{$^\dagger$}"]


def test_a_row_has_at_most_the_decimals_of_the_best_one_and_two_digits_of_its_spread() -> None:
    table = rows(
        [0.0821, 16.26, 84.0], [0.018, 0.47, 12.0], difference=[0.0, 16.2, 83.9], difference_low=0.1, difference_high=90.0
    )
    assert cells("test_loss", table) == [r"\textbf{0.082} $\pm$ 0.018", r"16.26 $\pm$ 0.47", r"84 $\pm$ 12"]
    assert latex.intervals("test_loss", table)[1:] == ["+16.2 [+0.1, +90.0]", "+83.9 [+0.1, +90.0]"]


def test_headers_have_units_and_arrows_and_signs_are_escaped() -> None:
    assert latex.heading("test_accuracy") == r"Test acc. (\%) $\uparrow$"
    assert latex.heading("test_r2") == r"Test $R^2$ $\uparrow$"
    assert latex.heading("test_loss") == r"Test loss $\downarrow$"
    assert latex.text("100 % of D & co_1, 95% of -1 ± 2") == (r"100~\% of D \& co\_1, 95\% of $-$1 $\pm$ 2")


ODD = "50 % \\ {#} $ ^ ~"


def written(name: str = "first_50%") -> str:
    table = rows([0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.0234])
    columns = {"Method": [latex.text(name) for name in ("D-SGD & co_1", ODD, "D-SGD with momentum")]}
    columns |= dict.fromkeys(("ring", "complete", "star", "path", "grid"), cells("test_accuracy", table, [True, False, False]))
    return latex.table(columns, latex.text(f"100 % of it; {ODD}"), name, ["A sentence."])


def test_a_table_has_booktabs_rules_balanced_braces_and_as_many_cells_as_columns() -> None:
    first, comment, text = written().split("\n", 2)
    assert (first, comment) == (r"% Needs \usepackage{booktabs, graphicx}.", "% A sentence.")
    assert [text.count(f"\\{rule}rule\n") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    assert r"\label{tab:first-50-}" in text
    plain = re.sub(r"\\[{}$&%]", "", text)
    assert plain.count("{") == plain.count("}")
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in lines] == [5, 5, 5, 5]
    assert all(len(re.findall(r"(?<!\\)\$", line)) % 2 == 0 for line in lines)
    narrow = latex.table({"Method": ["D-SGD"], "ring": ["1"]}, "", "a")
    full = latex.table({f"column {i}": ["123456789"] for i in range(5)}, "", "a")
    assert [re.findall(r"tabcolsep}{(.)pt", each) for each in (text, narrow, full)] == [["3"], ["6"], ["3"]]
    kinds = [re.findall(r"\\(?:begin|end){(table.?)}", each) for each in (text, narrow)]
    assert kinds == [["table*"] * 2, ["table"] * 2]


def compiled(folder: Path, *tables: str, columns: bool = False) -> str:
    """What LaTeX says about a page of these tables, with one column or with two of 229.5 pt."""
    begin = "\\documentclass%s{article}\\usepackage{booktabs, graphicx}" % ("[twocolumn]" if columns else "")
    page = [begin, "\\begin{document}", *tables, "\\end{document}\n"]
    (folder / "page.tex").write_text("\n".join(page))
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@needs_latex
def test_a_table_compiles_next_to_another_and_fits_the_page(tmp_path: Path) -> None:
    wide = latex.table({"x" * 200: ["1"]}, "", "wide")
    said = compiled(tmp_path, written(), written("second"), wide)
    assert "Overfull" not in said
