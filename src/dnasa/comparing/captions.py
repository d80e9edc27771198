"""Captions of LaTeX tables: the protocol, and what the signs of the table mean."""

from collections.abc import Iterable, Sequence

import pandas as pd

from dnasa import latex, tables
from dnasa.plots import LABELS, label
from dnasa.rules.registry import Variant

BOLD = (
    "Bold: the best, and what does not differ clearly from it (the 95 % confidence interval of the difference, paired by "
    "seed, contains 0)."
)


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def method_names(variants: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each rule and schedule; only a rule with several schedules has them in its name."""
    rules = [rule for rule, _ in variants]
    return [label(rule, schedule if rules.count(rule) > 1 else None) for rule, schedule in variants]


def protocol(title: str, batch: int | None, sent: pd.Series) -> str:
    """What was run, and how many MB a node sent, as LaTeX."""
    parts = [title[:1].upper() + title[1:]]
    if batch:
        parts.append(f"{batch} sample{'s' if batch > 1 else ''} per node and step")
    if len(sent):
        ends = dict.fromkeys(f"{float(f'{end:.3g}'):,g}" for end in (sent.min(), sent.max()))
        parts.append(f"{' to '.join(ends)} MB sent per node")
    return latex.text(f"{', '.join(parts)}.".replace("_", " ")).replace(" MB", "~MB")


def tuning(choice: pd.DataFrame, selections: Iterable[str]) -> list[str]:
    """How stepsizes were chosen, as LaTeX; `choice` has a row for each rule and schedule, or several."""
    tuned = choice[choice.eta.notna()].drop_duplicates(["rule", "schedule"])
    if tuned.empty:
        return ["Nothing was tuned."]
    names = method_names([(row.rule, row.schedule) for row in tuned.itertuples()])
    formulas: dict[str, list[str]] = {}
    for row, name in zip(tuned.itertuples(), names, strict=True):
        spec = Variant(str(row.rule), str(row.schedule)).spec
        if spec and spec.formula:
            math = latex.formula(spec.formula) + " (constant)" * (spec.formula == "eta")
            formulas.setdefault(math, []).append(latex.text(name))
    usual = max(formulas, key=lambda each: len(formulas[each]), default="")
    others = [f"{each} for {', '.join(formulas[each])}" for each in formulas if each != usual]
    stepsize = f"Tuned stepsizes are {'; '.join([usual, *others])}; " if usual else ""
    lines = [f"{stepsize}$\\eta$ was chosen by {latex.text(' or '.join(selections))}."]
    if (choice.edge.fillna("") != "").any():
        lines.append(f"{latex.AT_EDGE}: at an edge of its grid.")
    return lines


def results(metric: str, seeds: int) -> list[str]:
    """Where results were measured, and what ± and bold mean, as LaTeX."""
    where = "on the test rows" if metric.startswith("test_") else "at the end of the runs"
    if seeds == 1:
        return [f"Results {where}, of one seed; bold: the best."]
    return [latex.text(f"Results {where}: mean ± standard deviation over {seeds} seeds."), latex.text(BOLD)]
