"""LaTeX tables: aligned numbers, bold by the paired test, and a document that compiles without a line too wide."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dnasa
from dnasa import latex
from dnasa.comparing.latex import Column


def rows(means: list[float], spreads: list[float], **more: Any) -> pd.DataFrame:
    """As of `statistics.differences`: the first is the best, the second does not differ clearly, the others do."""
    count = len(means)
    usual: dict[str, Any] = {"mean": means, "spread": spreads, "runs": 5, "diverged": 0}
    usual |= {"best": [True] + [False] * (count - 1)}
    usual |= {"difference_low": [0.0, -0.02] + [-0.1234] * (count - 2)}
    usual |= {"difference_high": [0.0, 0.01] + [-0.01] * (count - 2)}
    return pd.DataFrame(usual | more)


def widths(cell: str) -> tuple[int, int]:
    """How many digits, signs and points lie before and after the first point, visible or not."""
    cell = re.sub(r"\\underline\{([^{}]*)\}", r"\1", cell)
    plain = re.sub(r"\\(phantom|best)\{((?:\$-\$|[^{}])*(?:\{[^{}]*\})?)\}", r"\2", cell).replace("\\phantom{", "")
    before, _, after = plain.replace("$-$", "-").replace("}", "").partition(".")
    return len(before), len(after)


def test_numbers_have_room_for_the_longest_before_and_after_the_point() -> None:
    assert latex.aligned(["1", "0.03", "10.5"]) == [
        r"\phantom{0}1\phantom{.03}",
        r"\phantom{0}0.03",
        r"10.5\phantom{3}",
    ]
    assert latex.aligned(["-1.5", "12.5"]) == [r"\phantom{0}$-$1.5", r"\phantom{$-$}12.5"]
    assert latex.aligned([]) == []


def test_the_best_and_what_does_not_differ_clearly_from_it_are_bold() -> None:
    cells = latex.results("test_accuracy", rows([0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.1234]))
    assert cells == [
        r"\best{\underline{96.84}} $\pm$ \phantom{0}0.16",
        r"\best{96.66} $\pm$ \phantom{0}0.56",
        r"80.00 $\pm$ 12.34",
    ]
    assert len({widths(cell) for cell in cells}) == 1
    few = latex.results("test_accuracy", rows([0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.1234], runs=4))
    assert few[0] == r"\best{96.84} $\pm$ \phantom{0}0.16"  # a paired test of few seeds decides little
    assert few[1] == r"96.66 $\pm$ \phantom{0}0.56"
    assert (
        latex.results("test_accuracy", rows([0.96841, 0.9684], [0.01, 0.01], runs=3))
        == [r"\best{96.84} $\pm$ 1.00"] * 2
    )
    short = latex.results("test_loss", rows([9.5, 10.25], [0.1, 0.01]))[0]
    assert short.startswith(r"\phantom{0}\underline{9.50} ")  # nothing is bold where nothing differs clearly


def test_a_single_seed_has_no_spread_and_only_the_best_is_bold() -> None:
    nothing = [np.nan] * 2
    table = rows([0.5, 0.4], nothing, runs=1, difference_low=nothing, difference_high=nothing)
    assert latex.results("test_accuracy", table) == [r"\best{50.00}", "40.00"]
    assert latex.intervals("test_accuracy", table) == []


def test_runs_that_diverged_or_are_missing_have_no_number() -> None:
    table = rows([0.5, np.nan, np.nan], [0.1, np.nan, np.nan], diverged=[0, 2, np.nan], difference_low=np.nan)
    assert latex.results("test_accuracy", table)[1:] == ["diverged (2/5)", "--"]


def test_decimals_follow_the_spread_and_small_or_wide_results_have_powers_of_ten() -> None:
    usual = rows([0.101, 0.135, 0.1826], [0.023, 0.0031, 0.0008])
    assert latex.results("test_loss", usual)[2] == r"0.1826 $\pm$ 0.0008"
    assert latex.unit("test_loss", usual) == ""
    large = rows([1234.5, 2345.6, 4000.0], [12.0, 13.0, 110.0])
    assert latex.results("test_loss", large)[0] == r"\best{\underline{1234}} $\pm$ \phantom{0}12"
    small = rows([1.5e-9, 2.5e-9, 4e-8], [2e-10, 2e-10, 2e-10])
    assert latex.unit("test_loss", small) == "$10^{-8}$"
    assert latex.results("test_loss", small)[0] == r"\best{\underline{0.150}} $\pm$ 0.020"
    wide = rows([1.5e-9, 2.5e-9, 4.0], [2e-10, 2e-10, 0.2])
    assert latex.unit("test_loss", wide) == ""
    assert latex.results("test_loss", wide)[2] == r"4.00 $\pm$ 0.20 $\cdot\, 10^{0}$"
    assert latex.results("test_loss", wide)[0] == r"\best{\underline{1.50}} $\pm$ 0.20 $\cdot\, 10^{-9}$"
    assert latex.intervals("test_loss", wide) == []


@pytest.mark.parametrize(
    ("metric", "means", "spreads", "cell"),
    [
        ("test_accuracy", [0.95, 0.9], [0.01, 0.00003], r"90.000 $\pm$ 0.003"),
        ("test_loss", [0.2, 0.12], [0.03, 0.00002], r"0.12000 $\pm$ 0.00002"),
        ("test_loss", [1e-9, 4.0], [2e-10, 0.0003], r"4.0000 $\pm$ 0.0003 $\cdot\, 10^{0}$"),
        ("test_loss", [0.2, 0.12], [0.03, 1e-15], r"0.120 $\pm$ 0.000"),
    ],
    ids=["percent", "loss", "powers", "equal seeds"],
)
def test_a_spread_is_zeros_alone_only_where_seeds_are_equal(
    metric: str, means: list[float], spreads: list[float], cell: str
) -> None:
    assert latex.results(metric, rows(means, spreads))[1] == cell


def test_intervals_are_those_of_the_others_in_the_unit_of_the_results() -> None:
    table = rows([0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.1234])
    assert latex.intervals("test_accuracy", table) == [
        "",
        r"[\phantom{0}$-$2.00, \phantom{$-$}1.00]",
        r"[$-$12.34, $-$1.00]",
    ]


def test_a_header_has_its_unit_and_an_arrow() -> None:
    assert latex.heading("test accuracy", "test_accuracy", r"\%") == r"Test accuracy (\%) $\uparrow$"
    assert latex.heading("test R²", "test_r2", "") == r"Test $R^2$ $\uparrow$"
    assert latex.heading("test loss", "test_loss", "") == r"Test loss $\downarrow$"


def test_stepsizes_are_numbers_and_those_at_an_edge_have_a_dagger() -> None:
    assert latex.stepsizes([0.03, 1.0, np.nan], [False, False, False]) == ["0.03", r"1\phantom{.03}", "--"]
    room = r"\phantom{$^\dagger$}"
    assert latex.stepsizes([0.03, 0.003], [True, False])[0] == r"0.03$^\dagger$\phantom{3}"
    marked = latex.stepsizes([1e-5, 0.1, np.nan], [True, False, False])
    assert marked == [r"$1 \cdot 10^{-5}$$^\dagger$", "0.1" + room, "--"]


@pytest.mark.parametrize(
    ("words", "math"),
    [
        ("eta sqrt(n/(t+1))", r"$\eta \sqrt{n/(t+1)}$"),
        ("n^(1/4)/t^(3/4)", "$n^{1/4}/t^{3/4}$"),
        ("0.4 sqrt(n) min((t+1)/100, 10/sqrt(t+1))", r"$0.4 \sqrt{n} \min((t+1)/100, 10/\sqrt{t+1})$"),
        ("eta min(1, 10(t+1)/T) (1 + cos(pi t/T))/2", r"$\eta \min(1, 10(t+1)/T) (1 + \cos(\pi t/T))/2$"),
        ("eta", r"$\eta$"),
        ("2.5e-05", r"$2.5 \cdot 10^{-5}$"),
    ],
)
def test_formulas_are_in_math(words: str, math: str) -> None:
    assert latex.formula(words) == math


def test_signs_are_escaped_and_symbols_in_math() -> None:
    assert latex.text("100 % of D & co_1, 95% of -1 ± 2") == (r"100~\% of D \& co\_1, 95\% of $-$1 $\pm$ 2")


ODD = "50 % \\ {#} $ ^ ~"


def written() -> str:
    table = rows([0.9684, 0.9666, 0.8], [0.0016, 0.0056, 0.0234])
    names = Column("Method", [latex.text(name) for name in ("D-SGD & co_1", ODD, "D-SGD with momentum")], "l")
    top = latex.heading("test accuracy", "test_accuracy", r"\%")
    cells = latex.results("test_accuracy", table, [True, False, False])
    panel = [
        names,
        *(Column(graph, cells, groups=(top, part)) for part in ("iid", "by label") for graph in ("ring", "complete")),
    ]
    other = [names, Column("path", latex.results("test_accuracy", table)), Column(r"$\eta$", ["1", "--", "3"])]
    return latex.table([panel, other], latex.text(f"100 % of it; {ODD}"), "first_50%")


def test_a_table_has_booktabs_rules_balanced_braces_and_as_many_cells_as_columns() -> None:
    text = written()
    assert text.startswith(r"% Needs \usepackage{booktabs}.")
    text = text.partition("\n")[2]
    assert text.count("\\toprule\n") == text.count("\\bottomrule\n") == 1
    assert text.count("\\midrule\n") == 3
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in text
    assert r"\label{tab:first-50-}" in text
    plain = re.sub(r"\\[{}$&%]", "", text)
    assert plain.count("{") == plain.count("}")
    assert not re.search(r"(?<!\\)%", text)
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    cells = [len(re.findall(r"(?<!\\)&", line)) for line in lines]
    assert cells == [1, 2, 4, 4, 4, 4, 2, 2, 2, 2]
    assert all(len(re.findall(r"(?<!\\)\$", line)) % 2 == 0 for line in lines)


def compiled(folder: Path, *tables: str, columns: bool = False) -> str:
    """What LaTeX says about a page of these tables, with one column or with two of 234 pt."""
    begin = "\\documentclass%s{article}\\usepackage{booktabs}" % ("[twocolumn]" if columns else "")
    begin += "\\setlength{\\textwidth}{478pt}\\setlength{\\columnsep}{10pt}" if columns else ""
    page = [begin, "\\begin{document}", *tables, "\\end{document}\n"]
    (folder / "page.tex").write_text("\n".join(page))
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_a_table_wider_than_a_column_spans_both() -> None:
    assert re.findall(r"\\(?:begin|end){(table.?)}", written()) == ["table*"] * 2
    narrow = latex.table([[latex.names("Method", ["D-SGD"]), Column("ring", ["1"])]], "", "a")
    assert re.findall(r"\\(?:begin|end){(table.?)}", narrow) == ["table"] * 2
    for style, kind in (("paper:252pt", "table"), ("paper", "table*"), ("paper:6.75", "table*")):
        with dnasa.comparing.style.context(style):
            text = latex.table([[Column("x" * 48, ["1"])]], "", "a")  # 240 pt
        assert re.findall(r"\\begin{(table.?)}", text) == [kind]


def test_long_names_and_titles_have_two_lines() -> None:
    short, long, word = latex.names("Method", ["D-SGD", "D-SGD with momentum (cosine)", "x" * 40]).cells
    assert (short, word) == ("D-SGD", "x" * 40)
    assert long == r"\begin{tabular}[t]{@{}l@{}}D-SGD with momentum\\(cosine)\end{tabular}"
    columns = [latex.names("Method", ["D-SGD with momentum"]), Column("a very long title of a column (s)", ["1"])]
    assert latex.fit(columns, 2) == columns
    with dnasa.comparing.style.context("paper:2.5"):
        assert r"}a very long title of a column\\(s)\end{tabular}" in latex.fit(columns, 2)[1].title


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize(
    "cell",
    ["D-SGD with momentum", r"Test accuracy (\%) $\uparrow$", r"96.16 $\pm$ 0.31", r"[$-$1.62, $-$0.72]", "GT-NSGDm"],
)
def test_the_width_of_a_cell_is_known_without_latex(cell: str, tmp_path: Path) -> None:
    said = compiled(tmp_path, rf"\small\setbox0\hbox{{{cell}}}\typeout{{wide \the\wd0}}")
    true = float(re.findall(r"wide ([\d.]+)pt", said)[0])
    assert true <= latex.width([Column(cell, [""])]) < 1.1 * true


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_bold_numbers_stay_in_the_place_of_the_others(tmp_path: Path) -> None:
    box = latex.BOLD.replace(r"\makebox[\wd0]", r"\typeout{room \the\wd0}\setbox2\hbox").replace(
        "}}}", r"}\typeout{bold \the\wd2}}}"
    )
    said = compiled(tmp_path, rf"{{{box}\small\best{{95.0812}}}}")
    room, bold = (float(found) for found in re.findall(r"(?:room|bold) ([\d.]+)pt", said))
    assert 0.95 * room < bold <= room


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_a_table_compiles_next_to_another_and_fits_the_page(tmp_path: Path) -> None:
    said = compiled(tmp_path, r"\newcommand{\best}{mine}", written(), written().replace("first", "second"))
    assert "Overfull" not in said
