"""Lean messages: numbers travel in 16 bits, the state stays in full precision.

What a node receives is Q(x), its neighbour's numbers rounded. The exchange is then `x + (W - I) Q(x)` instead of `W x`:
whatever was rounded away stays with its owner, so that the mean over the nodes, and with it mean(u) = mean(v), is kept.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dnasa.core import Array, choose, like

WIRES = ("bfloat16", "float16")


def check(wire: str | None) -> None:
    if wire is not None:
        choose("wire format", wire, dict.fromkeys(WIRES))


def as_tensor(a: Array) -> Any:
    import torch

    return torch.from_numpy(a) if isinstance(a, np.ndarray) else a


def lean(
    mix: Callable[[tuple[Array, ...]], tuple[Array, ...]], arrays: tuple[Array, ...], wire: str
) -> tuple[Array, ...]:
    """x + (W - I) Q(x), where `mix` multiplies by W."""
    arrived = tuple(rounded(a, wire) for a in arrays)
    return tuple(mixed + (a - rough) for mixed, a, rough in zip(mix(arrived), arrays, arrived, strict=True))


def rounded(a: Array, wire: str) -> Array:
    """As it arrives."""
    import torch

    tensor = as_tensor(np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a)
    return like(in_range(tensor, wire).to(getattr(torch, wire)), a)


def in_range(tensor: Any, wire: str | None) -> Any:
    """float16 ends at 65504: what is larger stays, for the rest of it, with its owner too."""
    return tensor.clamp(-65504, 65504) if wire == "float16" else tensor
