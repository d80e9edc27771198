"""Compressed messages with memory: CHOCO (Koloskova et al., 2019), for any rule."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply


class Codec(NamedTuple):
    """`encode(a, t)` turns `(..., k, m)` into payload rows `(..., k, w)` of any dtype, `decode(payload, like, t)` back.

    `like` is a message, for its width and dtype. What is random is a function of t (and a seed) alone, alike at all nodes.
    """

    encode: Callable[[Array, int], Array]
    decode: Callable[[Array, Array, int], Array]
    row_bytes: Callable[[Array], float]
    name: str


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


def top_k(share: float) -> Codec:
    """The largest numbers of each row by absolute value, a share of them (at least one), with their positions."""
    if not 0 < share <= 1:
        raise InputError(f"The share of numbers sent must be above 0 and at most 1, not {share}.")

    def count(a: Array) -> int:
        return max(1, round(share * a.shape[-1]))

    def encode(a: Array, t: int) -> Array:
        k = count(a)
        if isinstance(a, np.ndarray):
            positions = np.argpartition(-np.abs(a), k - 1, axis=-1)[..., :k]
            values = np.take_along_axis(a, positions, -1)
            return np.concatenate([_bytes(positions.astype(np.int32)), _bytes(values)], -1)
        import torch

        positions = a.abs().topk(k, dim=-1, sorted=False).indices
        parts = (positions.to(torch.int32), a.gather(-1, positions))
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)

    def decode(payload: Array, like: Array, t: int) -> Array:
        k = count(like)
        positions, values = payload[..., : 4 * k], payload[..., 4 * k :]
        shape = (*payload.shape[:-1], like.shape[-1])
        if isinstance(payload, np.ndarray):
            out = np.zeros(shape, like.dtype)
            np.put_along_axis(out, _numbers(positions, np.int32), _numbers(values, like.dtype), -1)
            return out
        import torch

        positions = positions.contiguous().view(torch.int32).long()
        return payload.new_zeros(shape, dtype=like.dtype).scatter_(-1, positions, values.contiguous().view(like.dtype))

    return Codec(encode, decode, lambda a: count(a) * (4 + a.dtype.itemsize), f"top {share:g}")


def _bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8)


def _numbers(a: np.ndarray, dtype: np.dtype | type) -> np.ndarray:
    return np.ascontiguousarray(a).view(dtype)
