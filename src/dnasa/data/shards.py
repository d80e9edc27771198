"""Rows that may not leave their node: each process reads the files of its own nodes, and all agree on one encoding.

What travels is a summary of each node's rows (`summaries.py`): counts, means, variances, categories and names of classes. A
table that holds what must not leave is refused before anything is sent.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dnasa.checks import whole
from dnasa.core import InputError
from dnasa.data import agreement, loading, reading
from dnasa.data.dataset import Dataset
from dnasa.data.ledger import Ledger
from dnasa.data.recoding import Recode, as_recode, unused_warnings
from dnasa.data.rows import without_columns
from dnasa.data.summaries import MIN_COUNT, Summary, check_identifiers, make_encoding, sentinel_warnings, summarize

TESTED_BEFORE = (
    "Earlier runs tested models on {} test rows of {}, so this run does not: results of two models can tell of single rows. "
    "With --again, it does."
)


def alone(text: str) -> list[str]:
    """The texts of all processes, where this is the only one."""
    return [text]


def from_shards(
    folder: str | Path,
    local_nodes: range,
    nodes: int,
    target: Any = None,
    task: str | None = None,
    allgather_text: Callable[[str], list[str]] = alone,
    drop_columns: Any = None,
    id_column: str | None = None,
    recode: Any = None,
    min_count: int = MIN_COUNT,
    site: str | None = None,
    ledger: Ledger | None = None,
) -> tuple[Dataset, list[np.ndarray]]:
    """The rows of `local_nodes`, and which of them belong to which node; shards of other nodes are empty.

    The files or folders in `folder` are the nodes, in the order of their names: `node-0.csv`, `node-1.csv`, ..., or the names
    of sites. Rows of `test.csv` are for testing, or each node's own test file, or a fifth of its rows.

    Args:
        folder: The folder with the files of the nodes; a process may have those of its own nodes only.
        local_nodes: The nodes of this process.
        nodes: The number of nodes of the network.
        target: The name of the target column or its position from 0.
        task: "classification" or "regression"; by default what the target looks like.
        allgather_text: With several processes, that of their network.
        drop_columns: Columns to leave out; not every site needs to have them.
        id_column: A column that names the rows and is not an input; not every site needs to have it.
        recode: A file `recode.toml` or its contents, applied before anything else, also to new rows.
        min_count: No category, class or statistic of fewer rows leaves a site; at least 2.
        site: The name of this process's site. By default that of each file or folder.
        ledger: What this site has told of its rows.
    """
    folder, recode = Path(folder), as_recode(recode)
    whole("--min-count", min_count, low=2)
    paths, common = node_paths(folder, local_nodes, nodes, site), common_test(folder)
    common_tests = None if common is None else loading.read(common, target, recode)[0]
    train_rows, test_rows, local_summaries, warnings, refused = [], [], [], list[str](), dict[str, InputError]()
    for path in paths:
        name = site or (path.name if path.is_dir() else path.name.partition(".")[0])
        with collecting(refused, path):
            rows, tests = loading.read(path, target, recode and recode.at(name))
            rows = without_columns(rows, drop_columns, id_column, path.name, may_be_absent=True)
            check_identifiers(rows)
            train, test = loading.split(rows, tests if common_tests is None else common_tests)
            train_rows.append(train)
            test_rows.append(test)
            local_summaries.append(summarize(train, test, task, min_count)._replace(name=name))
            if len(test.labels) < min_count:
                raise InputError(
                    f"There are {len(test.labels)} test rows: a site needs at least {min_count}, such as a fifth of "
                    f"{5 * min_count} rows. Add rows, or a common test.csv.",
                    f"fewer test rows than {min_count}",
                )
            warnings += sentinel_warnings(rows, f" of {name}")
            if ledger is not None:
                ledger.check(rows, min_count)
                ledger = ledger._replace(table=rows if tests is None or common else test, tests=train if common else test)
                tested = int((~ledger.untested()).sum())
                warnings += [TESTED_BEFORE.format(tested, name)] if tested else []
    raise_collected(refused)
    summaries = agreement.aligned(exchange_summaries(local_summaries, allgather_text))
    total = reduce(Summary.merged, summaries)
    check_sites(recode, summaries, nodes)
    encoding = make_encoding(total, task)._replace(id_column=id_column)
    if encoding.features:
        encoding = encoding._replace(recode=(recode or Recode()).with_sites({summary.name for summary in summaries}))
    if encoding.task == "classification":
        agreement.check_classes(summaries)
    trained_on = [loading.encode_rows(rows, encoding) for rows in train_rows]
    tested_on = [loading.encode_rows(rows, encoding) for rows in (test_rows[:1] if common else test_rows)]
    of_nodes = _by_node(summaries, local_nodes, nodes)
    data = Dataset(
        folder.resolve().name or str(folder),
        *_concatenated(trained_on),
        *_concatenated(tested_on),
        source=str(folder),
        encoding=encoding,
        test_counts=() if common else tuple(summary.tests for summary in of_nodes),
        class_counts=total.target.counts,
        warnings=(
            *warnings,
            *unused_warnings(rows.used for rows in train_rows),
            *agreement.warnings(summaries, recode.named if recode else ()),
        ),
        sites=tuple(of_nodes),
        ledger=ledger,
        row_numbers=[number for rows in (*train_rows, *test_rows) for number in rows.labels.index],
    )
    return data, _consecutive_shards([len(labels) for _, labels in trained_on], local_nodes, nodes)


def check_sites(recode: Recode | None, summaries: Sequence[Summary], nodes: int) -> None:
    """Refuse sections for sites that are not there."""
    names = {summary.name for summary in summaries}  # one, in a dry run
    if recode is not None and len(names) == nodes and (unknown := recode.sites.keys() - names):
        raise InputError(f"The file of --recode names {min(unknown)}, which is no site: correct it, or remove its section.")


def _by_node(summaries: Sequence[Summary], local_nodes: range, nodes: int) -> list[Summary]:
    """The summary of every node; an empty one for nodes of other processes that nothing was exchanged with."""
    known = dict(zip(range(nodes) if len(summaries) == nodes else local_nodes, summaries, strict=True))
    return [known.get(node, Summary()) for node in range(nodes)]


def _concatenated(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = zip(*parts, strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


def _consecutive_shards(counts: Sequence[int], local_nodes: range, nodes: int) -> list[np.ndarray]:
    """The numbers of each local node's rows, one node after the other; other nodes have none."""
    shards = [np.empty(0, np.int64)] * nodes
    for node, count, end in zip(local_nodes, counts, accumulate(counts), strict=True):
        shards[node] = np.arange(end - count, end)
    return shards


