"""The step of a form in `rules.forms` on a GPU, with the product with W: one kernel, in Triton."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

WIDTH = 64  # numbers of each node that one program computes


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    x, u, z, v, g, new_x, new_u, new_z, new_v, W, etas, lengths, alphas, betas, dim,
    SCALED: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The new arrays of all nodes of a run at WIDTH numbers; ROWS is the power of two from NODES on."""
    run = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    rows = tl.arange(0, ROWS)
    inside, alpha = columns < dim, tl.load(alphas + run)
    old, new = (1 - alpha).to(tl.float32), alpha.to(tl.float32)
    sum_x = tl.zeros((ROWS, WIDTH), tl.float32)
    sum_u = tl.zeros((ROWS, WIDTH), tl.float32)
    sum_z = tl.zeros((ROWS, WIDTH), tl.float32)
    for j in tl.static_range(NODES):
        node = run * NODES + j
        here = node * dim + columns
        weights = tl.load(W + rows * NODES + j, rows < NODES, 0.0)[:, None]
        eta = tl.load(etas + node).to(tl.float32)
        xj, uj, zj = tl.load(x + here, inside), tl.load(u + here, inside), tl.load(z + here, inside)
        vj, gj = tl.load(v + here, inside), tl.load(g + here, inside)
        if SCALED:  # AdaNASA, where u is y, z is m and v is z
            beta = tl.load(betas + run)
            kept = old * vj + new * gj
            uj = uj + kept - vj
            zj = beta.to(tl.float32) * zj + (1 - beta).to(tl.float32) * gj * gj
            largest = tl.maximum(tl.sqrt(zj), tl.abs(uj), propagate_nan=tl.PropagateNan.ALL)
            xj -= eta * (uj / tl.where(largest == 0, 1.0, largest))
        else:
            kept = gj
            xj -= eta * (zj / tl.load(lengths + node))
            uj = uj + gj - vj
            zj = old * zj + new * uj
        tl.store(new_v + here, kept, inside)
        sum_x += weights * xj[None, :]
        sum_u += weights * uj[None, :]
        sum_z += weights * zj[None, :]
    if SCALED:  # rounding may make second moments negative
        sum_z = tl.maximum(sum_z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    there = (run * NODES + rows[:, None]) * dim + columns[None, :]
    inside = (rows < NODES)[:, None] & inside[None, :]
    tl.store(new_x + there, sum_x, inside)
    tl.store(new_u + there, sum_u, inside)
    tl.store(new_z + there, sum_z, inside)


def step(
    arrays: Sequence[Tensor], g: Tensor, W: Tensor, eta: Tensor, length: Tensor, alpha: Tensor, beta: Tensor, scaled: bool
) -> list[Tensor]:
    """The four large arrays of a form after a step.

    Args:
        arrays: The four before the step, of shape (..., nodes, dim), contiguous and of 32-bit numbers, as are g and W.
        g: The gradients.
        W: The mixing matrix.
        eta: The steps of the nodes, in float64, as are alpha and beta.
        length: What D-NASA divides z by, of the nodes, in float32; AdaNASA does not read it.
        alpha: The weights of the newest gradients, of the runs.
        beta: The weights of the past in second moments, of the runs.
        scaled: Whether it is AdaNASA's form.
    """
    nodes, dim = g.shape[-2:]
    made = [a.new_empty(a.shape) for a in arrays]
    grid = (triton.cdiv(dim, WIDTH), alpha.numel())
    rows = triton.next_power_of_2(nodes)
    _kernel[grid](*arrays, g, *made, W, eta, length, alpha, beta, dim, scaled, nodes, rows, WIDTH, num_warps=1)
    return made
