"""Whether the tables of several sites fit together, from the summaries that nodes exchange: rows stay where they are.

All sites come to the same result. Messages name sites and columns, and never quote a text of a table.
"""

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from itertools import combinations
from statistics import median_low
from typing import Any

from dnasa.core import InputError
from dnasa.data.columns import MISSING, drop_remedy
from dnasa.data.encoding import are_positions
from dnasa.data.summaries import Column, Moments, Summary

LABELS = "with --labels no=0,yes=1, which maps labels and names the classes, or site by site with --recode"
EVENTS = {*"yes y true t ja j oui positive pos event case dead died deceased present malignant ill sick".split()}
OTHERS = {*"no n false f nein non negative neg none control alive survived absent benign healthy".split()}
FAR = 2.5  # standard deviations
SURPRISING = 10  # rows: a constant column of which so many should differ
CLOSE = 0.2  # shares of a class
FOREIGN = 0.9  # the share of rows whose categories no other site has
OUTLYING = 100  # times the deviation of the others
SCALE = 10  # a factor up to which sites do not differ


def unclear_event(classes: Sequence[Any]) -> str:
    """How to name the event, which is the second of two classes, where their words do not say that it is; else empty."""
    if len(classes) != 2 or not all(isinstance(name, str) for name in classes):
        return ""
    first, second = (name.lower() for name in classes)
    if (second in EVENTS or first in OTHERS) and first not in EVENTS and second not in OTHERS:
        return ""
    one, other = (shlex.quote(",".join(pair)) for pair in (classes, classes[::-1]))
    return f"--labels {one} makes {classes[1]:.40} the event, --labels {other} makes {classes[0]:.40}"


def aligned(summaries: Sequence[Summary]) -> list[Summary]:
    """Put the columns of all sites in the order of the first; an error names the site that does not fit."""
    first = summaries[0]
    for summary in summaries:
        _check_same_target(first, summary)
    for name in first.absent:
        if all(name in summary.absent for summary in summaries):
            raise InputError(f"No site has a column '{name}': correct --drop-columns or --id-column.")
    _check_names(summaries)
    order = [column.name for column in first.columns]
    tables = [{column.name: column for column in summary.columns} for summary in summaries]
    kinds_of = {name: ["" if table[name].is_empty else table[name].kind for table in tables] for name in order}
    mixed = [name for name, kinds in kinds_of.items() if len({*kinds} - {""}) > 1]
    if mixed:
        name, *others = mixed
        also = f" Nor do sites agree on the kind of {', '.join(map(repr, others))}." if others else ""
        remedy = f'map it with categories."{name}" in a file of --recode, or {drop_remedy(name)}'
        _check_kinds(name, summaries, kinds_of[name], remedy, also)
    kinds = [summary.target.kind for summary in summaries]
    _check_kinds(first.target.name, summaries, kinds, f"write it the same at all sites, {LABELS}")
    pairs = zip(summaries, tables, strict=True)
    return [summary._replace(columns=tuple(table[name] for name in order)) for summary, table in pairs]


def _check_same_target(first: Summary, other: Summary) -> None:
    are_tables = first.columns and other.columns
    if first.target.name != other.target.name or (not are_tables and first.shape != other.shape):
        raise InputError(
            f"The rows of {first.name} and {other.name} differ in their shape, {first.shape} and {other.shape}, or their "
            f"target, '{first.target.name}' and '{other.target.name}': give all sites the same, and --target by name."
        )


def _check_names(summaries: Sequence[Summary]) -> None:
    """Every site must have the columns that most sites have."""
    names = [frozenset(column.name for column in summary.columns) for summary in summaries]
    ((usual, _),) = Counter(names).most_common(1)
    for summary, columns in zip(summaries, names, strict=True):
        if columns != usual:
            raise InputError(
                f"{summary.name} does not have the columns of the other sites; missing: {_quoted(usual - columns)}, further: "
                f"{_quoted(columns - usual)}. Rename them, or leave them out with --drop-columns at all sites."
            )


def _quoted(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:3])) or "none"


def _check_kinds(name: str, summaries: Sequence[Summary], kinds: Sequence[str], remedy: str, also: str = "") -> None:
    different = [kind for kind in dict.fromkeys(kinds) if kind]  # a column without values fits any
    if len(different) > 1:
        odd, usual = sorted(different, key=kinds.count)
        site, other = (summaries[kinds.index(kind)].name for kind in (odd, usual))
        raise InputError(f"Column '{name}' of {site} holds {odd}s; at {other} it holds {usual}s: {remedy}.{also}")


