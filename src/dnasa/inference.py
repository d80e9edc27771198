"""Regression over sites with standard errors and p-values: logistic, linear, Poisson, and Cox with a stratum for each site.

Newton's method on sums over sites: in each iteration a site sends the log-likelihood of its rows with its first and second
derivatives, so the result is that of all rows in one place. The fits without one site are further such sums, and begin at that
result. Each site fits its own rows by itself, and sends the estimates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from dnasa.checks import choose
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.data import agreement, loading
from dnasa.data.columns import drop_remedy, kind_of, to_numbers, to_words
from dnasa.data.encoding import Encoding
from dnasa.data.ledger import Ledger
from dnasa.data.recoding import Recode, as_recode, unused_warnings
from dnasa.data.rows import Rows, from_frame, without_columns
from dnasa.data.shards import check_sites, collecting, node_entries, node_paths, raise_collected
from dnasa.data.summaries import (
    MIN_COUNT,
    Summary,
    check_columns,
    check_identifiers,
    check_rare_numbers,
    make_encoding,
    sentinel_warnings,
    summarize,
)
from dnasa.extras import needed_by

__all__ = ["Fit", "fit"]

RATIOS = {"logistic": "odds ratio", "linear": "", "poisson": "rate ratio", "cox": "hazard ratio"}  # exp(coefficient)
TASKS = {"logistic": "classification", "linear": "regression", "poisson": "regression", "cox": "classification"}
EVENTS = 10  # rows of the rarer value for each input, below which maximum likelihood is biased
MOST = 30  # iterations; five to eight are usual
CONVERGED = 1e-9  # the largest step, in standard deviations
SINGULAR = 1e-10  # the smallest eigenvalue of second derivatives that are scaled to a diagonal of 1
INTERCEPT = "intercept"
FILES = ("report.html", "coefficients.csv", "coefficients.tex", "sites.csv")  # of `dnasa fit --out`
ESTIMATE = ["coefficient", "standard_error"]
BY_SITE = ["site", "rows", "input", *ESTIMATE, "coefficient_without", "standard_error_without"]


class Fit(NamedTuple):
    """A regression.

    Attributes:
        title: What was fitted, in words.
        ratio: What the exponential of a coefficient is called; empty for a linear regression.
        table: For each coefficient the estimate, standard error, 95 % interval, p-value and ratio; over several sites also the
            random-effects estimate (DerSimonian-Laird), I2, the p-value of Cochran's Q, and the range without one site.
        sites: For each site and coefficient, the estimates of the site alone and of all the others.
        notes: Reference categories, rows left out, and columns that sites seem to write differently.
    """

    title: str
    ratio: str
    table: pd.DataFrame
    sites: pd.DataFrame
    notes: tuple[str, ...]

    def texts(self) -> pd.DataFrame:
        """The ratios, or coefficients, with intervals and p-values, and how they differ between sites, as texts."""
        table, scaled = self.table, np.exp if self.ratio else np.asarray

        def interval(low: pd.Series, high: pd.Series) -> list[str]:
            return [f"{decimals(a)} to {decimals(b)}" for a, b in zip(scaled(low), scaled(high), strict=True)]

        texts = table[["input"]].assign(**{self.ratio or "coefficient": [decimals(x) for x in scaled(table.coefficient)]})
        texts["95 % interval"] = interval(table.coefficient_low, table.coefficient_high)
        texts["p"] = ["<0.001" if p < 0.001 else f"{p:.3f}" for p in table.p]
        if len(self.sites):
            mean, width = table.random_effects, 1.96 * table.random_effects_standard_error
            ends = interval(mean - width, mean + width)
            texts["random effects"] = [f"{decimals(x)} ({both})" for x, both in zip(scaled(mean), ends, strict=True)]
            texts["I2 (p)"] = [
                f"{share:.0f} % ({'<0.01' if p < 0.005 else f'{p:.2f}'})"
                for share, p in zip(table.i2_percent, table.q_p, strict=True)
            ]
            texts["without one site"] = interval(table.without_one_site_low, table.without_one_site_high)
        return texts.replace({"nan (nan to nan)": "-", "nan to nan": "-", "nan % (nan)": "-"})  # too few sites have an estimate


def decimals(x: float) -> str:
    """Three decimals, five of a ratio close to 1, or three digits of a tiny or large number."""
    if 0 < abs(x - 1) < 5e-4:
        return f"{x:.5f}"
    return f"{x:.3f}" if 1e-3 <= abs(x) < 1e4 else f"{x:.3g}"


def fit(
    kind: str,
    data: str | Path | Mapping[str, pd.DataFrame],
    target: str | None,
    time: str | None = None,
    network: Network | None = None,
    drop_columns: Any = None,
    id_column: str | None = None,
    recode: Any = None,
    ledger: Ledger | None = None,
    min_count: int = MIN_COUNT,
) -> Fit:
    """Fit a regression over sites; the result is that of all rows in one place.

    Rows with missing values are left out, as in statsmodels and R. The first category of a text column is the reference. Tied
    times of a Cox regression are treated as Efron does.

    Args:
        kind: "logistic", "linear", "poisson" or "cox".
        data: A file, a folder with a file for each site, or frames by site.
        target: The target column. Of two values, the second in sorted order is the event: 1 or yes rather than 0 or no.
        time: Of a Cox regression, the column with the time until the event or the end of the observation.
        network: Where sites are other processes, their network.
        drop_columns: Columns to leave out.
        id_column: A column that names the rows and is not an input.
        recode: A file `recode.toml` or its contents, applied before anything else.
        ledger: What this site has told of its rows: it refuses rows that differ from earlier ones in fewer than `min_count`,
            nor does it leave out fewer rows.
        min_count: No category, class or statistic of fewer rows leaves a site, which needs so many rows for each coefficient.

    Examples:
        >>> fit("cox", "hospitals", "died", time="days").table
    """
    choose("regression", kind, RATIOS)
    if (time is None) == (kind == "cox"):
        raise InputError("A cox regression needs --time, the column with the time until the event; the others take none.")
    frames, recode = data if isinstance(data, Mapping) else {}, as_recode(recode)
    paths = [Path(name) for name in frames or [str(data)]]
    if not frames and paths[0].is_dir():
        paths = node_paths(paths[0], network.local_nodes, network.nodes, network.site) if network else node_entries(paths[0])
    tables, refused = [], dict[str, InputError]()
    for path in paths:
        with collecting(refused, path):
            site = (network.site if network else "") or path.name.partition(".")[0]
            own, given = recode and recode.at(site), frames.get(str(path))
            rows, tests = (
                loading.read(path, target, own) if given is None else (from_frame(given, target, path.name, own), None)
            )
            rows = without_columns(rows, drop_columns, id_column, path.name, may_be_absent=True)
            tables.append(_complete(site, rows, kind, time, min_count, least=min_count if ledger else 1))
            if tests is not None:
                tables[-1].warnings.append(f"The test rows of {site} are left out: a fit needs no test file.")
            if ledger is not None:
                used = tables[-1].rows
                ledger.check(used._replace(features=(*used.features, time)) if time else used, min_count)
    raise_collected(refused)
    network = network or Network(len(tables), lambda messages, k: messages, lambda a: a.mean(-2))
    return _fit(kind, tables, time, network, recode, min_count)


class Table(NamedTuple):
    """The complete rows of a site."""

    summary: Summary
    rows: Rows
    time: np.ndarray | None
    incomplete: int
    rare: int  # complete rows of categories with too few, or left out to hide how many these are
    warnings: list[str]


def _complete(site: str, rows: Rows, kind: str, time: str | None, min_count: int, least: int) -> Table:
    """The rows without gaps, and without categories of so few rows that no number about them may leave the site.

    It leaves out none or at least so many, since the others know how many rows the site has.
    """
    if not rows.features or (time and time not in rows.features):
        raise InputError(f"There is no column '{time}' of times: give --time with one of the columns of the table.")
    check_identifiers(rows._replace(features=tuple(name for name in rows.features if name != time)))
    before, used = len(rows.labels), rows.inputs[[*rows.features, target := str(rows.labels.name)]]
    rows = rows.take(np.flatnonzero(used.notna().all(axis=1)))
    if not len(rows.labels):
        name = str(used.isna().sum().idxmax())
        raise InputError(f"No row is complete; column '{name}' has the most gaps: {drop_remedy(name)}.")
    rows, complete = rows._replace(features=tuple(name for name in rows.features if name != time)), len(rows.labels)
    if TASKS[kind] == "classification":
        _check_two(kind, rows, min_count)
    check_columns(rows)
    none, count = rows.take(np.arange(0)), -1
    texts = [column.name for column in summarize(rows, none, TASKS[kind]).columns if column.kind == "text"]
    while count != len(rows.labels):
        count = len(rows.labels)
        if 0 < before - count < least:
            rows = rows.take(np.arange(least - (before - count), count))
        for words in (pd.Series(to_words(rows.inputs[name])) for name in texts):
            rows = rows.take(np.flatnonzero(words.map(words.value_counts()) >= min_count))
    check_rare_numbers(rows, min_count)
    of_values = rows.labels.value_counts()  # exact: a summary counts 1 to 4 rows as 5
    if kind in ("logistic", "cox") and (len(of_values) < 2 or of_values.iloc[-1] < min_count):
        fewest = f"{of_values.iloc[-1]} with {target} = {of_values.index[-1]!s:.40}"
        raise _too_few(fewest if len(of_values) > 1 else f"one value of '{target}' only", count, target, min_count)
    summary = summarize(rows, none, TASKS[kind], min_count)._replace(name=site)
    positive = {"poisson": target, "cox": time}.get(kind)
    numbers = None if positive is None else to_numbers(positive, rows.inputs[positive])
    if numbers is not None and ((numbers < 0).any() or (kind == "poisson" and (numbers % 1).any())):
        raise InputError(f"Column '{positive}' must hold {'times' if time else 'counts, whole numbers'} from 0 on.")
    if kind == "poisson" and numbers is not None and numbers.sum() < min_count:
        raise _too_few(f"{numbers.sum():g} events", count, target, min_count)
    return Table(summary, rows, numbers, before - complete, complete - count, sentinel_warnings(rows))


def _reasons(table: Table, min_count: int) -> str:
    """Why rows of a site are left out."""
    if not table.rare:
        return f"{table.incomplete:,} lack a value"
    hidden = " or hide how many have" if table.incomplete + table.rare == min_count else ""
    return f"{table.incomplete:,} lack a value, {table.rare:,} have a category of fewer than {min_count}{hidden}"


def _check_two(kind: str, rows: Rows, min_count: int) -> None:
    """Refuse a target with more values than two, which the site can mend."""
    labels, is_ordered = rows.labels, rows.recode is not None and rows.recode.order
    counts, is_number = pd.Series(to_words(labels)).value_counts(), kind_of(str(labels.name), labels) == "number"
    if len(counts) > 2 and counts.iloc[1] >= min_count > counts.iloc[2]:
        word = counts.index[-1] if is_number else json.dumps(counts.index[-1])
        raise InputError(
            f"Column '{labels.name}' has the third value {word:.40} in fewer than {min_count} rows: correct it, or write "
            f'missing."{labels.name}" = [{word}] into a file of --recode.',
            f"a third value of the target in fewer than {min_count} rows",
        )
    if len(counts) > 2:
        remedy = f"{'fit linear, or ' if is_number else ''}map them to two with --labels."
        remedy = "are --target and --time exchanged?" if kind == "cox" else remedy
        raise InputError(
            f"Column '{labels.name}' must have two values, event or not, and has {len(counts):,}: {remedy}",
            "a target with more than two values",
        )
    if (
        not is_number
        and not is_ordered
        and kind in ("logistic", "cox")
        and (remedy := agreement.unclear_event(sorted(counts.index)))
    ):
        raise InputError(
            f"Which value of column '{labels.name}' is the event? {remedy}.",
            "a target whose labels do not say which is the event",
        )


def _too_few(what: str, rows: int, target: str, min_count: int) -> InputError:
    return InputError(
        f"The {rows:,} complete rows have {what}: a site needs {min_count} of each value of '{target}', or takes "
        "no part (leave its table out of the folder).",
        "too few rows of a value of the target",
    )


def _fit(kind: str, tables: Sequence[Table], time: str | None, network: Network, recode: Recode | None, min_count: int) -> Fit:
    settings = [kind, time, min_count]
    own = [settings, [table.summary for table in tables]]
    sent = network.processes.allgather_json(own, lambda text: (text[0], list(map(Summary.from_json, text[1]))))
    if any(theirs != settings for theirs, _ in sent):
        raise InputError("The sites fit different regressions: give the same command at all sites.")
    summaries = agreement.aligned([summary for _, some in sent for summary in some])
    check_sites(recode, summaries, network.nodes)
    if TASKS[kind] == "classification":
        agreement.check_classes(summaries)
    total, counts = reduce(Summary.merged, summaries), np.array([summary.rows for summary in summaries])
    texts = {column.name: sorted(column.counts) for column in total.columns if len(column.counts) > 1}
    coded = [
        c._replace(counts={word: c.counts[word] for word in texts.get(c.name, ["", *c.counts])[1:]}) for c in total.columns
    ]
    design = Design(kind, make_encoding(total._replace(columns=tuple(coded)), TASKS[kind]))
    d = len(design.names)
    for summary in summaries:
        if summary.rows < min_count * d:
            raise InputError(
                f"{summary.name} has {summary.rows:,} complete rows for {d} coefficients: it needs {min_count} for each, or "
                "its sums would tell of single rows. Use fewer columns, or merge categories."
            )
    with needed_by("A regression"):
        models = [design.log_likelihood(table) for table in tables]

    def sums(included: np.ndarray, points: np.ndarray) -> np.ndarray:
        parts = np.zeros((len(points), len(models), 1 + d * (1 + d)))
        for place, (node, model) in enumerate(zip(network.local_nodes, models, strict=True)):
            for k in np.flatnonzero(included[:, node]):
                parts[k, place] = model(points[k])
        return network.mean(parts) * network.nodes

    event, events = "", ""
    if classes := design.encoding.classes:  # the counts of summaries are rounded
        of_tables = [[float(design.encoding.labels(table.rows.labels).sum())] for table in tables]
        event, events = f" = {classes[1]}", f" with {network.mean(np.array(of_tables))[0] * network.nodes:,.0f} events"
    start = np.zeros((1, d))
    if kind == "poisson":
        start[:, 0] = np.log(total.target.moments.mean)
    everyone = np.ones((1, len(counts)), bool)
    (found,) = maximize(partial(sums, everyone), start)
    lost = [name for name, is_lost in zip(design.names, design.unknown(found), strict=True) if is_lost and name != INTERCEPT]
    dry = network.processes.names and not network.processes.own_folders  # other sites may have what is missing here
    if lost and not dry:
        raise InputError(
            f"There is no estimate for {', '.join(lost)}: a column is constant or follows from others, all rows of a "
            "category, or beyond some value, have the same target, or a value is far from all others. Correct values, merge "
            "categories, or give --drop-columns."
        )
    table, by_site = design.estimate(found, int(counts.sum())), pd.DataFrame()
    if len(counts) > 1:
        others = ~np.eye(len(counts), dtype=bool)
        without = maximize(partial(sums, others), np.repeat(found.place[None], len(counts), 0))
        alone = np.zeros((len(counts), len(models), 4 * d))  # estimates, and whether there are any
        for place, (node, model) in enumerate(zip(network.local_nodes, models, strict=True)):
            (own_fit,) = maximize(lambda points, model=model: model(points[0])[None], start)  # type: ignore[misc]
            estimates = design.estimate(own_fit, int(counts[node]))[ESTIMATE].to_numpy().ravel()
            alone[node, place] = np.concatenate([np.nan_to_num(estimates), np.isfinite(estimates)])
        frames = []
        for summary, own, point in zip(summaries, network.mean(alone) * network.nodes, without, strict=True):
            rest = design.estimate(point, int(counts.sum()) - summary.rows)[ESTIMATE].add_suffix("_without")
            estimates = np.where(own[2 * d :].round() == 1, own[: 2 * d], np.nan).reshape(d, 2)
            frame = pd.DataFrame(estimates, columns=ESTIMATE).join(rest)
            frames.append(frame.assign(site=summary.name, rows=summary.rows, input=design.names))
        by_site = pd.concat(frames, ignore_index=True)[BY_SITE]
        table = table.join(_over_sites(by_site), on="input")
    title = f"{kind.capitalize()} regression of {total.target.name}{event}, {total.rows:,} rows{events} at {len(counts)} sites"
    notes = [f"Reference of {name}: {words[0]}." for name, words in texts.items()]
    notes += [
        f"{each.summary.name} leaves out {left:,} of {left + each.summary.rows:,} rows: {_reasons(each, min_count)}."
        for each in tables
        if (left := each.incomplete + each.rare)
    ]
    notes += ["Standard errors are too small where counts vary more than their mean."] * (kind == "poisson")
    if classes:
        few = ", ".join(f"{each.name} {each.target.rows_of_classes.get(classes[1], 0):,}" for each in summaries)
        notes += [f"Events at each site, rounded to {min_count}, the largest class so that the sum is right: {few}."] * (
            len(counts) > 1
        )
        rarer = {each.name: min(each.target.rows_of_classes.values()) for each in summaries if len(summaries) > 1}
        if scarce := ", ".join(name for name, rows in rarer.items() if rows < EVENTS * len(design.encoding.inputs)):
            notes.append(f"Fewer than {EVENTS} events for each input at {scarce}: their own estimates tend to be too extreme.")
        notes += [f"Log likelihood {found.value:.2f}, AIC {2 * (d - found.value):.2f}."] * (not lost)
    estimated = by_site.groupby("input").coefficient.transform("count") > 0 if len(by_site) else ()  # not that of a site's name
    lacking = by_site[by_site.coefficient.isna() & estimated].groupby("site", sort=False) if len(by_site) else ()
    if lacks := "; ".join(f"{site} ({', '.join(rows.input)})" for site, rows in lacking):
        notes.append(f"Left out of random effects and I2, since a site's own rows give no estimate: {lacks}.")
    warned = [sentence for each in tables for sentence in each.warnings] + agreement.warnings(
        summaries, recode.named if recode else ()
    )
    warned += unused_warnings(each.rows.used for each in tables)
    return Fit(title, RATIOS[kind], table, by_site, (*notes, *(f"Warning: {sentence}" for sentence in warned)))


class Point(NamedTuple):
    """Where Newton's method is, and what it found there."""

    place: np.ndarray
    value: float = -np.inf
    step: Any = 0.0  # the next one
    inverse: Any = None  # of the second derivatives
    flat: Any = None  # directions in which the value does not change


