"""Your own losses: robotics, control, signal processing, anything with a gradient per node."""

import copy
from collections.abc import Callable, Sequence

import numpy as np

from dnasa.core import Array, InputError
from dnasa.randomness import Streams

MODERATE = 1e50  # a gradient that is not finite at such an x is a mistake; beyond, the run is diverging


class Custom:
    """min (1/n) sum_i f_i(x), from `gradient(x, node, rng) -> (d,)`, a stochastic gradient of f_i at x.

    `start` is the common starting point; a NumPy array makes a NumPy run, a torch tensor a torch run. All randomness
    should come from `rng`, a NumPy generator that depends on (seed, node, step) alone. `loss(x, node)` and
    `full_gradient(x, node)`, where given, are evaluated at the mean iterate and averaged over the nodes.
    """

    batch = 1
    epoch = None

    def __init__(
        self,
        gradient: Callable[[Array, int, np.random.Generator], Array],
        start: Array,
        loss: Callable[[Array, int], float] | None = None,
        full_gradient: Callable[[Array, int], Array] | None = None,
        nodes: int | None = None,
    ):
        if getattr(start, "ndim", None) != 1:
            raise InputError(
                "start must be a one-dimensional NumPy array or torch tensor: the point all nodes start at."
            )
        self.of_node, self.point, self.loss, self.full_gradient, self.nodes = (
            gradient,
            start,
            loss,
            full_gradient,
            nodes,
        )
        self.streams = Streams("custom")

    def start(self, seed: int) -> Array:
        point = self.point
        if isinstance(point, np.ndarray):
            return point if np.issubdtype(point.dtype, np.floating) else point.astype(np.float64)
        return point.detach() if point.is_floating_point() else point.double()

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        g = 0 * x
        for variant in range(len(x)):
            for s, seed in enumerate(seeds):
                for k, node in enumerate(nodes):
                    point = copy.copy(x[variant, s, k]) if isinstance(x, np.ndarray) else x[variant, s, k].clone()
                    value = self._like(self.of_node(point, node, self.streams.at(seed, node, t)))
                    self._check(value, point, node, t)
                    g[variant, s, k] = value
        return g

    def _like(self, value: Array) -> Array:
        return np.asarray(value) if isinstance(self.point, np.ndarray) else value

    def _check(self, value: Array, point: Array, node: int, t: int) -> None:
        if getattr(value, "shape", None) != point.shape:
            shape = tuple(getattr(value, "shape", ())) or type(value).__name__
            raise InputError(
                f"The gradient of node {node} has shape {shape}; it must have that of start, {tuple(point.shape)}."
            )
        if not bool((abs(value) < np.inf).all()) and float(abs(point).max()) < MODERATE:
            raise InputError(
                f"The gradient of node {node} at step {t} is not finite although x is: look at your gradient function."
            )

    def evaluate(self, mean: Array, nodes: range) -> dict[str, Array]:
        out: dict[str, Array] = {}
        if self.loss:
            out["train_loss"] = self._average(self.loss, mean, nodes, mean[..., 0] * 0)
        if self.full_gradient:
            out["gradient"] = self._average(self.full_gradient, mean, nodes, mean * 0)
        return out

    @staticmethod
    def _average(function: Callable, mean: Array, nodes: range, out: Array) -> Array:
        for variant in range(mean.shape[0]):
            for s in range(mean.shape[1]):
                out[variant, s] = sum(function(mean[variant, s], node) for node in nodes) / len(nodes)
        return out
