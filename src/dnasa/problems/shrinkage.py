"""A penalty for linear models of two classes, whose weights are too large where rows are few, so that risks are too extreme."""

from typing import NamedTuple

from torch import Tensor

EXCESS = 1.5  # correlated inputs make c too large by about this: between 1.4 and 2, slopes on real tables were nearest to 1
LEAST = 1e-12  # of |W|^2, where the penalty has a kink


class Shrinkage(NamedTuple):
    """Empirical Bayes: each weight is normal with mean 0 and the variance that the length of all weights W suggests.

    In the evidence approximation (MacKay, 1992), the gradient of the penalty on the sum of N losses is c W with c = k / |W|^2.
    Of p inputs, the rows determine k = p N v / (N v + c), where v is the curvature of the loss at W = 0. Here c is solved for.

    Args:
        ratio: Inputs for each row, p / N.
        curvature: v = 1 - the sum of the squared shares of both classes.
    """

    ratio: float
    curvature: float

    def gradient(self, weights: Tensor) -> Tensor:
        """The gradient of the penalty; of each row of numbers by itself.

        Args:
            weights: W, zero where a parameter has no penalty.
        """
        squared = (weights**2).sum(-1, keepdim=True).clamp(min=LEAST)
        v = self.curvature
        return ((v**2 + 4 * v * self.ratio / (EXCESS * squared)).sqrt() - v) / 2 * weights
