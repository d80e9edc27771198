"""Tables that a paper prints as they are: booktabs alone, with numbers aligned at their decimals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import floor, inf, isfinite, log10
from string import ascii_uppercase, digits
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from dnasa.statistics import in_percent, larger_is_better, with_the_best
from dnasa.style import COLUMN, POINTS, current

__all__ = [
    "Column",
    "aligned",
    "fit",
    "formula",
    "heading",
    "intervals",
    "names",
    "results",
    "stepsizes",
    "table",
    "text",
    "unit",
]

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
NOTHING = "--"
AT_EDGE = r"$^\dagger$"
# Series b, since \textbf is wider in LaTeX's own fonts: centred in the place of the others, all decimal points are in line.
BOLD = r"\def\best#1{{\setbox0\hbox{#1}\makebox[\wd0]{\fontseries{b}\selectfont#1}}}"
WIDEST = 1e4  # ratio of results in one column, beyond which each has its own power of ten
PLAIN = 1e-2, 1e5  # results within need no power of ten
MOST_DECIMALS = 6
SEPARATION = 6.0  # points between two columns
WIDEST_COLUMN = 4.0  # inches; wider styles are those of a page
LONGEST = 105.0  # points of a name in one line
WIDTHS = {  # points of signs in \small; all others are narrower than "other"
    "other": 5.0,
    **dict.fromkeys(ascii_uppercase, 7.0),
    **dict.fromkeys("mwMW+", 7.7),
    **dict.fromkeys(digits, 4.65),
    **dict.fromkeys("fjrst()-", 3.5),
    **dict.fromkeys("il.,:[] ", 2.9),
}
LINE = 100  # characters of a comment


@dataclass(frozen=True)
class Column:
    """A column of a table, in LaTeX.

    Attributes:
        title: Its header.
        cells: A text for each row.
        form: As in tabular.
        groups: Headers above it, from the top; neighbouring columns share them.
    """

    title: str
    cells: Sequence[str]
    form: str = "c"
    groups: tuple[str, ...] = ()


def table(panels: Sequence[Sequence[Column]], caption: str, name: str, protocol: str = "") -> str:
    """A table whose panels, each with its own header, lie below each other; it is referred to as tab:name.

    Where it is wider than a column, it spans both columns of a paper. The protocol is a comment with sentences for the text.
    """
    forms = "".join(column.form for column in max(panels, key=len))
    body = [line for columns in panels for line in (r"\midrule", *_panel(columns))]
    wide = current().width or COLUMN
    column = POINTS * (wide if wide <= WIDEST_COLUMN else COLUMN)
    environment = "table*" if max(map(width, panels)) > column else "table"
    lines = [
        r"% Needs \usepackage{booktabs}. In a paper with two columns, table* is as wide as both; --style paper fits one.",
        rf"\begin{{{environment}}}",
        BOLD,
        r"\centering\small\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        *(["% For the text of the paper:", *_comment(protocol)] if protocol else []),
        rf"\label{{{label(name)}}}",
        r"\medskip",
        rf"\begin{{tabular}}{{@{{}}{forms}@{{}}}}",
        r"\toprule",
        *body[1:],
        r"\bottomrule",
        r"\end{tabular}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _comment(sentences: str) -> list[str]:
    return wrap(
        sentences, LINE, initial_indent="% ", subsequent_indent="% ", break_long_words=False, break_on_hyphens=False
    )


# ---------------------------------------------------------------- widths


def names(title: str, words: Sequence[str]) -> Column:
    """A column of names; long ones have two lines."""
    escaped = map(text, words)
    return Column(title, [name if _points(name) <= LONGEST else _two_lines(name, "t", "l") for name in escaped], "l")


def fit(columns: Sequence[Column], needed: int) -> list[Column]:
    """The columns, from the left, that fit into the width of the current style; a screen has room for all.

    Those that are needed stay. Titles have two lines where this makes room for a column.
    """
    room = POINTS * (current().width or inf)
    plain, narrow = (
        list(some[: max(needed, sum(end - SEPARATION <= room for end in accumulate(map(_width, some))))])
        for some in (columns, list(map(_narrowed, columns)))
    )
    return narrow if len(narrow) > len(plain) or width(plain) > room else plain


def width(columns: Sequence[Column]) -> float:
    """About the points that these columns take."""
    return sum(map(_width, columns)) - SEPARATION


def _width(column: Column) -> float:
    return SEPARATION + max(map(_points, (column.title, *column.cells)))


def _points(cell: str) -> float:
    """About the width of a cell, by its signs; of several lines, that of the longest."""
    return max(sum(WIDTHS.get(sign, WIDTHS["other"]) for sign in _signs(line)) for line in cell.split(r"\\"))


def _signs(line: str) -> str:
    """The signs that are printed: one that is as wide for each symbol."""
    line = re.sub(r"\\(?:begin|end){tabular}(?:\[.\]{@{}.@{}})?", "", line)
    line = re.sub(r"\$-\$|\\pm", "+", line)
    line = re.sub(r"\\(?:eta|cdot|uparrow|downarrow|Vert|nabla|chi|dagger)", "x", line)
    return re.sub(r"\\[a-zA-Z]+|\\(?=[%&#_{}$])|[\\${}^]", "", line)


def _narrowed(column: Column) -> Column:
    """The column with its title in two lines if it is wider than the cells."""
    if _points(column.title) <= max(map(_points, column.cells)):
        return column
    return replace(column, title=_two_lines(column.title, "b", column.form))


def _two_lines(words: str, place: str, form: str) -> str:
    """Words in two lines: what is in brackets in the second, else half of them; a word stays as it is."""
    parts = words.split(" ")
    halves = [(" ".join(parts[:i]), " ".join(parts[i:])) for i in range(1, len(parts))]
    if not halves:
        return words
    first, second = min(halves, key=lambda half: (not half[1].startswith("("), max(map(_points, half))))
    return rf"\begin{{tabular}}[{place}]{{@{{}}{form}@{{}}}}{first}\\{second}\end{{tabular}}"


def label(name: str) -> str:
    return f"tab:{re.sub('[^a-zA-Z0-9-]+', '-', name)}"


def _panel(columns: Sequence[Column]) -> list[str]:
    rows = [[column.title for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    header, *body = [rf"{' & '.join(row)} \\" for row in rows]
    return [*_groups(columns), header, r"\midrule", *body]


def _groups(columns: Sequence[Column]) -> list[str]:
    """Rows of headers that columns share, with a line below each."""
    lines = []
    for level in range(max(len(column.groups) for column in columns)):
        cells, rules, place = [], [], 1
        for above, some in groupby([column.groups[: level + 1] for column in columns]):
            count = len(list(some))
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{above[-1]}}}" if above else "")
            if above:
                rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}")
            place += count
        lines += [rf"{' & '.join(cells)} \\", "".join(rules)]
    return lines


# ---------------------------------------------------------------- numbers


def aligned(numbers: Sequence[str]) -> list[str]:
    """Numbers with room for what the longest have before and after their points: centred, all points are in line."""
    signed = any(number.startswith("-") for number in numbers)
    parts = [number.lstrip("-").partition(".") for number in numbers]
    before = max((len(whole) for whole, _, _ in parts), default=0)
    after = max((point + rest for _, point, rest in parts), key=len, default="")
    out = []
    for number, (whole, point, rest) in zip(numbers, parts, strict=True):
        sign = "$-$" if number.startswith("-") else _room("$-$" * signed)
        tail = point + rest
        out.append(_room("0" * (before - len(whole))) + sign + whole + tail + _room(after[len(tail) :]))
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
    """Mean ± standard deviation of each row of `statistics.differences`; bold: what is `statistics.with_the_best`.

    The best of several is underlined. Nothing is bold where all would be. What is `at_edge` of a grid has a dagger.
    """
    scale, bold, best = _scale(metric, rows), with_the_best(rows).tolist(), rows.best.eq(True).tolist()
    bold = [False] * len(bold) if all(bold) and len(bold) > 1 else bold
    means, spreads = ([float(value) for value in rows[name]] for name in ("mean", "spread"))
    known = [i for i, mean in enumerate(means) if isfinite(mean)]
    own = {i: floor(log10(abs(means[i]))) if means[i] else 0 for i in known}
    shown = aligned([scale.number(means[i], own[i]) for i in known])
    with_spread = [i for i in known if isfinite(spreads[i])]
    numbers = aligned([scale.number(spreads[i], own[i]) for i in with_spread])
    behind = dict(zip(with_spread, numbers, strict=True))
    cells = [_missing(row) for _, row in rows.iterrows()]
    for i, number in zip(known, shown, strict=True):
        number = _underlined(number) if best[i] and i in behind else number
        cells[i] = rf"\best{{{number}}}" if bold[i] else number
        cells[i] += rf" $\pm$ {behind[i]}" if i in behind else ""
        cells[i] += rf" $\cdot\, 10^{{{own[i]}}}$" if scale.power is None else ""
    return _marked(cells, at_edge)


def _underlined(number: str) -> str:
    """The number underlined, without the room before and after it."""
    return re.sub(r"(?<=})[^{}\\]+|^[^{}\\]+", r"\\underline{\g<0>}", number, count=1)


def _marked(cells: list[str], at_edge: Sequence[bool]) -> list[str]:
    """Cells at the edge of a grid with a dagger, the others of the column with room for one."""
    if not any(at_edge):
        return cells
    marks = [AT_EDGE if edge else _room(AT_EDGE) for edge in at_edge]
    return [cell if cell == NOTHING else _before_room(cell, mark) for cell, mark in zip(cells, marks, strict=True)]


def _before_room(cell: str, mark: str) -> str:
    """The cell with a mark after its number, before the room that follows."""
    number, room = re.findall(r"(.*?)((?:\\phantom{[^{}]*})?)$", cell)[0]
    return number + mark + room


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
    shown = dict(zip(plain, aligned([texts[i] for i in plain]), strict=True))
    shown |= {i: formula(words) for i, words in texts.items() if i not in shown}
    return _marked([shown.get(i, NOTHING) for i in range(len(etas))], at_edge)


# ---------------------------------------------------------------- words


def text(words: str) -> str:
    """Text with LaTeX's signs escaped; ±, R² and minus signs of numbers in math."""
    escaped = "".join(SIGNS.get(sign, sign) for sign in words)
    escaped = escaped.replace("±", r"$\pm$").replace("R²", "$R^2$").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def formula(words: str) -> str:
    """A stepsize, such as eta sqrt(n/(t+1)), in math; words stay words."""
    if re.fullmatch("(?!eta)[a-z ]*", words):
        return words
    while (start := words.find("sqrt(")) >= 0:
        end = _closing(words, start + 4)
        words = words[:start] + "ROOT{" + words[start + 5 : end] + "}" + words[end + 1 :]
    words = re.sub(r"\^\(([^()]*)\)", r"^{\1}", words).replace("ROOT", r"\sqrt")
    words = re.sub(r"([\d.]+)e([+-]\d+)", lambda found: rf"{found[1]} \cdot 10^{{{int(found[2])}}}", words)
    return "$" + re.sub(r"\b(cos|min|max|pi|eta)\b", r"\\\1", words) + "$"


def _closing(words: str, start: int) -> int:
    """The position where the bracket that opens at `start` closes."""
    depth = 0
    for i in range(start, len(words)):
        depth += {"(": 1, ")": -1}.get(words[i], 0)
        if depth == 0:
            return i
    return len(words)
