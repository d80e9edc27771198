"""A dataset with a network, divided among the nodes: what studies and the command line train."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from dnasa.core import InputError
from dnasa.data import Dataset, load, partition
from dnasa.problems.classification import Classification
from dnasa.problems.regression import Regression
from dnasa.problems.sharded import Sharded, Shards
from dnasa.problems.supervised import Augment, Supervised, cross_entropy
from dnasa.studies import models

BATCH = 32


def classification(
    data: str | Dataset,
    nodes: int,
    how: str = "iid",
    batch: int = BATCH,
    loss_scale: str | float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    target: str | None = None,
    train_metrics: bool = True,
) -> Sharded:
    """As the paper runs it: LeNet for 28 x 28 images, a perceptron d-64-classes for tables (d-32-10 for the digits)."""
    rows = load(data, target) if isinstance(data, str) else data
    shards = partition(how, rows.labels, nodes)
    return on_shards(rows, shards, batch, loss_scale, dtype, device, train_metrics)


def on_shards(
    rows: Dataset,
    shards: Shards,
    batch: int = BATCH,
    loss_scale: str | float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    train_metrics: bool = True,
    model: str | None = None,
    augment: Augment | None = None,
    validation: Sequence[np.ndarray] = (),
) -> Sharded:
    """The problem of training a model, by its name, on rows that are divided among the nodes: `shards[i]` are those of node i,
    or a function of the seed that returns them.

    `validation` are rows of each node on which nobody trains. `Supervised` models get no train metrics: a pass over all
    images or windows would take longer than the training; only they take `augment`, and on a GPU they compute in mixed
    precision unless dtype is float64. For others whole numbers are features: tokens need `Classification` itself.
    """
    name = model or models.default(rows)
    nodes = len(shards(0) if callable(shards) else shards)
    options: Any = {"batch": batch, "dtype": dtype, "device": device, "loss_scale": scale(loss_scale, nodes)}
    options["validation"] = validation
    if rows.task == "regression":
        return Regression(models.make(name, rows), rows, shards, train_metrics=train_metrics, **options)
    if rows.task == "multilabel":
        options |= {"train_metrics": train_metrics, "metrics": {"test_label_accuracy": label_accuracy}}
        loss = nn.functional.binary_cross_entropy_with_logits
        return Supervised(models.make(name, rows), loss, rows, shards, **options)
    if not models.batched(name, rows):
        if rows.inputs.dtype.kind in "iu" and rows.inputs.dtype != np.uint8 and not rows.vocabulary:
            rows = rows._replace(inputs=rows.inputs.astype(np.float32), test_inputs=rows.test_inputs.astype(np.float32))
        mixed_precision = device.startswith("cuda") and dtype == "float32"
        options |= {"augment": augment, "train_metrics": False, "autocast": "bfloat16" if mixed_precision else None}
        return Supervised(models.make(name, rows), cross_entropy, rows, shards, **options)
    return Classification(
        models.make(name, rows),
        rows.inputs.astype(np.float32, copy=False),
        rows.labels,
        shards,
        rows.test_inputs.astype(np.float32, copy=False),
        rows.test_labels,
        train_metrics=train_metrics,
        test_counts=rows.test_counts,
        **options,
    )


def label_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of right labels, of several for each row."""
    return ((outputs > 0) == (targets > 0)).double().mean()


def scale(text: str | float, nodes: int) -> float:
    """A number, or '1/n'."""
    if text == "1/n":
        return 1 / nodes
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"The loss scale must be a positive number or 1/n, not '{text}'.")
    return value
