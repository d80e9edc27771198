"""Captions of LaTeX tables: the protocol, and what the signs of the table mean."""

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from dnasa import latex, tables
from dnasa.core import Layout
from dnasa.plots import LABELS, label
from dnasa.rules.registry import Variant
from dnasa.statistics import in_percent

PAIRED = "paired by seed, not corrected for multiple comparisons"
CLEAR = "Bold: no clear difference to the best ({} contains 0, as a wide one may)."
BOLD = CLEAR.format(f"the 95% interval of the difference, {PAIRED},")
MODELS = {"linear": "a linear model", "lenet": "LeNet", "resnet": "a residual net", "gpt": "GPT", "lstm": "an LSTM"}


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def method_names(variants: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each rule and schedule; only a rule with several schedules has them in its name."""
    rules = [rule for rule, _ in variants]
    return [label(rule, schedule if rules.count(rule) > 1 else None) for rule, schedule in variants]


def model_name(model: str, layout: Layout) -> str:
    """A model in words by its name in `--model`, a perceptron with the sizes of its layers; empty for the user's own."""
    kind, weights = model.partition(":")[0], [shape for _, shape in layout if len(shape) == 2]
    if kind != "mlp" or not weights:
        return MODELS.get(kind, "")
    return f"a perceptron {'-'.join(map(str, (weights[0][1], *(outputs for outputs, _ in weights))))}"


def protocol(metric: str, model: str, title: str, batch: int | None, sent: pd.Series) -> str:
    """What was measured, of which model and in which runs, and how many MB a node sent, as LaTeX."""
    what = metric_title(metric) + (f" of {model}" if model else "") + (f" on {title}" if title else "")
    parts = [what[:1].upper() + what[1:]]
    if batch:
        parts.append(f"{batch} sample{'s' if batch > 1 else ''} per node and step")
    if len(sent):
        ends = dict.fromkeys(f"{float(f'{end:.3g}'):,g}" for end in (sent.min(), sent.max()))
        parts.append(f"{' to '.join(ends)} MB sent per node")
    return latex.text(f"{', '.join(parts)}.".replace("_", " ")).replace(" MB", "~MB")


def tuning(choice: pd.DataFrame, selections: Iterable[str]) -> str:
    """How stepsizes were chosen, as LaTeX; `choice` has a row for each rule and schedule, or several."""
    tuned = choice[choice.eta.notna()].drop_duplicates(["rule", "schedule"])
    if tuned.empty:
        return "Nothing was tuned."
    names = method_names([(row.rule, row.schedule) for row in tuned.itertuples()])
    formulas: dict[str, list[str]] = {}
    for row, name in zip(tuned.itertuples(), names, strict=True):
        spec = Variant(str(row.rule), str(row.schedule)).spec
        if spec and spec.formula:
            math = latex.formula(spec.formula) + " (constant)" * (spec.formula == "eta")
            formulas.setdefault(math, []).append(latex.text(name))
    usual = max(formulas, key=lambda each: len(formulas[each]), default="")
    others = [f"{each} for {', '.join(formulas[each])}" for each in formulas if each != usual]
    stepsize = f"Tuned stepsizes are {'; '.join([usual, *others])}{_letters(formulas)}, " if usual else "With "
    parts = [f"{stepsize}$\\eta$ chosen by {latex.text(' or '.join(selections))}"]
    if (choice.edge.fillna("") != "").any():
        parts.append(f"{latex.AT_EDGE} at an edge of its grid")
    return "; ".join(parts) + "."


def _letters(formulas: Iterable[str]) -> str:
    """What the letters in these formulas mean."""
    used = {*re.findall(r"\b[ntT]\b", re.sub(r"\\[a-z]+", " ", " ".join(formulas)))}
    meanings = {"t": r" in step $t \ge 0$", "T": " of $T$", "n": " with $n$ nodes"}
    return "".join(meaning for letter, meaning in meanings.items() if letter in used)


def results(metric: str, seeds: int, own_partitions: bool, differences: bool = False) -> str:
    """What ±, the column of differences where there is one, and bold mean, as LaTeX."""
    if seeds == 1:
        return "One seed; bold: the best."
    partitions = ", each with its own partition" if own_partitions else ""
    points = ", in points" if in_percent(metric) else ""
    lines = [f"Mean ± standard deviation over {seeds} seeds{partitions}."]
    if differences:
        lines.append(f"Difference: 95% interval of the difference to the best{points}, {PAIRED}.")
    lines.append(CLEAR.format("this interval") if differences else BOLD)
    return latex.text(" ".join(lines))
