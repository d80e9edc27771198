"""What compresses a message."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dnasa.core import Array, Messages, Multiply


class Codec(NamedTuple):
    """What compresses messages. What is random in it is a function of t (and a seed) alone, the same at all nodes.

    Attributes:
        encode: `encode(a, t)` turns `(..., k, m)` into payload rows `(..., k, w)` of any dtype.
        decode: `decode(payload, like, t)` turns them back; `like` is a message, for its width and dtype.
        row_bytes: `row_bytes(a)` is the number of bytes of a node's row on the wire.
        name: For titles and checkpoints.
        gamma: CHOCO's default with this codec; None: it needs no memory, and what it leaves out stays with its owner.
    """

    encode: Callable[[Array, int], Array]
    decode: Callable[[Array, Array, int], Array]
    row_bytes: Callable[[Array], float]
    name: str
    gamma: float | None = 0.3

    def size(self, message: Array, number: int, t: int) -> float:
        """The bytes of a row, the same for all messages and steps: the `size` of a channel.

        Args:
            message: The message.
            number: Its number within the step.
            t: The step, from 0.
        """
        return self.row_bytes(message)

    def __repr__(self) -> str:
        return f"Codec {self.name}, {'no memory' if self.gamma is None else f'gamma = {self.gamma:.3g}'}"


def transmit(codec: Codec, arrays: Sequence[Array], multiply: Multiply, t: int) -> tuple[Messages, Messages]:
    """Send the arrays encoded. Returns them as their receivers decode them, Q(a), and mixed, W Q(a)."""
    own: dict[int, Array] = {}

    def decoder(k: int) -> Callable[[Array], Array]:
        def decode(payload: Array) -> Array:
            arrived = codec.decode(payload, arrays[k], t)
            own.setdefault(k, arrived)  # the first payload is this process's own
            return arrived

        return decode

    numbers = range(len(arrays))
    mixed = multiply(tuple(codec.encode(a, t) for a in arrays), [decoder(k) for k in numbers])
    return tuple(own[k] for k in numbers), mixed
