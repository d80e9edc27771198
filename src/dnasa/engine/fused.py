"""D-NASA's update and exchange with few passes over memory, for all nodes in one process.

It stands beside the plain rule, never instead of it: the same numbers to rounding (`tests/test_fused.py`), less memory traffic.
A step reads x, u, z, g and the last gradient v, and writes x, u and z in place; |z| for the next step is found on the way.
"""

from functools import cache
from typing import Any, cast

import numpy as np

from dnasa.core import Array, Averaged, Network, Rule, compiled, like, norm, ordinary, stack
from dnasa.replay import Replayed

TILE = 1024  # numbers of an array that a GPU program works on
MOST_NODES = 32  # beyond which a tile of all nodes leaves the registers of a GPU
SMALL = 1 << 22  # numbers in an array up to which launching kernels costs a GPU more than running them
NEAR = 16 << 10  # bytes that surely stay in a core's nearest cache


def suits(rule: Rule, network: Network, state: Any) -> bool:
    """All nodes here on one fixed graph, a rule of D-NASA's family, and arrays there is a fast way for."""
    return rule.averaged is not None and network.fixed_weights is not None and _way(network, state.x) is not None


def _way(network: Network, x: Array) -> Any:
    size, few = x.dtype.itemsize, isinstance(network.fixed_weights, np.ndarray)
    if getattr(x, "is_cuda", False):
        return OnGPU if size == 4 and few and network.nodes <= MOST_NODES else None
    if compiled is not None and str(x.dtype).removeprefix("torch.") in ("float32", "float64"):
        return Compiled
    return OnCPU if not isinstance(x, np.ndarray) and size == 4 and few else None


class Fused:
    """Steps in place; `x` and `state` are of the present, and change with the next step."""

    def __init__(self, rule: Rule, network: Network, state: Any, timeline: Any):
        self.rule, self.network = rule, network
        self.averaged = averaged = cast(Averaged, rule.averaged)
        self.held = stack([state.x, state.u, state.z])
        self.x, self.u, self.z = self.held
        self.kind, self.v = type(state), settled(state.v, self.x)
        self.way = _way(network, state.x)(self.held, network.fixed_weights, averaged.normalised)

    @property
    def state(self) -> Any:
        return self.kind(x=self.x, u=self.u, v=self.v, z=self.z)

    def step(self, g: Array, t: int) -> None:
        eta, alpha, normalised = self.averaged
        g = settled(g, self.x)
        if normalised and not self.way.ordinary:
            self._plainly(g, t)
        else:
            self.way.step(self.v, g, eta(t), alpha(t))
        self.v = g

    def _plainly(self, g: Array, t: int) -> None:
        """Where |z| is 0, or so small or large that its square is not to be trusted: the rule as it is written."""
        after = self.rule.step(self.state, g, self.network.at(t), t)
        self.x[...], self.u[...], self.z[...] = after.x, after.u, after.z
        self.way.measure()

    def finish(self) -> None: ...

    def close(self) -> None: ...


# ---------------------------------------------------------------- ways


