"""Tables for a paper: booktabs, and never wider than the text."""

import re
from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

import pandas as pd

from dnasa.comparing import tables
from dnasa.comparing.plots import LABELS, SYMBOLS, label
from dnasa.comparing.statistics import with_the_best
from dnasa.problems.metrics import in_percent, larger_is_better

__all__ = ["Column", "caption", "intervals", "results", "stepsizes", "table", "text"]

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
NOTHING = "--"
AT_EDGE = r"$^\dagger$"
ETA = r"$\eta$"
# Only where it is too wide; \dimexpr, since the package calc does not expand \ifdim.
SHRUNK = r"\resizebox{\dimexpr\ifdim\width>\linewidth\linewidth\else\width\fi\relax}{!}{%"
TESTED = 5  # seeds, below which a paired test finds next to nothing
NARROW = 4  # columns of a table, beyond which it spans both columns of a paper


class Column(NamedTuple):
    """A column of a table, in LaTeX.

    Attributes:
        title: Its header.
        cells: A text for each row.
        form: As in tabular.
    """

    title: str
    cells: Sequence[str]
    form: str = "r"


def table(columns: Sequence[Column], caption: str, name: str, comments: Sequence[str] = ()) -> str:
    """A table that is referred to as tab:name.

    It shrinks to the width of the text. With more than four columns it spans both columns of a paper. Comments are sentences
    for the text of the paper.
    """
    environment = "table*" if len(columns) > NARROW else "table"
    rows = [[column.title for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    header, *body = [rf"{' & '.join(row)} \\" for row in rows]
    lines = [
        r"% Needs \usepackage{booktabs, graphicx}.",
        *(f"% {line}" for line in comments),
        rf"\begin{{{environment}}}",
        r"\centering\small\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{re.sub('[^a-zA-Z0-9-]+', '-', name)}}}",
        r"\medskip",
        SHRUNK,
        rf"\begin{{tabular}}{{@{{}}{''.join(column.form for column in columns)}@{{}}}}",
        r"\toprule",
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- columns


def methods(variants: Sequence[tuple[str, str]]) -> Column:
    """The rules, with their schedules where a rule has several."""
    rules = [label(rule) for rule, _ in variants]
    names = rules if len({*rules}) == len(rules) else [label(*variant) for variant in variants]
    return Column("Method", list(map(text, names)), "l")


def results(title: str, metric: str, rows: pd.DataFrame, at_edge: Sequence[bool] = ()) -> Column:
    """Mean ± standard deviation of each row of `statistics.differences`, with a dagger where it is `at_edge` of a grid.

    Bold is what is `statistics.with_the_best`; few seeds decide little, and only the best is bold then.
    """
    bold = with_the_best(rows) if rows.runs.max() >= TESTED else rows.best.eq(True)
    cells = []
    for (_, row), is_bold, dagger in zip(rows.iterrows(), bold, at_edge or [False] * len(rows), strict=True):
        mean, sign, spread = tables.with_spread(metric, row).removesuffix(" %").partition(" ± ")
        cell = rf"\textbf{{{numbers(mean)}}}" if is_bold else numbers(mean)
        cells.append(cell + numbers(sign + spread) + rf"\rlap{{{AT_EDGE}}}" * dagger)
    return Column(title, cells)


def heading(metric: str) -> str:
    """A metric, in words or math, with an arrow to where it is better."""
    name = SYMBOLS.get(metric) or text(_capital(metric_title(metric).replace("accuracy", "acc.")))
    return name + r" (\%)" * in_percent(metric) + (r" $\uparrow$" if larger_is_better(metric) else r" $\downarrow$")


def intervals(metric: str, rows: pd.DataFrame) -> list[Column]:
    """The difference to the best with its confidence interval; no column of a single seed."""
    if rows.difference_low.isna().all():
        return []
    return [Column(r"vs.\ best (95\% CI)", [numbers(tables.with_interval(metric, row)) for _, row in rows.iterrows()])]


def stepsizes(etas: Sequence[float], at_edge: Sequence[bool]) -> Column:
    """Stepsizes, those at the edge of a grid with a dagger."""
    cells = [f"{eta:.3g}" if isfinite(eta) else NOTHING for eta in etas]
    return Column(ETA, [cell + rf"\rlap{{{AT_EDGE}}}" * edge for cell, edge in zip(cells, at_edge, strict=True)])


def sent(amounts: pd.Series) -> list[Column]:
    """What a node sends, by method and in MB, where methods differ."""
    if len(amounts) < 2 or not amounts.max() > 1.01 * amounts.min():
        return []
    decimals = max(0, 2 - floor(log10(amounts.max())))
    return [Column("MB", [f"{amount:.{decimals}f}" for amount in amounts])]


# ---------------------------------------------------------------- words


def text(words: str) -> str:
    """Text with LaTeX's signs escaped; ±, R² and minus signs of numbers in math."""
    escaped = "".join(SIGNS.get(sign, sign) for sign in words)
    escaped = escaped.replace("±", r"$\pm$").replace("R²", "$R^2$").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def numbers(words: str) -> str:
    """Text with numbers such as 1.5e-09 in math."""
    return re.sub(r"([\d.]+)e([+-]\d+)", lambda found: rf"${found[1]} \cdot 10^{{{int(found[2])}}}$", text(words))


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def caption(metric: str, title: str, seeds: int, columns: Sequence[Column], choice: pd.DataFrame) -> str:
    """What was measured and in which runs, and what bold and other signs mean, as LaTeX."""
    what = metric_title(metric) + " (%)" * in_percent(metric) + (f" on {title}" if title else "")
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    parts = [text(f"{_capital(what)}, {spread}.".replace("_", " "))]
    parts.append("Bold: the best" + (" and no clear difference to it (paired $t$-test)." if seeds >= TESTED else "."))
    if (choice.edge.fillna("") != "").any():
        parts.append(f"{AT_EDGE}:~grid edge.")
    if choice.eta.isna().any() and any(column.title == ETA for column in columns):
        parts.append(f"{NOTHING}:~not tuned.")
    if any(column.title == "MB" for column in columns):
        parts.append("MB: sent per node.")
    return " ".join(parts)
