"""A few bits of every number on any undirected graph, also a changing one, without copies of neighbors.

As in Moniqua (Lu and De Sa, 2020), a node sends the last bits of its rounded numbers: neighbors are close to each other, so
these bits give the difference between two of them. Here the spacing follows the differences seen so far, block by block.
"""

import re
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnasa.arrays import compiled, like
from dnasa.channels.codecs import in_blocks, packed, same_library, tensor, unpacked
from dnasa.channels.exchange import check_memory
from dnasa.communication import Channel, Memory, Multiply
from dnasa.core import Array, InputError, Messages
from dnasa.randomness import Streams

BLOCK = 32  # numbers with one spacing
DECAY = 0.8  # of the largest difference seen, per exchange
SMALLEST, LARGEST = -100, 100  # exponents of a spacing; they are sent as bytes
GOLDEN = (3 - 5**0.5) / 2
ROUNDINGS = 8  # of the largest number, which a spacing has at least

Link = tuple[Array, Array]  # weights and payloads of one neighbor of each node


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
        return torch.where(units == -half, 0, units), finer, exponents

    def _shifted(self, codes: Tensor, places: Tensor) -> Tensor:
        return codes << places.clamp(max=self.bits)[..., None]


class Entry(NamedTuple):
    """How a message is sent: its bits, and how often."""

    bits: int
    every: int

    def is_sent(self, t: int) -> bool:
        """At every k-th step, after k or k - 1 others: an irrational rate does not resonate with graphs that have a period."""
        rate = 1 / (self.every - GOLDEN)
        return int((t + 1) * rate) > int(t * rate)


def read_plan(plan: int | str) -> list[Entry]:
    """The entries of a plan such as 8,4,8/8."""
    entries = []
    for part in str(plan).split(","):
        match = re.fullmatch(r"([48])(?:/([1-9][0-9]{0,5}))?", part.strip())
        if match is None:
            raise InputError(f"moniqua takes 8 or 4 bits for each message, as in moniqua:8 or moniqua:8,4,8/8; not '{plan}'.")
        entries.append(Entry(int(match[1]), int(match[2] or 1)))
    return entries


def moniqua(plan: int | str = 8) -> Channel:
    """out_i = y_i + sum_j w_ij d_ij, where d_ij = -d_ji is the difference y_j - y_i rounded to a grid: the mean is preserved.

    A node sends 8 or 4 bits of each number and a byte for each 32, from which its neighbors know differences below 2^bits / 2
    spacings. The largest difference seen, which fades, has about 2^(bits / 2) spacings. One near the limit counts twice: it
    may have been larger. Both nodes misread a difference beyond the limit in the same way, until the spacing has grown.

    Args:
        plan: Bits of a number, 8 or 4, or a list with an entry for each message: "8,4,8/8" sends the first message of a step
            in 8 bits, the second in 4, and the others in 8 at every 8th step only; in other steps they stay as they are.
    """
    entries = read_plan(plan)

    def entry(number: int) -> Entry:
        return entries[min(number, len(entries) - 1)]

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, lambda m: (block_count(m),))
        offset, more = Streams("moniqua").at(0, 0, t).random(2).tolist()
        sent = [k for k in range(len(messages)) if entry(first + k).is_sent(t)]
        grids = {k: Grid(entry(first + k).bits, offset, 1 + more) for k in sent}
        payloads = {k: encode(grids[k], messages[k], memory[k][0]) for k in sent}
        links = multiply.neighbours(tuple(payloads.values())) if sent else []
        mixed, after = list(messages), list(memory)
        for place, k in enumerate(sent):
            arrived = [(weights, theirs[place]) for weights, theirs in links]
            mixed[k], largest = mix(grids[k], messages[k], memory[k][0], payloads[k], arrived)
            after[k] = (largest,)
        return tuple(mixed), tuple(after)

    def init(message: Array) -> tuple[Array, ...]:
        return (same_library(2 * in_blocks(tensor(message), BLOCK).abs().amax(-1), message),)

    def size(message: Array, number: int, t: int) -> int:
        planned = entry(number)
        return row_bytes(message.shape[-1], planned.bits) if planned.is_sent(t) else 0

    text = ",".join(f"{bits}/{every}" if every > 1 else f"{bits}" for bits, every in entries)
    return Channel(init, exchange, settings=f"moniqua:{text}", size=size, symmetric=True)


