"""Classification and regression: `Supervised` with the loss and the metrics of these tasks."""

from typing import Any

import numpy as np
from torch.nn.functional import mse_loss

from dnasa.core import Array, InputError
from dnasa.data import Dataset
from dnasa.problems.losses import WeightedCrossEntropy, cross_entropy
from dnasa.problems.sharded import Shards
from dnasa.problems.supervised import Model, Supervised

MOMENTS = {  # averages that R^2 is computed from
    "test_target": lambda outputs, targets: targets.mean(),
    "test_target_squared": lambda outputs, targets: (targets**2).mean(),
}


class Classification(Supervised):
    """min (1/n) sum_i mean over node i's rows of the cross-entropy of `model`.

    Args:
        model: The module or a function that creates it, as for `Supervised`.
        inputs: The training inputs, a row for each sample.
        labels: Their classes 0, 1, 2, ...
        shards: `shards[i]` are node i's rows, or a function of the seed that returns all shards.
        test_inputs: The test inputs.
        test_labels: Their classes.
        class_weight: Multiplies the training loss of the rows of each class; test and validation metrics have no weights.
        **options: The other arguments of `Supervised`, but `loss` and `test_loss`.
    """

    def __init__(
        self,
        model: Model,
        inputs: Array,
        labels: Array,
        shards: Shards,
        test_inputs: Array,
        test_labels: Array,
        class_weight: Array | None = None,
        **options: Any,
    ):
        data = Dataset("arrays", np.asarray(inputs), np.asarray(labels), np.asarray(test_inputs), np.asarray(test_labels))
        loss = cross_entropy if class_weight is None else WeightedCrossEntropy(class_weight)
        super().__init__(model, loss, data, shards, test_loss=cross_entropy, **options)


class Regression(Supervised):
    """min (1/n) sum_i mean over node i's rows of (model(inputs) - target)^2, of the standardized target.

    The history has the RMSE in the target's own units and R^2 = 1 - MSE / variance of the targets, of the test rows
    (`test_rmse`, `test_r2`) and of the validation rows.

    Args:
        model: The module or a function that creates it, as for `Supervised`.
        data: The data of a regression (`data.from_frame`, `data.load`).
        shards: `shards[i]` are node i's rows, or a function of the seed that returns all shards.
        **options: The other arguments of `Supervised`, but `loss` and `metrics`.
    """

    def __init__(self, model: Model, data: Dataset, shards: Shards, **options: Any):
        if data.encoding is None or data.encoding.target_scale is None:
            raise InputError('Regression needs data of a regression: load it with task="regression".')
        super().__init__(model, mse_loss, data, shards, metrics=MOMENTS, **options)
        self.target_scale = float(data.encoding.target_scale[0])

    def derived(self, row: dict[str, Any]) -> dict[str, Any]:
        """Errors in the target's units, and R^2.

        Args:
            row: Averages over all nodes, by name.
        """
        row = super().derived(row)
        out = {name: value for name, value in row.items() if "_target" not in name}
        for rows in ("test", "validation"):
            if f"{rows}_loss" in row:
                error, mean, squared = (row[f"{rows}_{name}"] for name in ("loss", "target", "target_squared"))
                variance = squared - mean**2
                out[f"{rows}_rmse"] = self.target_scale * np.sqrt(error)
                out[f"{rows}_r2"] = np.where(variance > 0, 1 - error / np.where(variance > 0, variance, 1), 0)
        return out
