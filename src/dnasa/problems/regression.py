"""A model that predicts a number, trained on rows that are divided among the nodes."""

from typing import Any

import numpy as np
from torch import nn

from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.problems.sharded import Model, Shards
from dnasa.problems.supervised import Supervised

MOMENTS = {  # averages that R^2 is computed from
    "test_target": lambda outputs, targets: targets.mean(),
    "test_target_squared": lambda outputs, targets: (targets**2).mean(),
}


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
        super().__init__(model, nn.functional.mse_loss, data, shards, metrics=MOMENTS, **options)
        self.target_scale = float(data.encoding.target_scale[0])

    def derived(self, row: dict[str, Any]) -> dict[str, Any]:
        out = {name: value for name, value in row.items() if "_target" not in name}
        for rows in ("test", "validation"):
            if f"{rows}_loss" in row:
                error, mean, squared = (row[f"{rows}_{name}"] for name in ("loss", "target", "target_squared"))
                variance = squared - mean**2
                out[f"{rows}_rmse"] = self.target_scale * np.sqrt(error)
                out[f"{rows}_r2"] = np.where(variance > 0, 1 - error / np.where(variance > 0, variance, 1), 0)
        return out
