"""A problem defined by a gradient function."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dnasa.arrays import like
from dnasa.core import Array, InputError, whole
from dnasa.problems import Problem
from dnasa.problems.checksums import checksum
from dnasa.randomness import Streams


class Custom(Problem):
    """min (1/n) sum_i f_i(x), from `gradient(x, node, rng) -> (d,)`, a stochastic gradient of f_i at x.

    `start` is the common starting point; a NumPy array makes a NumPy run, a torch tensor a torch run. All randomness
    should come from `rng`, a NumPy generator that depends on (seed, node, step) alone. `loss(x, node)` and
    `full_gradient(x, node)`, where given, are evaluated at the mean iterate and averaged over the nodes.

    A resumed run must have the same gradient function and data: by default its code and the arrays, numbers and functions
    that it refers to are compared. `fingerprint`, a text that identifies both, is compared instead where given.
    """

    def __init__(
        self,
        gradient: Callable[[Array, int, np.random.Generator], Array],
        start: Array,
        loss: Callable[[Array, int], float] | None = None,
        full_gradient: Callable[[Array, int], Array] | None = None,
        nodes: int | None = None,
        fingerprint: str | None = None,
    ):
        self.point = _starting_point(start)
        self.nodes = None if nodes is None else whole("nodes", nodes)
        self.gradient_function, self.loss, self.full_gradient = gradient, loss, full_gradient
        self.user_fingerprint = fingerprint
        self.streams = Streams("custom")
        self.largest = _largest(self.point)

    @cached_property
    def fingerprint(self) -> str:
        if self.user_fingerprint is not None:
            return self.user_fingerprint
        return f"custom, start {checksum(self.point)}"

    @cached_property
    def _gradient_checksum(self) -> str:
        return checksum(self.gradient_function)

    def node_fingerprint(self, node: int) -> str:
        """Of the gradient function in this process: it may refer to the data of this process' nodes only."""
        return self._gradient_checksum if self.user_fingerprint is None else ""

    def start(self, seed: int) -> Array:
        return self.point

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        g = _copy(x)
        for variant in range(len(x)):
            for s, seed in enumerate(seeds):
                for k, node in enumerate(nodes):
                    point = _copy(x[variant, s, k])  # the function may change its argument
                    value = self.gradient_function(point, node, self.streams.at(seed, node, t))
                    g[variant, s, k] = _vector(value, point, f"gradient of node {node}", f" at step {t}")
                    self._check_finite(g[variant, s, k], x[variant, s, k], node, t)
        return g

    def _check_finite(self, value: Array, point: Array, node: int, t: int) -> None:
        if not bool((abs(value) < np.inf).all()) and float(abs(point).max()) < self.largest:
            raise InputError(
                f"The gradient of node {node} at step {t} is not finite although x is: check the gradient function."
            )

    def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
        out: dict[str, Array] = {}
        if self.loss:
            out["train_loss"] = self._average(self._loss, mean, nodes, weights, mean[..., 0])
        if self.full_gradient:
            out["gradient"] = self._average(self._full_gradient, mean, nodes, weights, mean)
        return out

    def _loss(self, x: Array, node: int) -> float:
        assert self.loss is not None
        value = self.loss(x, node)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            what = type(value).__name__
            raise InputError(f"The loss of node {node} is of type {what}: return a single number.") from None

    def _full_gradient(self, x: Array, node: int) -> Array:
        assert self.full_gradient is not None
        return _vector(self.full_gradient(_copy(x), node), x, f"full gradient of node {node}")

    @staticmethod
    def _average(
        function: Callable[[Array, int], Any],
        mean: Array,
        nodes: range,
        weights: Sequence[float] | None,
        out_like: Array,
    ) -> Array:
        out, factors = _copy(out_like), [1.0] * len(nodes) if weights is None else weights
        for variant in range(mean.shape[0]):
            for s in range(mean.shape[1]):
                values = [w * function(_copy(mean[variant, s]), node) for node, w in zip(nodes, factors, strict=True)]
                out[variant, s] = sum(values) / len(nodes)
        return out


def _starting_point(start: Array) -> Array:
    """A float32 or float64 vector; whole numbers become float64."""
    if not (isinstance(start, np.ndarray) or hasattr(start, "detach")) or start.ndim != 1:
        raise InputError("start must be a one-dimensional NumPy array or torch tensor: the point all nodes start at.")
    if not len(start):
        raise InputError("start is empty: give at least one number.")
    name = str(start.dtype).removeprefix("torch.")
    if name not in ("float32", "float64") and not name.startswith(("int", "uint", "bool")):
        raise InputError(f"start has dtype {name}: convert it to float32 or float64.")
    if isinstance(start, np.ndarray):
        return start if start.dtype.kind == "f" else start.astype(np.float64)
    return start.detach() if start.is_floating_point() else start.double()


def _largest(point: Array) -> float:
    """1e51 or 1e6: while x is smaller, a gradient that is not finite is a mistake and no sign of divergence."""
    return float(np.finfo(str(point.dtype).removeprefix("torch.")).max) ** (1 / 6)


def _copy(a: Array) -> Array:
    return a.copy() if isinstance(a, np.ndarray) else a.clone()


def _vector(value: Any, point: Array, name: str, when: str = "") -> Array:
    """What the user's function returned as an array like `point`, or one line that says what is wrong with it."""
    shape = tuple(point.shape)
    try:
        array = value.detach() if hasattr(value, "detach") else np.ascontiguousarray(np.asarray(value))
        real = not array.is_complex() if hasattr(array, "is_complex") else array.dtype.kind in "fiub"
    except (TypeError, ValueError, RuntimeError):
        real = False
    if not real:
        numbers = getattr(value, "dtype", type(value).__name__)
        raise InputError(f"The {name}{when} is {numbers}: return an array of {shape[0]} real numbers.")
    if np.shape(value) != shape:
        raise InputError(f"The {name} has shape {tuple(np.shape(value))}{when}; it must have that of start, {shape}.")
    return like(array, point)
