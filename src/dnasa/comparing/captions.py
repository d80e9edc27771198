"""The words of LaTeX tables: titles of columns and a short caption."""

from collections.abc import Sequence
from math import floor, log10

import pandas as pd

from dnasa.comparing import latex, tables
from dnasa.comparing.plots import LABELS, SYMBOLS, label
from dnasa.problems.metrics import in_percent
from dnasa.rules.registry import Variant

DIFFERENCE = r"vs.\ best (95\% CI)"
ETA = r"$\eta$"
SMALL = 0.1  # MB, below which kB are shown


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def column_title(metric: str, unit: str = "") -> str:
    """A metric as the title of a column, as LaTeX; by its symbol where it has one."""
    return latex.heading(SYMBOLS.get(metric) or metric_title(metric).replace("accuracy", "acc."), metric, unit)


def method_names(variants: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each rule, with its schedule where schedules differ."""
    full, short = [label(*variant) for variant in variants], [label(rule) for rule, _ in variants]
    named = {schedule for (_, schedule), *names in zip(variants, full, short, strict=True) if names[0] != names[1]}
    return full if len(named) > 1 or len({*short}) < len({*full}) else short


def method_column(variants: Sequence[tuple[str, str]]) -> latex.Column:
    return latex.Column("Method", [latex.text(name) for name in method_names(variants)], "l")


def formulas(variants: Sequence[tuple[str, str]]) -> str:
    """The stepsizes of these rules as a sentence."""
    specs = [Variant(*variant).spec for variant in variants]
    names = zip(method_names(variants), specs, strict=True)
    known = [f"{name} {spec.formula}" for name, spec in names if spec and spec.formula]
    return f"Stepsizes in step t of T, with n nodes: {'; '.join(known)}."


def caption(metric: str, title: str, seeds: int, columns: Sequence[latex.Column], choice: pd.DataFrame) -> str:
    """What was measured and in which runs, and what bold and other signs mean, as LaTeX."""
    what = metric_title(metric) + " (%)" * in_percent(metric) + (f" on {title}" if title else "")
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    parts = [latex.text(f"{what[:1].upper() + what[1:]}, {spread}.".replace("_", " "))]
    if seeds < latex.TESTED:
        parts.append("Bold: the best.")
    else:
        parts.append("Bold: no clear difference to the best (underlined; uncorrected paired $t$-test).")
    if (choice.edge.fillna("") != "").any():
        parts.append(f"{latex.AT_EDGE}:~grid edge.")
    if choice.eta.isna().any() and any(column.title == ETA for column in columns):
        parts.append(f"{latex.NOTHING}:~not tuned.")
    parts += [f"{column.title}: sent per node." for column in columns if column.title in ("kB", "MB")]
    return " ".join(parts)


def sent_column(sent: pd.Series) -> list[latex.Column]:
    """What a node sends, by method and in MB, where methods differ; three digits of the largest."""
    if len(sent) < 2 or not sent.max() > 1.01 * sent.min():
        return []
    small = sent.max() < SMALL
    amounts = sent * (1e3 if small else 1.0)
    decimals = max(0, 2 - floor(log10(amounts.max())))
    return [latex.Column("kB" if small else "MB", latex.aligned([f"{each:.{decimals}f}" for each in amounts]))]
