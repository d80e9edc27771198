"""Rows that may not leave their node: each process reads the files of its own nodes, and all agree on one encoding.

What travels is a summary of each node's rows (`summaries.py`): counts, means, variances, categories and names of classes. A
table that holds what must not leave is refused before anything is sent.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError
from dnasa.data import agreement, loading, reading
from dnasa.data.dataset import Dataset, Site
from dnasa.data.formats import kind
from dnasa.data.loading import Split
from dnasa.data.rows import Chosen
from dnasa.data.summaries import Summary, make_encoding


def alone(text: str) -> list[str]:
    """The texts of all processes, where this is the only one."""
    return [text]


def from_shards(
    folder: str | Path,
    local_nodes: range,
    nodes: int,
    target: Any = None,
    separator: str | None = None,
    header: bool | None = None,
    task: str | None = None,
    standardise: bool = True,
    allgather_text: Callable[[str], list[str]] = alone,
    columns: Any = None,
    drop_columns: Any = None,
    id_column: str | None = None,
) -> tuple[Dataset, list[np.ndarray]]:
    """The rows of `local_nodes`, and which of them belong to which node; shards of other nodes are empty.

    Node i's rows are in `node-i.csv` (or any other format), or in a folder `node-i`; if nothing is called so, the files or
    folders of the sites are the nodes, in the order of their names. Rows of `test.csv` are for testing, or each node's own
    test file, or every fifth of its rows.

    Args:
        folder: The folder with the files of the nodes.
        local_nodes: The nodes of this process.
        nodes: The number of nodes of the network.
        target: The name of the target column or its position from 0, or several of them.
        separator: The separator of a text table; detected by default.
        header: Whether a text table begins with the names of its columns; detected by default.
        task: "classification", "regression" or "multilabel"; by default what the target looks like.
        standardise: Standardize inputs with the mean and standard deviation of all nodes' training rows.
        allgather_text: With several processes, that of their network.
        columns: The columns to use as inputs; by default all but the target.
        drop_columns: Columns to leave out; not every site needs to have them.
        id_column: A column that names the rows and is not an input; not every site needs to have it.
    """
    folder = Path(folder)
    paths, common = node_paths(folder, local_nodes, nodes), common_test(folder)
    chosen = Chosen(columns, drop_columns, id_column)
    tests = None if common is None else loading.read(common, target, separator, header)[0]
    splits, own_summaries = [], []
    for path in paths:
        with naming(path):
            rows, own_test = loading.read(path, target, separator, header)
            rows = chosen.of(rows, path.name, partly=True)
            splits.append(Split(rows, own_test if tests is None else tests, f" of {path.name}"))
            site = path.name if path.is_dir() else path.name.partition(".")[0]
            own_summaries.append(splits[-1].summary(task).to_send(site))
    summaries = agreement.aligned(exchanged(own_summaries, allgather_text))
    total = reduce(Summary.merged, summaries)
    encoding = make_encoding(total, task, standardise)._replace(id_column=id_column)
    if encoding.task == "classification":
        agreement.check_classes(summaries)
    of_nodes = _by_node(summaries, local_nodes, nodes)
    pieces = [split.training(encoding) for split in splits]
    tested = [split.testing(encoding) for split in (splits[:1] if common else splits)]
    inputs, labels, test_inputs, test_labels = (
        np.concatenate(column) for parts in (pieces, tested) for column in zip(*parts, strict=True)
    )
    data = Dataset(
        folder.resolve().name or str(folder),
        inputs,
        labels,
        test_inputs,
        test_labels,
        source=str(folder),
        encoding=encoding,
        notes=tuple(dict.fromkeys(note for split in splits for note in split.rows.notes)),
        test_counts=() if common else tuple(summary.tests for summary in of_nodes),
        class_counts=total.targets[0].counts,
        warnings=tuple(agreement.warnings(summaries)),
        sites=tuple(Site(summary.site, summary.rows) for summary in of_nodes),
    )
    return data, _shards([len(labels) for _, labels in pieces], local_nodes, nodes)


def exchanged(summaries: Sequence[Summary], allgather_text: Callable[[str], list[str]]) -> list[Summary]:
    """The summaries of all nodes, in their order."""
    texts = allgather_text(json.dumps(summaries))
    return [Summary.from_json(entry) for text in texts for entry in json.loads(text)]


def _by_node(summaries: Sequence[Summary], local_nodes: range, nodes: int) -> list[Summary]:
    """The shards of all nodes, with empty ones for nodes of other processes that nothing was exchanged with."""
    every = range(nodes) if len(summaries) == nodes else local_nodes
    known = dict(zip(every, summaries, strict=True))
    return [known.get(node, Summary()) for node in range(nodes)]


def _shards(counts: Sequence[int], local_nodes: range, nodes: int) -> list[np.ndarray]:
    shards = [np.empty(0, np.int64)] * nodes
    for node, count, end in zip(local_nodes, counts, accumulate(counts), strict=True):
        shards[node] = np.arange(end - count, end)
    return shards


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors, and what other sites may know of them."""
    try:
        yield
    except InputError as error:
        line = str(error) if path.name in str(error) else f"{path.name}: {error}"
        raise InputError(line, error.kind or "a table that cannot be used") from error


