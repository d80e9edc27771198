"""Compressors: what a message looks like on the wire, and how it is read.

Written once, for tensors: a NumPy array is encoded as a tensor that shares its memory, so both give the same bytes,
and so do the kernels in C.
"""

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dnasa.arrays import compiled, nonzero
from dnasa.channels.codec import Codec
from dnasa.core import Array, InputError, whole
from dnasa.randomness import Streams

HALF = (torch.bfloat16, torch.float16)  # NumPy does not know the first and MPI neither: they are carried as int16


def top_k(share: float) -> Codec:
    """The largest numbers of each row by absolute value, with their positions.

    CHOCO's gamma is half the share of the squared norm that they would have of normal numbers.

    Args:
        share: The share of the numbers that are sent, above 0 and at most 1; at least one is.
    """
    count = _counter(share)

    def encode(a: Tensor, t: int) -> Tensor:
        positions = a.abs().topk(count(a.shape[-1]), dim=-1, sorted=False).indices
        return torch.cat([_bytes(positions.to(torch.int32)), _bytes(a.gather(-1, positions))], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        split = 4 * count(width)
        positions = _numbers(payload[..., :split], torch.int32).long().clamp(0, width - 1)  # whatever another site sent
        values = _numbers(payload[..., split:], dtype)
        return payload.new_zeros((*payload.shape[:-1], width), dtype=dtype).scatter_(-1, positions, values)

    return _codec(encode, decode, lambda m, itemsize: count(m) * (4 + itemsize), f"topk:{share:g}", _energy(share) / 2)


def random_k(share: float, seed: int = 0) -> Codec:
    """Random numbers of each row, at the same positions for all nodes: only values travel.

    Args:
        share: The share of the numbers that are sent, above 0 and at most 1; at least one is.
        seed: Another seed draws other positions.
    """
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

    return _codec(encode, decode, lambda m, itemsize: count(m) * itemsize, f"randk:{share:g}", None)


def quantised(bits: int) -> Codec:
    """Whole multiples of a scale, rounded to the nearest; each 256 numbers have a scale of their own.

    Rounding to the nearest never increases the error that CHOCO remembers, as unbiased rounding would.

    Args:
        bits: Bits of a number, 8 or 4.
    """
    if bits not in (4, 8):
        raise InputError(f"Numbers are quantized to 8 or 4 bits, not {bits}.")
    largest = 2 ** (bits - 1) - 1
    return _blockwise(
        256,
        bits,
        scale=lambda blocks, there: blocks.abs().amax(-1, keepdim=True) / largest,
        codes=lambda blocks, scale: (blocks / scale).round().clamp(-largest, largest) + largest,
        values=lambda codes: codes - largest,
        name=f"{bits}bit",
        gamma=1.0 if bits == 8 else 0.75,
    )


def sign() -> Codec:
    """The sign of each number, times the mean absolute value of its 32 numbers.

    With larger blocks CHOCO diverges where a single number of a block is much larger than the others.
    """
    return _blockwise(
        32,
        1,
        scale=lambda blocks, there: blocks.abs().sum(-1, keepdim=True) / there.sum(-1, keepdim=True),
        codes=lambda blocks, scale: blocks >= 0,
        values=lambda codes: 2 * codes - 1,
        name="sign",
        gamma=0.32,  # half of 2/pi, the share of the squared norm of normal numbers that it has
    )


def rounded(dtype: str) -> Codec:
    """Numbers of 16 bits, bfloat16 or float16."""
    kind = getattr(torch, dtype)

    def encode(a: Tensor, t: int) -> Tensor:
        if kind == torch.float16:  # its range ends at 65504: the rest of a larger number stays with its owner too
            a = a.clamp(-65504, 65504)
        return a.to(kind)

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        return payload.view(kind).to(dtype)

    return _codec(encode, decode, lambda m, itemsize: 2 * m, dtype, None)


def _counter(share: float) -> Callable[[int], int]:
    if not 0 < share <= 1:
        raise InputError(f"The share of numbers sent must be above 0 and at most 1, not {share}.")
    return lambda width: max(1, round(share * width))


def _energy(share: float) -> float:
    """The share of the squared norm of many normal numbers that the largest of them have."""
    smallest = NormalDist().inv_cdf(1 - share / 2)
    return share + 2 * smallest * NormalDist().pdf(smallest)


def _codec(
    encode: Callable[[Tensor, int], Tensor],
    decode: Callable[[Tensor, int, torch.dtype, int], Tensor],
    row_bytes: Callable[[int, int], int],
    name: str,
    gamma: float | None,
) -> Codec:
    """A codec of tensors, which takes NumPy arrays too."""

    def encode_any(a: Array, t: int) -> Array:
        if isinstance(a, np.ndarray):
            payload = encode(torch.from_numpy(np.ascontiguousarray(a)), t)
            return (payload.view(torch.int16) if payload.dtype in HALF else payload).numpy()
        return encode(a, t)

    def decode_any(payload: Array, like: Array, t: int) -> Array:
        width = like.shape[-1]
        if isinstance(payload, np.ndarray):
            dtype = torch.from_numpy(like[..., :0]).dtype
            return decode(torch.from_numpy(np.ascontiguousarray(payload)), width, dtype, t).numpy()
        return decode(payload, width, like.dtype, t)

    return Codec(encode_any, decode_any, lambda a: row_bytes(a.shape[-1], a.dtype.itemsize), name, gamma)


def _blockwise(
    block: int,
    bits: int,
    scale: Callable[[Tensor, Tensor], Tensor],
    codes: Callable[[Tensor, Tensor], Tensor],
    values: Callable[[Tensor], Tensor],
    name: str,
    gamma: float,
) -> Codec:
    """Every number as a code of `bits` bits; the scales of all blocks of a row, in bfloat16, come first."""

    def row_bytes(width: int) -> int:
        return 2 * -(-width // block) + -(-width * bits // 8)

    def encode(a: Tensor, t: int) -> Tensor:
        if bits > 1 and (fast := kernels(a, a.dtype)):
            payload = a.new_empty((*a.shape[:-1], row_bytes(a.shape[-1])), dtype=torch.uint8)
            _run(fast.encode, a, payload, bits)
            return payload
        parts = in_blocks(a, block)
        scales = scale(parts, in_blocks(torch.ones_like(a[..., :1, :]), block)).to(torch.bfloat16)
        numbers = codes(parts, nonzero(scales.to(a.dtype))).to(torch.uint8).flatten(-2)[..., : a.shape[-1]]
        return torch.cat([_bytes(scales[..., 0]), packed(numbers, bits)], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype, t: int) -> Tensor:
        if bits > 1 and (fast := kernels(payload, dtype)):
            out = payload.new_empty((*payload.shape[:-1], width), dtype=dtype)
            _run(fast.decode, out, payload, bits)
            return out
        split = 2 * -(-width // block)
        scales = _numbers(payload[..., :split], torch.bfloat16).to(dtype)[..., None]
        numbers = values(unpacked(payload[..., split:], bits)[..., :width].to(dtype))
        return (in_blocks(numbers, block) * scales).flatten(-2)[..., :width]

    return _codec(encode, decode, lambda m, itemsize: row_bytes(m), name, gamma)


def _run(kernel: Callable[..., None], numbers: Tensor, payload: Tensor, bits: int) -> None:
    """Call a kernel, which fills the tensor that is not given yet and is contiguous."""
    width, is_double = numbers.shape[-1], numbers.dtype == torch.float64
    kernel(array(numbers), array(payload), numbers.numel() // width, width, bits, is_double)


def kernels(a: Tensor, dtype: torch.dtype) -> Any:
    """The compiled kernels if they suit payloads in this tensor's memory and numbers of this type, or None."""
    suits = a.numel() and a.device.type == "cpu" and dtype in (torch.float32, torch.float64)
    return compiled if suits else None


def array(a: Tensor) -> np.ndarray:
    """A tensor as kernels take it, in its own memory if that is contiguous."""
    return a.detach().contiguous().numpy()


def in_blocks(a: Tensor, block: int) -> Tensor:
    """Rows in blocks of this many numbers; the last one is filled with zeros."""
    return pad(a, (0, -a.shape[-1] % block)).unflatten(-1, (-1, block))


def packed(codes: Tensor, bits: int) -> Tensor:
    """Several codes in a byte, the first in the lowest bits; the last byte is filled with zeros."""
    each = 8 // bits
    if each == 1:
        return codes
    padded = pad(codes, (0, -codes.shape[-1] % each))
    places = padded.reshape(*codes.shape[:-1], -1, each) << _shifts(bits, codes.device)
    return places.sum(-1, dtype=torch.uint8)


def unpacked(payload: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return payload
    return ((payload[..., None] >> _shifts(bits, payload.device)) & (2**bits - 1)).flatten(-2)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def _bytes(a: Tensor) -> Tensor:
    return a.contiguous().view(torch.uint8)


def _numbers(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers again; in memory of their own, since a part of a buffer may not be aligned."""
    return a.clone(memory_format=torch.contiguous_format).view(dtype)
