"""The words everything else is written in: arrays, schedules, rules, networks.

Arrays have shape `(..., k, d)`: `k` nodes held by this process, `d` parameters each. Leading axes are independent
runs, so a whole grid search is one array. NumPy and torch arrays are both welcome.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
Schedule = Callable[[int], Any]


class InputError(ValueError):
    """A user's mistake: one line that names the cause and the remedy."""


class Mix(Protocol):
    """The exchange: every array multiplied by W over its node axis, always returned as a tuple."""

    def __call__(self, *arrays: Array) -> tuple[Array, ...]: ...


class Rule(NamedTuple):
    """What a node does between two exchanges.

    `init(x)` makes the state, whose first field `x` is where the next gradient is taken;
    `step(state, g, mix, t)` gives the next state and calls `mix` once with everything that must be exchanged.
    `smallest_eigenvalue` is what the rule needs of W: its eigenvalues must lie strictly above.
    """

    init: Callable[[Array], Any]
    step: Callable[[Any, Array, Mix, int], Any]
    smallest_eigenvalue: float = -1.0


class Network(NamedTuple):
    """Who multiplies by W.

    `nodes` is the number of nodes in all, `here` those held by this process. `mix(*arrays, t)` is the exchange of
    step t; `mean(a)` averages `(..., k, m)` over all nodes to `(..., m)` and is for metrics: rules never see it.
    """

    nodes: int
    mix: Callable[..., tuple[Array, ...]]
    mean: Callable[[Array], Array]
    here: range

    def at(self, t: int) -> Mix:
        """The exchange of step t as a rule sees it."""
        return lambda *arrays: self.mix(*arrays, t=t)


def norm(z: Array) -> Array:
    """Euclidean norm over the last axis, kept as an axis of one; summed in float64, so float32 cannot underflow."""
    if isinstance(z, np.ndarray):
        return np.sqrt(np.einsum("...d,...d->...", z, z, dtype=np.float64))[..., None].astype(z.dtype)
    import torch

    return torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64).to(z.dtype)


def unit(z: Array) -> Array:
    """z / |z| over the last axis, and 0 where z = 0: the whole parameter vector of a node is normalised."""
    length = norm(z)
    return z / (length + (length == 0))


def choose(kind: str, name: str, known: Any) -> Any:
    """Look a name up, or say what could have been asked for."""
    if name not in known:
        raise InputError(f"Unknown {kind} '{name}'. Choose from: {', '.join(known)}.")
    return known[name]


def positive(name: str, value: float) -> None:
    """Refuse anything but a finite positive number."""
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number, not {value}.")
