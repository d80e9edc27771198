"""Compressed messages, for any rule: with memory (CHOCO, Koloskova et al., 2019) or without."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dnasa.arrays import like, norm
from dnasa.channels.exchange import check_memory
from dnasa.checks import UserCode
from dnasa.communication import Channel, Memory, Multiply
from dnasa.core import Array, InputError, Messages

COMPRESSIONS = ("bfloat16", "float16", "feedback", "moniqua", "topk", "sign")  # by name


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


def without_memory(codec: Codec) -> Channel:
    """A node receives Q(y) of its neighbors, and the exchange is y + (W - I) Q(y) in place of W y.

    What the codec removes stays with its owner, so the mean over the nodes, and with it mean(u) = mean(v), is preserved.
    """

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        sent, mixed = _transmit(codec, messages, multiply, t)
        return tuple(w + (y - q) for w, y, q in zip(mixed, messages, sent, strict=True)), memory

    def init(message: Array) -> tuple[Array, ...]:
        _check(codec, message)
        return ()

    return Channel(init, exchange, settings=codec.name, size=lambda message, number, t: codec.row_bytes(message))


def choco(codec: Codec, gamma: float | None = None) -> Channel:
    """Each node sends q = Q(y - xhat), everybody does xhat <- xhat + q, and the exchange gives y + gamma (W - I) xhat.

    Its mean is that of y exactly. A node remembers its own xhat and the weighted sum W xhat of its neighbors'.

    Args:
        codec: The compressor Q.
        gamma: Above 0 and at most 1; by default the codec's. The larger, the faster nodes agree, until it diverges.
    """
    if not isinstance(codec, Codec):
        raise InputError(f"CHOCO needs a Codec, such as channels.top_k(0.1), not {type(codec).__name__}.")
    factor = codec.gamma if gamma is None else gamma
    if factor is None or not 0 < factor <= 1:
        raise InputError(f"CHOCO's gamma must be a number above 0 and at most 1, not {factor}.")

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, lambda m: (m, m))
        changes = [y - xhat for y, (xhat, _) in zip(messages, memory, strict=True)]
        sent = zip(memory, *_transmit(codec, changes, multiply, t), strict=True)
        after = tuple((xhat + q, total + mixed) for (xhat, total), q, mixed in sent)
        return tuple(corrected(y, xhat, total) for y, (xhat, total) in zip(messages, after, strict=True)), after

    def corrected(y: Array, xhat: Array, total: Array) -> Array:
        """y + gamma (total - xhat) with one new array: large ones take longer to allocate than to add."""
        mixed = total - xhat
        mixed *= factor
        mixed += y
        return mixed

    def init(message: Array) -> tuple[Array, ...]:
        _check(codec, message)
        return 0 * message, 0 * message

    settings = [codec.name, factor]
    # The graph is fixed, since W xhat is a sum over all steps.
    return Channel(init, exchange, settings, size=lambda message, number, t: codec.row_bytes(message), fixed_graph=True)


def _transmit(codec: Codec, arrays: Sequence[Array], multiply: Multiply, t: int) -> tuple[Messages, Messages]:
    """Send the arrays encoded. Returns them as their receivers decode them, Q(a), and mixed, W Q(a)."""
    decoded: dict[int, Array] = {}

    def decoder(k: int) -> Callable[[Array], Array]:
        def decode(payload: Array) -> Array:
            arrived = codec.decode(payload, arrays[k], t)
            decoded.setdefault(k, arrived)  # the first payload is that of this process
            return arrived

        return decode

    numbers = range(len(arrays))
    mixed = multiply(tuple(codec.encode(a, t) for a in arrays), [decoder(k) for k in numbers])
    return tuple(decoded[k] for k in numbers), mixed


def _check(codec: Codec, message: Array) -> None:
    """Refuse a codec that does not decode rows to the same kind, nearer to them than zeros are, or miscounts its bytes."""
    count, width = message.shape[-2:]
    rows = like(np.resize(np.sin(np.arange(1, 1000, dtype=np.float32)), (min(count, 2), width)), message)
    with UserCode(lambda: f"Codec '{codec.name}'"):
        payload = codec.encode(rows, 0)
        arrived = codec.decode(payload, rows, 0)
        size = payload.shape[-1] * payload.dtype.itemsize
        stated = codec.row_bytes(rows)
    same = type(arrived) is type(rows) and (arrived.shape, arrived.dtype) == (rows.shape, rows.dtype)
    if not same or not (norm(rows - arrived) <= norm(rows) * (1 + 1e-3)).all() or size != stated:
        raise InputError(f"Codec '{codec.name}' does not decode what it encoded, or row_bytes is {stated}, not {size}.")
