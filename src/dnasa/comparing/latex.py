"""Tables for a paper: booktabs, numbers aligned at their decimals, and never wider than the text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, inf, isfinite, log10
from typing import Any

import numpy as np
import pandas as pd

from dnasa.comparing.statistics import with_the_best
from dnasa.comparing.style import current
from dnasa.problems.metrics import in_percent, larger_is_better

__all__ = ["Column", "aligned", "heading", "intervals", "most_columns", "results", "stepsizes", "table", "text", "unit"]

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
NOTHING = "--"
AT_EDGE = r"$^\dagger$"
# Series b, since \textbf is wider in LaTeX's own fonts: centred in the place of the others, all decimal points are in line.
BOLD = r"\def\best#1{{\setbox0\hbox{#1}\makebox[\wd0]{\fontseries{b}\selectfont#1}}}"
# Only where it is too wide; \dimexpr, since the package calc does not expand \ifdim.
SHRUNK = r"\resizebox{\dimexpr\ifdim\width>\linewidth\linewidth\else\width\fi\relax}{!}{%"
WIDEST = 1e4  # ratio of results in one column, beyond which each has its own power of ten
PLAIN = 1e-2, 1e5  # results within need no power of ten
MOST_DECIMALS = 6
TESTED = 5  # seeds, below which a paired test finds next to nothing
NARROW, IN_NARROW, IN_WIDE = 4.0, 4, 7  # inches of a paper's column, and the columns of a table there and elsewhere


@dataclass(frozen=True)
class Column:
    """A column of a table, in LaTeX.

    Attributes:
        title: Its header.
        cells: A text for each row.
        form: As in tabular.
        group: A header above it, which neighboring columns share.
    """

    title: str
    cells: Sequence[str]
    form: str = "c"
    group: str = ""


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
        BOLD,
        r"\centering\small\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{re.sub('[^a-zA-Z0-9-]+', '-', name)}}}",
        r"\medskip",
        SHRUNK,
        rf"\begin{{tabular}}{{@{{}}{''.join(column.form for column in columns)}@{{}}}}",
        r"\toprule",
        *_groups(columns),
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _groups(columns: Sequence[Column]) -> list[str]:
    """A row of headers that columns share, with a line below each."""
    cells, rules, place = [], [], 1
    for group, some in groupby(column.group for column in columns):
        count = len(list(some))
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{group}}}" if group else " & " * (count - 1))
        rules += [rf"\cmidrule(lr){{{place}-{place + count - 1}}}"] if group else []
        place += count
    return [rf"{' & '.join(cells)} \\", "".join(rules)] if rules else []


# ---------------------------------------------------------------- numbers


def aligned(numbers: Sequence[str], mark: Callable[[int, str], str] = lambda place, number: number) -> list[str]:
    """Numbers with room for what the longest have before and after their points: centered, all points are in line.

    `mark` turns the number in a place into what is printed there, which must be as wide.
    """
    signed = any(number.startswith("-") for number in numbers)
    parts = [number.lstrip("-").partition(".") for number in numbers]
    before = max((len(whole) for whole, _, _ in parts), default=0)
    after = max((point + rest for _, point, rest in parts), key=len, default="")
    out = []
    for place, (number, (whole, point, rest)) in enumerate(zip(numbers, parts, strict=True)):
        sign, decimals = "$-$" if number.startswith("-") else _room("$-$" * signed), point + rest
        room = _room("0" * (before - len(whole)))
        out.append(room + sign + mark(place, whole + decimals) + _room(after[len(decimals) :]))
    return out


def _room(width: str) -> str:
    return rf"\phantom{{{width}}}" if width else ""


@dataclass(frozen=True)
class _Scale:
    """How the numbers of a column are written: times 10^-power, with so many decimals; power None: each with its own."""

    power: int | None
    decimals: int

    def number(self, value: float, own: int = 0) -> str:
        """`own` is its power where each has one."""
        power = own if self.power is None else self.power
        half = -power // 2  # twice, since 10^324 is no float
        return f"{value * 10.0**half * 10.0 ** (-power - half):.{self.decimals}f}"


def _scale(metric: str, rows: pd.DataFrame) -> _Scale:
    """Two decimals, or those that show two digits of most spreads; more where a spread would be zeros alone."""
    sizes = rows["mean"].abs()
    sizes = sizes[(sizes > 0) & (sizes < inf)]
    power = _power(metric, sizes)
    if sizes.empty:
        return _Scale(power, 2)
    spreads = rows.spread[sizes.index].where(lambda spread: (spread > 0) & (spread < inf))
    of_means = np.floor(np.log10(sizes))
    powers = of_means if power is None else power
    first = powers - np.floor(np.log10(spreads))  # the decimal of the first digit of each spread
    first = first.where(first <= MOST_DECIMALS)
    usual = 2 if power is None or in_percent(metric) else 1 + floor(first.fillna(powers - of_means + 2).median())
    return _Scale(power, max(0, min(MOST_DECIMALS, usual), *first.dropna().astype(int)))


def _power(metric: str, sizes: pd.Series) -> int | None:
    """The power of ten that these results share; None: each has its own."""
    if in_percent(metric):
        return -2
    if not sizes.empty and sizes.max() > WIDEST * sizes.min():
        return None
    return 0 if sizes.empty or PLAIN[0] <= sizes.max() < PLAIN[1] else floor(log10(sizes.max()))


def unit(metric: str, rows: pd.DataFrame) -> str:
    """The unit of a column of `results`."""
    power = _scale(metric, rows).power
    return r"\%" if in_percent(metric) else rf"$10^{{{power}}}$" if power else ""


def heading(name: str, metric: str, unit: str) -> str:
    """A metric, in words or math, with its unit and an arrow to where it is better."""
    arrow = r"$\uparrow$" if larger_is_better(metric) else r"$\downarrow$"
    words = name if name.startswith("$") else text(name[:1].upper() + name[1:])
    return " ".join(filter(None, (words, unit and f"({unit})", arrow)))


def results(metric: str, rows: pd.DataFrame, at_edge: Sequence[bool] = ()) -> list[str]:
    """Mean ± standard deviation of each row of `statistics.differences`, with a dagger where it is `at_edge` of a grid.

    Bold is what is `statistics.with_the_best`; the best is then underlined. Few seeds decide little: only the best, and what
    is printed the same, is bold.
    """
    rows = rows.reset_index(drop=True)
    scale, tested = _scale(metric, rows), bool(rows.runs.max() >= TESTED)
    known = rows[np.isfinite(rows["mean"].astype(float))]
    own = [floor(log10(abs(mean))) if mean else 0 for mean in known["mean"]]
    powers = [rf" $\cdot\, 10^{{{each}}}$" if scale.power is None else "" for each in own]
    means = [scale.number(*pair) for pair in zip(known["mean"], own, strict=True)]
    best = known.best.eq(True).tolist()
    printed = list(zip(means, powers, strict=True))
    first = [each for each, is_best in zip(printed, best, strict=True) if is_best]
    bold = with_the_best(known).tolist() if tested else [each in first for each in printed]

    def mark(place: int, number: str) -> str:
        number = rf"\underline{{{number}}}" if best[place] and tested else number
        return rf"\best{{{number}}}" if bold[place] else number

    spreads = iter(aligned([scale.number(*pair) for pair in zip(known.spread, own, strict=True) if isfinite(pair[0])]))
    cells = [_missing(row) for _, row in rows.iterrows()]
    for i, mean, spread, power in zip(known.index, aligned(means, mark), known.spread, powers, strict=True):
        cells[i] = mean + (rf" $\pm$ {next(spreads)}" if isfinite(spread) else "") + power
    edges = at_edge or [False] * len(rows)
    return [_with_dagger(cell) if edge else cell for cell, edge in zip(cells, edges, strict=True)]


def _with_dagger(cell: str) -> str:
    """The dagger takes no room, so numbers stay aligned."""
    return cell if cell == NOTHING else rf"{cell}\rlap{{{AT_EDGE}}}"


def _missing(row: Any) -> str:
    return f"diverged ({row.diverged:.0f}/{row.runs:.0f})" if row.diverged > 0 else NOTHING


def intervals(metric: str, rows: pd.DataFrame) -> list[str]:
    """The confidence interval of each difference to the best, empty for the best; none where they cannot be shown."""
    scale = _scale(metric, rows)
    known = [isfinite(row.difference_low) and not row.best for row in rows.itertuples()]
    if scale.power is None or not any(known):
        return []
    lows, highs = (
        iter(aligned([scale.number(float(end)) for end in rows[name][known]]))
        for name in ("difference_low", "difference_high")
    )
    return [f"[{next(lows)}, {next(highs)}]" if each else "" for each in known]


def stepsizes(etas: Sequence[float], at_edge: Sequence[bool]) -> list[str]:
    """Stepsizes, those at the edge of a grid with a dagger."""
    texts = {i: f"{eta:.3g}" for i, eta in enumerate(etas) if isfinite(eta)}
    plain = [i for i, words in texts.items() if "e" not in words]

    def mark(place: int, number: str) -> str:
        return _with_dagger(number) if at_edge[plain[place]] else number

    shown = dict(zip(plain, aligned([texts[i] for i in plain], mark), strict=True))
    for i in texts.keys() - shown.keys():
        digits, _, power = texts[i].partition("e")
        number = rf"${digits} \cdot 10^{{{int(power)}}}$"
        shown[i] = _with_dagger(number) if at_edge[i] else number
    return [shown.get(i, NOTHING) for i in range(len(etas))]


# ---------------------------------------------------------------- words


def text(words: str) -> str:
    """Text with LaTeX's signs escaped; ±, R² and minus signs of numbers in math."""
    escaped = "".join(SIGNS.get(sign, sign) for sign in words)
    escaped = escaped.replace("±", r"$\pm$").replace("R²", "$R^2$").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
