"""The kernels of `gpu_kernels.py`. Triton is only installed where CUDA is, so this module is imported on first use."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def convolve(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, bias_ptr, y_ptr, w_row, blocks, batch,
    inputs: tl.constexpr, H: tl.constexpr, W: tl.constexpr, outputs: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SPAN: tl.constexpr, BIAS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block, model = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    rows, columns = H - KH + 1, W - KW + 1
    m, n = block * M + tl.arange(0, M), tl.arange(0, N)
    groups, terms = rows // SPAN, inputs * (KH + SPAN - 1) * KW
    count = batch * groups * columns
    at = tl.minimum(m, count - 1)
    image, top, left = at // (groups * columns), at // columns % groups * SPAN, at % columns
    line, output = n // outputs, n % outputs  # of SPAN adjacent rows of y
    corner = x_ptr + model * inputs * batch * H * W + (image * H + top) * W + left
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, terms, 16):
        k = first + tl.arange(0, 16)
        term = tl.minimum(k, terms - 1)
        channel, down, j = term // ((KH + SPAN - 1) * KW), term // KW % (KH + SPAN - 1), term % KW
        a = tl.load(corner[:, None] + ((channel.to(tl.int64) * batch * H + down) * W + j)[None, :])
        i = down[:, None] - line[None, :]
        entry = ((output[None, :] * inputs + channel[:, None]) * KH + i) * KW + j[:, None]
        inside = (i >= 0) & (i < KH) & (line < SPAN)[None, :] & (k < terms)[:, None]
        w = tl.load(w_ptr + model * w_row + entry, inside, 0.0)
        total = tl.dot(a, w, total, input_precision="tf32x3")
    if BIAS:
        total += tl.load(bias_ptr + model * w_row + output)[None, :]
    pixel = (image * rows + top) * columns + left
    plane = (model * outputs + output) * batch * rows * columns + line * columns
    tl.store(y_ptr + plane[None, :] + pixel[:, None], total, (m < count)[:, None] & (line < SPAN)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradients(  # type: ignore[no-untyped-def]
    x_ptr, dy_ptr, g_ptr, bias_ptr, g_row, blocks, batch,
    inputs: tl.constexpr, H: tl.constexpr, W: tl.constexpr, outputs: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block, model = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    rows, columns = H - KH + 1, W - KW + 1
    k, n = block * 32 + tl.arange(0, 32), tl.arange(0, N)
    pixels, terms = batch * rows * columns, inputs * KH * KW
    term = tl.minimum(k, terms - 1)
    channel, i, j = term // (KH * KW), term // KW % KH, term % KW
    entry = x_ptr + model * inputs * batch * H * W + (channel.to(tl.int64) * batch * H + i) * W + j
    dy_ptr += model * outputs * pixels
    total, bias = tl.zeros((N, 32), tl.float32), tl.zeros((N,), tl.float32)
    for first in range(0, pixels, 16):
        m = first + tl.arange(0, 16)
        at = tl.minimum(m, pixels - 1)
        corner = (at // (rows * columns) * H + at // columns % rows) * W + at % columns
        inside = (n < outputs)[:, None] & (m < pixels)[None, :]
        dy = tl.load(dy_ptr + n[:, None].to(tl.int64) * pixels + m[None, :], inside, 0.0)
        total = tl.dot(dy, tl.load(entry[None, :] + corner[:, None]), total, input_precision="tf32x3")
        bias += tl.sum(dy, 1)
    inside = (n < outputs)[:, None] & (k < terms)[None, :]
    tl.store(g_ptr + model * g_row + n[:, None] * terms + k[None, :], total, inside)
    if BIAS:
        tl.store(bias_ptr + model * g_row + n, bias, (n < outputs) & (block == 0))


@triton.jit  # type: ignore[untyped-decorator]
def outer_products(  # type: ignore[no-untyped-def]
    dy_ptr, w_ptr, out_ptr, w_row, across, down, pixels,
    outputs: tl.constexpr, terms: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block, model = tl.program_id(0) % (across * down), (tl.program_id(0) // (across * down)).to(tl.int64)
    m, k, n = block % across * M + tl.arange(0, M), block // across * 32 + tl.arange(0, 32), tl.arange(0, N)
    inside = (n < outputs)[:, None] & (m < pixels)[None, :]
    dy = tl.load(dy_ptr + (model * outputs + n[:, None]) * pixels + m[None, :], inside, 0.0)
    inside = (n < outputs)[None, :] & (k < terms)[:, None]
    w = tl.load(w_ptr + model * w_row + n[None, :] * terms + k[:, None], inside, 0.0)
    total = tl.dot(w, dy, input_precision="tf32x3")
    inside = (k < terms)[:, None] & (m < pixels)[None, :]
    tl.store(out_ptr + (model * terms + k[:, None]) * pixels + m[None, :], total, inside)


@triton.jit  # type: ignore[untyped-decorator]
def sum_shifted(  # type: ignore[no-untyped-def]
    products_ptr, x_ptr, blocks, batch,
    rows: tl.constexpr, columns: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
):  # fmt: skip
    block, plane = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    at = block * 256 + tl.arange(0, 256)
    H, W = rows + KH - 1, columns + KW - 1
    image, y, x = at // (H * W), at // W % H, at % W
    products_ptr += plane * KH * KW * batch * rows * columns
    total = tl.zeros((256,), tl.float32)
    for e in tl.static_range(KH * KW):
        i, j = y - e // KW, x - e % KW
        inside = (image < batch) & (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
        total += tl.load(products_ptr + ((e * batch + image).to(tl.int64) * rows + i) * columns + j, inside, 0.0)
    tl.store(x_ptr + plane * batch * H * W + at, total, image < batch)


@triton.jit  # type: ignore[untyped-decorator]
def pool(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, place_ptr, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * 512 + tl.arange(0, 512)
    rows, columns = H // KH, W // KW
    corner = x_ptr + (at // (rows * columns) * H + at // columns % rows * KH) * W + at % columns * KW
    largest = tl.load(corner, at < count, 0.0)
    place = tl.zeros((512,), tl.uint8)
    for e in tl.static_range(1, KH * KW):
        x = tl.load(corner + e // KW * W + e % KW, at < count, 0.0)
        larger = (x > largest) | (x != x)  # NaN counts as the largest, as in torch
        largest, place = tl.where(larger, x, largest), tl.where(larger, e, place).to(tl.uint8)
    tl.store(y_ptr + at, largest, at < count)
    tl.store(place_ptr + at, place, at < count)


@triton.jit  # type: ignore[untyped-decorator]
def unpool(  # type: ignore[no-untyped-def]
    dy_ptr, place_ptr, x_ptr, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)
    rows, columns = H // KH, W // KW
    i, j = at // W % H, at % W
    inside = (at < count) & (i < rows * KH) & (j < columns * KW)  # the rest belongs to no window
    window = (at // (H * W) * rows + i // KH) * columns + j // KW
    here = tl.load(place_ptr + window, inside, 255) == i % KH * KW + j % KW
    dy = tl.load(dy_ptr + window, inside, 0.0)
    tl.store(x_ptr + at, tl.where(here, dy, 0.0), at < count)