class Compiled:
    """One pass over memory in C (`compiled.c`), for NumPy arrays and torch's in main memory."""

    def __init__(self, held: Array, weights: Any, normalised: bool):
        _, *runs, nodes, dim = held.shape
        count = int(np.prod(runs))
        size, wide = held.dtype.itemsize, held.dtype.itemsize == 8
        most = max(16, NEAR // (3 * nodes * size))
        tiles = -(-dim // most)
        width = min(dim, -(-dim // tiles // 16) * 16)
        threads = compiled.threads(count * nodes * dim)
        starts, neighbours, values = in_threes(weights)
        self.etas, self.alphas = np.empty((*runs, 1, 1)), np.empty((*runs, 1, 1))
        kind = np.float64 if wide else np.float32
        drafts, squares = np.empty((threads, 3, nodes, width), kind), np.empty((count, -(-dim // width), nodes))
        work = (starts, neighbours, values.astype(kind), drafts, squares)
        arrays = (*map(buffer, held), self.etas, self.alphas, np.empty((count, nodes)), *work)
        self.prepared = compiled.prepare(*arrays, count, nodes, dim, width, normalised, wide)
        self.measure()

    def measure(self) -> None:
        self.ordinary = compiled.measure(self.prepared)

    def step(self, v: Array, g: Array, eta: Any, alpha: Any) -> None:
        self.etas[...], self.alphas[...] = buffer(eta), buffer(alpha)
        self.ordinary = compiled.step(self.prepared, buffer(v), buffer(g))


def in_threes(weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W row by row: where each row starts, its neighbours and their weights, filled up with nothing to multiples of three."""
    from scipy.sparse import csr_array

    rows = csr_array(weights)
    counts = np.diff(rows.indptr)
    padded = -(-counts // 3) * 3
    starts = np.concatenate([[0], np.cumsum(padded)])
    neighbours = np.repeat(np.arange(len(counts)), padded)
    values = np.zeros(len(neighbours))
    places = np.arange(len(rows.indices)) + np.repeat(starts[:-1] - rows.indptr[:-1], counts)
    neighbours[places], values[places] = rows.indices, rows.data
    return starts.astype(np.int32), neighbours.astype(np.int32), values


def settled(g: Array, x: Array) -> Array:
    """In one piece of memory of its own, of the kind and shape of x: what may be kept, and compiled code be handed."""
    if type(g) is not type(x) or g.dtype != x.dtype or g.shape != x.shape:
        g = like(g, x) + 0 * x
    if isinstance(g, np.ndarray):
        return g.copy() if np.may_share_memory(g, x) else np.ascontiguousarray(g)
    if g.requires_grad:
        g = g.detach()
    return (g.clone() if g.data_ptr() == x.data_ptr() else g).contiguous()


def buffer(a: Any) -> Any:
    """The same memory, in the way C is handed it; numbers as they are."""
    return a.numpy() if hasattr(a, "numpy") else a


class OnCPU:
    """Without a compiler: everything into one buffer, then one product with W straight back into the state."""

    def __init__(self, held: Array, weights: Any, normalised: bool):
        import torch

        self.held, self.normalised = held, normalised
        self.draft = torch.empty_like(held)
        self.weights = torch.as_tensor(weights, dtype=held.dtype)
        self.measure()

    def measure(self) -> None:
        self.length = norm(self.held[2])
        self.ordinary = ordinary(self.length)

    def step(self, v: Array, g: Array, eta: Any, alpha: Any) -> None:
        import torch

        x, u, z = self.held
        scale = eta / self.length if self.normalised else eta + 0 * self.length
        torch.addcmul(x, z, scale, value=-1, out=self.draft[0])
        torch.add(u, g, out=self.draft[1])
        self.draft[1].sub_(v)
        torch.lerp(z, self.draft[1], torch.as_tensor(alpha, dtype=z.dtype), out=self.draft[2])
        torch.matmul(self.weights, self.draft, out=self.held)
        self.measure()


class OnGPU:
    """One kernel for all of it: a program loads the columns of all nodes, steps, mixes and stores them."""

    ordinary = True  # |z| is found in 64 bits, and 0 is taken care of

    def __init__(self, held: Array, weights: Any, normalised: bool):
        import torch
        import triton

        _, *self.runs, self.nodes, self.dim = held.shape
        self.held, self.normalised = held, normalised
        self.count, self.rows = held[0].numel() // (self.nodes * self.dim), triton.next_power_of_2(self.nodes)
        self.columns = max(32, min(256, TILE // self.rows))
        self.blocks = triton.cdiv(self.dim, self.columns)
        self.partial = torch.empty(self.count, self.blocks, self.nodes, device=held.device, dtype=torch.float64)
        self.squares = torch.empty(self.count, self.nodes, device=held.device, dtype=torch.float64)
        self.weights = torch.as_tensor(weights, dtype=torch.float32, device=held.device)
        self.replayed = Replayed(self._remembering) if held[0].numel() <= SMALL else None
        self.measure()

    def measure(self) -> None:
        self.squares.copy_(self.held[2].double().square().sum(-1).view_as(self.squares))

    def step(self, v: Array, g: Array, eta: Any, alpha: Any) -> None:
        inputs = (g, self._each(eta), self._each(alpha))
        if self.replayed is None:
            return self._launch(v, *inputs)
        if not self.replayed.recorded:
            self._record(v, inputs)
        self.replayed(*inputs)

    def _record(self, v: Array, inputs: Any) -> None:
        before = self.held.clone(), self.squares.clone()
        self.last = v.clone()
        self.replayed.record(*inputs)  # type: ignore[union-attr]
        for place, value in zip((self.held, self.squares, self.last), (*before, v), strict=True):
            place.copy_(value)

    def _remembering(self, g: Array, etas: Array, alphas: Array) -> None:
        self._launch(self.last, g, etas, alphas)
        self.last.copy_(g)

    def _each(self, schedule: Any) -> Array:
        """Of every run."""
        import torch

        value = torch.as_tensor(schedule, dtype=torch.float32, device=self.held.device)
        return value.expand(*self.runs, 1, 1).contiguous()

    def _launch(self, v: Array, g: Array, etas: Array, alphas: Array) -> None:
        import torch

        arrays = (*self.held, v, g, self.weights, etas, alphas, self.squares, self.partial)
        sizes = (self.dim, self.nodes, self.normalised, self.rows, self.columns)
        kernel()[(self.blocks, self.count)](*arrays, *sizes, num_warps=1)
        torch.sum(self.partial, 1, out=self.squares)


@cache
def kernel() -> Any:
    """Made when the first GPU asks for it: Triton is there where CUDA is.

    One warp per program: then each thread has all nodes of its columns, and mixing them needs no shared memory.
    """
    import triton
    import triton.language as tl

    @triton.jit
    def step(  # type: ignore[no-untyped-def]
        x_at,
        u_at,
        z_at,
        v_at,
        g_at,
        w_at,
        eta_at,
        alpha_at,
        squares_at,
        partial_at,
        dim,
        nodes,
        NORMALISED: tl.constexpr,
        R: tl.constexpr,
        C: tl.constexpr,
    ):
        block, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
        rows, columns = tl.arange(0, R), block.to(tl.int64) * C + tl.arange(0, C)
        at = run * nodes * dim + rows[:, None].to(tl.int64) * dim + columns[None, :]
        inside = (rows[:, None] < nodes) & (columns[None, :] < dim)
        x, u, z = tl.load(x_at + at, inside, 0.0), tl.load(u_at + at, inside, 0.0), tl.load(z_at + at, inside, 0.0)
        v, g = tl.load(v_at + at, inside, 0.0), tl.load(g_at + at, inside, 0.0)
        eta, alpha = tl.load(eta_at + run), tl.load(alpha_at + run)
        if NORMALISED:  # z/|z| is 0 where z is
            squares = tl.load(squares_at + run * nodes + rows, rows < nodes, 1.0)
            scale = eta / tl.sqrt(tl.where(squares == 0, 1.0, squares))
        else:
            scale = eta + 0.0 * rows.to(tl.float64)
        x = x - (scale[:, None] * z.to(tl.float64)).to(tl.float32)
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
        tl.store(partial_at + (run * tl.num_programs(0) + block) * nodes + rows, sums, rows < nodes)

    return step
