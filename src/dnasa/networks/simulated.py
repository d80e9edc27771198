"""All nodes in one process: the exchange is one product with W for all arrays and all runs."""

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from dnasa.core import Array, Channel, InputError, Messages, Network
from dnasa.topology import Topology

Product = Callable[[Messages], Messages]


def connect(topology: Topology, rounds: int = 1, channel: Channel | None = None) -> Network:
    """A network of all nodes; with several `rounds`, each step's exchange is repeated, as if W were W^rounds."""
    check_exchange(topology, rounds, channel)
    products = [Multiplier(graph) for graph in topology.each]
    return Network(
        topology.nodes,
        lambda messages, t: products[t % len(products)].product(messages),
        mean=lambda a: a.mean(-2),
        rounds=rounds,
        channel=channel,
        topology=topology,
        at=lambda t: products[t % len(products)],
        fixed_weights=topology.weights if topology.period == 1 else None,
    )


def check_exchange(topology: Topology, rounds: int, channel: Channel | None) -> None:
    if topology.period > 1 and channel is not None and channel.fixed_graph:
        raise InputError(
            f"This channel remembers what came over one graph, and {topology.name} changes: use a graph that stays the same, "
            "or another channel."
        )
    if isinstance(rounds, bool) or not isinstance(rounds, Integral) or rounds < 1:
        raise InputError(f"An exchange needs at least one round, a whole number of them, not {rounds}.")


class Multiplier:
    """The product with W of one graph, as channels use it."""

    def __init__(self, topology: Topology):
        self.W, self.rows = topology.sparse, range(topology.nodes)
        self.product = product(topology.weights)

    def __call__(
        self, payloads: Messages, decode: Sequence[Callable[[Array], Array]] | None = None, weights: Any = None
    ) -> Messages:
        arrays = payloads if decode is None else tuple(d(p) for d, p in zip(decode, payloads, strict=True))
        return self.product(arrays) if weights is None else product(dense_if_small(weights))(arrays)


def dense_if_small(part: Any) -> Any:
    """Matrices of a few nodes multiply faster when they are dense."""
    return part if part.shape[0] > 200 else part.toarray()


def product(weights: Any) -> Product:
    """Multiplication of several arrays `(..., n, m)` at once by W, dense or sparse, in NumPy or torch."""
    if weights.shape == (1, 1):
        factor = float(weights[0, 0])
        return lambda arrays: tuple(factor * array for array in arrays)
    if sp.issparse(weights):
        return _sparse_product(weights)
    return _dense_product(weights)


def _dense_product(weights: np.ndarray) -> Product:
    converted = _converter(lambda like: _dense_like(weights, like))

    def multiply(arrays: Messages) -> Messages:
        joined = _joined(arrays)
        return _split(converted(joined) @ joined, arrays)

    return multiply


def _sparse_product(weights: sp.csr_array) -> Product:
    converted = _converter(lambda like: _sparse_like(weights, like))

    def multiply(arrays: Messages) -> Messages:
        joined = _joined(arrays)
        first = np.moveaxis(joined, -2, 0) if isinstance(joined, np.ndarray) else joined.movedim(-2, 0)
        mixed = converted(joined) @ first.reshape(len(first), -1)
        mixed = mixed.reshape(-1, *first.shape[1:])
        return _split(np.moveaxis(mixed, 0, -2) if isinstance(mixed, np.ndarray) else mixed.movedim(0, -2), arrays)

    return multiply


def _joined(arrays: Messages) -> Array:
    """Arrays of any widths as one, along the last axis."""
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis=-1)
    import torch

    return torch.cat(arrays, dim=-1)


def _split(joined: Array, arrays: Messages) -> Messages:
    """Back into arrays of the widths they had."""
    if len(arrays) == 1:
        return (joined,)
    widths = [a.shape[-1] for a in arrays]
    if isinstance(joined, np.ndarray):
        return tuple(np.split(joined, list(accumulate(widths))[:-1], axis=-1))
    return joined.split(widths, dim=-1)


def _converter(convert: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """W in the library, dtype and device of the arrays, converted once for each."""
    made: dict[Any, Any] = {}

    def converted(like: Array) -> Any:
        kind = (type(like), like.dtype, getattr(like, "device", None))
        if kind not in made:
            made[kind] = convert(like)
        return made[kind]

    return converted


def _dense_like(weights: np.ndarray, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return weights.astype(like.dtype)
    import torch

    return torch.as_tensor(weights, dtype=like.dtype, device=like.device)


def _sparse_like(weights: sp.csr_array, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return weights.astype(like.dtype)
    import torch

    rows, columns, data = (torch.as_tensor(part) for part in (weights.indptr, weights.indices, weights.data))
    with warnings.catch_warnings():  # torch's warnings about beta CSR tensors and unchecked indices; ours are SciPy's
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(rows, columns, data, weights.shape, dtype=like.dtype, device=like.device)
