"""Secure summation: all nodes get the average, and nobody sees the numbers of another.

Nodes send what has changed since the last exchange, in integers modulo 2^16 to which real networks add masks that cancel in the
sum. As in a reduce-scatter, each node adds up one part of the numbers; as in an all-gather, it sends the sum to all.
"""

import torch
from torch import Tensor

from dnasa.channels.codecs import as_bytes, as_numbers, in_blocks, same_library, tensor
from dnasa.channels.error_feedback import BLOCK, block_count, in_parts
from dnasa.channels.exchange import check_memory
from dnasa.communication import Channel, Memory, Multiply
from dnasa.core import Array, Messages

LEVELS, ONE = 96, 32  # powers of 4 that a block's largest number may need, and the place of 4^0; the last is for infinity
SHRINK = 7 / 8  # of a scale that is too coarse, from one exchange to the next
FULLEST = 2**15 - 1  # what the sum of all nodes' integers must not exceed
WIDE, FINE = 2**31 - 2**8, 2.0**-20  # the same of 32 bits, for numbers of float32, and their scale


def secure_sum(wide: bool = False) -> Channel:
    """x <- anchor + mean of Q(x - anchor + rest), the new anchor; `rest` is what Q leaves out, which is sent later.

    Q rounds to multiples of a scale that all nodes share. They agree on another one after a number of any node did not fit; it
    shrinks where those of all would fit into an eighth of the range. Beside the sums, all learn how many nodes had either.

    Args:
        wide: Integers of 32 bits with a fixed scale, so that all learn the sums and no counts: for noise that nodes share.
    """
    step = wide_averaged if wide else averaged

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, lambda m: (m, m, block_count(m)))
        if multiply.W.shape[0] == 1:
            return messages, memory
        after = step(messages, memory, multiply)
        return tuple(anchor for anchor, _, _ in after), after

    def init(message: Array) -> tuple[Array, ...]:
        return 0 * message, 0 * message, 0 * message[..., : block_count(message.shape[-1])]

    def size(message: Array, number: int, t: int) -> float:
        return 4 * message.shape[-1] if wide else 2 * (message.shape[-1] + 2 * block_count(message.shape[-1]))

    name = "private, 32 bits" if wide else "private"
    return Channel(init, exchange, name, size, fades=True, averages=True, private=True, only_sums=wide)


def averaged(messages: Messages, memory: Memory, multiply: Multiply) -> Memory:
    """The new anchors, what rounding has left out, and the scales of the next exchange."""
    nodes, most = multiply.W.shape[0], FULLEST // multiply.W.shape[0]
    changes = [  # (..., k, blocks, BLOCK)
        in_blocks(tensor(y) - tensor(anchor) + tensor(rest), BLOCK)
        for y, (anchor, rest, _) in zip(messages, memory, strict=True)
    ]
    widths, blocks = [y.shape[-1] for y in messages], [each.shape[-2] for each in changes]
    largest = torch.cat([each.abs().amax(-1) for each in changes], -1)
    scale = torch.cat([tensor(scales) for _, _, scales in memory], -1)
    if not (scale > 0).all():  # at the first exchange, and where numbers did not fit at the last one
        scale = torch.where(scale > 0, scale, agreed_scale(largest, multiply) / most)
    scales = [each[..., None] for each in scale.split(blocks, -1)]
    codes = [(v / s).round_().clamp_(-most, most).nan_to_num_(0) for v, s in zip(changes, scales, strict=True)]
    rests = [v - c * s for v, c, s in zip(changes, codes, scales, strict=True)]
    flags = [~(largest <= (most + 0.5) * scale), ~(largest <= most / 8 * scale)]
    sent = [c.flatten(-2)[..., :width] for c, width in zip(codes, widths, strict=True)]
    *sums, too_large, large = summed(torch.cat([*sent, *flags], -1).to(torch.int16), multiply).split(
        [*widths, *[scale.shape[-1]] * 2], -1
    )
    means = [in_blocks(total.to(scale.dtype), BLOCK) * (s / nodes) for total, s in zip(sums, scales, strict=True)]
    following = torch.where(too_large > 0, 0, torch.where(large > 0, scale, SHRINK * scale)).split(blocks, -1)

    def of_message(y: Array, blocks: Tensor) -> Array:
        return same_library(blocks.flatten(-2)[..., : y.shape[-1]].contiguous(), y)

    return tuple(
        (anchor + of_message(y, mean), of_message(y, rest), same_library(scales.contiguous(), y))
        for y, (anchor, _, _), mean, rest, scales in zip(messages, memory, means, rests, following, strict=True)
    )


def wide_averaged(messages: Messages, memory: Memory, multiply: Multiply) -> Memory:
    """The same with one fixed scale. The sum of all nodes' numbers may be 2048; the rest of larger ones is sent later."""
    nodes = multiply.W.shape[0]
    changes = [tensor(y) - tensor(anchor) + tensor(rest) for y, (anchor, rest, _) in zip(messages, memory, strict=True)]
    codes = [(change / FINE).round_().clamp_(-(WIDE // nodes), WIDE // nodes) for change in changes]
    sent = torch.cat(codes, -1).nan_to_num_(0).to(torch.int32)
    sums = summed(sent, multiply).split([y.shape[-1] for y in messages], -1)
    return tuple(
        (anchor + same_library(total.to(code.dtype) * (FINE / nodes), y), same_library(change - code * FINE, y), scales)
        for y, (anchor, _, scales), total, change, code in zip(messages, memory, sums, changes, codes, strict=True)
    )


def agreed_scale(largest: Tensor, multiply: Multiply) -> Tensor:
    """Four times the power of 4 that no node's numbers of a block exceed: all learn how many nodes need each power."""
    powers = largest.log2().div(2).ceil().add(ONE).nan_to_num(LEVELS).clamp(0, LEVELS - 1)
    needed = torch.nn.functional.one_hot(powers.long(), LEVELS).to(torch.int16)
    counts = summed(needed.flatten(-2), multiply).unflatten(-1, (-1, LEVELS))
    highest = ((counts > 0) * torch.arange(LEVELS, device=counts.device)).amax(-1).to(largest.dtype)
    return torch.where(highest < LEVELS - 1, 4 ** (highest + 1 - ONE), torch.nan)


def summed(codes: Tensor, multiply: Multiply) -> Tensor:
    """The sums over all nodes, modulo 2^16 or 2^32, of `(..., k, w)` integers."""
    nodes, width = multiply.W.shape[0], codes.shape[-1]
    parts = in_parts(codes, nodes).cpu().contiguous()  # (..., k, n, part)
    multiply.mask(parts.numpy())

    def scattered(each: Tensor) -> Tensor:
        return as_numbers(multiply.scatter(as_bytes(each), lambda arrived: arrived), codes.dtype)

    sums = scattered(parts).sum(-2, dtype=codes.dtype)
    everyone = scattered(sums[..., None, :].expand(parts.shape))
    return everyone.flatten(-2)[..., :width].to(codes.device)
