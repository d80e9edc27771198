"""Smooth nonconvex regression with a bounded loss and different data at every node, for checking the theorem."""

from collections.abc import Sequence

import numpy as np

from dnasa.checks import whole
from dnasa.core import Array, InputError
from dnasa.problems.problem import Problem
from dnasa.randomness import Samples, Streams

GROUPS = 32


class RobustRegression(Problem):
    """min (1/N) sum_j phi(a_j'x - b_j) with phi(r) = r^2 / (1 + r^2), the Geman-McClure loss.

    The rows come in 32 groups: each has its own theta and input scale, and a tenth of its targets are outliers. A node
    holds whole groups, so the nodes differ much, yet the sum f is the same for every number of nodes, which a measurement
    of the speedup needs. The data are finite: the full gradient is exact.

    Args:
        nodes: The number of nodes, a power of two up to 32.
        dim: The dimension of x.
        rows: Rows in each group.
        seed: The seed of the data.
    """

    def __init__(self, nodes: int, dim: int = 10, rows: int = 100, seed: int = 0):
        if GROUPS % whole("nodes", nodes):
            raise InputError(
                f"The {GROUPS} groups cannot be divided evenly among {nodes} nodes: use a power of two up to {GROUPS}."
            )
        self.dim, self.nodes = dim, nodes
        streams = Streams("robust")
        theta = streams.at(seed, 0, 0).standard_normal(dim)
        groups = [self._group(streams.at(seed, group, 1), theta, rows) for group in range(GROUPS)]
        self.inputs = np.stack([inputs for inputs, _ in groups]).reshape(nodes, -1, dim)
        self.targets = np.stack([targets for _, targets in groups]).reshape(nodes, -1)
        self.samples = Samples("rows", self._draw, 1)
        self.fingerprint = f"robust regression, {nodes} nodes, d = {dim}, {rows} rows, seed {seed}"

    def _group(self, generator: np.random.Generator, theta: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        theta = theta + generator.standard_normal(self.dim) / np.sqrt(self.dim)
        inputs = generator.standard_normal((rows, self.dim)) * generator.uniform(0.5, 1.5)
        targets = inputs @ theta + 0.3 * generator.standard_normal(rows)
        outlier = generator.random(rows) < 0.1
        return inputs, np.where(outlier, 10 * generator.standard_normal(rows), targets)

    def _draw(self, generator: np.random.Generator, node: int, seed: int, length: int) -> np.ndarray:
        return generator.integers(self.inputs.shape[1], size=length)

    def rows(self, node: int) -> int:
        return self.inputs.shape[1]

    def start(self, seed: int) -> Array:
        return np.zeros(self.dim)

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        rows = self.samples.at(seeds, nodes, t)
        index = np.asarray(nodes)
        inputs = self.inputs[index, rows]
        residual = np.einsum("...d,...d->...", inputs, x) - self.targets[index, rows]
        return (2 * residual / (1 + residual**2) ** 2)[..., None] * inputs

    def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
        inputs, targets = self.inputs[list(nodes)], self.targets[list(nodes)]
        residual = np.einsum("nrd,...d->...nr", inputs, mean) - targets
        each = np.ones(len(nodes)) if weights is None else np.asarray(weights)
        slope = 2 * residual / (1 + residual**2) ** 2 * each[:, None]
        return {
            "train_loss": ((residual**2 / (1 + residual**2)).mean(-1) * each).mean(-1),
            "gradient": np.einsum("...nr,nrd->...d", slope, inputs) / targets.size,
        }
