"""Graphs that average exactly after a few steps, with at most one partner per node and step."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np
import scipy.sparse as sp

from dnasa.core import InputError
from dnasa.topology.matrices import changing, from_matrix
from dnasa.topology.types import Topology, node_count

Meeting = tuple[np.ndarray, np.ndarray, float]  # node i averages with partner i, which counts with this weight


def exact(n: int, weights: str | None = None) -> Topology:
    """Pairs that change with every round and have the exact average of all nodes after one period (finite-time consensus).

    A node meets one other per round, and an exchange has two rounds unless `rounds` says otherwise: as many messages
    as on a ring. A period has log2(n) rounds for a power of two, where this is the one-peer exponential graph (Ying et al.,
    2021), and less than 3 log2(n) for any other n; related are the Base-(k+1) graphs (Takezawa et al., 2023). When nodes are
    lost, the graph of the others is exact again.

    Args:
        n: The number of nodes.
        weights: Must be None: the weights make the average exact.

    Examples:
        >>> exact(6)
        exact: 6 nodes, 4 graphs in turn, degree at most 1, rho = 0 after 4 rounds
    """
    if weights:
        raise InputError("This graph has weights of its own, which make the average exact: leave weights out.")
    n = node_count(n)
    if n == 1:
        return from_matrix(np.ones((1, 1)), "exact")
    return replace(changing([_pairs(n, *meeting) for meeting in _meetings(n)], "exact"), remake=exact, rounds=2)


def _meetings(n: int) -> Iterator[Meeting]:
    """Blocks of 2^p nodes, the largest power that divides n, agree; then all blocks average, position by position."""
    blocks = np.arange(n).reshape(-1, n & -n)
    yield from _agree(list(blocks))
    for nodes, partners, weight in _odd_meetings(len(blocks)):
        yield blocks[nodes].ravel(), blocks[partners].ravel(), weight


def _odd_meetings(n: int) -> Iterator[Meeting]:
    """Groups of 2^p nodes agree; each is balanced with all nodes after it; they agree again, now on the average of all."""
    groups = _groups(n)
    yield from _agree(groups)
    for group in groups[:-1]:
        rest = np.arange(group[-1] + 1, n)
        yield group[: len(rest)], rest, len(group) / (len(group) + len(rest))
    if len(groups) > 1:
        yield from _agree(groups)


def _groups(n: int) -> list[np.ndarray]:
    """Consecutive nodes, as many as the powers of two whose sum is n, the largest first."""
    sizes = [1 << bit for bit in reversed(range(n.bit_length())) if n >> bit & 1]
    return [np.arange(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _agree(groups: list[np.ndarray]) -> Iterator[Meeting]:
    """In each group, nodes whose numbers differ in one binary digit meet; smaller groups wait for the largest."""
    for bit in range(len(groups[0]).bit_length() - 1):
        lower = np.concatenate([group[(np.arange(len(group)) >> bit & 1) == 0] for group in groups if len(group) >> bit > 1])
        yield lower, lower + (1 << bit), 0.5


def _pairs(n: int, nodes: np.ndarray, partners: np.ndarray, weight: float) -> sp.csr_array:
    """W of disjoint pairs; everyone else keeps what it has."""
    diagonal, entries = np.ones(n), np.full(len(nodes), weight)
    diagonal[nodes] = diagonal[partners] = 1 - weight
    swap = sp.csr_array((entries, (nodes, partners)), shape=(n, n))
    return sp.csr_array(sp.diags_array(diagonal) + swap + swap.T)
