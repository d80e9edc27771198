"""Which rows belong to which node: every row at most once, the same for the same seed."""

import re
from collections.abc import Sequence

import numpy as np

from dnasa.core import InputError
from dnasa.data.dataset import TESTED, Dataset

Shards = list[np.ndarray]
BY_NODE = "by_node"  # the partition of data that says which rows are whose
ALPHA = 0.5  # of a Dirichlet partition that names none


def partition(how: str, labels: np.ndarray, nodes: int, seed: int = 0) -> Shards:
    """Divide rows among the nodes by the partition of that name; `result[i]` are the numbers of node i's rows.

    "iid" shuffles, then splits evenly. "contiguous" splits evenly as the rows are, so that each node has its own part of a
    text. "by_label" sorts by label, then splits evenly: most nodes have one or two classes only. "dirichlet(alpha)" divides
    each class in proportions drawn from a Dirichlet distribution: the smaller alpha, the more the nodes differ.

    Args:
        how: "iid", "contiguous", "by_label" or "dirichlet(0.1)"; "dirichlet" alone is "dirichlet(0.5)".
        labels: The labels of the rows.
        nodes: The number of nodes.
        seed: The seed of random partitions.

    Examples:
        >>> import numpy as np
        >>> [shard.tolist() for shard in partition("by_label", np.array([0, 1, 0, 1]), nodes=2)]
        [[0, 2], [1, 3]]
    """
    kind, alpha = _parse(how)
    if nodes < 1:
        raise InputError(f"A network needs at least one node, not {nodes}.")
    if nodes > len(labels):
        raise InputError(f"{len(labels)} rows cannot be shared among {nodes} nodes: use fewer nodes.")
    if kind == "contiguous":
        return _contiguous(labels, nodes)
    if kind != "iid" and labels.ndim > 1:
        raise InputError("These rows have no class to divide them by: use the partition iid or contiguous.")
    if kind == "dirichlet":
        return _dirichlet(labels, nodes, seed, alpha)
    order = np.random.default_rng(seed).permutation(len(labels))
    if kind == "by_label":
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(part) for part in np.array_split(order, nodes)]


def _parse(how: str) -> tuple[str, float]:
    """The kind of partition and, of dirichlet, alpha."""
    match = re.fullmatch(r"(iid|contiguous|by_label|dirichlet)(?:(?<=dirichlet)\((\d*\.?\d+(?:e-?\d+)?)\))?", how)
    alpha = float(match[2] or ALPHA) if match else 0.0
    if match is None or not 0 < alpha < np.inf:
        wrong = f"'{how}' needs a positive number" if how.startswith("dirichlet(") else f"Unknown partition '{how}'"
        raise InputError(f"{wrong}. Choose from: iid, contiguous, by_label, dirichlet(0.3).")
    return match[1], alpha


def full_name(how: str) -> str:
    """The name of a partition, checked, as runs record it."""
    if how != BY_NODE:
        _parse(how)
    return f"dirichlet({ALPHA:g})" if how == "dirichlet" else how


def _contiguous(labels: np.ndarray, nodes: int) -> Shards:
    """Whole numbers in several columns are overlapping windows: those that reach into the next node's part are left out."""
    *parts, last = np.array_split(np.arange(len(labels)), nodes)
    overlap = labels.shape[1] if labels.ndim > 1 and labels.dtype.kind in "iu" else 0
    if parts and len(last) <= overlap:
        raise InputError(f"The text is too short for {nodes} parts of its own: use fewer nodes or a shorter context.")
    return [*(part[: len(part) - overlap] for part in parts), last]


def _dirichlet(labels: np.ndarray, nodes: int, seed: int, alpha: float) -> Shards:
    """Drawn again until every node has a row; a node still without one gets a row of the largest shard."""
    generator = np.random.default_rng(seed)
    for _ in range(50):
        shards = _draw_dirichlet(labels, nodes, alpha, generator)
        if min(map(len, shards)) > 0:
            break
    for node in range(nodes):
        if not len(shards[node]):
            largest = max(range(nodes), key=lambda i: len(shards[i]))
            shards[node], shards[largest] = shards[largest][-1:], shards[largest][:-1]
    return [np.sort(shard) for shard in shards]


