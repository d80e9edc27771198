"""Unreliable links, simulated: messages get lost. Losses are a function of the seed and the step, so a run repeats exactly."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dnasa.checks import whole
from dnasa.communication import Channel, Memory, Multiply
from dnasa.core import InputError, Messages
from dnasa.randomness import Streams

if TYPE_CHECKING:
    import scipy.sparse as sp


def faulty(drop: float, seed: int = 0) -> Channel:
    """Messages over links that fail.

    The weight of a lost message stays with its sender; on an undirected graph a link fails both ways, so W stays symmetric and
    doubly stochastic.

    Args:
        drop: The probability that a link fails in a step.
        seed: Another seed draws other failures.
    """
    if not 0 <= drop < 1:
        raise InputError(f"drop must be a probability from 0 to less than 1, not {drop}.")
    seed = whole("A seed", seed, low=0)
    # Early messages and the others share the losses of a step; the product with a graph's W is the same object in all steps.
    weights_at: Any = lru_cache(maxsize=2)(lambda t, multiply: lossy(multiply.W, t, drop, seed))

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        return multiply(messages, weights=weights_at(t, multiply)), memory

    return Channel(lambda message: (), exchange, {"drop": drop, "seed": seed})


def lossy(W: "sp.csr_array", t: int, drop: float, seed: int) -> "sp.csr_array":
    """W of step t without the links that fail in it: column sums are preserved."""
    import numpy as np
    import scipy.sparse as sp

    from dnasa.topology.types import is_symmetric

    symmetric = is_symmetric(W)
    if symmetric:
        W = sp.csr_array((W + W.T) / 2)  # exactly, so that both directions of a link have the same weight
    links = sp.triu(W, k=1).tocoo() if symmetric else (W - sp.diags_array(W.diagonal())).tocoo()
    lost = Streams("dropped").at(seed, 0, t).random(links.nnz) < drop
    weight, receiver, sender = links.data[lost], links.row[lost], links.col[lost]
    if symmetric:
        weight, receiver, sender = np.tile(weight, 2), np.append(receiver, sender), np.append(sender, receiver)
    entries = np.concatenate([-weight, weight])
    places = np.concatenate([receiver, sender]), np.concatenate([sender, sender])
    left = sp.csr_array(W + sp.coo_array((entries, places), shape=W.shape))
    left.eliminate_zeros()
    return left
