"""Unreliable links, simulated: messages get lost, nodes are unreachable for a while, messages arrive late.

All of it is a function of the seed and the step, so a run repeats exactly.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.channels.cast import cast, decoder, encode
from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply, whole
from dnasa.randomness import Streams

if TYPE_CHECKING:
    import scipy.sparse as sp

TOLERANCE = 1e-8  # of the symmetry of W, as in `topology`
OUTAGE = 20  # steps for which an unreachable node stays so


def faulty(
    drop: float = 0.0, away: float = 0.0, stale: int = 0, seed: int = 0, message_dtype: str | None = None
) -> Channel:
    """Messages over links that fail.

    Each link fails in a step with probability `drop`; each node is unreachable for a share `away` of the time, for 20 steps
    at a time, while it continues with its own data. The weight of a lost message stays with its sender; on an undirected
    graph a link fails both ways, so W stays symmetric and doubly stochastic. With `stale`, what a node receives of a
    neighbour is 0 to `stale` steps old, drawn anew for every node and step; then the mean over the nodes is no longer
    preserved exactly. `message_dtype` casts to 16 bits.
    """
    for name, share in (("drop", drop), ("away", away)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be a probability from 0 to less than 1, not {share}.")
    stale, seed = whole("stale", stale, low=0), whole("A seed", seed, low=0)
    inner = cast(message_dtype) if message_dtype else None
    lossy = lru_cache(maxsize=2)(Losses(drop, away, seed))  # early messages and the others share the losses of a step

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        weights = lossy(t, Identity(multiply.W))
        if stale:
            return delayed(memory, messages, multiply, t, weights)
        if inner:
            return inner.exchange(memory, messages, Weighted(multiply, weights), t)
        return multiply(messages, weights=weights), memory

    def delayed(
        memory: Memory, messages: Messages, multiply: Multiply, t: int, weights: Any
    ) -> tuple[Messages, Memory]:
        """Others' messages may be old, a node's own are not; `memory` has what was sent at the last steps, newest first."""
        import scipy.sparse as sp

        check_memory(memory, messages, counts=range(stale + 2))
        memory = tuple((rounded(m, message_dtype), *old[:stale]) for m, old in zip(messages, memory, strict=True))
        ages = Streams("late").at(seed, 0, t).integers(0, stale + 1, size=weights.shape[0])[multiply.rows]
        old = tuple(_of_age(history, ages) for history in memory)
        diagonal = weights.diagonal()
        others = sp.csr_array(weights - sp.diags_array(diagonal))
        if message_dtype is None:
            received = multiply(old, weights=others)
        else:
            payloads = tuple(encode(a, message_dtype) for a in old)
            received = multiply(payloads, [decoder(m, message_dtype) for m in messages], others)
        own = diagonal[multiply.rows, None]
        return tuple(r + _times(m, own) for r, m in zip(received, messages, strict=True)), memory

    settings = {"drop": drop, "away": away, "stale": stale, "seed": seed, "message_dtype": message_dtype}
    return Channel(lambda message: (), exchange, settings, size=inner.size if inner else None)


class Losses:
    """W of a step without the links that fail in it."""

    def __init__(self, drop: float, away: float, seed: int):
        self.drop, self.away, self.seed = drop, away, seed

    def __call__(self, t: int, base: "Identity") -> "sp.csr_array":
        import scipy.sparse as sp

        W = base.matrix
        symmetric = abs(W - W.T).max() <= TOLERANCE
        if symmetric:
            W = sp.csr_array((W + W.T) / 2)  # exactly, so that both directions of a link have the same weight
        links = sp.triu(W, k=1).tocoo() if symmetric else (W - sp.diags_array(W.diagonal())).tocoo()
        lost = Streams("dropped").at(self.seed, 0, t).random(links.nnz) < self.drop
        absent = Streams("absent").at(self.seed, 0, t // OUTAGE).random(W.shape[0]) < self.away
        lost |= absent[links.row] | absent[links.col]
        weight, i, j = links.data[lost], links.row[lost], links.col[lost]
        left = W + _moved(weight, i, j, W.shape) + (_moved(weight, j, i, W.shape) if symmetric else 0 * W)
        left = sp.csr_array(left)
        left.eliminate_zeros()
        return left


def _moved(weight: np.ndarray, receiver: np.ndarray, sender: np.ndarray, shape: tuple[int, int]) -> "sp.coo_array":
    """The change of W when these weights stay with their senders: column sums are preserved."""
    import scipy.sparse as sp

    entries = np.concatenate([-weight, weight])
    return sp.coo_array((entries, (np.concatenate([receiver, sender]), np.concatenate([sender, sender]))), shape=shape)


class Identity:
    """A matrix as a key of a cache: equal only to itself."""

    def __init__(self, matrix: "sp.csr_array"):
        self.matrix = matrix

    def __hash__(self) -> int:
        return id(self.matrix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.matrix is self.matrix


class Weighted:
    """A product with other weights in place of W."""

    def __init__(self, multiply: Multiply, weights: Any):
        self.multiply, self.W, self.rows = multiply, weights, multiply.rows

    def __call__(self, payloads: Messages, decode: Any = None, weights: Any = None) -> Messages:
        return self.multiply(payloads, decode, self.W if weights is None else weights)


def rounded(a: Array, dtype: str | None) -> Array:
    """As it arrives."""
    return a if dtype is None else decoder(a, dtype)(encode(a, dtype))


def _of_age(history: tuple[Array, ...], ages: np.ndarray) -> Array:
    """Row by row what was sent so many steps ago, or as long ago as there is something."""
    out = history[0].copy() if isinstance(history[0], np.ndarray) else history[0].clone()
    ages = np.minimum(ages, len(history) - 1)
    for age in range(1, len(history)):
        rows = np.flatnonzero(ages == age)
        out[..., rows, :] = history[age][..., rows, :]
    return out


def _times(a: Array, factors: np.ndarray) -> Array:
    if isinstance(a, np.ndarray):
        return a * factors.astype(a.dtype)
    return a * a.new_tensor(factors)
