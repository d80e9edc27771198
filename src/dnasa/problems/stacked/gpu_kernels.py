"""Convolutions and pools of many models on a GPU (Triton).

They compute what `layers.py` computes, on the same planes (R, C, b, H, W) of float32 numbers, summed in another order. In the
products every factor is the sum of two TF32 numbers, which gives about the precision of float32. Patches are not stored; only
the gradient at the inputs needs an array of their size. A number that is not finite may spread to the next row.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from dnasa.cuda import triton_works

PIXELS = 128  # of an image in one program
MAX_OUTPUTS = 64  # channels in one program
MIN_MODELS = 512  # fewer do not fill a GPU: the gradient at a model's kernels has one warp for 32 of their entries
MAX_WINDOW = 255  # pixels in a window of a pool, whose places are stored as bytes


def applies(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_tf32() and triton_works()


@cache
def _has_tf32() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def convolve(x: Tensor, weights: Tensor, biases: Tensor | None, kernel: tuple[int, int]) -> Tensor:
    """(R, O, b, H', W'): each model's planes with its own kernels, (R, O, C*k*k), at stride 1 and without padding."""
    models, inputs, batch, height, width = x.shape
    outputs, rows, columns = weights.shape[1], height - kernel[0] + 1, width - kernel[1] + 1
    y = x.new_empty(models, outputs, batch, rows, columns)
    span = 2 if outputs <= MAX_OUTPUTS // 4 and rows % 2 == 0 else 1  # rows of y that are computed from the same loads
    blocks = -(-batch * rows * columns // span // PIXELS)
    _kernels().convolve[(models * blocks,)](
        x, weights, weights if biases is None else biases, y, weights.stride(0), blocks,
        batch, inputs, height, width, outputs, *kernel, span, biases is not None, PIXELS, _power(span * outputs),
        num_warps=2, num_stages=2,
    )  # fmt: skip
    return y


def weight_gradients(x: Tensor, dy: Tensor, weights: Tensor, biases: Tensor | None, kernel: tuple[int, int]) -> None:
    """Write the gradients at the kernels, and at the biases if there are any."""
    models, inputs, batch, height, width = x.shape
    blocks = -(-weights.shape[2] // 32)
    _kernels().weight_gradients[(models * blocks,)](
        x, dy, weights, weights if biases is None else biases, weights.stride(0), blocks,
        batch, inputs, height, width, dy.shape[1], *kernel, biases is not None, _power(dy.shape[1]),
        num_warps=1, num_stages=3,
    )  # fmt: skip


def input_gradients(dy: Tensor, weights: Tensor, kernel: tuple[int, int]) -> Tensor:
    """(R, C, b, H, W): the products of all entries of the kernels, then for each pixel the sum of those that touch it."""
    models, outputs, batch, rows, columns = dy.shape
    terms = weights.shape[2]
    inputs, height, width = terms // (kernel[0] * kernel[1]), rows + kernel[0] - 1, columns + kernel[1] - 1
    pixels = batch * rows * columns
    products = dy.new_empty(models, terms, pixels)
    across, down = -(-pixels // PIXELS), -(-terms // 32)
    _kernels().outer_products[(models * down * across,)](
        dy, weights, products, weights.stride(0), across, down, pixels, outputs, terms, PIXELS, _power(outputs), num_warps=2
    )  # fmt: skip
    dx = dy.new_empty(models, inputs, batch, height, width)
    blocks = -(-batch * height * width // 256)
    _kernels().sum_shifted[(models * inputs * blocks,)](
        products, dx, blocks, batch, rows, columns, *kernel, num_warps=4
    )
    return dx


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows that do not overlap, and the place of each in its window."""
    *planes, height, width = x.shape
    y = x.new_empty(*planes, height // kernel[0], width // kernel[1])
    places = torch.empty_like(y, dtype=torch.uint8)
    _kernels().pool[(-(-y.numel() // 512),)](x, y, places, y.numel(), height, width, *kernel, num_warps=4)
    return y, places


def unpool(dy: Tensor, places: Tensor, shape: torch.Size, kernel: tuple[int, int]) -> Tensor:
    dx = dy.new_empty(shape)
    blocks = -(-dx.numel() // 1024)
    _kernels().unpool[(blocks,)](dy, places, dx, dx.numel(), *shape[-2:], *kernel, num_warps=4)
    return dx


def _power(channels: int) -> int:
    """The next power of two; a product on tensor cores has at least 16 columns."""
    return max(16, 1 << (channels - 1).bit_length())


@cache
def _kernels() -> Any:
    from dnasa.problems.stacked import triton_kernels

    return triton_kernels
