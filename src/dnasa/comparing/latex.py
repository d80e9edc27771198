"""Tables for a paper: booktabs, and never wider than the text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

import pandas as pd

from dnasa.comparing import tables
from dnasa.comparing.plots import LABELS, SYMBOLS, common_schedules, look_of, short_labels
from dnasa.comparing.statistics import TESTED, with_the_best
from dnasa.problems.metrics import in_percent, larger_is_better
from dnasa.rules.registry import Variant

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "miniboone": "MiniBooNE"}
SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
NOTHING = "--"
BOLD_MATH, AT_EDGE = r"\boldmath", r"$^\dagger$"
COMMANDS = r"\\phantom\{[^}]*\}\}?|\\[a-zA-Z]+|[\\{}$^]"
METHOD, ETA, MEGABYTES, INTERVAL = "Method", r"$\eta$", "MB", r"vs.\ best (95\% CI)"  # headers
# Only where it is too wide; \dimexpr, since the package calc does not expand \ifdim.
SHRUNK = r"\resizebox{\dimexpr\ifdim\width>\linewidth\linewidth\else\width\fi\relax}{!}{%"
BY_LABEL = "by label: rows sorted by label, then split evenly"  # once in a caption
LETTERS = {"t": "step $t$", "T": "$T$ steps", "n": "$n$ nodes"}  # of formulas
NARROW = 56  # letters of a row that fit into one column of a paper


Columns = Mapping[Any, Sequence[str]]  # the cells of each column by its header, or that of its group and its own, all in LaTeX


def table(columns: Columns, caption: str, name: str, comments: Sequence[str] = ()) -> str:
    """A table that is referred to as tab:name.

    It shrinks to the width of the text. If it is wide, it spans both columns of a paper. Comments are sentences for the text of
    the paper.
    """
    pairs = {("", header) if isinstance(header, str) else header: cells for header, cells in columns.items()}
    letters = sum(2 + max(len(re.sub(COMMANDS, "", cell)) for cell in (name, *cells)) for (_, name), cells in pairs.items())
    environment, room = ("table*", 1.5 * NARROW) if letters > NARROW else ("table", NARROW)
    space = 6 if letters + len(pairs) <= room else 3
    form = "l" + "r" * (len(columns) - 1)
    rows = pd.DataFrame(pairs if any(group for group, _ in pairs) else columns)
    words: Any = {"column_format": f"@{{}}{form}@{{}}", "multicolumn_format": "c"}
    body = _with_rules(rows.to_latex(index=False, escape=False, **words), [group for group, _ in pairs])
    lines = [
        r"% Needs \usepackage{booktabs, graphicx}.",
        *(f"% {line}" for line in comments),
        rf"\begin{{{environment}}}",
        rf"\centering\small\setlength{{\tabcolsep}}{{{space}pt}}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{key(name)}}}",
        r"\medskip",
        SHRUNK,
        f"{body.strip()}}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _with_rules(body: str, groups: Sequence[str]) -> str:
    """A rule below the name of each group of columns."""
    spans, first = [], 1
    for group, columns in groupby(groups):
        last = first + len([*columns]) - 1
        spans += [rf"\cmidrule(lr){{{first}-{last}}}"] * bool(group)
        first = last + 1
    above, end, below = body.partition("\\\\\n")
    return f"{above}{end}{' '.join(spans)}\n{below}" if spans else body


def column(name: str, group: str | None = "") -> str | tuple[str, str]:
    """The header of a column, in a group of columns if that has a name."""
    own, above = (text((words or "").replace("_", " ")) for words in (name, group))
    return (above, own) if above else own


def key(name: str) -> str:
    return re.sub("[^a-zA-Z0-9-]+", "-", name)


def methods(variants: Sequence[tuple[str, str]]) -> list[str]:
    """The rules, with their schedules where these differ."""
    return [text(name) for name in short_labels(variants)]


def schedules(choice: pd.DataFrame) -> str:
    """The schedules of the rules with a stepsize and their formulas, in LaTeX, for a caption."""
    tuned = choice[[look_of(str(rule)).schedule is None for rule in choice.rule]]
    names = common_schedules(zip(choice.rule, choice.schedule, strict=True))
    parts, used = [], ""
    for name in names:
        known = {Variant(str(rule), name, None).formula for rule in tuned.rule[tuned.schedule == name]} - {""}
        words, *others = known or {""}
        is_plain = not others and re.fullmatch(r"[A-Za-z0-9 ().,+*/^-]+", words)
        parts.append(f"{text(name)}, ${_formula(words)}$" if is_plain else text(name))
        used += f" {words}" if is_plain else ""
    letters = ", ".join(text for letter, text in LETTERS.items() if re.search(rf"\b{letter}\b", used))
    meaning = f" ({letters})" if letters else ""
    return rf"Stepsizes $\eta_t$: {'; '.join(parts)}{meaning}." if parts else ""


def _formula(words: str) -> str:
    """A formula such as n^(1/4)/t^(3/4) in LaTeX."""
    words = re.sub(r"sqrt\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}", words)
    words = re.sub(r"\^\(([^()]*)\)", r"^{\1}", words)
    return re.sub(r"\b(eta|min|max|cos|pi)\b", r"\\\1", words)


def results(metric: str, rows: pd.DataFrame, at_edge: Sequence[bool] = ()) -> list[str]:
    """Mean ± standard deviation of each row of `statistics.differences`, with a dagger where it is `at_edge` of a grid.

    Bold are the best, equal ones, and what is `statistics.with_the_best`.
    """
    bold = tables.leaders(metric, rows) | with_the_best(rows)
    cells, form = [], tables.form(metric, rows)
    for (_, row), is_bold in zip(rows.iterrows(), bold, strict=True):
        mean, sign, spread = tables.with_spread(metric, row, form).removesuffix(" %").partition(" ± ")
        cell = numbers(mean)
        cell = rf"\textbf{{{BOLD_MATH * ('$' in cell)}{cell}}}" if is_bold else cell
        missing = tables.DIVERGED if row.diverged > 0 else NOTHING
        cells.append(missing if pd.isna(row["mean"]) else cell + numbers(sign + spread))
    return _with_daggers(cells, at_edge)


def intervals(metric: str, rows: pd.DataFrame) -> list[str]:
    """The difference of each row of `statistics.differences` from the best, with its confidence interval."""
    form = tables.form(metric, rows)
    cells = [numbers(tables.with_interval(metric, row, form)) for _, row in rows.iterrows()]
    return [NOTHING if cell == "-" else cell for cell in cells]


def stepsizes(choice: pd.DataFrame) -> list[str]:
    cells = [NOTHING if pd.isna(eta) else numbers(f"{eta:.3g}") for eta in choice.eta]
    return _with_daggers(cells, [bool(edge) for edge in choice.edge])


def _with_daggers(cells: list[str], at_edge: Sequence[bool]) -> list[str]:
    """Cells that stay below each other: where one has a dagger, the others have its width."""
    signs = [AT_EDGE if edge else rf"\phantom{{{AT_EDGE}}}" for edge in at_edge]
    return [cell + sign for cell, sign in zip(cells, signs, strict=True)] if any(at_edge) else cells


def sent(amounts: pd.Series) -> list[str]:
    decimals = max(0, 2 - floor(log10(amounts.max())))
    return [f"{amount:.{decimals}f}" for amount in amounts]


def text(words: str) -> str:
    """Text with LaTeX's signs escaped; ±, R² and minus signs of numbers in math."""
    words = re.sub(rf"\b({'|'.join(NAMES)})\b", lambda match: NAMES[match[1]], words)
    escaped = "".join(SIGNS.get(sign, sign) for sign in words)
    escaped = escaped.replace("±", r"$\pm$").replace("R²", "$R^2$").replace("I2 (", "$I^2$ (").replace(r" \%", r"~\%")
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def prose(words: str) -> str:
    """Text in which names have no underscores."""
    return text(re.sub(r"\bby_label\b", BY_LABEL, words, count=1).replace("_", " "))


