"""Codecs: what a message looks like on the wire, and how it is read.

Written once, for tensors: a NumPy array is encoded as a tensor that shares its memory, so both give the same bytes.
"""

from collections.abc import Callable
from math import ceil
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dnasa.channels.compressed import Codec
from dnasa.core import Array, InputError

HALF = (torch.bfloat16, torch.float16)  # NumPy does not know the first and MPI neither: they are carried as int16
SIGNS = 32  # with one scale; with larger blocks CHOCO diverges where one number is much larger than the others


def top_k(share: float) -> Codec:
    """The largest numbers of each row by absolute value, with their positions.

    CHOCO's gamma is half the share of the squared norm that they would have of normal numbers.

    Args:
        share: The share of the numbers that are sent, above 0 and at most 1; at least one is.
    """
    if not 0 < share <= 1:
        raise InputError(f"The share of numbers sent must be above 0 and at most 1, not {share}.")
    smallest = NormalDist().inv_cdf(1 - share / 2)
    gamma = (share + 2 * smallest * NormalDist().pdf(smallest)) / 2

    def count(width: int) -> int:
        return max(1, round(share * width))

    def encode(a: Tensor) -> Tensor:
        positions = a.abs().topk(count(a.shape[-1]), dim=-1, sorted=False).indices
        return torch.cat([as_bytes(positions.to(torch.int32)), as_bytes(a.gather(-1, positions))], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        split = 4 * count(width)
        positions = as_numbers(payload[..., :split], torch.int32).long().clamp(0, width - 1)  # whatever another site sent
        values = as_numbers(payload[..., split:], dtype)
        return payload.new_zeros((*payload.shape[:-1], width), dtype=dtype).scatter_(-1, positions, values)

    return _codec(encode, decode, lambda m, itemsize: count(m) * (4 + itemsize), f"topk:{share:g}", gamma)


def sign() -> Codec:
    """The sign of each number, times the mean absolute value of its 32 numbers; these scales, in bfloat16, come first."""

    def encode(a: Tensor) -> Tensor:
        parts = in_blocks(a, SIGNS)
        counts = in_blocks(torch.ones_like(a[..., :1, :]), SIGNS).sum(-1, keepdim=True)  # the last block may have fewer
        scales = (parts.abs().sum(-1, keepdim=True) / counts).to(torch.bfloat16)
        signs = (parts >= 0).to(torch.uint8).flatten(-2)[..., : a.shape[-1]]
        return torch.cat([as_bytes(scales[..., 0]), packed(signs, 1)], -1)

    def decode(payload: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        split = 2 * ceil(width / SIGNS)
        scales = as_numbers(payload[..., :split], torch.bfloat16).to(dtype)[..., None]
        signs = 2 * unpacked(payload[..., split:], 1)[..., :width].to(dtype) - 1
        return (in_blocks(signs, SIGNS) * scales).flatten(-2)[..., :width]

    gamma = 0.32  # half of 2/pi, the share of the squared norm of normal numbers that it has
    return _codec(encode, decode, lambda m, itemsize: 2 * ceil(m / SIGNS) + ceil(m / 8), "sign", gamma)


def rounded(dtype: str) -> Codec:
    """Numbers of 16 bits, bfloat16 or float16."""
    kind = getattr(torch, dtype)

    def encode(a: Tensor) -> Tensor:
        if kind == torch.float16:  # its range ends at 65504: the rest of a larger number stays with its owner too
            a = a.clamp(-65504, 65504)
        return a.to(kind)

    def decode(payload: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return payload.view(kind).to(dtype)

    return _codec(encode, decode, lambda m, itemsize: 2 * m, dtype, None)


def _codec(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor, int, torch.dtype], Tensor],
    row_bytes: Callable[[int, int], int],
    name: str,
    gamma: float | None,
) -> Codec:
    """A codec of tensors, which takes NumPy arrays too."""

    def encode_any(a: Array, t: int) -> Array:
        payload = encode(tensor(a))
        if isinstance(a, np.ndarray) and payload.dtype in HALF:
            payload = payload.view(torch.int16)
        return same_library(payload, a)

    def decode_any(payload: Array, like: Array, t: int) -> Array:
        return same_library(decode(tensor(payload), like.shape[-1], tensor(like[..., :0]).dtype), like)

    return Codec(encode_any, decode_any, lambda a: row_bytes(a.shape[-1], a.dtype.itemsize), name, gamma)


def tensor(a: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a


def same_library(a: Tensor, other: Array) -> Array:
    return a.numpy() if isinstance(other, np.ndarray) else a


def in_blocks(a: Tensor, block: int) -> Tensor:
    """Rows in blocks of this many numbers; the last one is filled with zeros."""
    return pad(a, (0, -a.shape[-1] % block)).unflatten(-1, (-1, block))


def packed(codes: Tensor, bits: int) -> Tensor:
    """Several codes in a byte, the first in the lowest bits; the last byte is filled with zeros."""
    if bits == 8:
        return codes
    padded = pad(codes, (0, -codes.shape[-1] % (8 // bits)))
    places = padded.reshape(*codes.shape[:-1], -1, 8 // bits) << _shifts(bits, codes.device)
    return places.sum(-1, dtype=torch.uint8)


def unpacked(payload: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return payload
    return ((payload[..., None] >> _shifts(bits, payload.device)) & (2**bits - 1)).flatten(-2)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def as_bytes(a: Tensor) -> Tensor:
    return a.contiguous().view(torch.uint8)


def as_numbers(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers again; in memory of their own, since a part of a buffer may not be aligned."""
    return a.clone(memory_format=torch.contiguous_format).view(dtype)