def encode(grid: Grid, message: Array, largest: Array) -> Array:
    numbers, width = tensor(message), message.shape[-1]
    seen = tensor(largest).to(numbers.dtype)
    if runs_in_c(numbers):
        payload = numbers.new_empty((*numbers.shape[:-1], row_bytes(width, grid.bits)), dtype=torch.uint8)
        rows = numbers.numel() // width
        compiled.encode_residues(
            array(numbers), array(seen), array(payload), rows, width, *grid, numbers.dtype == torch.float64
        )
        return same_library(payload, message)
    blocks = in_blocks(numbers, BLOCK)
    least = blocks.abs().amax(-1) * (ROUNDINGS * torch.finfo(blocks.dtype).eps)
    wanted = torch.maximum(seen / 2 ** (grid.bits // 2), least).clamp(2.0**SMALLEST, 2.0**LARGEST)
    return same_library(grid.payload(blocks, torch.frexp(wanted).exponent, width), message)


def mix(grid: Grid, message: Array, largest: Array, own: Array, links: Iterable[Link]) -> tuple[Array, Array]:
    """The message after the exchange, and the largest differences seen, which stay near those of the neighbors."""
    numbers = tensor(message)
    faded = (DECAY * tensor(largest).to(numbers.dtype)).contiguous()
    if runs_in_c(numbers):
        mixed, seen = _mix_compiled(grid, numbers, faded, tensor(own), links)
    else:
        mixed, seen = _mix(grid, numbers, faded, tensor(own), links)
    return same_library(mixed, message), same_library(seen, message)


def _mix_compiled(grid: Grid, numbers: Tensor, seen: Tensor, own: Tensor, links: Iterable[Link]) -> tuple[Tensor, Tensor]:
    *_, nodes, width = numbers.shape
    runs, is_double = numbers.shape[:-2].numel(), numbers.dtype == torch.float64
    out = torch.empty_like(numbers, memory_format=torch.contiguous_format)
    for weights, theirs in links:
        x, own_payload, payload, factors = map(array, (numbers, own, tensor(theirs), like(weights, numbers)))
        compiled.mix_residues(x, own_payload, payload, factors, array(out), array(seen), runs, nodes, width, *grid, is_double)
        numbers = out
    return numbers, seen


def _mix(grid: Grid, numbers: Tensor, seen: Tensor, own: Tensor, links: Iterable[Link]) -> tuple[Tensor, Tensor]:
    mixed, width = in_blocks(numbers, BLOCK), numbers.shape[-1]
    doubtful = 3 * 2**grid.bits // 8  # spacings; wrong differences are often as large
    for weights, theirs in links:
        units, finer, exponents = grid.difference(tensor(theirs), own, width)
        spacing = grid.spacing(finer, mixed.dtype)
        mixed = mixed + like(weights[:, None, None], mixed) * (units * spacing)
        most = units.abs().amax(-1)
        largest = torch.where(most >= doubtful, 2 * most, most) * spacing[..., 0]
        near = torch.exp2(exponents.to(mixed.dtype) + (grid.bits // 2 - 2))
        seen = torch.maximum(seen, torch.maximum(near, largest))
    return mixed.flatten(-2)[..., :width], seen


def block_count(width: int) -> int:
    return ceil(width / BLOCK)


def row_bytes(width: int, bits: int) -> int:
    return block_count(width) + ceil(width * bits / 8)


def runs_in_c(a: Tensor) -> bool:
    in_memory = bool(a.numel()) and a.device.type == "cpu"
    return compiled is not None and in_memory and a.dtype in (torch.float32, torch.float64)


def array(a: Tensor) -> np.ndarray:
    """A tensor as kernels take it, in its own memory if that is contiguous."""
    return a.detach().contiguous().numpy()
