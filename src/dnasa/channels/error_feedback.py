"""The exact average of all nodes in about one or two bits per number, with error feedback; for steps that rarely exchange.

Nodes send what has changed since the last exchange. As in a reduce-scatter, each node averages one part of the numbers, and the
others send it the signs; as in an all-gather, it sends the average to all, in a few bits. What rounding removes is added to the
next exchange.
"""

from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from dnasa.channels.codecs import as_bytes, as_numbers, in_blocks, packed, same_library, tensor, unpacked
from dnasa.channels.exchange import check_memory
from dnasa.communication import Channel, Memory, Multiply
from dnasa.core import Array, InputError, Messages

BLOCK = 1024  # numbers with one scale
SPACING = {1: 1.596, 2: 0.9957, 4: 0.3352}  # of the levels, in standard deviations: the best for normal numbers (Max, 1960)
SHORT = 16  # numbers, below which compressing a message is not worth it
FIRST = 8  # bits of the first exchange, in which everything is new


def feedback(bits: int = 2) -> Channel:
    """x <- anchor + Q(mean of Q1(x - anchor + rest)), the new anchor; `rest` is what Q and Q1 leave out.

    All nodes have the same x afterward. The mean of x + rest over the nodes stays what it was. Messages of a few numbers travel
    as they are.

    Args:
        bits: 1, 2 or 4 bits of each number of the average. Nodes send 1 bit of each of their own. The first exchange has 8.
    """
    if bits not in SPACING:
        raise InputError(f"feedback takes 1, 2 or 4 bits, not {bits}.")

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, lambda m: (m, m))
        if multiply.W.shape[0] == 1:
            return messages, memory
        after = tuple(
            (multiply((y,))[0], rest) if is_short(y) else averaged(y, anchor, rest, multiply, bits)
            for y, (anchor, rest) in zip(messages, memory, strict=True)
        )
        return tuple(anchor for anchor, _ in after), after

    def init(message: Array) -> tuple[Array, ...]:
        return 0 * message, 0 * message

    def size(message: Array, number: int, t: int) -> float:
        if is_short(message):
            return message.shape[-1] * message.dtype.itemsize
        return (row_bytes(message.shape[-1], 1) + row_bytes(message.shape[-1], bits)) / 2

    return Channel(init, exchange, settings=f"feedback:{bits}", size=size, fades=True, averages=True)


def averaged(y: Array, anchor: Array, rest: Array, multiply: Multiply, bits: int) -> tuple[Array, Array]:
    """The new anchor, and what rounding has left out."""
    nodes, width = multiply.W.shape[0], y.shape[-1]
    upward, downward = (1, bits) if anchor.any() else (FIRST, FIRST)
    parts = in_parts(tensor(y) - tensor(anchor) + tensor(rest), nodes)  # (..., k, n, part)
    own = (..., torch.arange(len(multiply.rows)), torch.tensor(multiply.rows), slice(None))  # what each node here averages

    def scattered(payload: Tensor, bits: int) -> Tensor:
        def decoded(arrived: Array) -> Array:
            return same_library(decode(tensor(arrived), parts, bits), y)

        return tensor(multiply.scatter(same_library(payload, y), decoded))

    payload = encode(parts, upward)
    left = decode(payload, parts, upward).neg_().add_(parts)
    everyone = scattered(payload, upward)
    everyone[own] = parts[own]
    mean = everyone.mean(-2)
    payload = encode(mean, downward)
    left[own] = nodes * (mean - decode(payload, mean, downward))
    result = scattered(payload[..., None, :].expand(*payload.shape[:-1], nodes, -1), downward)
    change, left = (joined.flatten(-2)[..., :width].contiguous() for joined in (result, left))
    return anchor + same_library(change, y), same_library(left, y)


def is_short(message: Array) -> bool:
    return message.shape[-1] < SHORT


def in_parts(a: Tensor, nodes: int) -> Tensor:
    """Rows in a part for each node; the last ones are filled with zeros."""
    part = ceil(a.shape[-1] / nodes)
    return pad(a, (0, nodes * part - a.shape[-1])).unflatten(-1, (nodes, part))


def encode(a: Tensor, bits: int) -> Tensor:
    """The scales of blocks, in bfloat16, then the numbers, rounded to 2^bits levels."""
    blocks, half = in_blocks(a, BLOCK), 2 ** (bits - 1)
    scales = SPACING[bits] * blocks.square().mean(-1).sqrt() if bits in SPACING else blocks.abs().amax(-1) / (half - 1)
    scales = scales.to(torch.bfloat16)
    divisors = scales.to(a.dtype)[..., None]
    codes = (blocks / (divisors + (divisors == 0))).floor_().clamp_(-half, half - 1).add_(half).nan_to_num_(0)
    return torch.cat([as_bytes(scales), packed(codes.to(torch.uint8).flatten(-2)[..., : a.shape[-1]], bits)], -1)


def decode(payload: Tensor, like: Tensor, bits: int) -> Tensor:
    """Numbers as many as `like` has in a row, in its dtype."""
    width = like.shape[-1]
    split = 2 * block_count(width)
    scales = as_numbers(payload[..., :split], torch.bfloat16).to(like.dtype)[..., None]
    codes = in_blocks(unpacked(payload[..., split:], bits)[..., :width].to(like.dtype), BLOCK)
    return codes.add_(0.5 - 2 ** (bits - 1)).mul_(scales).flatten(-2)[..., :width]


def row_bytes(width: int, bits: int) -> int:
    return 2 * block_count(width) + ceil(width * bits / 8)


def block_count(width: int) -> int:
    return ceil(width / BLOCK)
