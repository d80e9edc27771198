"""The words of LaTeX tables: a short caption, and the protocol in sentences for the text of a paper."""

import re
from collections.abc import Iterable, Sequence
from math import floor, log10
from statistics import mode

import pandas as pd

from dnasa import latex, tables
from dnasa.core import Layout
from dnasa.plots import LABELS, SYMBOLS, label
from dnasa.rules.registry import CUSTOM, Variant
from dnasa.statistics import in_percent

CLEAR = (
    "A method differs clearly from the best if the 95% confidence interval of the difference, paired by seed and not "
    "corrected for multiple comparisons, does not contain 0: a noisy method may differ less clearly than a better one."
)
DIFFERENCE = r"vs.\ best (95\% CI)"
LONGEST = 45  # words of a caption with the schedule; a longer one leaves it to the text
SMALL = 0.1  # MB, below which kB are shown
MODELS = {"linear": "a linear model", "lenet": "LeNet", "resnet": "a residual net", "gpt": "GPT", "lstm": "an LSTM"}


def metric_title(metric: str) -> str:
    return LABELS.get(metric) or tables.metric_name(metric)


def method_names(variants: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each rule and schedule; schedules are named of rules with several, and where they are not the usual one."""
    rules, named = [rule for rule, _ in variants], [each for rule, each in variants if label(rule, each) != label(rule)]
    usual = mode(named) if named else None
    return [label(rule, each if rules.count(rule) > 1 or each != usual else None) for rule, each in variants]


def model_name(model: str, layout: Layout) -> str:
    """A model in words by its name in `--model`, a perceptron with the sizes of its layers; empty for the user's own."""
    kind, weights = model.partition(":")[0], [shape for _, shape in layout if len(shape) == 2]
    if kind != "mlp" or not weights:
        return MODELS.get(kind, "")
    return f"a perceptron {'-'.join(map(str, (weights[0][1], *(outputs for outputs, _ in weights))))}"


def column_title(metric: str, unit: str = "") -> str:
    """A metric as the title of a column, as LaTeX; by its symbol where it has one."""
    return latex.heading(SYMBOLS.get(metric) or metric_title(metric).replace("accuracy", "acc."), metric, unit)


def caption(
    metric: str, title: str, seeds: int, columns: Sequence[latex.Column], signs: Iterable[str] = (), schedule: str = ""
) -> str:
    """What was measured and in which runs, and what bold and other signs mean, as LaTeX; the schedule where it is short."""
    what = metric_title(metric) + " (%)" * in_percent(metric) + (f" on {title}" if title else "")
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    words = latex.text(f"{what[:1].upper() + what[1:]}, {spread}.".replace("_", " ")).replace(r" $\pm$ ", r"~$\pm$~")
    parts = [words, _emphasis(columns) if seeds >= latex.TESTED else "Bold: the best.", *signs]
    count = len(" ".join([*parts, schedule]).replace("~", " ").split())
    return " ".join([*parts, schedule] if schedule and count <= LONGEST else parts)


def _emphasis(columns: Sequence[latex.Column]) -> str:
    """What bold and underlined mean; nothing is bold in a column where no method differs clearly from the best."""
    judged = [column for column in columns if any(r"\underline" in cell for cell in column.cells)]
    ties = [not any(r"\best" in cell for cell in column.cells) for column in judged]
    best = "the best (underlined; uncorrected paired $t$-test)"
    if ties and all(ties):
        return f"No clear difference to {best}."
    return f"Bold: no clear difference to {best}{'; no bold: no clear difference at all' * any(ties)}."


def explained(columns: Iterable[latex.Column]) -> list[str]:
    """What the titles of some columns mean."""
    return [f"{column.title}: sent per node." for column in columns if column.title in ("kB", "MB")]


def dagger(choice: pd.DataFrame) -> list[str]:
    """What the dagger means, where a table has one."""
    return [f"{latex.AT_EDGE}:~grid edge."] if (choice.edge.fillna("") != "").any() else []


def schedule(choice: pd.DataFrame) -> str:
    """The schedule of the methods with a stepsize whose names do not say it."""
    methods = choice.drop_duplicates(["rule", "schedule"])
    lines = [(row.rule, row.schedule) for row in methods.itertuples()]
    tuned = [
        each for each, eta in zip(zip(lines, method_names(lines), strict=True), methods.eta, strict=True) if eta == eta
    ]
    silent = [each for (rule, each), name in tuned if name == label(rule) and each != CUSTOM]
    if not silent:
        return ""
    return latex.text(f"Tuned methods: {silent[0]} schedule{' unless named' * (len(silent) < len(tuned))}.")


def protocol(
    model: str, batch: int | None, exchanges: str, sent: pd.Series, stepsizes: str, seeds: int, own_partitions: bool
) -> str:
    """How the runs were made, in sentences for the text of a paper, as LaTeX; `stepsizes` is from `tuning`."""
    drawn = f"each node draws {batch} sample{'s' if batch > 1 else ''} per step" if batch else ""
    step = ", with ".join(filter(None, (drawn, exchanges)))
    lines = [
        latex.text(f"The model is {model}.") if model else "",
        f"{step[:1].upper()}{step[1:]}." if step else "",
        _sent_sentence(sent),
        stepsizes,
        "Each seed has its own partition, the same for all methods." if own_partitions else "",
        latex.text(CLEAR) if seeds >= latex.TESTED else "",
    ]
    return " ".join(filter(None, lines))


def _sent_sentence(sent: pd.Series) -> str:
    amounts = _amounts(sent.dropna().sort_values())
    if not amounts:
        return ""
    return f"Each node sends {' to '.join(dict.fromkeys((amounts[0], amounts[-1])))}~{_unit(sent)} in a run."


def sent_column(sent: pd.Series) -> list[latex.Column]:
    """What a node sends, by method, where methods differ."""
    amounts = _amounts(sent)
    return [latex.Column(_unit(sent), latex.aligned(amounts))] if len(set(amounts)) > 1 else []


def _unit(sent: pd.Series) -> str:
    return "kB" if sent.max() < SMALL else "MB"


def _amounts(sent: pd.Series) -> list[str]:
    """MB in their unit, all with as many decimals: the largest has three digits or more, the smallest two."""
    amounts = sent * (1e3 if _unit(sent) == "kB" else 1.0)
    ends = [(2, amounts.max()), (1, amounts.min())]
    decimals = max([0, *(digits - floor(log10(each)) for digits, each in ends if each > 0)])
    while decimals and all(f"{each:.{decimals}f}".endswith("0") for each in amounts):
        decimals -= 1
    return [f"{each:,.{decimals}f}" for each in amounts]


def tuning(choice: pd.DataFrame, selections: Iterable[str]) -> str:
    """How stepsizes were chosen, if by something, as LaTeX; `choice` has a row for each rule and schedule, or several."""
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
    others = [f"{each} for {_listed(formulas[each])}" for each in formulas if each != usual]
    by = latex.text(" or ".join(selections))
    what, chosen = ("tuned stepsizes", rf", with $\eta$ chosen by {by}.") if by else ("stepsizes", ".")
    if not usual:
        return f"Stepsizes are tuned{chosen}" if by else ""
    words = f"{_letters(formulas)}{what} are {'; '.join([usual, *others])}{chosen}"
    return words[:1].upper() + words[1:]


def grids(history: pd.DataFrame, extended: bool) -> str:
    """The stepsizes that were tried, as LaTeX; empty where none was chosen."""
    rows = history[history.eta.notna()]
    tried = {line: tuple(sorted({*same.eta})) for line, same in rows.groupby(["rule", "schedule"], sort=False)}
    if max(map(len, tried.values()), default=0) < 2:
        return ""
    methods: dict[tuple[float, ...], list[str]] = {}
    for grid, name in zip(tried.values(), method_names(list(tried)), strict=True):
        methods.setdefault(grid, []).append(latex.text(name))
    usual = max(methods, key=lambda grid: len(methods[grid]))
    others = [f"{_set(grid)} for {_listed(methods[grid])}" for grid in methods if grid != usual]
    edges = ["grids are extended where the best value is at an edge"] if extended else []
    return rf"The grid of $\eta$ is {'; '.join([_set(usual), *others, *edges])}."


def _set(grid: Iterable[float]) -> str:
    return rf"$\{{{latex.formula(', '.join(f'{eta:.3g}' for eta in grid))[1:-1]}\}}$"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _letters(formulas: Iterable[str]) -> str:
    """What the letters in these formulas mean."""
    used = {*re.findall(r"\b[ntT]\b", re.sub(r"\\[a-z]+", " ", " ".join(formulas)))}
    meanings = {"t": r"in step $t \ge 0$", "T": "of $T$", "n": "with $n$ nodes"}
    words = " ".join(meaning for letter, meaning in meanings.items() if letter in used)
    return f"{words}, " if words else ""
