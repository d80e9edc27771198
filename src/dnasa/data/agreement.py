"""Whether the tables of several sites fit together, from the summaries that nodes exchange: rows stay where they are.

All sites find the same. What they say names sites and columns, and never quotes a text of a table.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dnasa.core import InputError
from dnasa.data.columns import MISSING, leave_out
from dnasa.data.encoding import are_positions
from dnasa.data.summaries import MIN_COUNT, Moments, Summary, Target

FAR = 3  # standard deviations
SCALE = 10  # a factor up to which sites do not differ
ENOUGH = 10  # this many rows without a category of the other sites are not a coincidence
MOST = 10  # warnings


def aligned(summaries: Sequence[Summary]) -> list[Summary]:
    """Put the columns of all sites in the order of the first; an error names the site that does not fit."""
    first = summaries[0]
    for summary in summaries:
        if not (first.columns and summary.columns) and first.shape != summary.shape:
            raise InputError(
                f"The rows of {first.site} have shape {first.shape} and those of {summary.site} {summary.shape}: give all "
                "sites the same."
            )
        names, others = ([target.name for target in one.targets] for one in (first, summary))
        if names != others:
            raise InputError(
                f"The target of {first.site} is '{','.join(names)}' and that of {summary.site} '{','.join(others)}': give "
                "--target by name."
            )
    for word in first.absent:
        if all(word in summary.absent for summary in summaries):
            raise InputError(f"No site has a column '{word}': correct --drop-columns or --id-column.")
    _check_names(summaries)
    order = [column.name for column in first.columns]
    tables = [{column.name: column for column in summary.columns} for summary in summaries]
    for name in order:
        columns = [table[name] for table in tables]
        kinds = [column.kind if column.kind == "text" or column.moments.n else "" for column in columns]
        _check_kinds(name, summaries, kinds, f"correct it, or {leave_out(name)}")
    for targets in zip(*(summary.targets for summary in summaries), strict=True):
        _check_kinds(
            targets[0].name, summaries, [_kind(target) for target in targets], "write it the same at all sites"
        )
    pairs = zip(summaries, tables, strict=True)
    return [summary._replace(columns=tuple(table[name] for name in order)) for summary, table in pairs]


def _check_names(summaries: Sequence[Summary]) -> None:
    """A column is expected of all sites if most of them have it, or half of them and the first."""
    counts = Counter(column.name for summary in summaries for column in summary.columns)
    first = {column.name for column in summaries[0].columns}
    expected = [name for name, count in counts.items() if 2 * count + (name in first) > len(summaries)]
    for summary in summaries:
        own = [column.name for column in summary.columns]
        missing = next((name for name in expected if name not in own), None)
        more = next((name for name in own if counts[name] < len(summaries)), None)
        if missing is not None:
            instead = "" if more is None else f" (it has a column '{more}', which others do not have)"
            raise InputError(
                f"{summary.site} has no column '{missing}', which {_with(missing, summaries)} has{instead}: add or rename "
                f"it, or {leave_out(missing)} at all sites."
            )
        if more is not None and more not in expected:
            raise InputError(
                f"{summary.site} has a column '{more}', which the other sites do not have: remove it, or {leave_out(more)}."
            )


def _with(name: str, summaries: Sequence[Summary]) -> str:
    return next(summary.site for summary in summaries if any(column.name == name for column in summary.columns))


def _kind(target: Target) -> str:
    return "text" if any(isinstance(value, str) for value in target.values or ()) else "number"


def _check_kinds(name: str, summaries: Sequence[Summary], kinds: Sequence[str], remedy: str) -> None:
    contents = {"text": "text", "number": "numbers"}  # a column without values fits any
    found = [kind for kind in dict.fromkeys(kinds) if kind]
    if len(found) > 1:
        odd, usual = sorted(found, key=kinds.count)
        where = {kind: summaries[kinds.index(kind)].site for kind in found}
        raise InputError(
            f"Column '{name}' of {where[odd]} holds {contents[odd]}; at {where[usual]} it holds {contents[usual]}: {remedy}."
        )


def check_classes(summaries: Sequence[Summary]) -> None:
    """Refuse a site that seems to code the classes differently. Arrays, whose columns have no names, may have any."""
    if len(summaries) < 2 or are_positions([column.name for column in summaries[0].columns]):
        return
    sites, targets = [summary.site for summary in summaries], [summary.targets[0] for summary in summaries]
    classes = [dict(zip(target.values or (), target.counts, strict=True)) for target in targets]
    users = Counter(word for own in classes for word in own)
    usual, holders = max(Counter(map(frozenset, classes)).items(), key=lambda item: (item[1], len(item[0])))
    known = 2 * holders >= len(sites)
    for site, own in zip(sites, classes, strict=True):
        if len(own) == 1:
            problem = "has one class only"
        elif any(users[word] == 1 and count < MIN_COUNT for word, count in own.items()):
            problem = f"has a class in fewer than {MIN_COUNT} rows that no other site has"
        elif known and own.keys() - usual and (len(usual) == 2 or usual - own.keys()):
            problem = "does not have the classes of the other sites"
        else:
            continue
        raise InputError(
            f"{site} {problem} in column '{targets[0].name}': write the classes the same at all sites; a site without rows "
            "of a class needs a test file that has some."
        )
    for line in _spellings(targets[0].name, sites, [{str(word): 1 for word in own} for own in classes], "classes"):
        raise InputError(line)


# ---------------------------------------------------------------- warnings


def warnings(summaries: Sequence[Summary]) -> list[str]:
    """A sentence for each column that looks as if a site wrote it differently: in other units, or in other words."""
    sites, found = [summary.site for summary in summaries], []
    for columns in zip(*(summary.columns for summary in summaries), strict=True):
        name, words = columns[0].name, [_known(column.counts) for column in columns]
        found += _numbers(name, sites, [column.moments for column in columns])
        found += _spellings(name, sites, words, "categories") + _others(name, sites, words)
    for targets in zip(*(summary.targets for summary in summaries), strict=True):
        real = all(target.values is None for target in targets)
        found += _numbers(targets[0].name, sites, [target.moments for target in targets]) if real else []
    more = len(found) - MOST
    return found[:MOST] + ([f"{more} further columns differ between the sites."] if more > 0 else [])


def _known(counts: Mapping[str, int]) -> dict[str, int]:
    return {word: count for word, count in counts.items() if word != MISSING}


def _numbers(name: str, sites: Sequence[str], moments: Sequence[Moments]) -> list[str]:
    """Means far from the median of all sites' means, in deviations from it that half of the sites do not exceed.

    Both take the differences between sites into account, and a minority cannot move them. Zeros and ones have no units, and
    a column that is constant at most sites has no deviation.
    """
    known = [(site, m, m.deviation) for site, m in zip(sites, moments, strict=True) if m.n]
    if len(known) < 2 or all(abs(m.squares / m.n - m.mean * (1 - m.mean)) < 1e-9 for _, m, _ in known):
        return []
    centre = _median(m.mean for _, m, _ in known)
    spread = _median((deviation**2 + (m.mean - centre) ** 2) ** 0.5 for _, m, deviation in known)
    return [
        f"Column '{name}' of {site} has mean {m.mean:.4g} and standard deviation {deviation:.4g}, at the other sites about "
        f"{centre:.4g} and {spread:.4g}: is it in other units?"
        for site, m, deviation in known
        if spread and _is_far(m, deviation, centre, spread)
    ]


def _is_far(m: Moments, deviation: float, centre: float, spread: float) -> bool:
    """Whether a mean is further away than a few extreme rows explain; other units scale mean and deviation by one factor."""
    error, difference = FAR * max(deviation, spread) / m.n**0.5, abs(m.mean - centre)
    if difference - error > FAR * spread:
        return True
    if difference <= error or not (m.mean and centre and deviation):
        return False
    low, high = sorted((abs(m.mean / centre), deviation / spread))
    return (low >= SCALE or high <= 1 / SCALE) and high < 2 * low


def _median(values: Iterable[float]) -> float:
    """The lower one of an even number."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _spellings(name: str, sites: Sequence[str], words: Sequence[Mapping[str, int]], what: str) -> list[str]:
    """Words that differ in case and spaces only, where a site does not use the usual one."""
    spelled: dict[str, Counter[str]] = defaultdict(Counter)
    for own in words:
        for word in own:
            spelled[_folded(word)][word] += 1
    found: dict[str, None] = {}
    for spellings in spelled.values():
        (usual, _), *others = spellings.most_common()
        for other, _ in others:
            users = [site for site, own in zip(sites, words, strict=True) if other in own and usual not in own]
            if users:
                found[", ".join(users)] = None
    return [
        f"Column '{name}' of {users} has {what} that other sites write with other capitals or spaces: these are different "
        f"{what} unless they are written the same."
        for users in found
    ]


def _others(name: str, sites: Sequence[str], words: Sequence[Mapping[str, int]]) -> list[str]:
    """Sites that share no category with others, unless none of several sites does: then the column names the site."""
    folded = [{_folded(word) for word in own} for own in words]
    users = Counter(word for own in folded for word in own)
    alone = [
        place
        for place, own in enumerate(folded)
        if len(own) > 1 and sum(words[place].values()) >= ENOUGH and all(users[word] == 1 for word in own)
    ]
    if not alone or (len(alone) == sum(map(bool, folded)) > 2) or sum(map(bool, folded)) < 2:
        return []
    return [
        f"Column '{name}' of {', '.join(sites[place] for place in alone[:3])} has no category that another site has: is it "
        "written in other words?"
    ]


def _folded(word: str) -> str:
    return " ".join(word.casefold().split())
