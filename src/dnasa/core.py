"""The words everything else is written in: arrays, schedules, rules, networks.

Arrays have shape `(..., k, d)`: `k` nodes held by this process, `d` parameters each. Leading axes are independent
runs, so a whole grid search is one array. NumPy and torch arrays are both welcome.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

try:
    from dnasa import compiled as compiled
except ImportError:  # no C compiler when this was installed: everything works without, more slowly
    compiled = None  # type: ignore[assignment]

Array = Any
Schedule = Callable[[int], Any]


class InputError(ValueError):
    """A user's mistake: one line that names the cause and the remedy."""


class RunError(RuntimeError):
    """A run that could not go on through no mistake of the user's: a lost process, say."""


class ProcessLost(RunError):
    """Processes died; those who are left can go on."""


class Interrupted(RunError):
    """Somebody asked the run to stop, and it did so in good order."""


class Mix(Protocol):
    """The exchange: every array multiplied by W over its node axis, always returned as a tuple."""

    def __call__(self, *arrays: Array) -> tuple[Array, ...]: ...


class Averaged(NamedTuple):
    """The family x <- W[x - eta z/|z|] (or - eta z), u <- W[u + g - v], z <- W[(1 - alpha) z + alpha (u + g - v)]."""

    eta: Schedule
    alpha: Schedule
    normalised: bool


class Rule(NamedTuple):
    """What a node does between two exchanges.

    `init(x)` makes the state, whose first field `x` is where the next gradient is taken;
    `step(state, g, mix, t)` gives the next state and calls `mix` once with everything that must be exchanged.
    `smallest_eigenvalue` is what the rule needs of W: its eigenvalues must lie strictly above.

    A rule whose next iterate does not depend on the gradient now being computed can say so with its step in two halves:
    `x, u, z = mix(move(state, t), *track(state, g, t))`. Then all exchanges can run while the gradient is computed.
    `averaged` says that the rule is of D-NASA's family, for which there is a fast path (`fused.py`). Several rules side by side
    are one whose `parts` are those rules, each with its entries of the first axis.
    """

    init: Callable[[Array], Any]
    step: Callable[[Any, Array, Mix, int], Any]
    smallest_eigenvalue: float = -1.0
    move: Callable[[Any, int], Array] | None = None
    track: Callable[[Any, Array, int], tuple[Array, Array]] | None = None
    averaged: Averaged | None = None
    parts: "tuple[tuple[Rule, slice], ...]" = ()


@dataclass(frozen=True)
class Network:
    """Who multiplies by W.

    `nodes` is the number of nodes in all, `here` those held by this process (default: all). `mix(*arrays)` is the exchange,
    or `mix(*arrays, t)` where it changes with the step; `mean(a)` averages `(..., k, m)` over all nodes to `(..., m)` and is
    for metrics: rules never see it. `rounds` is how often an exchange is repeated, `wire` the dtype numbers travel in where it
    is not their own, `topology` the graph where it is known. Between real processes, `rank` says which one this is, `share`
    gives every process everyone's text, `gather` everyone's rows, `traffic` counts what was sent, and `channel` is a further
    network of the same processes whose messages cannot be taken for those of this one. When a process is lost, an exchange
    raises `ProcessLost`, and `survivors` gives the network of those who are left, whose nodes' numbers are `members`.
    A network that remembers messages has a `memory` with `arrays()` and `restore(arrays)`, for checkpoints. `fixed_weights` is
    W itself, where all of it is here and never changes.
    """

    nodes: int
    mix: Callable[..., tuple[Array, ...]]
    mean: Callable[[Array], Array]
    here: range = None  # type: ignore[assignment]
    rank: int = 0
    share: Callable[[str], list[str]] = lambda text: [text]
    gather: Callable[[Array], Array] = lambda x: x
    traffic: Any = None
    rounds: int = 1
    wire: str | None = None
    topology: Any = None
    channel: "Callable[[], Network] | None" = None
    members: Sequence[int] = None  # type: ignore[assignment]
    survivors: "Callable[[], Network] | None" = None
    memory: Any = None
    fixed_weights: Any = None

    def __post_init__(self) -> None:
        for name in ("here", "members"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, range(self.nodes))

    @cached_property
    def changes(self) -> bool:
        return "t" in inspect.signature(self.mix).parameters

    def at(self, t: int) -> Mix:
        """The exchange of step t as a rule sees it."""
        return (lambda *arrays: self.mix(*arrays, t=t)) if self.changes else self.mix


