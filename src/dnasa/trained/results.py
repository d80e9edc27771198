"""The results of a trained model, computed from its evaluation: for all test rows, each site and each class.

Intervals have a level of 95 %: DeLong's for the AUC, Wilson's for shares, Wald's for the calibration.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from math import isnan, log, nan

import numpy as np
import pandas as pd
from scipy.special import betainc

from dnasa.checks import digits
from dnasa.extras import needed_by
from dnasa.runs.names import node_name
from dnasa.trained.evaluation import EDGES, REGRESSION_SUMS, Cells, Evaluation, Part

MOST = 16  # classes of a confusion matrix that is printed
WHOLE = "test rows", "events", "training rows", "missing"  # measures that are counts
FLOOR = -0.02  # of a decision curve
SAME = 1.01  # times the Brier score of the event rate, which noise may add
OVERFITTED = 0.9  # a calibration slope
PERFECT = 0.9995  # an AUC that is printed as 1.000
FEW = 10  # events, below which the AUC has no interval
MAIN = "AUC", "macro AUC", "calibration slope", "R2", "RMSE"  # measures of the abstract
GROUPS = 10  # points of a calibration curve
CENTERS = (EDGES[:-1] + EDGES[1:]) / 2
AXES = ("group", "measure"), ("measure", "group"), ("group", "measure")  # of the columns and rows of each table
COLUMNS = ("table", "group", "measure", "value", "low", "high")
Measure = tuple[str, float, float, float]  # its name, its value and the ends of its interval, NaN without one
Line = tuple[str, np.ndarray, np.ndarray]  # its name, and where its points are
Intervals = Sequence[tuple[float, float, float]]  # where each is, and its ends
Curve = tuple[str, str, str, list[Line], Intervals]  # its title, x and y


def density(many: Iterable[Cells]) -> np.ndarray:
    """How many rows are in each place of the grid: in each cell, those of the beta distribution with its mean and deviation.

    It is never U-shaped, however wide a rounded deviation is.
    """
    below = np.zeros(len(EDGES))
    for cells in many:
        begin = EDGES[0]
        for end, count, mean, deviation in cells:
            width = EDGES[end] - begin
            m = np.clip((mean - begin) / width, 1e-6, 1 - 1e-6)
            size = np.clip(m * (1 - m) * (width / max(deviation, 1e-6)) ** 2 - 1, 2, 1e6)
            below += count * betainc(m * size, (1 - m) * size, np.clip((EDGES - begin) / width, 0, 1))
            begin = EDGES[end]
    return np.diff(below)


def pair(parts: Sequence[Part], c: int) -> tuple[np.ndarray, np.ndarray]:
    """The scores of class c: of the other rows, and of its own."""
    return density(part.scores[c][0] for part in parts), density(part.scores[c][1] for part in parts)


def above(rows: np.ndarray, score: float) -> float:
    """How many rows have a larger score."""
    return float(rows.sum() - np.interp(score, EDGES, np.concatenate([[0], rows.cumsum()])))


def share(name: str, count: float, rows: float) -> Measure:
    from statsmodels.stats.proportion import proportion_confint

    if rows <= 0:
        return name, nan, nan, nan
    return name, count / rows, *proportion_confint(min(count, rows), rows, method="wilson")


def brier_score(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The mean squared difference between an outcome and its risk; of more than two classes, the sum over these."""
    risk = 1 / (1 + np.exp(-CENTERS))
    return sum(float(others @ risk**2 + events @ (1 - risk) ** 2) / (others.sum() + events.sum()) for others, events in pairs)


def threshold_of(evaluation: Evaluation) -> float:
    """The share of events in the training rows: it is known before the test, and with rare events 0.5 would flag nobody."""
    counts = evaluation.training
    return counts[1] / sum(counts) if len(counts) == 2 and all(counts) else 0.5