def exchange_summaries(summaries: Sequence[Summary], allgather_text: Callable[[str], list[str]]) -> list[Summary]:
    """Send the summaries of the local nodes; return those of all nodes, in their order."""
    texts = allgather_text(json.dumps([summary.to_json() for summary in summaries]))
    return [Summary.from_json(entry) for text in texts for entry in json.loads(text)]


@contextmanager
def collecting(refused: dict[str, InputError], path: Path) -> Iterator[None]:
    """Collect errors by file, with its name and what other sites may know of them."""
    try:
        yield
    except InputError as error:
        line = str(error) if path.name in str(error) else f"{path.name}: {error}"
        refused[path.name] = InputError(line, error.kind or "a table that cannot be used")


def raise_collected(refused: dict[str, InputError]) -> None:
    """Raise what was collected as one error, which gives the first line of each kind in full."""
    if not refused:
        return
    kinds: dict[str, list[str]] = {}
    for name, error in refused.items():
        kinds.setdefault(error.kind, []).append(name)
    lines = [str(refused[first]) + (f" Also {', '.join(others)}." if others else "") for first, *others in kinds.values()]
    raise InputError(" ".join(lines), next(iter(kinds)))


def node_paths(folder: Path, local_nodes: range, nodes: int, site: str | None = None) -> list[Path]:
    entries = node_entries(folder)
    if len(entries) == nodes:
        return entries[local_nodes.start : local_nodes.stop]
    if len(entries) == len(local_nodes):
        return entries  # this process has its own data only
    names = ", ".join(path.name for path in entries[:5]) + (", ..." if len(entries) > 5 else "")
    if site:
        raise InputError(f"{folder} has {len(entries)} tables ({names}): leave only that of {site} in the folder.")
    raise InputError(f"{folder} has {len(entries)} sites ({names}), not {nodes}: give --nodes {len(entries)}.")


def node_entries(folder: Path) -> list[Path]:
    """The files and folders with training rows; node-10 comes after node-9."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: give the one that holds the nodes' files.")
    reading.check_readable(folder)
    entries = [path for path in folder.iterdir() if _is_data(path) and not _is_test(path)]
    if not entries:
        raise InputError(f"{folder} has no data: add node-0.csv, node-1.csv, ...")
    return sorted(entries, key=reading.in_order)


def _is_data(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or reading.extension(path) in reading.FORMATS)


def _is_test(path: Path) -> bool:
    return path.name.partition(".")[0] == "test"


def common_test(folder: Path) -> Path | None:
    return next((path for path in sorted(folder.iterdir()) if _is_data(path) and _is_test(path)), None)
