"""All nodes in one process: the exchange is one product with W for all arrays and all runs."""

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import numpy as np
import scipy.sparse as sp

from dnasa.arrays import concatenate, like
from dnasa.checks import whole
from dnasa.communication import Channel, MessageSettings, Network
from dnasa.core import Array, InputError, Messages
from dnasa.topology import Topology
from dnasa.topology.rounds import EXACT, count_rounds, successive
from dnasa.topology.types import compact

Product = Callable[[Messages], Messages]
LONG = 1000  # numbers in a row from which copying several arrays into one costs more than a product for each
MOST_ENTRIES = 16  # in a row of W, up to which one product takes less time than one for each round
FEWEST = 3  # nodes of a private run


def connect(topology: Topology, rounds: int | str | None = None, channel: Channel | None = None, every: int = 1) -> Network:
    """A network of all nodes."""
    rounds, graphs = exchanges(topology, rounds, channel)
    products = [Multiplier(graph) for graph in graphs.each]
    return Network(
        topology.nodes,
        lambda messages, k: products[k % len(products)].product(messages),
        mean=lambda a: a.mean(-2),
        topology=topology,
        settings=MessageSettings(rounds, whole("every", every), channel, suits_all_reduce(topology, channel)),
        at=lambda k: products[k % len(products)],
        step_weights=step_weights(graphs, rounds),
    )


def step_weights(graphs: Topology, rounds: int) -> list[Any]:
    """The matrices that steps multiply by in turn; several rounds are one product, unless that has too many entries."""
    if rounds == 1:
        return [graph.weights for graph in graphs.each]
    products = []
    for t in range(graphs.period // gcd(graphs.period, rounds)):
        product = sp.eye_array(graphs.nodes, format="csr")
        for k in range(t * rounds, (t + 1) * rounds):
            product = graphs.at(k).sparse @ product
            if product.nnz > MOST_ENTRIES * graphs.nodes:
                return []
        products.append(compact(product))
    return products


def suits_all_reduce(topology: Topology, channel: Channel | None) -> bool:
    """Whether an all-reduce gives what an exchange does, with fewer bytes."""
    return (channel is None or channel.averages) and topology.nodes > 2 and topology.averages


def exchanges(topology: Topology, rounds: int | str | None, channel: Channel | None) -> tuple[int, Topology]:
    """The number of mixing rounds per exchange, and the graphs they use in turn.

    A channel rounds or compresses what it sends, which the best polynomial would amplify: there each exchange multiplies by W.
    """
    if channel is not None:
        if channel.averages and not topology.averages:
            raise InputError(f"{channel.name} averages over all nodes: use the graph 'complete' instead of {topology.name}.")
        if channel.private and 1 < topology.nodes < FEWEST:
            raise InputError("A private run needs 3 nodes or more: of 2, each learns the other's numbers from the average.")
        changing, directed = topology.period > 1 and channel.fixed_graph, topology.directed and channel.symmetric
        if changing or directed:
            what = "changes" if changing else "is directed"
            raise InputError(f"{channel.name} does not suit {topology.name}, which {what}: use another graph, such as ring.")
        if rounds == EXACT and topology.period == 1:
            raise InputError(f"On {topology.name}, compressed rounds are not exact: use the graph 'exact', or a number.")
    count = count_rounds(topology, rounds)
    return count, topology if channel is not None else successive(topology, count)


class Multiplier:
    """The product with W of one graph, as channels use it."""

    def __init__(self, topology: Topology):
        self.W, self.rows = topology.sparse, range(topology.nodes)
        self.product = product(topology.weights)

    @cached_property
    def turns(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return turns(self.W)

    def __call__(
        self, payloads: Messages, decode: Sequence[Callable[[Array], Array]] | None = None, weights: Any = None
    ) -> Messages:
        arrays = payloads if decode is None else tuple(d(p) for d, p in zip(decode, payloads, strict=True))
        return self.product(arrays) if weights is None else product(dense_if_small(weights))(arrays)

    def mask(self, codes: np.ndarray) -> None:
        """Nothing leaves this process."""

    def scatter(self, parts: Array, decode: Callable[[Array], Array]) -> Array:
        return decode(parts.swapaxes(-3, -2))

    def neighbours(self, payloads: Messages) -> list[tuple[Array, Messages]]:
        return [(weights, tuple(p[..., nodes, :] for p in payloads)) for nodes, weights in self.turns]


def turns(W: sp.csr_array) -> list[tuple[np.ndarray, np.ndarray]]:
    """A neighbor of each row and its weight, then the next neighbors; a row that has no more gets itself."""
    ends = list(pairwise(W.indptr))
    rows = [[(j, w) for j, w in zip(W.indices[a:b], W.data[a:b], strict=True) if j != i] for i, (a, b) in enumerate(ends)]
    most = max(map(len, rows))
    full = [links + [(i, 0.0)] * (most - len(links)) for i, links in enumerate(rows)]
    each = (zip(*turn, strict=True) for turn in zip(*full, strict=True))
    return [(np.array(nodes), np.array(weights)) for nodes, weights in each]


def dense_if_small(part: Any) -> Any:
    """Matrices of a few nodes multiply faster when they are dense."""
    return part if part.shape[0] > 200 else part.toarray()


def product(weights: Any) -> Product:
    """Multiplication of several arrays `(..., n, m)` at once by W, dense or sparse, in NumPy or torch."""
    if weights.shape == (1, 1):
        factor = float(weights[0, 0])
        return lambda arrays: tuple(factor * array for array in arrays)
    convert, times = (_sparse_like, _sparse_times) if sp.issparse(weights) else (like, operator.matmul)
    converted: dict[Any, Any] = {}  # W for each library, dtype and device

    def multiply(arrays: Messages) -> Messages:
        first = arrays[0]
        kind = (type(first), first.dtype, getattr(first, "device", None))
        if kind not in converted:
            converted[kind] = convert(weights, first)
        cheap = isinstance(first, np.ndarray) and times is operator.matmul  # a call costs little
        if len(arrays) == 1 or first.shape[-1] >= LONG or cheap:
            return tuple([times(converted[kind], a) for a in arrays])
        return split(times(converted[kind], concatenate(arrays, -1)), arrays)

    return multiply


def split(joined: Array, arrays: Messages) -> Messages:
    """Back into arrays of the widths they had."""
    ends = [0, *accumulate(a.shape[-1] for a in arrays)]
    return tuple(joined[..., begin:end] for begin, end in pairwise(ends))


def _sparse_times(weights: Any, joined: Array) -> Array:
    rows = joined.swapaxes(-2, 0)
    mixed = weights @ rows.reshape(len(rows), -1)
    return mixed.reshape(-1, *rows.shape[1:]).swapaxes(-2, 0)


def _sparse_like(weights: sp.csr_array, other: Array) -> Array:
    if isinstance(other, np.ndarray):
        return weights.astype(other.dtype)
    import torch

    rows, columns, data = (torch.as_tensor(part) for part in (weights.indptr, weights.indices, weights.data))
    with warnings.catch_warnings():  # torch's warnings about beta CSR tensors and unchecked indices; ours are SciPy's
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(rows, columns, data, weights.shape, dtype=other.dtype, device=other.device)
