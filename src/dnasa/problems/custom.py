"""A problem defined by a gradient function."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from dnasa.arrays import adds_up, as_floats, checksum, copied, dtype_name, like, moderate, stack, to_numpy
from dnasa.checks import UserCode, nodes_text, whole
from dnasa.core import Array, InputError, Prox
from dnasa.extras import needed_by
from dnasa.problems.problem import Problem, as_array_like, function_name
from dnasa.randomness import Generators


class Custom(Problem):
    """min (1/n) sum_i f_i(x) + h(x), from a function that returns a stochastic gradient of f_i.

    All randomness should come from `rng`, a NumPy generator that depends on (seed, node, step) alone.

    With `batched=True`, one call computes the gradients of all nodes and runs. `x` has shape (variants, seeds, k, d), where
    row k belongs to node `nodes[k]`; return an array of that shape. `rngs[s][k]` is the generator of seed s and node k, and
    `rngs.standard_normal(m)`, or any other method of NumPy's generators, draws from all of them at once: (seeds, k, m), which
    broadcasts with x.

    Args:
        gradient: `gradient(x, node, rng) -> (d,)`, a stochastic gradient of f_i at x; if batched, `gradient(x, nodes, rngs)`.
        start: The common starting point. A NumPy array makes a NumPy run, a torch tensor a torch run.
        loss: `loss(x, node)`, evaluated at the mean iterate and averaged over the nodes.
        full_gradient: `full_gradient(x, node)`, evaluated at the mean iterate and averaged over the nodes.
        nodes: The number of nodes; by default any.
        fingerprint: A text that identifies the gradient function and its data: a resumed run must have the same. The default
            consists of the starting point and the qualified names of `gradient` and `prox`: their code and their data are not
            compared, so give a fingerprint where either may change.
        batched: Whether `gradient` computes all nodes and runs in one call.
        evaluate: `evaluate(x)`, further metrics of the mean iterate: numbers by name.
        prox: The proximal operator of h (`dnasa.problems.prox`), or a projection.

    Examples:
        >>> targets = np.array([1.0, 2.0, 6.0])  # of three nodes
        >>> problem = Custom(lambda x, node, rng: x - targets[node] + rng.normal(size=1), start=np.zeros(1), nodes=3)
    """

    def __init__(
        self,
        gradient: Callable[..., Array],
        start: Array,
        loss: Callable[[Array, int], float] | None = None,
        full_gradient: Callable[[Array, int], Array] | None = None,
        nodes: int | None = None,
        fingerprint: str | None = None,
        batched: bool = False,
        evaluate: Callable[[Array], Mapping[str, Any]] | None = None,
        prox: Prox | None = None,
    ):
        optional = {"loss": loss, "full_gradient": full_gradient, "evaluate": evaluate, "prox": prox}
        functions = {name: function for name, function in optional.items() if function is not None}
        for name, function in {"gradient": gradient, **functions}.items():
            if not callable(function):
                raise InputError(f"{name} must be a function, not {type(function).__name__}.")
        self.point = _starting_point(start)
        self.nodes = None if nodes is None else whole("nodes", nodes)
        self.gradient_function, self.batched, self.prox = gradient, batched, prox
        self.loss, self.full_gradient, self.metrics = loss, full_gradient, evaluate
        self.user_fingerprint = fingerprint
        self.generators = Generators("custom", (), range(0))

    @classmethod
    def from_loss(cls, loss: Callable[..., Array], start: Array, batched: bool = False, **options: Any) -> "Custom":
        """A problem from a loss that torch differentiates.

        Args:
            loss: `loss(x, node, rng)`, a stochastic loss of the node at the tensor x. If batched, `loss(x, nodes, rngs)`,
                one number for each row of x: (variants, seeds, k).
            start: The common starting point; functions are given tensors, also if it is a NumPy array.
            batched: Whether `loss` computes all nodes and runs in one call.
            **options: The other arguments of `Custom`.

        Example:
            >>> targets = torch.tensor([1.0, 2.0, 6.0])  # of three nodes
            >>> problem = Custom.from_loss(lambda x, node, rng: ((x - targets[node]) ** 2).sum(), start=np.zeros(1), nodes=3)
        """
        with needed_by("Custom.from_loss"):
            import torch

        def gradient(x: Array, node: Any, rng: Any) -> Array:
            point = x.detach().requires_grad_()
            value = loss(point, node, rng)
            if not getattr(value, "requires_grad", False) or value.shape != x.shape[:-1] or value.is_complex():
                whose = "batched loss" if batched else f"loss of node {node}"
                wanted = f"one number for each row of x, {tuple(x.shape[:-1])}" if batched else "a single number"
                raise InputError(f"The {whose} must be a real tensor, computed from x by torch, with {wanted}.")
            return torch.autograd.grad(value.sum(), point)[0]

        gradient.__qualname__ = function_name(loss)
        return cls(gradient, torch.as_tensor(start), batched=batched, **options)

    @cached_property
    def fingerprint(self) -> str:
        if self.user_fingerprint is not None:
            return self.user_fingerprint
        prox = f", prox {function_name(self.prox)}" if self.prox else ""
        return f"custom {function_name(self.gradient_function)}, start {checksum(self.point)}{prox}"

    def start(self, seed: int) -> Array:
        return self.point

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        if self.generators.nodes != nodes or list(self.generators.seeds) != list(seeds):
            self.generators = Generators("custom", seeds, nodes)
        g = self._batched(x, t) if self.batched else self._node_by_node(x, nodes, t)
        if not adds_up(g):
            self._check_finite(g, x, nodes)
        return g

    def _batched(self, x: Array, t: int) -> Array:
        rngs = self.generators
        with UserCode(lambda: f"The batched gradient of {nodes_text(rngs.nodes)}"):
            value = self.gradient_function(copied(x), rngs.node_array.copy(), rngs.at(t))  # it may change its arguments
        return as_array_like(value, x, "batched gradient")

    def _node_by_node(self, x: Array, nodes: range, t: int) -> Array:
        g, points, function, point, node = copied(x), copied(x), self.gradient_function, self.point, nodes[0]
        in_numpy, shape, dtype = isinstance(point, np.ndarray), point.shape, point.dtype
        with UserCode(lambda: f"The gradient of node {node}"):
            for v in range(len(x)):  # variants of a seed have the same samples
                for s, generators in enumerate(self.generators.at(t).generators):
                    out, rows = g[v, s], points[v, s]
                    for k, (node, rng) in enumerate(zip(nodes, generators, strict=True)):
                        value = function(rows[k], node, rng)
                        if not in_numpy or type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                            value = as_array_like(value, point, f"gradient of node {node}")
                        out[k] = value
        return g

    def _check_finite(self, g: Array, x: Array, nodes: range) -> None:
        """Refuse a gradient that is not finite although x is moderate: that is a bug in the function, not divergence."""
        wrong = ~(abs(g) < np.inf).all(-1) & moderate(x)
        if wrong.any():
            node = nodes[int(np.argwhere(to_numpy(wrong))[0, -1])]
            raise InputError(
                f"The gradient of node {node} is not finite although x is: check the gradient function. If x left the "
                "set where the loss is defined, start further inside, or try the rule adanasa, whose first steps are short."
            )

    def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
        factors = [1.0] * len(nodes) if weights is None else weights
        points = mean.reshape(-1, mean.shape[-1])

        def averages(function: Callable[[Array, int], Any]) -> list[Any]:
            return [sum(w * function(x, node) for node, w in zip(nodes, factors, strict=True)) / len(nodes) for x in points]

        out: dict[str, Array] = {}
        if self.loss:
            out["train_loss"] = like(np.array(averages(self._loss)), mean).reshape(mean.shape[:-1])
        if self.full_gradient:
            out["gradient"] = stack(averages(self._full_gradient)).reshape(mean.shape)
        if self.metrics:
            measured = [self._measured(x) for x in points]
            if any(each.keys() != measured[0].keys() for each in measured):
                raise InputError("evaluate must return the same names for every x.")
            for name in measured[0]:
                out[name] = np.array([each[name] for each in measured]).reshape(mean.shape[:-1])
        return out

    def _measured(self, point: Array) -> dict[str, float]:
        with UserCode(lambda: "The function evaluate"):
            returned = self.metrics(copied(point))  # type: ignore[misc]
        if not isinstance(returned, Mapping):
            raise InputError("evaluate must return a dictionary of numbers, such as {'distance': 0.5}.")
        return {str(name): _number(f"metric '{name}'", value, point) for name, value in returned.items()}

    def _loss(self, x: Array, node: int) -> float:
        with UserCode(lambda: f"The loss of node {node}"):
            value = self.loss(copied(x), node)  # type: ignore[misc]
        return _number(f"loss of node {node}", value, x)

    def _full_gradient(self, x: Array, node: int) -> Array:
        with UserCode(lambda: f"The full gradient of node {node}"):
            value = self.full_gradient(copied(x), node)  # type: ignore[misc]
        g = as_array_like(value, x, f"full gradient of node {node}")
        _number(f"largest entry of the full gradient of node {node}", abs(g).max(), x)
        return g


def _starting_point(start: Array) -> Array:
    """A float32 or float64 vector; whole numbers become float64."""
    array = isinstance(start, np.ndarray) or hasattr(start, "detach")
    if not array or start.ndim != 1 or not len(start):
        raise InputError("start must be a NumPy array or torch tensor with one axis: the point all nodes start at.")
    if not dtype_name(start).startswith(("float32", "float64", "int", "uint", "bool")):
        raise InputError(f"start has dtype {dtype_name(start)}: convert it to float32 or float64.")
    return as_floats(start)


def _number(name: str, value: Any, x: Array) -> float:
    """What a function returned as a number, finite where x is moderate."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"The {name} is of type {type(value).__name__}: return a single number.") from None
    if not isfinite(number) and moderate(x):
        raise InputError(f"The {name} is {number} although x is finite: return a finite number.")
    return number