def norm(z: Array) -> Array:
    """Euclidean norm over the last axis, kept as an axis of one; squares are summed in float64."""
    if isinstance(z, np.ndarray):
        return np.sqrt(np.einsum("...d,...d->...", z, z, dtype=np.float64))[..., None].astype(z.dtype)
    import torch

    return torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64).to(z.dtype)


def unit(z: Array) -> Array:
    """z / |z| over the last axis, and 0 where z = 0: the whole parameter vector of a node is normalised."""
    if getattr(z, "is_cuda", False) and z.dtype.itemsize == 4:  # no number of 32 bits leaves the range of 64
        import torch

        wide = torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64)
        return (z / nonzero(wide)).to(z.dtype)
    length = norm(z)
    low, high = _trusted(length)
    extreme = (length < low) | (length > high)  # squares may have left the range of the dtype
    if getattr(z, "is_cuda", False) or extreme.any():  # a GPU is not asked: waiting for its answer would cost more
        z = z / _where(extreme, nonzero(_largest(z)), length**0)
        length = norm(z)
    return z / nonzero(length)


def _trusted(length: Array) -> tuple[float, float]:
    return (1e-30, 1e30) if length.dtype.itemsize == 4 else (1e-140, 1e140)


def ordinary(length: Array) -> bool:
    """Whether all lengths can be divided by as they are."""
    low, high = _trusted(length)
    return bool(length.min() >= low and length.max() <= high)


def nonzero(length: Array) -> Array:
    return length + (length == 0)


def like(a: Array, other: Array) -> Array:
    """In the library, dtype and device of the other."""
    if isinstance(other, np.ndarray) and isinstance(a, (np.ndarray, list, tuple, float, int)):
        return np.asarray(a, other.dtype)
    import torch

    if isinstance(other, np.ndarray):
        return a.detach().to("cpu", torch.from_numpy(other[..., :0]).dtype).numpy()
    return torch.as_tensor(a, dtype=other.dtype, device=other.device)


def stack(arrays: Sequence[Array]) -> Array:
    """One array of several alike."""
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))


def concatenate(arrays: Sequence[Array]) -> Array:
    """One array of several, along their first axis."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    import torch

    return torch.cat(list(arrays))


def _where(condition: Array, a: Array, b: Array) -> Array:
    if isinstance(a, np.ndarray):
        return np.where(condition, a, b)
    import torch

    return torch.where(condition, a, b)


def _largest(z: Array) -> Array:
    if isinstance(z, np.ndarray):
        return np.abs(z).max(-1, keepdims=True)
    return z.abs().amax(-1, keepdim=True)


def whole(name: str, value: Any, low: int = 1, high: int = 2**62) -> int:
    """Refuse anything but a whole number in that range."""
    try:
        number = int(value)
        exact = not isinstance(value, bool) and number == value
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or not low <= number <= high:
        wanted = "a positive whole number" if low == 1 else f"a whole number from {low} on"
        raise InputError(f"{name} must be {wanted}, not {value}.")
    return number


def choose(kind: str, name: str, known: Any) -> Any:
    """Look a name up, or say what could have been asked for."""
    if name not in known:
        raise InputError(f"Unknown {kind} '{name}'. Choose from: {', '.join(known)}.")
    return known[name]


def positive(name: str, value: Any) -> None:
    """Refuse anything but a finite positive number."""
    try:
        good = 0 < float(value) < float("inf")
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{name} must be a positive number, not {value}.")
