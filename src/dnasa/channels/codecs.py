"""Compressors: what a message looks like on the wire, and how it is read.

Written once, for tensors: a NumPy array is encoded as a tensor that shares its memory, so both give the same bytes.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dnasa.channels.compressed import Codec
from dnasa.core import Array, InputError, choose, whole
from dnasa.randomness import Streams

BLOCK = 256  # numbers that share a scale


def top_k(share: float) -> Codec:
    """The largest numbers of each row by absolute value, a share of them (at least one), with their positions."""
    count = _counter(share)

    def encode(a: Tensor, t: int) -> Tensor:
        positions = a.abs().topk(count(a.shape[-1]), dim=-1, sorted=False).indices
        return torch.cat([_bytes(positions.to(torch.int32)), _bytes(a.gather(-1, positions))], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        split = 4 * count(width)
        positions = _numbers(payload[..., :split], torch.int32).long()
        values = _numbers(payload[..., split:], dtype)
        return payload.new_zeros((*payload.shape[:-1], width), dtype=dtype).scatter_(-1, positions, values)

    return _codec(encode, decode, lambda m, itemsize: count(m) * (4 + itemsize), f"topk:{share:g}", 0.3)


def random_k(share: float, seed: int = 0) -> Codec:
    """Random numbers of each row, a share of them (at least one), the same at all nodes: no positions are sent."""
    count, seed = _counter(share), whole("A seed", seed, low=0)

    @lru_cache(maxsize=4)
    def positions(width: int, t: int) -> Tensor:
        drawn = Streams("random k").at(seed, 0, t).choice(width, count(width), replace=False, shuffle=False)
        return torch.from_numpy(drawn)

    def encode(a: Tensor, t: int) -> Tensor:
        return a[..., positions(a.shape[-1], t).to(a.device)]

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        out = payload.new_zeros((*payload.shape[:-1], width))
        out[..., positions(width, t).to(payload.device)] = payload
        return out

    return _codec(encode, decode, lambda m, itemsize: count(m) * itemsize, f"randk:{share:g}", 0.3)


def quantised(bits: int) -> Codec:
    """Whole multiples of a scale, rounded to the nearest, with 8 or 4 bits; each 256 numbers have a scale of their own.

    Rounding to the nearest never increases the error that CHOCO remembers, as unbiased rounding would.
    """
    choose("number of bits", bits, {8: None, 4: None})
    largest = 2 ** (bits - 1) - 1
    return _blockwise(
        bits,
        scale=lambda blocks, counts: blocks.abs().amax(-1, keepdim=True) / largest,
        codes=lambda blocks, scale: (blocks / (scale + (scale == 0))).round() + largest,
        values=lambda codes: codes - largest,
        name=f"{bits}bit",
        gamma=0.3,
    )


def sign() -> Codec:
    """The sign of each number, times the mean absolute value of its 256 numbers."""
    return _blockwise(
        1,
        scale=lambda blocks, counts: blocks.abs().sum(-1, keepdim=True) / counts,
        codes=lambda blocks, scale: blocks >= 0,
        values=lambda codes: 2 * codes - 1,
        name="sign",
        gamma=0.3,
    )


def _counter(share: float) -> Callable[[int], int]:
    if not 0 < share <= 1:
        raise InputError(f"The share of numbers sent must be above 0 and at most 1, not {share}.")
    return lambda width: max(1, round(share * width))


def _codec(encode: Callable, decode: Callable, row_bytes: Callable[[int, int], int], name: str, gamma: float) -> Codec:
    """A codec of tensors, which takes NumPy arrays too."""

    def encode_any(a: Array, t: int) -> Array:
        if isinstance(a, np.ndarray):
            return encode(torch.from_numpy(np.ascontiguousarray(a)), t).numpy()
        return encode(a, t)

    def decode_any(payload: Array, like: Array, t: int) -> Array:
        width = like.shape[-1]
        if isinstance(payload, np.ndarray):
            dtype = torch.from_numpy(like[..., :0]).dtype
            return decode(torch.from_numpy(np.ascontiguousarray(payload)), width, dtype, t).numpy()
        return decode(payload, width, like.dtype, t)

    return Codec(encode_any, decode_any, lambda a: row_bytes(a.shape[-1], a.dtype.itemsize), name, gamma)


def _blockwise(bits: int, scale: Callable, codes: Callable, values: Callable, name: str, gamma: float) -> Codec:
    """Every number as a code of so many bits; the scales of all blocks of a row come first."""

    def blocks(width: int) -> int:
        return -(-width // BLOCK)

    def encode(a: Tensor, t: int) -> Tensor:
        rows, width = a.shape[:-1], a.shape[-1]
        padded = pad(a, (0, blocks(width) * BLOCK - width)).reshape(*rows, -1, BLOCK)
        counts = torch.full((blocks(width), 1), float(BLOCK), dtype=a.dtype, device=a.device)
        counts[-1] -= blocks(width) * BLOCK - width
        scales = scale(padded, counts)
        numbers = codes(padded, scales).to(torch.uint8).reshape(*rows, -1)[..., :width]
        return torch.cat([_bytes(scales[..., 0]), _packed(numbers, bits)], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        rows, split = payload.shape[:-1], blocks(width) * dtype.itemsize
        scales = _numbers(payload[..., :split], dtype)[..., None]
        numbers = values(_unpacked(payload[..., split:], bits)[..., :width].to(dtype))
        padded = pad(numbers, (0, blocks(width) * BLOCK - width)).reshape(*rows, -1, BLOCK)
        return (padded * scales).reshape(*rows, -1)[..., :width]

    return _codec(encode, decode, lambda m, itemsize: blocks(m) * itemsize + -(-m * bits // 8), name, gamma)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Several codes in a byte, the first in the lowest bits; the last byte is filled with zeros."""
    each = 8 // bits
    if each == 1:
        return codes
    padded = pad(codes, (0, -codes.shape[-1] % each))
    places = padded.reshape(*codes.shape[:-1], -1, each) << _shifts(bits, codes.device)
    return places.sum(-1, dtype=torch.uint8)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return packed
    return ((packed[..., None] >> _shifts(bits, packed.device)) & (2**bits - 1)).flatten(-2)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def _bytes(a: Tensor) -> Tensor:
    return a.contiguous().view(torch.uint8)


def _numbers(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers again; in memory of their own, since a part of a buffer may not be aligned."""
    return a.clone(memory_format=torch.contiguous_format).view(dtype)