# ---------------------------------------------------------------- files


def node_paths(folder: Path, local_nodes: range, nodes: int) -> list[Path]:
    """The file or folder of each local node."""
    entries, numbered = _entries(folder)
    if not numbered and len(entries) == len(local_nodes) < nodes:
        return entries  # this process has its own data only
    if not numbered:
        return _sites(folder, entries, nodes)[local_nodes.start : local_nodes.stop]
    if max(numbered) >= nodes:
        raise InputError(
            f"{folder} has {numbered[max(numbered)].name}, but there are {nodes} nodes: give --nodes {max(numbered) + 1}."
        )
    missing = [node for node in local_nodes if node not in numbered]
    if missing:
        raise InputError(
            f"There is no node-{missing[0]}.csv, node-{missing[0]}.npz or the like in {folder}: add it, or give --nodes "
            f"{len(numbered)}."
        )
    return [numbered[node] for node in local_nodes]


def count_nodes(folder: Path) -> int:
    """The number of nodes whose data the folder holds."""
    entries, numbered = _entries(folder)
    return max(numbered) + 1 if numbered else len(entries)


def _entries(folder: Path) -> tuple[list[Path], dict[int, Path]]:
    """The files and folders with training rows, and by node those that have its number in their name."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: give the one that holds the nodes' files.")
    entries = [path for path in sorted(folder.iterdir()) if _is_data(path) and not _is_test(path)]
    if not entries:
        raise InputError(f"{folder} has no data: add node-0.csv, node-1.csv, ...")
    return entries, {int(match[1]): path for path in entries if (match := re.match(r"node-(\d+)($|\.)", path.name))}


def _sites(folder: Path, entries: list[Path], nodes: int) -> list[Path]:
    if len(entries) != nodes:
        names = ", ".join(path.name for path in entries[:5]) + (", ..." if len(entries) > 5 else "")
        raise InputError(
            f"{folder} has the data of {len(entries)} sites ({names}), and there are {nodes} nodes: give --nodes "
            f"{len(entries)}, or call the files node-0.csv, ..."
        )
    return entries


def _is_data(path: Path) -> bool:
    return not path.name.startswith((".", "~$")) and (path.is_dir() or kind(path) in reading.KINDS)


def _is_test(path: Path) -> bool:
    return path.name.partition(".")[0] == "test"


def common_test(folder: Path) -> Path | None:
    """The test rows that all nodes share."""
    return next((path for path in sorted(folder.iterdir()) if _is_data(path) and _is_test(path)), None)
