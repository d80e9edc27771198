"""A dataset with a network, divided among the nodes: what studies and the command line train."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnasa.checks import choose
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.problems.classification import Regression
from dnasa.problems.losses import WeightedCrossEntropy, cross_entropy
from dnasa.problems.privacy import Privacy
from dnasa.problems.sharded import SAMPLE, Shards
from dnasa.problems.shrinkage import Shrinkage
from dnasa.problems.supervised import Supervised
from dnasa.tasks import BATCH, models

ClassWeight = str | Mapping[Any, float] | None


def on_shards(
    rows: Dataset,
    shards: Shards,
    batch: int = BATCH,
    loss_scale: str | float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    train_metrics: bool | int = SAMPLE,
    model: str | None = None,
    validation: Sequence[np.ndarray] = (),
    class_weight: ClassWeight = None,
    privacy: Privacy | None = None,
) -> Supervised:
    """The problem of training a model, by its name, on rows that are divided among the nodes.

    Models other than linear, mlp and lenet get no train metrics: a pass over all images or windows would take longer than the
    training; on a GPU they compute in mixed precision unless dtype is float64.

    Args:
        rows: The dataset.
        shards: `shards[i]` are node i's rows, or a function of the seed that returns all shards.
        batch: Rows that a node draws in each step, with replacement.
        loss_scale: Multiplies the training loss that the rules use: a number, or "1/n".
        dtype: "float32" or "float64".
        device: The torch device, such as "cpu" or "cuda".
        train_metrics: The training rows that an evaluation measures, as for `Supervised`: all, none, or a sample of so many.
        model: The name of the model, as `--model` takes it; by default one that fits the rows.
        validation: `validation[i]` are rows of node i on which nobody trains.
        class_weight: As in scikit-learn: "balanced", with rows / (classes * rows of the class) at all nodes together, or a
            weight for each class by its name; tests have no weights.
        privacy: Differential privacy, as for `problems.Supervised`.

    Examples:
        ```python
        rows = dnasa.data.load("digits")
        problem = dnasa.on_shards(rows, dnasa.data.partition("iid", rows.labels, nodes=8))
        ```
    """
    name = model or models.default(rows)
    if loss_scale == "1/n":
        loss_scale = 1 / len(shards(0) if callable(shards) else shards)
    options: Any = {"batch": batch, "dtype": dtype, "device": device, "loss_scale": loss_scale, "validation": validation}
    options["privacy"] = privacy
    if name == "linear" and privacy is None:
        options["shrinkage"] = shrinkage(rows)
    weights = class_weights(rows, class_weight)
    if rows.task == "regression":
        return Regression(models.make(name, rows), rows, shards, train_metrics=train_metrics, **options)
    if rows.inputs.dtype.kind in "iu" and rows.inputs.dtype != np.uint8 and not rows.vocabulary:
        rows = rows._replace(inputs=rows.inputs.astype(np.float32), test_inputs=rows.test_inputs.astype(np.float32))
    if models.has_formulas(name, rows):
        options["train_metrics"] = train_metrics
    else:
        mixed_precision = device.startswith("cuda") and dtype == "float32"
        options |= {"train_metrics": False, "autocast": "bfloat16" if mixed_precision else None}
    loss = cross_entropy if weights is None else WeightedCrossEntropy(weights)
    return Supervised(models.make(name, rows), loss, rows, shards, test_loss=cross_entropy, **options)


def shrinkage(rows: Dataset) -> Shrinkage | None:
    """The penalty of a linear model, of two classes in a table of the user's."""
    if rows.encoding is None or rows.classes != 2 or rows.inputs.ndim != 2:
        return None
    share = rows.informative / rows.training_rows
    return Shrinkage(rows.inputs.shape[1] / rows.training_rows, 2 * share * (1 - share))


def class_weights(rows: Dataset, how: ClassWeight) -> np.ndarray | None:
    """The weight of each class; a class without training rows has none."""
    if how is None:
        return None
    if rows.task != "classification" or rows.vocabulary:
        raise InputError("Only rows with classes have class weights: leave them out.")
    if isinstance(how, str):
        choose("class weight", how, {"balanced": None})
        counts = np.array(rows.class_counts or np.bincount(rows.labels, minlength=rows.classes))
        return np.where(counts > 0, counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1)), 0.0)
    names = list(rows.class_names)
    for name, weight in how.items():
        if name not in names or not 0 <= weight < np.inf:
            raise InputError(f"The class weight {name}: {weight} does not fit: classes are {names[:10]}.")
    return np.array([float(how.get(name, 1)) for name in names])
