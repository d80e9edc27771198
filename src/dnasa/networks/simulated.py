"""All nodes in one process: the exchange is one product with W for all arrays and all runs."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dnasa.core import Array, InputError, Network
from dnasa.networks import wire as wires
from dnasa.topology import Changing, Topology


def connect(topology: Topology | Changing, rounds: int = 1, wire: str | None = None) -> Network:
    """A network of all nodes; with several `rounds`, each step's exchange is repeated, as if W were W^rounds."""
    if rounds < 1:
        raise InputError(f"An exchange needs at least one round, not {rounds}.")
    topologies = [topology.at(t) for t in range(topology.period)] if isinstance(topology, Changing) else [topology]
    wires.check(wire)
    products = [
        lean_product(each.weights, rounds, wire) if wire else product(each.weights, rounds) for each in topologies
    ]

    def mix(*arrays: Array, t: int = 0) -> tuple[Array, ...]:
        return products[t % len(products)](arrays)

    fixed = None if wire or rounds > 1 or isinstance(topology, Changing) else topology.weights
    return Network(
        topology.nodes,
        mix,
        mean=lambda a: a.mean(-2),
        rounds=rounds,
        wire=wire,
        topology=topology,
        fixed_weights=fixed,
    )


def lean_product(weights: Any, rounds: int, wire: str) -> "Product":
    """x + (W - I) Q(x), as often as there are rounds."""
    once = product(weights)

    def multiply(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        for _ in range(rounds):
            arrays = wires.lean(once, arrays, wire)
        return arrays

    return multiply


def compact(part: Any) -> Any:
    """Matrices of a few nodes multiply faster when they are dense."""
    return part if part.shape[0] > 200 else part.toarray()


def product(weights: Any, rounds: int = 1) -> "Product":
    """Multiplication of several arrays `(..., n, d)` at once by W^rounds, dense or sparse, in NumPy or torch."""
    if weights.shape == (1, 1):
        factor = float(weights[0, 0]) ** rounds
        return lambda arrays: tuple(factor * array for array in arrays)
    if sp.issparse(weights):
        return _sparse_product(weights, rounds)
    return _dense_product(np.linalg.matrix_power(weights, rounds) if rounds > 1 else weights)


Product = Callable[[tuple[Array, ...]], tuple[Array, ...]]


def _dense_product(weights: np.ndarray) -> Product:
    as_kind = _converted(lambda like: _dense_like(weights, like))

    def multiply(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        if isinstance(arrays[0], np.ndarray):
            return tuple(np.split(as_kind(arrays[0]) @ np.concatenate(arrays, axis=-1), len(arrays), axis=-1))
        import torch

        return torch.matmul(as_kind(arrays[0]), torch.cat(arrays, dim=-1)).chunk(len(arrays), dim=-1)

    return multiply


def _sparse_product(weights: sp.csr_array, rounds: int) -> Product:
    as_kind = _converted(lambda like: _sparse_like(weights, like))

    def multiply(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        matrix = as_kind(arrays[0])
        side_by_side, apart = _node_axis_first(arrays)
        for _ in range(rounds):
            side_by_side = matrix @ side_by_side
        return apart(side_by_side)

    return multiply


def _node_axis_first(arrays: tuple[Array, ...]) -> tuple[Array, Callable[[Array], tuple[Array, ...]]]:
    """Arrays (..., n, d) as one (n, columns), and the way back."""
    if isinstance(arrays[0], np.ndarray):
        moved: Array = np.moveaxis(np.stack(arrays), -2, 0)
        return moved.reshape(len(moved), -1), lambda flat: tuple(np.moveaxis(flat.reshape(-1, *moved.shape[1:]), 0, -2))
    import torch

    moved = torch.stack(arrays).movedim(-2, 0)
    return moved.reshape(len(moved), -1), lambda flat: flat.reshape(-1, *moved.shape[1:]).movedim(0, -2).unbind()


def _converted(convert: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """W in the library, dtype and device of the arrays, converted once for each."""
    made: dict[Any, Any] = {}

    def as_kind(like: Array) -> Any:
        kind = (type(like), like.dtype, getattr(like, "device", None))
        if kind not in made:
            made[kind] = convert(like)
        return made[kind]

    return as_kind


def _dense_like(weights: np.ndarray, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return weights.astype(like.dtype)
    import torch

    return torch.as_tensor(weights, dtype=like.dtype, device=like.device)


def _sparse_like(weights: sp.csr_array, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return weights.astype(like.dtype)
    import torch

    parts = (weights.indptr, weights.indices, weights.data)
    rows, columns, data = (torch.as_tensor(part) for part in parts)
    with (
        warnings.catch_warnings()
    ):  # torch calls its CSR tensors "beta" and its unchecked indices "unsafe": ours are SciPy's
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(rows, columns, data, weights.shape, dtype=like.dtype, device=like.device)
