"""A few bits of every number on any undirected graph, also a changing one, without copies of neighbours.

As in Moniqua (Lu and De Sa, 2020), a node sends the last bits of its rounded numbers: neighbours are close to each other, so
these bits give the difference between two of them. Here the spacing follows the differences seen so far, block by block.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnasa.arrays import like
from dnasa.channels.codecs import in_blocks, packed, unpacked
from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply
from dnasa.randomness import Streams

BLOCK = 32  # numbers with one spacing
DECAY = 0.8  # of the largest difference seen, per exchange
SMALLEST, LARGEST = -100, 100  # exponents of a spacing; they are sent as bytes
ROUNDINGS = 8  # of the largest number, which a spacing has at least

Link = tuple[Array, Array]  # weights and payloads of one neighbour of each node


class Grid(NamedTuple):
    """All multiples of `factor` times a power of two, moved by `offset` of the spacing; the same at all nodes.

    With another factor and offset in every step, rounding is unbiased, and no difference that is a multiple of all levels, and
    so invisible, stays so.
    """

    bits: int
    offset: float
    factor: float

    def spacing(self, exponents: Tensor, dtype: torch.dtype) -> Tensor:
        return self.factor * torch.exp2(exponents.to(dtype))[..., None]

    def payload(self, blocks: Tensor, exponents: Tensor, width: int) -> Tensor:
        """The exponents of all blocks, then the last bits of the numbers, rounded to the grid."""
        whole = torch.floor(blocks / self.spacing(exponents, blocks.dtype) + self.offset)
        codes = torch.remainder(whole, 2**self.bits).to(torch.uint8).flatten(-2)[..., :width]
        return torch.cat([(exponents - SMALLEST).to(torch.uint8), packed(codes, self.bits)], -1)

    def opened(self, payload: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The codes in blocks, and the exponents."""
        count = block_count(width)
        codes = unpacked(payload[..., count:], self.bits)[..., :width]
        return in_blocks(codes, BLOCK).to(torch.int32), payload[..., :count].to(torch.int32) + SMALLEST

    def difference(self, theirs: Tensor, own: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Their numbers less one's own, in units of the finer of two spacings; its exponents, and their exponents.

        Half of all levels counts as 0, so that the other node sees exactly the negative.
        """
        (codes, exponents), (own_codes, own_exponents) = self.opened(theirs, width), self.opened(own, width)
        finer = torch.minimum(exponents, own_exponents)
        half = 2 ** (self.bits - 1)
        apart = self._shifted(codes, exponents - finer) - self._shifted(own_codes, own_exponents - finer)
        units = (apart + half & 2 * half - 1) - half
        return units * (units != -half), finer, exponents

    def _shifted(self, codes: Tensor, places: Tensor) -> Tensor:
        return codes << places.clamp(max=self.bits)[..., None]


def moniqua(bits: int) -> Channel:
    """out_i = y_i + sum_j w_ij d_ij, where d_ij = -d_ji is the difference y_j - y_i rounded to a grid: the mean is preserved.

    A node sends `bits` bits of each number and a byte for each 32, from which its neighbours know differences below 2^bits / 2
    spacings. The largest difference seen, which fades, has about 2^(bits / 2) spacings. One near the limit counts twice: it
    may have been larger. Both nodes misread a difference beyond the limit in the same way, until the spacing has grown.

    Args:
        bits: Bits of a number, 8 or 4.
    """
    if bits not in (4, 8):
        raise InputError(f"Moniqua sends 8 or 4 bits of a number, not {bits}.")
    doubtful = 3 * 2**bits // 8  # spacings; wrong differences are often as large

    def encode(grid: Grid, message: Array, largest: Array) -> Array:
        blocks = in_blocks(tensor(message), BLOCK)
        least = blocks.abs().amax(-1) * (ROUNDINGS * torch.finfo(blocks.dtype).eps)
        wanted = torch.maximum(tensor(largest) / 2 ** (bits // 2), least).clamp(2.0**SMALLEST, 2.0**LARGEST)
        return same_library(grid.payload(blocks, torch.frexp(wanted).exponent, message.shape[-1]), message)

    def mix(grid: Grid, message: Array, largest: Array, own: Array, links: Iterable[Link]) -> tuple[Array, Array]:
        """The message after the exchange, and the largest differences seen, which stay near those of the neighbours."""
        mixed, seen, width = in_blocks(tensor(message), BLOCK), DECAY * tensor(largest), message.shape[-1]
        for weights, theirs in links:
            units, finer, exponents = grid.difference(tensor(theirs), tensor(own), width)
            spacing = grid.spacing(finer, mixed.dtype)
            mixed = mixed + like(weights[:, None, None], mixed) * (units * spacing)
            most = units.abs().amax(-1)
            near = torch.exp2(exponents.to(mixed.dtype) + (bits // 2 - 2))
            seen = torch.maximum(seen, torch.maximum(near, most * (1 + (most >= doubtful)) * spacing[..., 0]))
        return same_library(mixed.flatten(-2)[..., :width], message), same_library(seen, message)

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, counts=range(1, 2), width=block_count)
        offset, more = Streams("moniqua").at(0, 0, t).random(2).tolist()
        grid = Grid(bits, offset, 1 + more)
        payloads = tuple(encode(grid, y, largest) for y, (largest,) in zip(messages, memory, strict=True))
        links = multiply.neighbours(payloads)
        pairs = [
            mix(grid, y, largest, payloads[k], [(weights, arrived[k]) for weights, arrived in links])
            for k, (y, (largest,)) in enumerate(zip(messages, memory, strict=True))
        ]
        return tuple(mixed for mixed, _ in pairs), tuple((seen,) for _, seen in pairs)

    def init(message: Array) -> tuple[Array, ...]:
        return (same_library(2 * in_blocks(tensor(message), BLOCK).abs().amax(-1), message),)

    def row_bytes(message: Array) -> int:
        width = message.shape[-1]
        return block_count(width) + -(-width * bits // 8)

    return Channel(init, exchange, settings=f"moniqua{bits}", size=row_bytes, symmetric=True)


def block_count(width: int) -> int:
    return -(-width // BLOCK)


def tensor(a: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a


def same_library(a: Tensor, other: Array) -> Array:
    return a.numpy() if isinstance(other, np.ndarray) else a
