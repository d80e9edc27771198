"""Compressed messages with memory: CHOCO (Koloskova et al., 2019), for any rule."""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply


class Codec(NamedTuple):
    """`encode(a, t)` turns `(..., k, m)` into payload rows `(..., k, w)` of any dtype, `decode(payload, like, t)` back.

    `like` is a message, for its width and dtype. What is random is a function of t (and a seed) alone, alike at all nodes.
    `gamma` is CHOCO's default with this codec.
    """

    encode: Callable[[Array, int], Array]
    decode: Callable[[Array, Array, int], Array]
    row_bytes: Callable[[Array], float]
    name: str
    gamma: float = 0.3


def choco(codec: Codec, gamma: float) -> Channel:
    """Each node sends q = Q(y - xhat), everybody does xhat <- xhat + q, and the exchange gives y + gamma (W - I) xhat.

    Its mean is that of y exactly. A node remembers its own xhat and the weighted sum W xhat of its neighbours'.
    """
    if not isinstance(codec, Codec):
        raise InputError(f"CHOCO needs a Codec, such as channels.top_k(0.1), not {type(codec).__name__}.")
    if not 0 < gamma <= 1:
        raise InputError(f"CHOCO's gamma must be a number above 0 and at most 1, not {gamma}.")

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, counts=range(2, 3))
        payloads = tuple(codec.encode(y - xhat, t) for y, (xhat, _) in zip(messages, memory, strict=True))
        decoders = [lambda payload, like=y: codec.decode(payload, like, t) for y in messages]
        arrived = multiply(payloads, decoders)
        mixed, after = [], []
        for y, (xhat, total), payload, decode, weighted in zip(
            messages, memory, payloads, decoders, arrived, strict=True
        ):
            xhat, total = xhat + decode(payload), total + weighted
            mixed.append(y + gamma * (total - xhat))
            after.append((xhat, total))
        return tuple(mixed), tuple(after)

    return Channel(
        lambda message: (0 * message, 0 * message),
        exchange,
        settings=[codec.name, gamma],
        size=codec.row_bytes,
        fixed_graph=True,  # W xhat is a sum over all steps
    )