def check_classes(summaries: Sequence[Summary]) -> None:
    """Refuse a site that seems to code the classes differently. Arrays, whose columns have no names, may have any."""
    if len(summaries) < 2 or are_positions([column.name for column in summaries[0].columns]):
        return
    all_classes = [summary.target.rows_of_classes for summary in summaries]
    if len({tuple(classes) for classes in all_classes}) > 1 == len({frozenset(classes) for classes in all_classes}):
        raise InputError("Sites order the classes differently, and the last is the event: give the same --labels at all sites.")
    usual, _ = max(Counter(map(frozenset, all_classes)).items(), key=lambda item: (item[1], len(item[0])))
    misspelled = _misspelled([[str(name) for name in classes] for classes in all_classes])
    for place, classes in enumerate(all_classes):
        if len(classes) == 1:
            problem = "has one class only"
        elif place in misspelled:
            problem = "has classes that other sites write with other capitals or spaces"
        elif classes.keys() - usual:
            problem = "does not have the classes of the other sites"
        else:
            continue
        raise InputError(
            f"{summaries[place].name} {problem} in column '{summaries[0].target.name}': write them the same at all sites, "
            f"{LABELS}."
        )


def warnings(summaries: Sequence[Summary], named: Collection[str] = ()) -> list[str]:
    """A sentence for each column that looks as if a site wrote it differently: in other units, or in other words.

    Classes that this process's own labels have `named` may be quoted.
    """
    sites, sentences = [summary.name for summary in summaries], []
    for columns in zip(*(summary.columns for summary in summaries), strict=True):
        name = columns[0].name
        if _names_sites(columns):
            continue
        sentences += _unit_warnings(name, sites, [column.moments for column in columns])
        sentences += _constant_warnings(name, sites, columns)
        misspelled = _misspelled([column.counts.keys() - {MISSING} for column in columns])
        sentences += [
            f"Column '{name}' of {sites[place]} has categories that no other site has: other words for the same?"
            for place in _foreign(columns)
            if place not in misspelled
        ]
        if misspelled:
            writers = ", ".join(sites[place] for place in misspelled)
            sentences.append(
                f"Column '{name}' of {writers} has categories that other sites write with other capitals or spaces."
            )
    targets = [summary.target for summary in summaries]
    if all(target.values is None for target in targets):
        sentences += _unit_warnings(targets[0].name, sites, [target.moments for target in targets])
    classes = [target.rows_of_classes for target in targets]
    sentences += [
        f"{site} has training rows of one class only."
        for site, rows in zip(sites, classes, strict=True)
        if sum(map(bool, rows.values())) == 1
    ]
    sentences += _flip_warnings(targets[0].name, sites, classes)
    return sentences + _label_warnings(targets[0].name, sites, classes, named)


def _names_sites(columns: Sequence[Column]) -> bool:
    """Whether each site has one text of its own, as for an intercept of each site."""
    texts = [{*column.counts} for column in columns]
    return all(len(words) == 1 for words in texts) and len(set().union(*texts)) == len(columns) > 1


def _foreign(columns: Sequence[Column]) -> list[int]:
    """The sites where nearly all rows have categories that the others do not have."""
    texts = [Counter({word: n for word, n in column.counts.items() if word != MISSING}) for column in columns]
    places = []
    for place, here in enumerate(texts):
        elsewhere = {word for other, words in enumerate(texts) if other != place for word in words}
        unknown = sum(n for word, n in here.items() if word not in elsewhere)
        if here and elsewhere and unknown > FOREIGN * here.total():
            places.append(place)
    return places


def _misspelled(words: Sequence[Collection[str]]) -> list[int]:
    """The sites with a word that the others write with other capitals or spaces only."""

    def folded(some: Collection[str]) -> set[str]:
        return {" ".join(word.casefold().split()) for word in some}

    places = []
    for place, here in enumerate(words):
        elsewhere = {word for other, some in enumerate(words) if other != place for word in some}
        if folded(set(here) - elsewhere) & folded(elsewhere - set(here)):
            places.append(place)
    return places


