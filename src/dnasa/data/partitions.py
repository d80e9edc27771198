"""Which rows belong to which node."""

import numpy as np

from dnasa.core import InputError


def iid(labels: np.ndarray, nodes: int, seed: int = 0) -> list[np.ndarray]:
    """Shuffle, then deal out evenly: every row is used once, shares differ by at most one row."""
    if nodes > len(labels):
        raise InputError(f"{len(labels)} rows cannot be shared among {nodes} nodes: use fewer nodes.")
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, nodes)]