def auc(others: np.ndarray, events: np.ndarray) -> Measure:
    """The area under the ROC curve with DeLong's interval; equal scores count half."""
    n, m = others.sum(), events.sum()
    if min(n, m) <= 1:
        return "AUC", nan, nan, nan
    if min(n, m) < FEW:  # DeLong's interval would be too narrow
        return "AUC", float(np.average((others.cumsum() - others / 2) / n, weights=events)), nan, nan
    of_events = (others.cumsum() - others / 2) / n  # the share of other rows below each place, and of events above
    of_others = 1 - (events.cumsum() - events / 2) / m
    value = float(np.average(of_events, weights=events))
    parts = [np.average((a - value) ** 2, weights=w) / (w.sum() - 1) for a, w in ((of_events, events), (of_others, others))]
    half = 1.96 * sum(parts) ** 0.5
    return "AUC", value, max(0.0, value - half), min(1.0, value + half)


def calibration(others: np.ndarray, events: np.ndarray) -> Iterator[Measure]:
    """The slope of a logistic regression of the event on the model's log odds, and the intercept where the slope is 1."""
    import statsmodels.api as sm

    rows, odds, event = np.concatenate([others, events]), np.tile(CENTERS, 2), np.repeat([0.0, 1.0], len(CENTERS))
    fits = {"calibration slope": (np.column_stack([odds, odds**0]), 0 * odds), "calibration intercept": (odds**0, odds)}
    for name, (columns, offset) in fits.items():
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            fit = sm.GLM(event, columns, sm.families.Binomial(), offset=offset, freq_weights=rows).fit()
        known = fit.bse[0] < 10  # not where the scores separate the classes
        yield (name, fit.params[0], *fit.conf_int()[0]) if known else (name, nan, nan, nan)


def binary(parts: Sequence[Part], threshold: float) -> Iterator[Measure]:
    """Discrimination, calibration and decisions at a threshold."""
    others, events = pair(parts, 0)
    n, m = others.sum(), events.sum()
    if not n or not m:
        return
    yield "test rows", n + m, nan, nan
    yield "events", m, nan, nan
    yield auc(others, events)
    yield from calibration(others, events)
    rate = m / (n + m)
    yield "Brier score", brier_score([(others, events)]), nan, nan
    yield "Brier score of the event rate", rate * (1 - rate), nan, nan
    odds = log(threshold / (1 - threshold))
    hits, false = round(above(events, odds)), round(above(others, odds))
    yield share("sensitivity", hits, m)
    yield share("specificity", n - false, n)
    yield share("PPV", hits, hits + false)
    yield share("NPV", n - false, n - false + m - hits)
    yield "net benefit", (hits - false * threshold / (1 - threshold)) / (n + m), nan, nan
    yield share("accuracy", hits + n - false, n + m)
    yield "accuracy of the most frequent class", max(n, m) / (n + m), nan, nan


def multiclass(parts: Sequence[Part]) -> Iterator[Measure]:
    if not parts:
        return
    pairs, counts = [pair(parts, c) for c in range(len(parts[0].scores))], confusion(parts)
    rows, of_classes = sum(part.rows for part in parts), [events.sum() for _, events in pairs]
    yield "test rows", rows, nan, nan
    yield "macro AUC", float(np.mean([auc(*each)[1] for each in pairs])), nan, nan
    yield "Brier score", brier_score(pairs), nan, nan
    yield share("accuracy", np.trace(counts), rows)
    yield "accuracy of the most frequent class", max(of_classes) / max(1, sum(of_classes)), nan, nan


def of_class(parts: Sequence[Part], c: int) -> Iterator[Measure]:
    others, events = pair(parts, c)
    counts = confusion(parts)
    yield "test rows", events.sum(), nan, nan
    yield auc(others, events)
    yield share("recall", counts[c, c], counts[c].sum())
    yield share("precision", counts[c, c], counts[:, c].sum())


def confusion(parts: Sequence[Part]) -> np.ndarray:
    """Rows of each class by what was predicted."""
    return np.sum([part.confusion for part in parts], axis=0)


