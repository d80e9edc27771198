"""Unreliable links, simulated: messages get lost, nodes are unreachable for a while, messages arrive late.

All of it is a function of the seed and the step, so a run repeats exactly.
"""

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.arrays import like
from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply, whole
from dnasa.randomness import Streams

if TYPE_CHECKING:
    import scipy.sparse as sp

OUTAGE = 20  # steps for which an unreachable node stays so


def faulty(drop: float = 0.0, away: float = 0.0, stale: int = 0, seed: int = 0) -> Channel:
    """Messages over links that fail.

    The weight of a lost message stays with its sender; on an undirected graph a link fails both ways, so W stays symmetric and
    doubly stochastic.

    Args:
        drop: The probability that a link fails in a step.
        away: The share of the time for which a node is unreachable, for 20 steps at a time, while it works on alone.
        stale: Messages arrive at a node up to this many steps late, drawn for every node and step.
        seed: Another seed draws other failures.
    """
    for name, share in (("drop", drop), ("away", away)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be a probability from 0 to less than 1, not {share}.")
    stale, seed = whole("stale", stale, low=0), whole("A seed", seed, low=0)
    # Early messages and the others share the losses of a step; the product with a graph's W is the same object in all steps.
    weights_at: Any = lru_cache(maxsize=2)(lambda t, multiply: lossy(multiply.W, t, drop, away, seed))

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        lossless = not (drop or away)
        weights, symmetric = weights_at(0 if lossless else t, multiply)
        product: Any = multiply if lossless else partial(multiply, weights=weights)
        arrived = product(messages)
        if not stale:
            return arrived, memory
        check_memory(memory, messages, counts=range(stale + 1))
        ages = Streams("late").at(seed, 0, t).integers(0, stale + 1, size=weights.shape[0])[multiply.rows]
        own = None if symmetric else weights.diagonal()[multiply.rows]
        pairs = [delayed(y, w, late, ages, stale, own) for y, w, late in zip(messages, arrived, memory, strict=True)]
        return tuple(mixed for mixed, _ in pairs), tuple(late for _, late in pairs)

    return Channel(lambda message: (), exchange, {"drop": drop, "away": away, "stale": stale, "seed": seed})


def delayed(
    y: Array, arrived: Array, late: tuple[Array, ...], ages: np.ndarray, stale: int, own: np.ndarray | None
) -> tuple[Array, tuple[Array, ...]]:
    """What each node has once messages at least `ages` steps old have arrived, and the changes still in transit.

    The change of step t at node i, c_i = gain ((W y)_i - base_i), is in transit until a step in which the node's age is
    at most that of the change. With p_a the change of age a that is still in transit (`late` is p_1, p_2, ...),

        p_0 = c
        mixed_i = base_i + the sum of p_a over the ages a >= ages_i
        next p_(a + 1) = p_a where a < ages_i, else 0

    So each change counts once, when it arrives, and the mean over the nodes and what is in transit is preserved. The
    same follows from messages that hold the running sum of all that was sent, but these would lose digits.

    On an undirected graph, base = y, and gain = 1/sqrt(1 + stale), since old differences overshoot. On a directed graph,
    base = own y, with the weights `own` of a node's own numbers, and gain = 1: a node gives its numbers away at once
    (robust push-sum, Hadjicostis et al., 2016).
    """
    base = y if own is None else _times(y, own)
    gain = (1 + stale) ** -0.5 if own is None else 1.0
    mixed, left = base, []
    for age, change in enumerate((gain * (arrived - base), *late)):
        here = _times(change, ages <= age)
        mixed = mixed + here
        left.append(change - here)
    return mixed, tuple(left[:stale])


def lossy(W: "sp.csr_array", t: int, drop: float, away: float, seed: int) -> "tuple[sp.csr_array, bool]":
    """W of step t without the links that fail in it, and whether it is symmetric."""
    import scipy.sparse as sp

    from dnasa.topology.types import TOLERANCE

    symmetric = bool(abs(W - W.T).max() <= TOLERANCE)
    if symmetric:
        W = sp.csr_array((W + W.T) / 2)  # exactly, so that both directions of a link have the same weight
    links = sp.triu(W, k=1).tocoo() if symmetric else (W - sp.diags_array(W.diagonal())).tocoo()
    lost = Streams("dropped").at(seed, 0, t).random(links.nnz) < drop
    absent = Streams("absent").at(seed, 0, t // OUTAGE).random(W.shape[0]) < away
    lost |= absent[links.row] | absent[links.col]
    weight, i, j = links.data[lost], links.row[lost], links.col[lost]
    left = W + _moved(weight, i, j, W.shape) + (_moved(weight, j, i, W.shape) if symmetric else 0 * W)
    left = sp.csr_array(left)
    left.eliminate_zeros()
    return left, symmetric


def _moved(weight: np.ndarray, receiver: np.ndarray, sender: np.ndarray, shape: tuple[int, int]) -> "sp.coo_array":
    """The change of W when these weights stay with their senders: column sums are preserved."""
    import scipy.sparse as sp

    entries = np.concatenate([-weight, weight])
    return sp.coo_array((entries, (np.concatenate([receiver, sender]), np.concatenate([sender, sender]))), shape=shape)


def _times(a: Array, factors: np.ndarray) -> Array:
    """Each node's row times its factor."""
    return a * like(factors[:, None].astype(np.float64), a)
