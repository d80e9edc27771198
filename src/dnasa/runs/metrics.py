"""What is measured at an evaluation: pure functions of the answers and of what the problem evaluated at their mean."""

from collections.abc import Mapping

import numpy as np

from dnasa.arrays import to_numpy
from dnasa.communication import Network
from dnasa.core import Array, Prox


def squared_length(a: Array) -> np.ndarray:
    return (to_numpy(a).astype(np.float64) ** 2).sum(-1)


def squared_distances(x: Array, mean: Array) -> Array:
    """|x_i - xbar|^2 of every local node, with a last axis of one: averaged over all nodes, it is the consensus."""
    difference = x - mean[..., None, :]
    return (difference * difference).sum(-1)[..., None]


def measure(
    answer: Array,
    mean: Array,
    evaluated: Mapping[str, Array],
    network: Network,
    estimate: Array | None = None,
    loss_scale: float = 1.0,
    prox: Prox | None = None,
) -> dict[str, np.ndarray]:
    """Every metric as an array over (variants, seeds); `evaluated` is averaged over all nodes already.

    `estimate` is the rules' estimate of the full gradient, not a number where a rule has none; `loss_scale` is the factor
    by which the rules' gradients differ from the true ones. With `prox`, `grad_norm` is that of the gradient mapping
    x - prox(x - grad f(x), 1), which is 0 where f + h is stationary.
    """
    consensus = to_numpy(network.mean(squared_distances(answer, mean)))[..., 0].astype(np.float64)
    row = {name: to_numpy(value).astype(np.float64) for name, value in evaluated.items() if name != "gradient"}
    row["consensus"] = consensus
    if "gradient" in evaluated:
        gradient = to_numpy(evaluated["gradient"])
        mapping = gradient if prox is None else to_numpy(mean - prox(mean - evaluated["gradient"], 1.0))
        row["grad_norm"] = np.sqrt(squared_length(mapping))
        row["stationarity"] = row["grad_norm"] ** 2 + network.nodes * consensus
        if estimate is not None:
            row["tracking"] = np.sqrt(squared_length(to_numpy(network.mean(estimate)) / loss_scale - gradient))
    return row