def regression(parts: Sequence[Part], scale: float) -> Iterator[Measure]:
    """Errors in the target's own units."""
    rows = sum(part.rows for part in parts)
    squared, absolute, error, mean, squares = (sum(part.sums[name] for part in parts) / rows for name in REGRESSION_SUMS)
    variance = squares - mean**2
    yield "test rows", rows, nan, nan
    yield "R2", 1 - squared / variance if variance > 0 else nan, nan, nan
    errors = density(part.scores[0][1] for part in parts)
    spread = np.average(CENTERS**4, weights=errors) - np.average(CENTERS**2, weights=errors) ** 2 if errors.any() else nan
    low, high = (max(0.0, squared + sign * 1.96 * (spread / rows) ** 0.5) ** 0.5 * scale for sign in (-1, 1))
    yield "RMSE", squared**0.5 * scale, low, high
    for name, value, second in ("mean |error|", absolute, absolute**2), ("mean error", error, error**2):
        half = 1.96 * max(0.0, (squared - second) / rows) ** 0.5
        yield name, value * scale, (value - half) * scale, (value + half) * scale
    below = errors.cumsum()
    for percent in (5, 25, 50, 75, 95):
        yield f"error, {percent}th percentile", scale * np.interp(percent / 100 * below[-1], below, EDGES[1:]), nan, nan


def described(evaluation: Evaluation) -> Iterator[Measure]:
    """The training rows of each class, and how many values are missing."""
    for name, count in zip(evaluation.names, evaluation.training, strict=False):
        yield f"training rows, {evaluation.target}: {name}", count, nan, nan
    for name, count in evaluation.missing.items():
        yield f"missing {name}", count, nan, nan


def groups(evaluation: Evaluation, sites: Sequence[str] = ()) -> dict[str, list[Part]]:
    """First all test rows that can be shown, then those of each site where it has enough."""
    each = {node_name(sites, i): [part] for i, part in evaluation.parts.items()}
    if evaluation.common is not None:
        return {"all": [evaluation.common]} | {f"{name} (its training rows)": parts for name, parts in each.items()}
    shown = [part for (part,) in each.values()]
    name = "all" if len(shown) == len(evaluation.sites) else f"{len(shown)} of {len(evaluation.sites)} sites"
    return {name: shown} | each if each else {}


def numbers(evaluation: Evaluation, sites: Sequence[str] = (), threshold: float | None = None) -> pd.DataFrame:
    """All results, one in each row: the table it belongs to, all rows or a site or class, the measure, value and interval."""
    threshold = threshold_of(evaluation) if threshold is None else threshold
    rows: list[tuple[str, str, *Measure]] = []
    for place, (name, parts) in enumerate(groups(evaluation, sites).items()):
        if evaluation.task == "regression":
            measures = regression(parts, evaluation.scale)
        else:
            measures = binary(parts, threshold) if len(evaluation.names) == 2 else multiclass(parts)
        with needed_by("The results of a model"):
            rows += [("results", name, *measure) for measure in measures]
        for c, of in enumerate(evaluation.names if len(evaluation.names) > 2 and parts and not place else ()):
            rows += [("classes", of, *measure) for measure in of_class(parts, c)]
    if not evaluation.sites:  # their cohort says it
        rows += [("rows", "all", *measure) for measure in described(evaluation)]
    return pd.DataFrame(rows, columns=COLUMNS)


