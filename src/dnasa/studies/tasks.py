"""Classification as the paper runs it: each dataset with its network, divided among the nodes."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import nn

from dnasa.core import InputError
from dnasa.data import Dataset, load, partition
from dnasa.problems.classification import Classification
from dnasa.problems.models import lenet, perceptron

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
) -> Classification:
    """LeNet for 28 x 28 images, a perceptron d-64-classes for everything else (d-32-10 for the digits)."""
    rows = load(data, target) if isinstance(data, str) else data
    shards = partition(how, rows.labels, nodes)
    return on_shards(rows, shards, batch, loss_scale, dtype, device, train_metrics)


def on_shards(
    rows: Dataset,
    shards: Sequence[np.ndarray],
    batch: int = BATCH,
    loss_scale: str | float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    train_metrics: bool = True,
) -> Classification:
    """The same for rows that are already divided. Whole numbers are features: tokens need `Classification` itself."""
    return Classification(
        network(rows),
        rows.inputs.astype(np.float32, copy=False),
        rows.labels,
        shards,
        rows.test_inputs.astype(np.float32, copy=False),
        rows.test_labels,
        batch=batch,
        loss_scale=scale(loss_scale, len(shards)),
        dtype=dtype,
        device=device,
        train_metrics=train_metrics,
    )


def network(rows: Dataset) -> Callable[[], nn.Module]:
    if rows.inputs.shape[1:] == (1, 28, 28) and rows.classes <= 10:
        return lenet
    if rows.inputs.ndim != 2:
        raise InputError(
            f"There is no default network for inputs of shape {rows.inputs.shape[1:]}: use Classification with your own."
        )
    hidden = 32 if (rows.name, rows.source) == ("digits", "scikit-learn") else 64
    return partial(perceptron, rows.inputs.shape[1], hidden, rows.classes)


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
