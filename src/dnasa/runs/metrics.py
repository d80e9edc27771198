"""What is measured at an evaluation: pure functions of the state and of what the problem evaluated at the mean iterate."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnasa.core import Array, Network


def to_numpy(a: Array) -> np.ndarray:
    return a if isinstance(a, np.ndarray) else a.detach().cpu().numpy()


def squared_length(a: Array) -> np.ndarray:
    return (to_numpy(a).astype(np.float64) ** 2).sum(-1)


def spread(x: Array, mean: Array) -> Array:
    """|x_i - xbar|^2 of every node held here, with a last axis of one: averaged over all nodes, it is the consensus."""
    difference = x - mean[..., None, :]
    return (difference * difference).sum(-1)[..., None]


def measure(
    state: Any, mean: Array, evaluated: Mapping[str, Array], network: Network, loss_scale: float = 1.0
) -> dict[str, np.ndarray]:
    """Every metric as an array over (variants, seeds); `evaluated` is averaged over all nodes already.

    `loss_scale` is the factor by which the rules' gradients differ from the true ones. Where a rule has no z, its tracking
    is not a number.
    """
    consensus = to_numpy(network.mean(spread(state.x, mean)))[..., 0].astype(np.float64)
    row = {name: to_numpy(value).astype(np.float64) for name, value in evaluated.items() if name != "gradient"}
    row["consensus"] = consensus
    if "gradient" in evaluated:
        gradient = to_numpy(evaluated["gradient"])
        row["grad_norm"] = np.sqrt(squared_length(gradient))
        row["stationarity"] = row["grad_norm"] ** 2 + network.nodes * consensus
        if hasattr(state, "z"):
            row["tracking"] = np.sqrt(squared_length(to_numpy(network.mean(state.z)) / loss_scale - gradient))
    return row