def _draw_dirichlet(labels: np.ndarray, nodes: int, alpha: float, generator: np.random.Generator) -> Shards:
    pieces: list[list[np.ndarray]] = [[] for _ in range(nodes)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(nodes, alpha))
        cuts = np.round(np.cumsum(proportions)[:-1] * len(rows)).astype(int)
        for node, piece in enumerate(np.split(rows, cuts)):
            pieces[node].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def class_table(labels: np.ndarray, shards: Shards, classes: int) -> np.ndarray:
    """Count the rows of each class (columns) at each node (rows).

    Args:
        labels: The class of each row, from 0.
        shards: The rows of each node.
        classes: The number of classes.
    """
    return np.stack([np.bincount(labels[shard], minlength=classes) for shard in shards])


def label_difference(table: np.ndarray) -> float:
    """How far a node's shares of the classes are from those of the other nodes: 0 by chance, 1 if they have no common class.

    The mean over the nodes of the total variation distance, less what it is if each node's rows are drawn from all rows.
    `table` has the rows of each class at each node, as `class_table` returns it.
    """
    table = table[table.sum(1) > 0]
    if len(table) < 2:
        return 0.0
    rows, overall = table.sum(1, keepdims=True), table.sum(0) / table.sum()
    chance = np.sqrt(2 / np.pi * overall * (1 - overall) / rows)
    to_all = np.abs(table / rows - overall) - chance
    return float((to_all / (1 - rows / table.sum())).sum(1).mean() / 2)


def hold_out(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the training rows to train on, and of those to validate on, a tenth.

    Of a text it is the last tenth of the training part, without windows that reach into it; of a table of the user's, a tenth
    of each class.

    Args:
        data: The dataset.
    """
    return _hold_out_tenth(np.arange(len(data.labels)), data.context, data.strata)


def tenth(rows: int) -> int:
    return max(1, rows // 10)


def stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """The numbers of `count` random rows, of each class its share: sorted by class, one of each len(labels) / count rows."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    ends = np.arange(count + 1) * len(order) // count
    return np.sort(order[generator.integers(ends[:-1], ends[1:])])


def _hold_out_tenth(rows: np.ndarray, context: int, strata: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    if context:
        cut = len(rows) * 9 // 10
        return rows[: max(0, cut - context)], rows[cut::context]
    if len(rows) < 2:
        raise InputError("A node has one training row, and needs another to validate on.")
    count = tenth(len(rows))
    alike = None if strata is None else strata[rows]
    chosen = np.random.default_rng(0).permutation(len(rows))[:count] if alike is None else stratified(alike, count)
    return np.delete(rows, chosen), rows[np.sort(chosen)]


def divide(data: Dataset, rows: np.ndarray, how: str, nodes: int, seed: int = 0) -> Shards:
    """These rows of the data, divided among the nodes by a partition.

    Args:
        data: The dataset.
        rows: The numbers of the training rows to divide.
        how: The partition, as `partition` takes it.
        nodes: The number of nodes.
        seed: The seed of random partitions.
    """
    count = len(rows)
    first = count and rows[-1] == count - 1  # a slice does not copy the windows of a text
    labels = data.labels[:count] if first else data.labels[rows]
    return [rows[shard] for shard in partition(how, labels, nodes, seed)]


def divide_validation(rows: np.ndarray, nodes: int) -> Shards:
    """Every node validates on a part of the rows; where there are fewer than nodes, some rows are used twice.

    Args:
        rows: The numbers of the validation rows.
        nodes: The number of nodes.
    """
    every = np.resize(rows, max(len(rows), nodes))
    return [every[node::nodes] for node in range(nodes)]


def hold_out_of_each(
    shards: Sequence[np.ndarray], context: int = 0, least: int = 1, strata: np.ndarray | None = None
) -> tuple[Shards, Shards]:
    """Each node's rows to train on, and a tenth to validate on, where data stays at its node; some have no rows here.

    A node with a tenth of fewer than `least` rows trains on all. Of windows of a text, which have a `context`, validation has
    no more than a test. `strata` are the classes of all rows, where a tenth of each is held out.
    """
    pairs = [
        _hold_out_tenth(shard, context, strata) if len(shard) and tenth(len(shard)) >= least else (shard, shard[:0])
        for shard in shards
    ]
    most = TESTED if context else None
    return [train for train, _ in pairs], [validation[:most] for _, validation in pairs]


def validation_name(metric: str) -> str:
    """What a test metric is called on the validation rows."""
    return f"validation_{metric.removeprefix('test_')}"
