"""Tables for a paper: booktabs, and never wider than the text."""

import re
from collections.abc import Sequence
from math import floor, inf, isfinite, log10
from typing import NamedTuple

import pandas as pd

from dnasa.comparing import tables
from dnasa.comparing.plots import LABELS, SYMBOLS, label
from dnasa.comparing.statistics import with_the_best
from dnasa.comparing.style import current
from dnasa.problems.metrics import in_percent, larger_is_better

__all__ = ["Column", "caption", "intervals", "results", "stepsizes", "table", "text"]

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
NOTHING = "--"
AT_EDGE = r"$^\dagger$"
ETA = r"$\eta$"
# Only where it is too wide; \dimexpr, since the package calc does not expand \ifdim.
SHRUNK = r"\resizebox{\dimexpr\ifdim\width>\linewidth\linewidth\else\width\fi\relax}{!}{%"
PLAIN = 1e-2, 1e5  # results within need no power of ten
MOST_DECIMALS = 6
TESTED = 5  # seeds, below which a paired test finds next to nothing
NARROW, IN_NARROW, IN_WIDE = 4.0, 4, 7  # inches of a paper's column, and the columns of a table there and elsewhere


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


def most_columns() -> int:
    """How many columns a table has room for in the current style."""
    return IN_NARROW if (current().width or inf) <= NARROW else IN_WIDE


def table(columns: Sequence[Column], caption: str, name: str, comments: Sequence[str] = ()) -> str:
    """A table that is referred to as tab:name.

    It shrinks to the width of the text. With more than four columns it spans both columns of a paper. Comments are sentences
    for the text of the paper.
    """
    environment = "table*" if len(columns) > IN_NARROW else "table"
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
    power, decimals = _scale(metric, rows)
    bold = with_the_best(rows) if rows.runs.max() >= TESTED else rows.best.eq(True)
    cells = []
    for (_, row), is_bold, dagger in zip(rows.iterrows(), bold, at_edge or [False] * len(rows), strict=True):
        if not isfinite(row["mean"]):
            cells.append(f"diverged ({row.diverged:.0f}/{row.runs:.0f})" if row.diverged > 0 else NOTHING)
            continue
        mean = _number(row["mean"], power, decimals)
        spread = rf" $\pm$ {_number(row.spread, power, decimals)}" if isfinite(row.spread) else ""
        cell = (rf"\textbf{{{mean}}}" if is_bold else mean) + spread
        cells.append(cell + rf"\rlap{{{AT_EDGE}}}" * dagger)  # takes no room: numbers stay aligned
    return Column(title + (f" ($10^{{{power}}}$)" if power not in (0, -2) else ""), cells)


def heading(metric: str) -> str:
    """A metric, in words or math, with an arrow to where it is better."""
    name = SYMBOLS.get(metric) or text(_capital(metric_title(metric).replace("accuracy", "acc.")))
    return name + r" (\%)" * in_percent(metric) + (r" $\uparrow$" if larger_is_better(metric) else r" $\downarrow$")


def intervals(metric: str, rows: pd.DataFrame) -> list[Column]:
    """The confidence interval of each difference to the best, empty for the best; no column of a single seed."""
    power, decimals = _scale(metric, rows)
    known = rows.difference_low.notna() & ~rows.best
    if not known.any():
        return []
    ends = zip(rows.difference_low, rows.difference_high, strict=True)
    texts = [f"[{', '.join(_number(end, power, decimals) for end in pair)}]" for pair in ends]
    return [Column(r"vs.\ best (95\% CI)", [text if each else "" for text, each in zip(texts, known, strict=True)])]


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


# ---------------------------------------------------------------- numbers


def _scale(metric: str, rows: pd.DataFrame) -> tuple[int, int]:
    """The power of ten that the results share, and the decimals that show two digits of a usual spread."""
    sizes = rows["mean"].abs()
    sizes = sizes[(sizes > 0) & (sizes < inf)]
    if in_percent(metric) or sizes.empty:
        return (-2 if in_percent(metric) else 0), 2
    power = 0 if PLAIN[0] <= sizes.max() < PLAIN[1] else floor(log10(sizes.max()))
    spread = rows.spread[(rows.spread > 0) & (rows.spread < inf)].median()
    usual = spread if spread > 0 else sizes.median() / 100
    return power, max(0, min(MOST_DECIMALS, 1 + power - floor(log10(usual))))


def _number(value: float, power: int, decimals: int) -> str:
    half = -power // 2  # twice, since 10^324 is no float
    return text(f"{value * 10.0**half * 10.0 ** (-power - half):.{decimals}f}")


# ---------------------------------------------------------------- words


def text(words: str) -> str:
    """Text with LaTeX's signs escaped; ±, R² and minus signs of numbers in math."""
    escaped = "".join(SIGNS.get(sign, sign) for sign in words)
    escaped = escaped.replace("±", r"$\pm$").replace("R²", "$R^2$").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


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
