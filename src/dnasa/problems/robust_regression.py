"""Smooth nonconvex regression with a bounded loss and different data at every node: where the theorem is checked."""

from collections.abc import Sequence

import numpy as np

from dnasa.core import Array, InputError
from dnasa.randomness import Samples, Streams

GROUPS = 32


class RobustRegression:
    """min (1/N) sum_j phi(a_j'x - b_j) with phi(r) = r^2 / (1 + r^2), the Geman-McClure loss.

    The rows come in 32 groups: each follows its own theta and scales its inputs differently, and a tenth of its targets
    are wild outliers. A node holds whole groups, so the nodes differ much, yet the sum f is the same for every number of
    nodes, which is what a measurement of the speedup needs. The data are finite: the full gradient is exact.
    """

    batch = 1

    def __init__(self, nodes: int, dim: int = 10, rows: int = 100, seed: int = 0):
        if not 1 <= nodes <= GROUPS or GROUPS % nodes:
            raise InputError(
                f"The {GROUPS} groups cannot be shared evenly among {nodes} nodes: use a power of two up to {GROUPS}."
            )
        self.dim = dim
        self.nodes = nodes
        self.epoch = float(GROUPS // nodes * rows)
        streams = Streams("robust")
        theta = streams.at(seed, 0, 0).standard_normal(dim)
        groups = [self._group(streams.at(seed, group, 1), theta, rows) for group in range(GROUPS)]
        self.inputs = np.stack([inputs for inputs, _ in groups]).reshape(nodes, -1, dim)
        self.targets = np.stack([targets for _, targets in groups]).reshape(nodes, -1)
        self.samples = Samples("rows", self._draw, 1)

    def _group(self, generator: np.random.Generator, theta: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        theta = theta + generator.standard_normal(self.dim) / np.sqrt(self.dim)
        inputs = generator.standard_normal((rows, self.dim)) * generator.uniform(0.5, 1.5)
        targets = inputs @ theta + 0.3 * generator.standard_normal(rows)
        wild = generator.random(rows) < 0.1
        return inputs, np.where(wild, 10 * generator.standard_normal(rows), targets)

    def _draw(self, generator: np.random.Generator, node: int, length: int) -> np.ndarray:
        return generator.integers(self.inputs.shape[1], size=length)

    def start(self, seed: int) -> Array:
        return np.zeros(self.dim)

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        rows = self.samples.at(seeds, nodes, t)
        held = np.asarray(nodes)
        inputs = self.inputs[held, rows]
        residual = np.einsum("...d,...d->...", inputs, x) - self.targets[held, rows]
        return (2 * residual / (1 + residual**2) ** 2)[..., None] * inputs

    def evaluate(self, mean: Array, nodes: range) -> dict[str, Array]:
        held = slice(nodes.start, nodes.stop)
        residual = np.einsum("nrd,...d->...nr", self.inputs[held], mean) - self.targets[held]
        slope = 2 * residual / (1 + residual**2) ** 2
        return {
            "train_loss": (residual**2 / (1 + residual**2)).mean((-2, -1)),
            "gradient": np.einsum("...nr,nrd->...d", slope, self.inputs[held]) / residual[0, 0].size,
        }
