"""The paper's streaming regression: in every step, every node draws fresh samples of Y = X'theta + noise."""

from collections.abc import Sequence

import numpy as np

from dnasa.arrays import compiled
from dnasa.checks import choose, whole
from dnasa.core import Array, InputError
from dnasa.problems.problem import Problem
from dnasa.randomness import Normals, Streams

TEST_SAMPLES = 10_000  # per node
TEST_DIM = 2_000  # largest dimension with a test loss: its d x d matrix costs d^3 operations per node


class LeastSquares(Problem):
    """min E (Y - X'theta)^2 with X ~ N(0, I).

    The training loss and the gradient norm are the exact expectations. The test loss is that on 10,000 fresh samples per
    node, of which only the second moments matter: these are drawn, and evaluating costs a product with a d x d matrix.

    Args:
        dim: The dimension d. Above 2,000 there is no test loss.
        noise: The standard deviation of Y given X.
        spike: X ~ N(0, diag(100, 1, ..., 1)) instead, for a large smoothness constant.
        batch: Samples that a node draws in each step.
        seed: The seed of theta.
        dtype: "float32" or "float64".
    """

    def __init__(
        self, dim: int = 100, noise: float = 0.1, spike: bool = False, batch: int = 1, seed: int = 0, dtype: str = "float64"
    ):
        dim, batch = whole("dim", dim), whole("batch", batch)
        if not 0 <= noise < np.inf:
            raise InputError(f"noise must be a number from 0 on, not {noise}.")
        choose("dtype", dtype, {"float32": 4, "float64": 8})
        self.batch, self.dim, self.noise, self.seed, self.dtype = batch, dim, noise, seed, np.dtype(dtype)
        self.scale = np.ones(dim, self.dtype)
        self.scale[0] = 10.0 if spike else 1.0
        self.theta = Streams("theta").at(seed, 0, 0).standard_normal(dim).astype(self.dtype)
        self.samples = Normals("least", (batch, dim + 1), self.dtype)
        self.fingerprint = f"least squares, d = {dim}, noise {noise}, spike {spike}, seed {seed}"
        self.moments: dict[range, np.ndarray] = {}

    def _pairs(self, drawn: np.ndarray) -> np.ndarray:
        """Turn standard normal numbers into X and, as a last column, Y = X'theta + noise."""
        rows = drawn.reshape(-1, self.dim + 1)
        rows[:, 0] *= self.scale[0]
        rows[:, -1] *= self.noise
        # einsum and not BLAS, whose threads keep spinning after the call
        rows[:, -1] += np.einsum("rd,d->r", rows[:, :-1], self.theta)
        return drawn

    def start(self, seed: int) -> Array:
        return np.zeros(self.dim, self.dtype)

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        pairs = self.samples.at(seeds, nodes, t, ready=self._pairs)
        if compiled is None:
            return self._plain_gradient(pairs, x)
        x, g = np.ascontiguousarray(x, self.dtype), np.empty(x.shape, self.dtype)
        runs = len(seeds) * len(nodes)
        variants = x.size // (runs * self.dim)
        compiled.least_squares(pairs, x, g, variants, runs, self.batch, self.dim, self.dtype.itemsize == 8)
        return g

    def _plain_gradient(self, pairs: np.ndarray, x: Array) -> Array:
        """The mean over the batch of 2 X (X'x - Y)."""
        inputs, targets = pairs[..., :-1], pairs[..., -1]
        residual = np.einsum("...bd,...d->...b", inputs, x) - targets
        return np.einsum("...b,...bd->...d", 2 / self.batch * residual, inputs)

    def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
        error = (mean - self.theta).astype(np.float64)
        weight = 1.0 if weights is None else sum(weights) / len(nodes)  # all nodes have the same expected loss
        out = {"train_loss": weight * ((self.scale**2 * error**2).sum(-1) + self.noise**2)}
        if self.dim <= TEST_DIM:
            residual = np.concatenate([error, np.full((*error.shape[:-1], 1), -self.noise)], axis=-1)
            out["test_loss"] = ((residual @ self._test_moments(nodes)) * residual).sum(-1)
        return out | {"gradient": weight * 2 * self.scale**2 * error}

    def _test_moments(self, nodes: range) -> np.ndarray:
        """The mean of (X, noise)(X, noise)' over the test samples of these nodes."""
        if nodes not in self.moments:
            size = self.dim + 1
            total = np.zeros((size, size))
            for generator in Streams("test", rounded=True).each(self.seed, nodes, 0):
                root = wishart_root(generator, size, TEST_SAMPLES)
                total += root @ root.T
            scale = np.append(self.scale, 1).astype(np.float64)
            self.moments[nodes] = scale[:, None] * total / (TEST_SAMPLES * len(nodes)) * scale
        return self.moments[nodes]


def wishart_root(generator: np.random.Generator, size: int, samples: int) -> np.ndarray:
    """A with A A' the sum of x x' over `samples` standard normal x, drawn from its exact distribution (Bartlett, 1933)."""
    root = np.tril(generator.standard_normal((size, size)), k=-1)
    root[np.diag_indices(size)] = np.sqrt(generator.chisquare(samples - np.arange(size)))
    return root