def maximize(sums: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> list[Point]:
    """Newton's method for several functions at once; `sums` has their values, gradients and negative second derivatives."""
    points, d = [Point(place) for place in start], start.shape[1]
    for _ in range(MOST):
        for k, (value, *rest) in enumerate(sums(np.array([point.place + point.step for point in points]))):
            point = points[k]
            if not (value >= point.value - 1e-12 * abs(value) and np.isfinite(rest).all()):
                points[k] = point._replace(step=point.step / 2)
                continue
            gradient, curvature = np.array(rest[:d]), np.array(rest[d:]).reshape(d, d)
            size = np.sqrt(np.where(np.diag(curvature) > 0, np.diag(curvature), 1))
            eigenvalues, vectors = np.linalg.eigh(curvature / np.outer(size, size))
            curved, directions = eigenvalues > SINGULAR, vectors / size[:, None]
            inverse = (directions[:, curved] / eigenvalues[curved]) @ directions[:, curved].T
            points[k] = Point(point.place + point.step, value, inverse @ gradient, inverse, directions[:, ~curved])
        if max(np.abs(point.step).max() for point in points) < CONVERGED:
            break
    none, flat = np.full((d, d), np.nan), np.eye(d)  # of a likelihood that is nowhere finite
    return [p if p.inverse is not None else Point(p.place, step=np.zeros(d), inverse=none, flat=flat) for p in points]


class Design:
    """The likelihood of a regression on standardized inputs, and the way back to the units of the columns."""

    def __init__(self, kind: str, encoding: Encoding):
        if encoding.classes and len(encoding.classes) != 2:
            raise InputError(
                f"Column '{encoding.target}' has {len(encoding.classes)} classes over all sites; {kind} regressions take two: "
                "map them with --labels or --recode."
            )
        self.kind, self.encoding, self.names = kind, encoding, list(encoding.inputs)
        is_linear, mean, scale = kind == "linear", np.asarray(encoding.mean), np.asarray(encoding.scale)
        of_target = (encoding.target_mean, encoding.target_scale) if is_linear else (0, 1)
        self.center, self.unit = (float(np.ravel(np.asarray(value))[0]) for value in of_target)
        self.back = np.diag(1 / scale)  # from the coefficients of standardized inputs
        if kind != "cox":
            self.names, scale = [INTERCEPT, *self.names], np.append(1, scale)
            self.back = np.column_stack([np.eye(len(self.names))[0], np.vstack([-mean @ self.back, self.back])])
        self.back, self.scale = self.back * self.unit, scale / self.unit

    def log_likelihood(self, table: Table) -> Callable[[np.ndarray], np.ndarray]:
        """A function of the coefficients: the value at a site's rows, the gradient and the negative second derivatives."""
        from statsmodels.duration.hazard_regression import PHReg
        from statsmodels.genmod import families
        from statsmodels.genmod.generalized_linear_model import GLM

        inputs, labels = self.encoding.transform(table.rows.inputs).astype(np.float64), table.rows.labels
        target = self.encoding.labels(labels) if self.encoding.classes else to_numbers(self.encoding.target, labels)
        if self.kind == "cox":
            model, options = PHReg(table.time, inputs, status=target, ties="efron"), {}
        else:
            kinds = {"logistic": families.Binomial, "linear": families.Gaussian, "poisson": families.Poisson}
            inputs = np.column_stack([np.ones(len(inputs)), inputs])
            model, options = GLM((target - self.center) / self.unit, inputs, family=kinds[self.kind]()), {"scale": 1.0}

        def derivatives(point: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):  # a step that is too long is halved
                value, gradient, curvature = (f(point, **options) for f in (model.loglike, model.score, model.hessian))
            return np.concatenate([[value], gradient, -np.ravel(curvature)])

        return derivatives

    def unknown(self, point: Point) -> np.ndarray:
        """Which coefficients have no unique or no finite estimate."""
        change = np.abs(self.back @ np.column_stack([point.flat, point.step])) * self.scale[:, None]
        return (change > 1e-6 * np.maximum(change.max(0), 1)).any(1)

    def estimate(self, point: Point, rows: int) -> pd.DataFrame:
        """Coefficients in the units of the columns, NaN where there is none, with their errors and intervals."""
        coefficients, covariance, freedom = self.back @ point.place, self.back @ point.inverse @ self.back.T, np.inf
        coefficients[0] += self.center
        if self.kind == "linear":
            freedom = max(rows - len(self.names) + point.flat.shape[1], 0)
            covariance *= max(-2 * point.value - rows * np.log(2 * np.pi), 0) / (freedom or np.nan)
        coefficients[self.unknown(point)] = np.nan
        errors = np.sqrt(np.diag(covariance)) + 0 * coefficients
        table = pd.DataFrame({"input": self.names, "coefficient": coefficients, "standard_error": errors})
        with np.errstate(all="ignore"):  # a perfect fit has no errors, nor has a dry run
            table["p"] = 2 * stats.t.sf(np.abs(coefficients / errors), freedom)
        for end, width in {"": 0, "_low": -stats.t.ppf(0.975, freedom), "_high": stats.t.ppf(0.975, freedom)}.items():
            table[f"coefficient{end}"] = coefficients + width * errors
            if RATIOS[self.kind]:
                table[f"{RATIOS[self.kind]}{end}".replace(" ", "_")] = np.exp(coefficients + width * errors)
        return table


def _over_sites(by_site: pd.DataFrame) -> pd.DataFrame:
    """For each coefficient, the range of the fits without one site, and the mean of the sites' own by DerSimonian and Laird."""
    numbered = by_site.assign(site=by_site.groupby("input").cumcount())
    b, error, without = (numbered.pivot(index="site", columns="input", values=name) for name in BY_SITE[3:6])
    w = 1 / error**2
    freedom, q = b.count() - 1, (w * (b - (w * b).sum() / w.sum()) ** 2).sum()
    between = ((q - freedom) / (w.sum() - (w**2).sum() / w.sum())).clip(lower=0)  # the variance; NaN for one site
    weights = 1 / (error**2 + between)
    columns = {
        "random_effects": (weights * b).sum() / weights.sum(),
        "random_effects_standard_error": weights.sum(min_count=1) ** -0.5,
    }
    columns["i2_percent"] = 100 * (1 - freedom / q).clip(lower=0).where(freedom > 0)
    columns["q_p"] = pd.Series(stats.chi2.sf(q, freedom), q.index)
    return pd.DataFrame(columns | {"without_one_site_low": without.min(), "without_one_site_high": without.max()})
