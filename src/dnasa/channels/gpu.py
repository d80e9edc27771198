"""Messages in a few bits on a GPU: the functions of `quantize.h` and `residues.h` for float32, with the same arguments.

Triton is only installed where CUDA is, so this module is imported on first use. Each kernel reads and writes every number once.
Divisions are rounded as IEEE 754 says and no product is fused with a sum, so that the CPU gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of a row in one program
BLOCK = tl.constexpr(256)  # numbers with one scale
SPACED = tl.constexpr(32)  # numbers with one spacing
SMALLEST = tl.constexpr(-100)  # exponent of a spacing, whose byte is 0
LEAST = tl.constexpr(8 * 2.0**-23)  # spacing of a number: 8 roundings
INFINITE = tl.constexpr(0x7F800000)  # bits; those of NaN are above
WHOLE = tl.constexpr(1.5 * 2**23)  # added and subtracted, it rounds smaller numbers, halves to even ones


def encode(numbers: Tensor, payload: Tensor, rows: int, width: int, bits: int, is_double: bool) -> None:
    _launch(quantise, BLOCK.value, rows, width, numbers, payload, width, bits)


def decode(numbers: Tensor, payload: Tensor, rows: int, width: int, bits: int, is_double: bool) -> None:
    _launch(restore, BLOCK.value, rows, width, numbers, payload, width, bits)


def encode_residues(
    numbers: Tensor, seen: Tensor, payload: Tensor,
    rows: int, width: int, bits: int, offset: float, factor: float, is_double: bool,
) -> None:  # fmt: skip
    _launch(round_to_grid, SPACED.value, rows, width, numbers, seen, payload, width, offset, factor, bits)


def mix_residues(
    numbers: Tensor, own: Tensor, theirs: Tensor, weights: Tensor, out: Tensor, seen: Tensor,
    runs: int, nodes: int, width: int, bits: int, offset: float, factor: float, is_double: bool,
) -> None:  # fmt: skip
    arrays = numbers, own, theirs, weights, out, seen
    _launch(add_differences, SPACED.value, runs * nodes, width, *arrays, nodes, width, factor, bits)


def _launch(kernel: triton.JITFunction, block: int, rows: int, width: int, *arguments: Tensor | float) -> None:
    count = NUMBERS // block
    programs = rows * triton.cdiv(triton.cdiv(width, block), count)
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, count, enable_fp_fusion=False)


@triton.jit  # type: ignore[untyped-decorator]
def quantise(x_ptr, payload_ptr, width, BITS: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    row, block, there, scales, packed = place(width, 2, BLOCK, BITS, COUNT)
    LARGEST: tl.constexpr = 2 ** (BITS - 1) - 1
    byte, first = bytes_of(block, BLOCK, BITS)
    x, other = pair(x_ptr + row * width, first, width, BITS)
    most = tl.maximum(tl.max(magnitude(x), 1), tl.max(magnitude(other), 1))
    exact = tl.div_rn(most.to(tl.float32, bitcast=True), 1.0 * LARGEST).to(tl.int32, bitcast=True)
    scale = tl.where(exact > INFINITE, 0x7FC0, (exact + 0x7FFF + (exact >> 16 & 1)) >> 16)  # bfloat16
    tl.store(payload_ptr + scales + 2 * block, scale.to(tl.uint8), there)
    tl.store(payload_ptr + scales + 2 * block + 1, (scale >> 8).to(tl.uint8), there)
    unit = tl.where(scale == 0, 1.0, (scale << 16).to(tl.float32, bitcast=True))[:, None]
    codes = level(x, unit, LARGEST)
    if BITS == 4:
        codes |= tl.where(first + 1 < width, level(other, unit, LARGEST) << 4, 0)
    tl.store(payload_ptr + packed + byte, codes.to(tl.uint8), first < width)


@triton.jit  # type: ignore[untyped-decorator]
def restore(out_ptr, payload_ptr, width, BITS: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    row, block, there, scales, packed = place(width, 2, BLOCK, BITS, COUNT)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    low = tl.load(payload_ptr + scales + 2 * block, there, 0).to(tl.int32)
    high = tl.load(payload_ptr + scales + 2 * block + 1, there, 0).to(tl.int32)
    scale = (low << 16 | high << 24).to(tl.float32, bitcast=True)
    numbers = unpacked(payload_ptr + packed, at, width, BITS) - (2 ** (BITS - 1) - 1)
    tl.store(out_ptr + row * width + at, numbers.to(tl.float32) * scale[:, None], at < width)


@triton.jit  # type: ignore[untyped-decorator]
def round_to_grid(  # type: ignore[no-untyped-def]
    x_ptr, seen_ptr, payload_ptr, width, offset, factor, BITS: tl.constexpr, COUNT: tl.constexpr
):
    row, block, there, exponents, packed = place(width, 1, SPACED, BITS, COUNT)
    byte, first = bytes_of(block, SPACED, BITS)
    x, other = pair(x_ptr + row * width, first, width, BITS)
    most = tl.maximum(tl.max(magnitude(x), 1), tl.max(magnitude(other), 1))
    seen = tl.load(seen_ptr + row * tl.cdiv(width, SPACED) + block, there, 0.0)
    least = most.to(tl.float32, bitcast=True) * LEAST
    wanted = tl.maximum(magnitude(least), magnitude(seen / 2 ** (BITS // 2)))
    limited = tl.minimum(tl.maximum((wanted >> 23) - 126, SMALLEST + 1), 1 - SMALLEST)
    exponent = tl.where(wanted > INFINITE, 0, limited)
    tl.store(payload_ptr + exponents + block, (exponent - SMALLEST).to(tl.uint8), there)
    spacing = factor * power(exponent)[:, None]
    codes = residue(x, spacing, offset, BITS)
    if BITS == 4:
        codes |= tl.where(first + 1 < width, residue(other, spacing, offset, BITS) << 4, 0)
    tl.store(payload_ptr + packed + byte, codes.to(tl.uint8), first < width)


@triton.jit  # type: ignore[untyped-decorator]
def add_differences(  # type: ignore[no-untyped-def]
    x_ptr, own_ptr, theirs_ptr, weights_ptr, out_ptr, seen_ptr, nodes, width, factor,
    BITS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    row, block, there, exponents, packed = place(width, 1, SPACED, BITS, COUNT)
    at = block[:, None] * SPACED + tl.arange(0, SPACED)[None, :]
    HALF: tl.constexpr = 2 ** (BITS - 1)
    own_exponent = tl.load(own_ptr + exponents + block, there, 0).to(tl.int32) + SMALLEST
    exponent = tl.load(theirs_ptr + exponents + block, there, 0).to(tl.int32) + SMALLEST
    finer = tl.minimum(exponent, own_exponent)
    theirs = unpacked(theirs_ptr + packed, at, width, BITS) << tl.minimum(exponent - finer, BITS)[:, None]
    own = unpacked(own_ptr + packed, at, width, BITS) << tl.minimum(own_exponent - finer, BITS)[:, None]
    units = (theirs - own + HALF & 2 * HALF - 1) - HALF
    units = tl.where(units == -HALF, 0, units)
    spacing = factor * power(finer)
    change = tl.load(weights_ptr + row % nodes) * (units.to(tl.float32) * spacing[:, None])
    x = tl.load(x_ptr + row * width + at, at < width, 0.0)
    tl.store(out_ptr + row * width + at, x + change, at < width)
    most = tl.max(tl.abs(units), 1)
    most = tl.where(most >= 3 * HALF // 4, 2 * most, most).to(tl.float32)
    seen_ptr += row * tl.cdiv(width, SPACED) + block
    differences = tl.maximum(magnitude(power(exponent + BITS // 2 - 2)), magnitude(most * spacing))
    seen = tl.maximum(magnitude(tl.load(seen_ptr, there, 0.0)), differences)
    tl.store(seen_ptr, seen.to(tl.float32, bitcast=True), there)


@triton.jit  # type: ignore[untyped-decorator]
def place(width, HEADER: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row and the blocks of a program, which of them there are, and where the row's header and its codes begin."""
    blocks = tl.cdiv(width, SIZE)
    parts = tl.cdiv(blocks, COUNT)
    row, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0).to(tl.int64) % parts
    block = part * COUNT + tl.arange(0, COUNT)
    header = row * (HEADER * blocks + tl.cdiv(width, 8 // BITS))
    return row, block, block < blocks, header, header + HEADER * blocks


@triton.jit  # type: ignore[untyped-decorator]
def bytes_of(block, SIZE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bytes of each block, and the first number in each."""
    byte = block[:, None] * (SIZE * BITS // 8) + tl.arange(0, SIZE * BITS // 8)[None, :]
    return byte, byte * (8 // BITS)


@triton.jit  # type: ignore[untyped-decorator]
def pair(x_ptr, first, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers of each byte; with 8 bits the same one twice."""
    x = tl.load(x_ptr + first, first < width, 0.0)
    other = x
    if BITS == 4:
        other = tl.load(x_ptr + first + 1, first + 1 < width, 0.0)
    return x, other


@triton.jit  # type: ignore[untyped-decorator]
def unpacked(packed_ptr, at, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    codes = tl.load(packed_ptr + at // (8 // BITS), at < width, 0).to(tl.int32)
    return codes >> (at % (8 // BITS) * BITS).to(tl.int32) & 2**BITS - 1


@triton.jit  # type: ignore[untyped-decorator]
def level(x, scale, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """The nearest multiple of the scale, counted from the smallest, which `tl.maximum` also gives for NaN."""
    steps = tl.minimum(tl.maximum(tl.div_rn(x, scale), -1.0 * LARGEST), 1.0 * LARGEST)
    return (steps + WHOLE - WHOLE + LARGEST).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def residue(x, spacing, offset, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last bits of a number rounded to the grid: 0 from 2^31 on, where float32 has only multiples of 256, and for NaN."""
    whole = tl.floor(tl.div_rn(x, spacing) + offset)
    return tl.where(tl.abs(whole) < 2.0**31, whole, 0.0).to(tl.int32) & 2**BITS - 1


@triton.jit
def magnitude(x):  # type: ignore[no-untyped-def]
    """The bits of |x|: they compare as the numbers do, and those of NaN are the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def power(exponent):  # type: ignore[no-untyped-def]
    """Two to a power above -127; infinity from 128 on."""
    return (tl.minimum(exponent + 127, 255) << 23).to(tl.float32, bitcast=True)
