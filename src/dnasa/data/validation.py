"""Validation rows: training rows on which nobody trains, to choose stepsizes on."""

from collections.abc import Sequence

import numpy as np

from dnasa.core import InputError
from dnasa.data.dataset import Dataset
from dnasa.data.partitions import Shards, partition

SHARE = 10  # one row in this many


def hold_out(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the training rows to train on, and of those to validate on, a tenth.

    Of a text it is the last tenth of the training part, without windows that reach into it.

    Args:
        data: The dataset.
    """
    count = len(data.labels)
    if data.vocabulary:
        context, cut = data.labels.shape[1], count * 9 // 10
        return np.arange(max(0, cut - context)), np.arange(cut, count, context)
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[_part(count) :]), np.sort(order[: _part(count)])


def _part(rows: int, share: float = 1 / SHARE) -> int:
    if rows < 2:
        raise InputError("A node has one training row, and needs another to validate on.")
    return max(1, int(rows * share + 1e-9))


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


def hold_out_of_each(shards: Sequence[np.ndarray], share: float = 1 / SHARE) -> tuple[Shards, Shards]:
    """A part of every node's own rows, for data that never leaves its node: the rows to train on, and those to validate on.

    Args:
        shards: The numbers of each node's rows; empty for nodes of other processes.
        share: How many of them are validated on.
    """
    orders = [np.random.default_rng(0).permutation(shard) for shard in shards]
    cuts = [_part(len(order), share) if len(order) else 0 for order in orders]
    pairs = list(zip(orders, cuts, strict=True))
    return [np.sort(order[cut:]) for order, cut in pairs], [np.sort(order[:cut]) for order, cut in pairs]


def validation_name(metric: str) -> str:
    """What a test metric is called on the validation rows."""
    return f"validation_{metric.removeprefix('test_')}"