def _constant_warnings(name: str, sites: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Columns that are empty at a site, or have one value there where the other sites' rows make that very unlikely."""
    sentences = []
    for place, column in enumerate(columns if len(columns) > 1 else ()):
        if column.moments.constant if column.kind == "number" else len(column.counts.keys() - {MISSING}) == 1:
            others = reduce(Column.merged, [*columns[:place], *columns[place + 1 :]])
            if column.is_empty and not others.is_empty:
                sentences.append(f"Column '{name}' of {sites[place]} is empty; at other sites it is not.")
            elif not column.is_empty and (_is_set(column.moments, others.moments) or _expected(column, others) > SURPRISING):
                sentences.append(f"Column '{name}' of {sites[place]} has one value only; at other sites it varies.")
    return sentences


def _is_set(here: Moments, others: Moments) -> bool:
    """Whether all rows have one number where it varies elsewhere; not 0, which many rows may have, nor of a flag."""
    return here.mean != 0 and others.deviation > 0 and not _is_flag(others)


def _is_flag(m: Moments) -> bool:
    return abs(m.squares / m.n - m.mean * (1 - m.mean)) < 1e-9


def _expected(column: Column, others: Column) -> float:
    """How many rows of a constant column should differ from its value, at least, if they were like those of other sites.

    Of numbers X, P(X != c) is at least E[X - c]^2 / E[(X - c)^2], by the inequality of Cauchy and Schwarz.
    """
    if column.kind == "number":
        gap = (others.moments.mean - column.moments.mean) ** 2
        second = gap + others.moments.deviation**2
        return column.moments.n * gap / second if second else 0.0
    (word,), counts = column.counts.keys() - {MISSING}, Counter({**others.counts, MISSING: 0})
    return column.counts[word] * (1 - counts[word] / (counts.total() or 1))


def _flip_warnings(name: str, sites: Sequence[str], classes: Sequence[Mapping[Any, int]]) -> list[str]:
    """Sites whose share of one of two classes is about that of the other class elsewhere; codes alone do not tell."""
    names = list(dict.fromkeys(word for rows in classes for word in rows))
    if len(names) != 2 or len(sites) < 4:
        return []
    shares = [rows.get(names[0], 0) / (sum(rows.values()) or 1) for rows in classes]
    return [
        f"The classes in column '{name}' of {site} are about as frequent as the opposite ones elsewhere: flipped?"
        for place, site in enumerate(sites)
        if all(
            abs(share + shares[place] - 1) < CLOSE and abs(share - shares[place]) > 0.5
            for share in [*shares[:place], *shares[place + 1 :]]
        )
    ]


def _label_warnings(name: str, sites: Sequence[str], classes: Sequence[Mapping[Any, int]], named: Collection[str]) -> list[str]:
    """Classes that a typo in the labels may have made: no site has them, or none both of two with similar names."""
    texts = [{str(word): count for word, count in rows.items()} for rows in classes if len(sites) > 1]
    words = sorted({word for rows in texts for word in rows}.intersection(named))
    having = {word: [site for site, rows in zip(sites, texts, strict=True) if rows.get(word)] for word in words}
    sentences = [f"No site has training rows of class '{word}' in column '{name}'" for word, some in having.items() if not some]
    for one, other in combinations(having, 2):
        if having[one] and having[other] and not {*having[one]} & {*having[other]} and get_close_matches(one, [other]):
            where = [f"class '{word}' at {', '.join(having[word])}" for word in (one, other)]
            sentences.append(f"Column '{name}' has {where[0]} and {where[1]}, and both at no site")
    return [f"{sentence}: is one misspelled in --labels or --recode?" for sentence in sentences]


def _unit_warnings(name: str, sites: Sequence[str], moments: Sequence[Moments]) -> list[str]:
    """Means far from the median of all sites' means, in deviations from it that half of the sites do not exceed.

    Both take the differences between sites into account, and a minority cannot move them. Zeros and ones have no units, and
    a column that is constant at most sites has no deviation.
    """
    pairs = [(site, m) for site, m in zip(sites, moments, strict=True) if m.n]
    if len(pairs) < 2 or all(_is_flag(m) for _, m in pairs):
        return []
    center = median_low([m.mean for _, m in pairs])
    spread = median_low([(m.deviation**2 + (m.mean - center) ** 2) ** 0.5 for _, m in pairs])
    return [
        f"Column '{name}' of {site} has mean {m.mean:.4g} and standard deviation {m.deviation:.4g}, at the other sites about "
        f"{center:.4g} and {spread:.4g}: other units, or wrong values?"
        for site, m in pairs
        if spread and _is_far(m, center, spread)
    ]


def _is_far(m: Moments, center: float, spread: float) -> bool:
    """Whether a mean is further away than a few extreme rows explain; other units scale mean and deviation by one factor."""
    if m.deviation > OUTLYING * spread:  # by a few extreme rows
        return True
    difference = abs(m.mean - center)
    error = FAR * max(m.deviation, spread) / m.n**0.5
    if difference - error > FAR * spread:
        return True
    if difference <= error or not (m.mean and center and m.deviation):
        return False
    low, high = sorted((abs(m.mean / center), m.deviation / spread))
    return (low >= SCALE or high <= 1 / SCALE) and high < 2 * low
