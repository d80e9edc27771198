"""Losses of one model, and those of many models at once: the values of all rows, and the slopes at the outputs."""

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all targets, class numbers; the last axis of the outputs is that of the classes."""
    return nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


def mistakes(loss: Loss, outputs: Tensor, slopes: Tensor) -> Tensor:
    """How wrong the outputs of each row are, from 0 to 1: the length of the slope of the loss at them, relative to a limit.

    Of cross-entropy, the limit is that slope if the label were the least likely class and others equally likely. It does not
    depend on the label: so with two classes, their true probabilities are stationary.
    """
    limit: Tensor | float = sqrt(2)
    if loss is cross_entropy:
        least = outputs.softmax(-1).amin(-1).flatten(1)
        limit = sqrt(outputs.shape[-1] / max(1, outputs.shape[-1] - 1)) * (1 - least).norm(dim=1) / least.shape[1]
    return (slopes.flatten(1).norm(dim=1) / limit).clamp(max=1)


class WeightedCrossEntropy(nn.Module):
    """The mean over all rows of a row's cross-entropy times the weight of its class."""

    weight: Tensor

    def __init__(self, weight: Any):
        super().__init__()
        self.register_buffer("weight", torch.as_tensor(np.asarray(weight)))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, self.weight, reduction="none").mean()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of targets whose class has the largest output."""
    return (outputs.argmax(-1) == targets).double().mean()


class StackedLoss(NamedTuple):
    """A loss that is a mean over all targets, for the outputs `(R, b, k)` of R models."""

    values: Loss  # of outputs and targets: the loss of each row, summed over its targets, `(R, b)`
    slopes: Loss  # the derivatives of these at the outputs
    class_weight: Tensor | None = None  # multiplies the loss of the rows of each class

    def total(self, outputs: Tensor, targets: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """Each model's sum of the losses of its rows, which count with these weights."""
        return (self.values(outputs, targets) * self._row_weight(weight, targets)).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor, weight: float | Tensor) -> Tensor:
        """The gradients of these sums at the outputs."""
        weight = self._row_weight(weight, targets)
        return self.slopes(outputs, targets) * (weight if isinstance(weight, float) else weight[..., None])

    def _row_weight(self, weight: Any, targets: Tensor) -> Any:
        return weight if self.class_weight is None else weight * self.class_weight[targets]


def stacked(loss: Loss) -> StackedLoss | None:
    """The loss for many models at once; None if it has no formula here."""
    if isinstance(loss, WeightedCrossEntropy):
        return KNOWN[cross_entropy]._replace(class_weight=loss.weight)
    return KNOWN.get(loss)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


def cross_entropy_slopes(logits: Tensor, labels: Tensor) -> Tensor:
    slope = torch.softmax(logits, -1)
    return slope.scatter_add_(-1, labels[..., None], slope.new_full((*labels.shape, 1), -1.0))


KNOWN: dict[Loss, StackedLoss] = {
    cross_entropy: StackedLoss(cross_entropies, cross_entropy_slopes),
    mse_loss: StackedLoss(
        lambda outputs, targets: ((outputs - targets) ** 2).sum(-1), lambda outputs, targets: 2 * (outputs - targets)
    ),
    binary_cross_entropy_with_logits: StackedLoss(
        lambda outputs, targets: binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1),
        lambda outputs, targets: outputs.sigmoid() - targets,
    ),
}
