"""Frames of results as text: with ±, as a booktabs table, in notebooks."""

import re
from collections.abc import Container
from math import floor, inf, isnan, log10
from typing import Any

import pandas as pd

from dnasa.statistics import in_percent

__all__ = ["html", "latex", "metric_name", "number", "with_interval", "with_spread"]

ROUNDING = 1e-12  # of a result: smaller differences between seeds are those of the arithmetic
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def metric_name(metric: str) -> str:
    """The metric in words: "training loss" for train_loss."""
    return re.sub("^train ", "training ", metric.replace("_", " "))


def number(metric: str, value: float, digits: int = 3) -> str:
    """Format a number; accuracies are in percent."""
    if pd.isna(value):
        return "-"
    return f"{100 * value:.2f} %" if in_percent(metric) else f"{value:.{digits}g}"


def with_spread(metric: str, row: Any) -> str:
    """Mean ± standard deviation, or how many runs diverged; `row` is one of `statistics.over_seeds`."""
    mean, spread = float(row["mean"]), float(row.spread)
    if row.diverged:
        return f"diverged ({row.diverged:.0f} of {row.runs:.0f})"
    if isnan(mean):
        return "-"
    if in_percent(metric):
        return f"{100 * mean:.2f}" + ("" if isnan(spread) else f" ± {100 * spread:.2f}") + " %"
    if abs(spread) <= ROUNDING * abs(mean):
        spread = 0.0
    digits = _digits(mean, spread)
    form = f".{max(0, digits)}f" if -2 <= digits <= 6 and abs(mean) < 1e6 else ".3g"
    return f"{mean:{form}}" + ("" if isnan(spread) else f" ± {spread:{form}}" if spread else " ± 0")


def _digits(mean: float, spread: float) -> int:
    """Decimals with which the spread has two digits, or the mean four where there is no spread."""
    size = spread if 0 < spread < inf else abs(mean) / 100
    return 1 - floor(log10(size)) if 0 < size < inf else 2


def with_interval(metric: str, row: Any) -> str:
    """A difference and its confidence interval; `row` is one of `statistics.differences`."""
    if row.best:
        return "best"
    if pd.isna(row.difference):
        return "-"
    scale = 100 if in_percent(metric) else 1
    numbers = [scale * float(value) + 0.0 for value in (row.difference, row.difference_low, row.difference_high)]
    form = "+.2f" if in_percent(metric) else "+.3g"
    middle, low, high = (f"{value:{form}}" for value in numbers)
    if numbers[2] - numbers[1] <= ROUNDING * scale * abs(float(row["mean"])):
        return f"{middle}, the same for all seeds"
    return middle if pd.isna(row.difference_low) else f"{middle} [{low}, {high}]"


def latex(
    table: pd.DataFrame,
    caption: str,
    name: str,
    bold: Container[tuple[int, str]] = (),
    formulas: Container[str] = (),
) -> str:
    """A booktabs table (\\usepackage{booktabs}) that is referred to as tab:name.

    `bold` are the cells, by row and column, in bold type, `formulas` the columns of formulas.
    """
    header = " & ".join(_latex_cell(str(name)) for name in table)
    rows = []
    for i, row in enumerate(table.astype(str).to_dict("records")):
        cells = {name: (_latex_formula if name in formulas else _latex_cell)(text) for name, text in row.items()}
        rows.append([rf"\textbf{{{text}}}" if (i, name) in bold else text for name, text in cells.items()])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_cell(caption)}}}",
        rf"\label{{tab:{re.sub('[^a-zA-Z0-9-]+', '-', name)}}}",
        rf"\begin{{tabular}}{{{'l' * table.shape[1]}}}",
        r"\toprule",
        rf"{header} \\",
        r"\midrule",
        *(rf"{' & '.join(row)} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(text: str) -> str:
    """Text with LaTeX's signs escaped; ± and minus signs of numbers in math."""
    escaped = "".join(LATEX.get(sign, sign) for sign in text)
    escaped = escaped.replace("±", r"$\pm$").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def _latex_formula(text: str) -> str:
    """A stated stepsize, such as 0.1 sqrt(n/(t+1)), in math; words stay words."""
    if re.fullmatch("[a-z ]*", text):
        return text
    while (start := text.find("sqrt(")) >= 0:
        end = _closing(text, start + 4)
        text = text[:start] + "ROOT{" + text[start + 5 : end] + "}" + text[end + 1 :]
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text).replace("ROOT", r"\sqrt")
    text = re.sub(r"([\d.]+)e([+-]\d+)", lambda found: rf"{found[1]} \cdot 10^{{{int(found[2])}}}", text)
    return "$" + re.sub("(cos|min|pi)", r"\\\1", text) + "$"


def _closing(text: str, start: int) -> int:
    """The position where the bracket that opens at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def html(table: pd.DataFrame, title: str = "", most: int = 30) -> str:
    """An HTML table for notebooks; of long tables, the first rows."""
    from html import escape

    body = table.head(most).to_html(index=False, na_rep="-", float_format=lambda value: f"{value:.4g}", border=0)
    left = f"<p>{len(table) - most:,} further rows</p>" if len(table) > most else ""
    return f"<p>{escape(title)}</p>{body}{left}" if title else body + left
