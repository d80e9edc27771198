"""Whether the tables of several sites fit together, from the summaries that nodes exchange: rows stay where they are.

All sites come to the same result. Messages name sites and columns, and never quote a text of a table.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from statistics import median_low

from dnasa.core import InputError
from dnasa.data.columns import MISSING, leave_out
from dnasa.data.encoding import are_positions
from dnasa.data.summaries import MIN_COUNT, Moments, Summary

FAR = 3  # standard deviations
SCALE = 10  # a factor up to which sites do not differ


def aligned(summaries: Sequence[Summary]) -> list[Summary]:
    """Put the columns of all sites in the order of the first; an error names the site that does not fit."""
    first = summaries[0]
    for summary in summaries:
        target, other = first.target.name, summary.target.name
        if target != other or (not (first.columns and summary.columns) and first.shape != summary.shape):
            raise InputError(
                f"The rows of {first.site} and {summary.site} differ in their shape, {first.shape} and {summary.shape}, or "
                f"their target, '{target}' and '{other}': give all sites the same, and --target by name."
            )
    for word in first.absent:
        if all(word in summary.absent for summary in summaries):
            raise InputError(f"No site has a column '{word}': correct --drop-columns or --id-column.")
    _check_names(summaries)
    order = [column.name for column in first.columns]
    tables = [{column.name: column for column in summary.columns} for summary in summaries]
    for name in order:
        kinds = ["" if table[name].is_empty else table[name].kind for table in tables]
        _check_kinds(name, summaries, kinds, f"correct it, or {leave_out(name)}")
    kinds = [summary.target.kind for summary in summaries]
    _check_kinds(first.target.name, summaries, kinds, "write it the same at all sites")
    pairs = zip(summaries, tables, strict=True)
    return [summary._replace(columns=tuple(table[name] for name in order)) for summary, table in pairs]


def _check_names(summaries: Sequence[Summary]) -> None:
    """Every site must have the columns that most sites have."""
    names = [frozenset(column.name for column in summary.columns) for summary in summaries]
    ((usual, _),) = Counter(names).most_common(1)
    for summary, has in zip(summaries, names, strict=True):
        if has != usual:
            missing, more = (", ".join(map(repr, sorted(some)[:3])) or "none" for some in (usual - has, has - usual))
            raise InputError(
                f"{summary.site} does not have the columns of the other sites; missing: {missing}, further: {more}. Rename "
                "them, or leave them out with --drop-columns at all sites."
            )


def _check_kinds(name: str, summaries: Sequence[Summary], kinds: Sequence[str], remedy: str) -> None:
    different = [kind for kind in dict.fromkeys(kinds) if kind]  # a column without values fits any
    if len(different) > 1:
        odd, usual = sorted(different, key=kinds.count)
        site, other = (summaries[kinds.index(kind)].site for kind in (odd, usual))
        raise InputError(f"Column '{name}' of {site} holds {odd}s; at {other} it holds {usual}s: {remedy}.")


def check_classes(summaries: Sequence[Summary]) -> None:
    """Refuse a site that seems to code the classes differently. Arrays, whose columns have no names, may have any."""
    if len(summaries) < 2 or are_positions([column.name for column in summaries[0].columns]):
        return
    targets = [summary.target for summary in summaries]
    classes = [dict(zip(target.values or (), target.counts, strict=True)) for target in targets]
    users = Counter(word for own in classes for word in own)
    usual, holders = max(Counter(map(frozenset, classes)).items(), key=lambda item: (item[1], len(item[0])))
    misspelled = _misspelled([[str(word) for word in own] for own in classes])
    for place, own in enumerate(classes):
        if len(own) == 1:
            problem = "has one class only"
        elif any(users[word] == 1 and count < MIN_COUNT for word, count in own.items()):
            problem = f"has a class in fewer than {MIN_COUNT} rows that no other site has"
        elif 2 * holders >= len(classes) and own.keys() - usual and (len(usual) == 2 or usual - own.keys()):
            problem = "does not have the classes of the other sites"
        elif place in misspelled:
            problem = "has classes that other sites write with other capitals or spaces"
        else:
            continue
        raise InputError(
            f"{summaries[place].site} {problem} in column '{targets[0].name}': write the classes the same at all sites; a "
            "site without rows of a class needs a test file that has some."
        )


def warnings(summaries: Sequence[Summary]) -> list[str]:
    """A sentence for each column that looks as if a site wrote it differently: in other units, or in other words."""
    sites, lines = [summary.site for summary in summaries], []
    for columns in zip(*(summary.columns for summary in summaries), strict=True):
        name, words = columns[0].name, [column.counts.keys() - {MISSING} for column in columns]
        lines += _units(name, sites, [column.moments for column in columns])
        if users := [sites[place] for place in _misspelled(words)]:
            lines.append(
                f"Column '{name}' of {', '.join(users)} has categories that other sites write with other capitals or spaces."
            )
    if all(summary.target.values is None for summary in summaries):
        lines += _units(summaries[0].target.name, sites, [summary.target.moments for summary in summaries])
    return lines


def _misspelled(words: Sequence[Collection[str]]) -> list[int]:
    """The sites with a word that the others write with other capitals or spaces only."""

    def folded(some: Collection[str]) -> set[str]:
        return {" ".join(word.casefold().split()) for word in some}

    sites = []
    for place, own in enumerate(words):
        others = {word for site, some in enumerate(words) if site != place for word in some}
        if folded(set(own) - others) & folded(others - set(own)):
            sites.append(place)
    return sites


def _units(name: str, sites: Sequence[str], moments: Sequence[Moments]) -> list[str]:
    """Means far from the median of all sites' means, in deviations from it that half of the sites do not exceed.

    Both take the differences between sites into account, and a minority cannot move them. Zeros and ones have no units, and
    a column that is constant at most sites has no deviation.
    """
    known = [(site, m, m.deviation) for site, m in zip(sites, moments, strict=True) if m.n]
    if len(known) < 2 or all(abs(m.squares / m.n - m.mean * (1 - m.mean)) < 1e-9 for _, m, _ in known):
        return []
    center = median_low([m.mean for _, m, _ in known])
    spread = median_low([(deviation**2 + (m.mean - center) ** 2) ** 0.5 for _, m, deviation in known])
    return [
        f"Column '{name}' of {site} has mean {m.mean:.4g} and standard deviation {deviation:.4g}, at the other sites about "
        f"{center:.4g} and {spread:.4g}: is it in other units?"
        for site, m, deviation in known
        if spread and _is_far(m, deviation, center, spread)
    ]


def _is_far(m: Moments, deviation: float, center: float, spread: float) -> bool:
    """Whether a mean is further away than a few extreme rows explain; other units scale mean and deviation by one factor."""
    error, difference = FAR * max(deviation, spread) / m.n**0.5, abs(m.mean - center)
    if difference - error > FAR * spread:
        return True
    if difference <= error or not (m.mean and center and deviation):
        return False
    low, high = sorted((abs(m.mean / center), deviation / spread))
    return (low >= SCALE or high <= 1 / SCALE) and high < 2 * low