def numbers(words: str) -> str:
    """Text with numbers such as 1.5e-09 in math."""
    found = re.sub(r"([\d.]+)e([+-]\d+)", lambda match: rf"${match[1]} \cdot 10^{{{int(match[2])}}}$", text(words))
    return found.replace(r"$1 \cdot ", "$")


def heading(metric: str) -> str:
    """A metric, in words or math, with an arrow to where it is better."""
    name = SYMBOLS.get(metric) or text(_capital(metric_title(metric).replace("accuracy", "acc.")))
    unit = r" (\%)" if in_percent(metric) else ""
    arrow = r"$\uparrow$" if larger_is_better(metric) else r"$\downarrow$"
    return f"{name}{unit} {arrow}"


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def figure_caption(
    metrics: Sequence[str], title: str, seeds: int, against: str, notes: Sequence[str], named: Sequence[str], name: str
) -> str:
    """A caption for a figure that is referred to as fig:name: what is drawn, and what its signs mean.

    The tables that are `named` have the settings.
    """
    where, colon, setting = title.partition(": ")
    place = f" on {where}" if where else ""
    mean = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    what = f"{' and '.join(map(metric_title, metrics))}{place} against {against}, {mean}"
    sentences = [f"{_capital(words)}." for words in (what, colon and f"runs{colon}{setting}", *notes) if words]
    return (
        f"\\caption{{{prose(' '.join(sentences))} Settings and stepsizes: {reference(named)}.}}\n\\label{{fig:{key(name)}}}\n"
    )


def reference(named: Sequence[str]) -> str:
    """The tables of these names, as the text refers to them."""
    *first, last = [rf"\ref{{tab:{key(name)}}}" for name in named]
    return rf"Table{'s' * bool(first)}~{', '.join(first)}{' and ' * bool(first)}{last}"


def caption(metric: str, title: str, seeds: int, columns: Columns, choice: pd.DataFrame, missing: Iterable[str] = ()) -> str:
    """What was measured and in which runs, and what bold and other signs mean, as LaTeX; and why results are missing."""
    unit = " (%)" if in_percent(metric) else ""
    place = f" on {title}" if title and not title.startswith(":") else title
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    parts = [prose(f"{_capital(metric_title(metric))}{unit}{place}, {spread}.")]
    others = " and those that do not differ clearly from it (paired $t$-test, $p \\ge 0.05$)"
    if seeds < TESTED:
        others = f" and any equal to it; with fewer than {TESTED} seeds, differences are not tested"
    parts.append(f"Bold: the best result{others}.")
    name = schedules(choice)
    reasons = [*(["no stepsize needed"] if choice.eta.isna().any() and ETA in columns else []), *missing]
    notes = {
        name: name,
        f"{AT_EDGE}~The stepsize is at an edge of its grid.": (choice.edge != "").any(),
        f"{NOTHING}: {', or '.join(reasons)}.": reasons,
        f"{MEGABYTES}: megabytes that each node sent.": MEGABYTES in columns,
        r"vs.\ best: mean paired difference and its 95\% confidence interval ($t$ distribution).": INTERVAL in columns,
    }
    return " ".join([*parts, *(sentence for sentence, applies in notes.items() if applies)])
