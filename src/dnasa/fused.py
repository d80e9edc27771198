"""D-NASA's update and exchange with few passes over memory, for all nodes in one process and torch arrays.

It stands beside the plain rule, never instead of it: the same numbers to rounding (`tests/test_fused.py`), less memory traffic.
A step reads x, u, z, g and the last gradient v, and writes x, u and z in place; |z| for the next step is found on the way.
"""

from functools import cache
from typing import Any

import numpy as np

from dnasa.core import Array, Network, Rule, nonzero, norm, ordinary

TILE = 1024  # numbers of an array that a GPU program works on
MOST_NODES = 32  # beyond which a tile of all nodes leaves the registers of a GPU


def suits(rule: Rule, network: Network, state: Any) -> bool:
    """All nodes here on one fixed dense graph, float32 torch arrays, a rule of D-NASA's family; few nodes on a GPU."""
    x = state.x
    if rule.averaged is None or network.fixed_weights is None or isinstance(x, np.ndarray) or x.dtype.itemsize != 4:
        return False
    return not (x.is_cuda and network.nodes > MOST_NODES)


class Fused:
    """Steps in place; `x` and `state` are of the present, and change with the next step."""

    def __init__(self, rule: Rule, network: Network, state: Any, timeline: Any):
        import torch

        self.rule, self.network = rule, network
        self.averaged: Any = rule.averaged
        self.kind, self.v = type(state), state.v
        self.held = torch.stack([state.x, state.u, state.z])
        self.advance = (_on_gpu if state.x.is_cuda else _on_cpu)(self, network)
        self.length = norm(state.z)

    @property
    def x(self) -> Array:
        return self.held[0]

    @property
    def state(self) -> Any:
        x, u, z = self.held
        return self.kind(x=x, u=u, v=self.v, z=z)

    def step(self, g: Array, t: int) -> None:
        eta, alpha, normalised = self.averaged
        if normalised and not ordinary(self.length):
            self._plainly(g, t)
        else:
            self.length = self.advance(g, eta(t), alpha(t))
        self.v = g

    def _plainly(self, g: Array, t: int) -> None:
        """Where |z| is 0, or so small or large that its square is not to be trusted: the rule as it is written."""
        after = self.rule.step(self.state, g, self.network.at(t), t)
        for held, new in zip(self.held, (after.x, after.u, after.z), strict=True):
            held[...] = new
        self.length = norm(after.z)

    def close(self) -> None: ...


def _scale(run: Fused, eta: Any) -> Array:
    """What z is multiplied with in x - eta z/|z| (or x - eta z)."""
    return eta / nonzero(run.length) if run.averaged.normalised else eta + 0 * run.length


def _on_cpu(run: Fused, network: Network) -> Any:
    """Everything into one buffer, then one product with W straight back into the state."""
    import torch

    draft = torch.empty_like(run.held)
    weights = torch.as_tensor(network.fixed_weights, dtype=run.held.dtype)

    def advance(g: Array, eta: Any, alpha: Any) -> Array:
        x, u, z = run.held
        torch.addcmul(x, z, _scale(run, eta), value=-1, out=draft[0])
        torch.add(u, g, out=draft[1])
        draft[1].sub_(run.v)
        torch.lerp(z, draft[1], torch.as_tensor(alpha, dtype=z.dtype), out=draft[2])
        torch.matmul(weights, draft, out=run.held)
        return norm(run.held[2])

    return advance


def _on_gpu(run: Fused, network: Network) -> Any:
    """One kernel for all of it: a program loads the columns of all nodes, steps, mixes and stores them."""
    import torch
    import triton

    _, *runs, nodes, dim = run.held.shape
    count, rows = run.held[0].numel() // (nodes * dim), triton.next_power_of_2(nodes)
    columns = max(32, min(256, TILE // rows))
    blocks = triton.cdiv(dim, columns)
    squares = torch.empty(count, blocks, nodes, device=run.held.device, dtype=torch.float64)
    weights = torch.as_tensor(network.fixed_weights, dtype=torch.float32, device=run.held.device)
    step = kernel()

    def advance(g: Array, eta: Any, alpha: Any) -> Array:
        x, u, z = run.held
        alphas = torch.as_tensor(alpha, dtype=torch.float32, device=x.device).expand(*runs, 1, 1).contiguous()
        scales = _scale(run, eta).to(x.dtype).contiguous()
        arrays = (x, u, z, run.v.contiguous(), g.contiguous(), weights, scales, alphas, squares)
        step[(blocks, count)](*arrays, dim, nodes, rows, columns, num_warps=1)
        return squares.sum(1).sqrt().view(*runs, nodes, 1)

    return advance


@cache
def kernel() -> Any:
    """Made when the first GPU asks for it: Triton is there where CUDA is.

    One warp per program: then each thread has all nodes of its columns, and mixing them needs no shared memory.
    """
    import triton
    import triton.language as tl

    @triton.jit
    def step(  # type: ignore[no-untyped-def]
        x_at, u_at, z_at, v_at, g_at, w_at, scale_at, alpha_at, squares_at, dim, nodes, R: tl.constexpr, C: tl.constexpr
    ):
        block, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
        rows, columns = tl.arange(0, R), block.to(tl.int64) * C + tl.arange(0, C)
        at = run * nodes * dim + rows[:, None] * dim + columns[None, :]
        inside = (rows[:, None] < nodes) & (columns[None, :] < dim)
        x, u, z = tl.load(x_at + at, inside, 0.0), tl.load(u_at + at, inside, 0.0), tl.load(z_at + at, inside, 0.0)
        v, g = tl.load(v_at + at, inside, 0.0), tl.load(g_at + at, inside, 0.0)
        scale = tl.load(scale_at + run * nodes + rows, rows < nodes, 0.0)
        alpha = tl.load(alpha_at + run)
        x = x - scale[:, None] * z
        u = u + g - v
        z = (1 - alpha) * z + alpha * u
        mixed_x, mixed_u, mixed_z = tl.zeros_like(x), tl.zeros_like(u), tl.zeros_like(z)
        for j in tl.static_range(R):
            weight = tl.load(w_at + rows * nodes + j, (rows < nodes) & (j < nodes), 0.0)[:, None]
            mine = rows[:, None] == j
            mixed_x += weight * tl.sum(tl.where(mine, x, 0.0), 0)[None, :]
            mixed_u += weight * tl.sum(tl.where(mine, u, 0.0), 0)[None, :]
            mixed_z += weight * tl.sum(tl.where(mine, z, 0.0), 0)[None, :]
        tl.store(x_at + at, mixed_x, inside)
        tl.store(u_at + at, mixed_u, inside)
        tl.store(z_at + at, mixed_z, inside)
        wide = mixed_z.to(tl.float64)
        sums = tl.sum(wide * wide, 1)
        tl.store(squares_at + (run * tl.num_programs(0) + block) * nodes + rows, sums, rows < nodes)

    return step