def tables(
    evaluation: Evaluation, sites: Sequence[str] = (), threshold: float | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Titles and tables of text, with intervals in brackets."""
    threshold = threshold_of(evaluation) if threshold is None else threshold
    found, k = numbers(evaluation, sites, threshold), len(evaluation.names)
    event = f", event: {evaluation.names[1]}, threshold {threshold:.3g}" if k == 2 else ""
    titles = {"results": f"Results for {evaluation.target}{event}", "classes": "Each class", "rows": "Training rows"}
    found["text"] = [with_interval(*row) for row in zip(found.measure, found.value, found.low, found.high, strict=True)]
    for (name, title), (across, down) in zip(titles.items(), AXES, strict=True):
        some = found[found.table == name]
        table = some.pivot_table("text", down, across, aggfunc="first", sort=False)
        if not some.empty:
            yield title, table.fillna("-").rename_axis("class" if down == "group" else "").reset_index()
    parts = next(iter(groups(evaluation).values()), [])
    if 2 < k <= MOST and parts:
        matrix = pd.DataFrame(confusion(parts), columns=evaluation.names)
        matrix.insert(0, "true / predicted", evaluation.names)
        yield "Confusion matrix", matrix


def abstract(evaluation: Evaluation, found: pd.DataFrame, model: str, training: str) -> str:
    """The model, how many rows it was trained and tested on, and its main results, of `numbers`."""
    group, sites, own = next(iter(found.group), ""), len(evaluation.sites), evaluation.sites and not evaluation.common
    first = found[(found.table == "results") & (found.group == group)].dropna(subset="value").set_index("measure")
    main = [f"{name} {with_interval(name, *first.loc[name, [*COLUMNS[3:]]])}" for name in MAIN if name in first.index]
    two, about = len(evaluation.names) == 2, "about " * (evaluation.min_count > 1)
    event = f" (event: {evaluation.names[1]})" if two else ""
    events = f" with {about}{sum(evaluation.training[1:]):,} events" if two else ""
    tested = f" with {first.value.get('events', 0):,.0f} events" if two else ""
    tested += f" of {'the same sites' if group == 'all' else group} (internal validation)" if own else ""
    trained = f"; it was trained on {training} rows{events}" + (f" at {sites} sites" if sites else "") if training else ""
    what = f"The {'linear model' if model == 'linear' else f'model {model}'} predicts {evaluation.target}{event}{trained}."
    shown = ", ".join(main).replace("(", "(95 % interval ", 1)
    return f"{what} On {first.value['test rows']:,.0f} {'held-out' if own else 'test'} rows{tested}: {shown}." if main else what


def shortcomings(evaluation: Evaluation) -> list[str]:
    """A sentence if the model predicts worse than the share of each class, or the mean, in the test rows, or too well."""
    (parts, *_) = [*groups(evaluation).values(), []]
    rows, worse = sum(part.rows for part in parts), "The model predicts worse than"
    if not rows:
        return []
    if evaluation.task == "regression":
        squared, _, _, mean, squares = (sum(part.sums[name] for part in parts) / rows for name in REGRESSION_SUMS)
        r2 = 1 - squared / variance if (variance := squares - mean**2) > 0 else 0.0
        return [f"{worse} the mean of the test rows (R2 {r2:.3f})."] if r2 < 0 else []
    pairs = [pair(parts, c) for c in range(len(parts[0].scores))]
    shares = np.array([events.sum() for _, events in pairs]) / rows
    least, brier = float((shares * (1 - shares)).sum()), brier_score(pairs)
    if len(evaluation.names) == 2 and auc(*pairs[0])[1] > PERFECT:
        return ["The model separates the classes perfectly: does a column tell the target, under another name or as a code?"]
    if brier <= SAME * least:
        return []
    what = "the share of events alone" if len(evaluation.names) == 2 else "the shares of the classes alone"
    return [f"{worse} {what} (Brier score {brier:.3f}, {least:.3f})."]


def remarks(evaluation: Evaluation, sites: Sequence[str] = ()) -> list[str]:
    """Sentences about sites that the results leave out, if any, what sites have together, and an overfitted model."""
    measured, binary_model, of_numbers = evaluation.parts, len(evaluation.names) == 2, evaluation.task == "regression"
    few = f"fewer than {evaluation.min_count} test rows{'' if of_numbers else ' of a class'}"
    reasons = {"few": few, "tested": "an earlier run tested its rows", None: "lost in the run"}
    left_out = [
        f"{node_name(sites, i)} ({reasons[why]})" for i, why in enumerate(evaluation.sites) if not isinstance(why, Part)
    ]
    single = [node_name(sites, i) for i, part in measured.items() if binary_model and not all(part.scores[0])]
    found = []
    if left_out:
        found.append(f"Left out: {', '.join(left_out)}.")
    if left_out and measured:
        found.append("The first column has the other sites only: its results may differ from those of all.")
    if single:
        ones = ", ".join(single)
        found.append(f"Without a column, since all test rows have one class: {ones}; the first column has these rows.")
    if binary_model and evaluation.common is None and len(measured) > 1:
        found.append(
            "The calibration intercept of the first column mixes those of the sites: it can be near 0 where theirs are not."
        )
    fewest = {i: min(sum(rows for _, rows, *_ in cells) for cells in part.scores[0]) for i, part in measured.items()}
    rare = [node_name(sites, i) for i, rows in fewest.items() if binary_model and 0 < rows < FEW]
    if rare:
        found.append(f"With fewer than {FEW} events or non-events, no interval of the AUC and no ROC curve: {', '.join(rare)}.")
    if measured:
        exact = "an AUC, a slope or a sensitivity is mostly off by less than a quarter of its interval"
        found.append(
            f"Sites sent counts and rounded means of at least {evaluation.min_count} rows, not predictions"
            f"{'' if of_numbers else f': compared with results from single rows, {exact}'}."
        )
    (parts, *_) = [*groups(evaluation).values(), []]
    for name, slope, _, high in binary(parts, 0.5) if binary_model else ():
        if name == "calibration slope" and high < OVERFITTED:
            found.append(f"The risks are too extreme (slope {slope:.3f}): fewer columns or a smaller model may help.")
    return found


def with_interval(measure: str, value: float, low: float, high: float) -> str:
    if isnan(value):
        return "too few"
    if measure.startswith(WHOLE):
        return f"{value:,.0f}"
    texts = [f"{x:.3f}" if abs(value) < 100 else digits(x, 4) for x in (value, low, high)]
    return texts[0] + ("" if isnan(low) else f" ({texts[1]} to {texts[2]})")


def roc(name: str, others: np.ndarray, events: np.ndarray) -> Line:
    hits, false = (np.append(rows[::-1].cumsum()[::-1], 0) / rows.sum() for rows in (events, others))  # from each edge on
    return name, false, hits


def curves(evaluation: Evaluation, sites: Sequence[str] = ()) -> list[Curve]:
    """ROC, precision and recall, calibration and net benefit of a binary model; the distribution of a regression's errors."""
    each: list[tuple[str, list[Part]]] = [*groups(evaluation, sites).items()]
    name, parts = each.pop(0) if each else ("", [])
    others, events = pair(parts, 0)
    n, m = others.sum(), events.sum()
    if evaluation.task == "regression" and m:
        shares = events.cumsum() / m
        return [("Errors", "error", "share of rows up to it", [("model", EDGES[1:] * evaluation.scale, shares)], ())]
    if len(evaluation.names) != 2 or not min(n, m):
        return []
    rate, total, risk = m / (n + m), others + events, 1 / (1 + np.exp(-EDGES))
    hits, false = (np.append(rows[::-1].cumsum()[::-1], 0) for rows in (events, others))  # from each edge of the grid on
    flagged, ends = hits > (1 if evaluation.common else max(1, evaluation.min_count)) - 0.5, np.array([0.0, 1.0])
    group = np.minimum(total.cumsum() / (n + m) * GROUPS, GROUPS - 1e-9).astype(int)
    risks, happened, rows = (np.bincount(group, a, GROUPS) for a in (total / (1 + np.exp(-CENTERS)), events, total))
    predicted, observed = (a[rows > 0] / rows[rows > 0] for a in (risks, happened))
    intervals = [share("", *each)[2:] for each in zip(happened[rows > 0], rows[rows > 0], strict=True)]
    top = np.array([0.0, max(predicted.max(), observed.max())])
    shown = (risk > 0.005) & (risk < max(0.1, 5 * rate)) & (risk < 0.99)
    cost = (risk / (1 - risk))[shown]
    benefit, treat_all = (hits[shown] - false[shown] * cost) / (n + m), rate - (1 - rate) * cost
    lines = {"model": benefit, "treat all": np.where(treat_all < FLOOR, np.nan, treat_all), "treat none": 0 * cost}
    precision = "model", hits[flagged] / m, hits[flagged] / (hits + false)[flagged]
    decisions = [(line, risk[shown][~np.isnan(y)], y[~np.isnan(y)]) for line, y in lines.items()]
    calibrated = [("tenths", predicted, observed), ("ideal", top, top)]
    bars = [(x, *ends) for x, ends in zip(predicted, intervals, strict=True)]
    scores = {site: pair(some, 0) for site, some in each}
    of_sites = [roc(site, *found) for site, found in scores.items() if min(map(np.sum, found)) >= FEW]
    where = "" if name == "all" else f", {name}"
    return [
        (f"ROC curve{where}", "1 - specificity", "sensitivity", [roc("model", others, events), ("chance", ends, ends)], ()),
        *([("ROC curve of each site", "1 - specificity", "sensitivity", of_sites, ())] if len(of_sites) > 1 else []),
        (f"Precision and recall{where}", "sensitivity", "PPV", [precision, ("chance", ends, 0 * ends + rate)], ()),
        (f"Calibration{where}", "predicted risk", "observed share", calibrated, bars),
        (f"Decision curve{where}", "threshold", "net benefit", decisions, ()),
    ]
