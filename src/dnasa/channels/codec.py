"""What compresses a message."""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.core import Array


class Codec(NamedTuple):
    """`encode(a, t)` turns `(..., k, m)` into payload rows `(..., k, w)` of any dtype, `decode(payload, like, t)` back.

    `like` is a message, for its width and dtype. What is random is a function of t (and a seed) alone, alike at all nodes.
    `gamma` is CHOCO's default with this codec; None, where payloads can be mixed as they are (`without_memory`).
    """

    encode: Callable[[Array, int], Array]
    decode: Callable[[Array, Array, int], Array]
    row_bytes: Callable[[Array], float]
    name: str
    gamma: float | None = 0.3

    def __repr__(self) -> str:
        return f"Codec {self.name}, {'no memory' if self.gamma is None else f'gamma = {self.gamma:.3g}'}"
