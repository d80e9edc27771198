"""The step of a form in `rules.forms` with few passes over memory, for all nodes in one process.

The rule itself remains the definition: a step here gives the same numbers to rounding (`tests/engine/test_fused.py`) with less
memory traffic. It reads the four large arrays of the state and the gradient, and writes the four in place. Where the next
step needs |z|, it is computed in the same pass.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Protocol, cast

import numpy as np

from dnasa.arrays import compiled, contiguous, copied, dtype_name, like, norm, norms_safe, on_gpu, overlap, stack
from dnasa.channels.exchange import exchange
from dnasa.core import Array, Gradients, InputError, Messages, Network, Rule, Snapshot, State
from dnasa.cuda import CudaGraphs, triton_works
from dnasa.engine.steppers import Immediate, next_state
from dnasa.rules.forms import NORMALIZED, SCALED, Form, ScaledAverage, TrackedAverage, form_of

GPU_TILE = 1024  # numbers of an array that a Triton program processes
MAX_GPU_NODES = 32  # a tile of more nodes does not fit in the registers of a GPU
SMALL = 1 << 22  # for arrays up to this size, a GPU takes longer to launch kernels than to run them
CACHE_BYTES = 16 << 10  # of a tile, so that it fits in the L1 cache next to the arrays themselves


def supports(rule: Rule, network: Network, state: State) -> bool:
    """Whether all nodes are here with their W, the rule has a form, and a backend can process the arrays."""
    form = form_of(rule)
    if not network.step_weights or network.every > 1 or network.channel is not None or form is None:
        return False
    x, *_ = form.unpack(state)
    return _backend(form, network, x) is not None


def with_fused_messages(rule: Rule, state: State) -> Rule:
    """AdaNASA with its messages computed in one pass in C, for exchanges that are not a product here; other rules as they are.

    The step, with W = I, is taken in one of two copies of the state, in turns: a state lasts until the step after it is done,
    and an exchange that fails changes nothing.
    """
    form = form_of(rule)
    if not isinstance(form, ScaledAverage) or not _compiles(form.unpack(state)[0]):
        return rule
    copies = [stack(form.unpack(state)) for _ in range(2)]
    backends = [CompiledBackend(held, [np.eye(held.shape[-2])], form) for held in copies]
    values = CompiledRadius(form, state)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        held, backend = copies[t % 2], backends[t % 2]
        for target, source in zip(held, form.unpack(s), strict=True):
            target[...] = source
        g = as_owned_contiguous(g, held[0], held)
        return tuple(held[:3]), _stepped(form, values, backend, 0, form.state_with(s, held), g, t)

    return rule._replace(send=send)


class Backend(Protocol):
    """Steps the arrays that it was created with: `held` is what the form unpacks, in one array. Three of the four are mixed."""

    norms_safe: bool  # whether the next step can divide by |z|, if it has to

    def __init__(self, held: Array, weights: Sequence[Any], form: Any): ...
    def measure(self) -> None: ...
    def step(
        self, turn: int, g: Array, *values: Any
    ) -> None: ...  # with weights[turn] and what the form gives for this step


def _backend(form: Form, network: Network, x: Array) -> type[Backend] | None:
    dense = all(isinstance(weights, np.ndarray) for weights in network.step_weights)
    if _compiles(x):
        return CompiledBackend
    if isinstance(x, np.ndarray) or x.dtype.itemsize != 4 or not dense:
        return None
    if not on_gpu(x):
        return TorchBackend if isinstance(form, TrackedAverage) else None
    return TritonBackend if network.nodes <= MAX_GPU_NODES and triton_works() else None


def _compiles(x: Array) -> bool:
    return not on_gpu(x) and compiled is not None and dtype_name(x) in ("float32", "float64")


def _stepped(form: Form, values: Any, backend: Backend, turn: int, state: State, g: Array, t: int) -> State:
    """Shrink x by the weight decay and step, in place; the state with the rest of it after the step."""
    factor = form.shrink and form.shrink(state, t)
    if factor is not None:
        x, *_ = form.unpack(state)
        x *= factor
    numbers, state = values(state, g, t)
    backend.step(turn, g, *numbers)
    return state


class Fused(Immediate):
    """Steps in place: `x` and `state` are those of the current step, and change with the next one."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Any):
        self.rule = rule
        self.network = network
        self.sent = snapshot.sent
        self.form = cast(Form, form_of(rule))  # `supports` was checked
        self.held = _stacked(self.form.unpack(snapshot.state), network.nodes)
        self.state = self.form.state_with(snapshot.state, self.held)
        self.x = self.held[0]
        self.row_bytes = 3 * self.x.shape[-1] * self.x.dtype.itemsize  # all but the last are sent
        backend = cast(type[Backend], _backend(self.form, network, self.x))
        self.backend = backend(self.held, network.step_weights, self.form)
        in_c = isinstance(self.form, ScaledAverage) and backend is CompiledBackend
        self.values = CompiledRadius(self.form, self.state) if in_c else self.form.values

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.state, {}, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return (self.x,)

    def step(self, gradients: Gradients, t: int) -> None:
        (g,) = gradients
        g = as_owned_contiguous(g, self.x, self.held)
        if self.backend.norms_safe:
            turn = t % len(self.network.step_weights)
            self.state = _stepped(self.form, self.values, self.backend, turn, self.state, g, t)
        else:
            self._fallback(g, t)
        self.sent.compute(self.network, 1)
        self.sent.add(self.network, self.row_bytes, t)

    def _fallback(self, g: Array, t: int) -> None:
        """Step with the rule itself, where |z| is 0 or its square may have underflowed or overflowed."""
        state = next_state(
            self.rule, self.state, (g,), t, lambda messages, _: exchange(self.network, (), messages, t)[0]
        )
        self.held[...] = stack(self.form.unpack(state))
        self.backend.measure()


def _stacked(arrays: Sequence[Array], nodes: int) -> Array:
    shapes = {tuple(a.shape) for a in arrays}
    if len(shapes) > 1 or arrays[0].shape[-2:-1] != (nodes,):
        raise InputError(
            f"The state has arrays of shapes {', '.join(map(str, sorted(shapes)))} for {nodes} nodes: "
            "use a state of the same problem and network."
        )
    return stack(arrays)


def as_owned_contiguous(g: Array, x: Array, held: Array) -> Array:
    """The gradient as a contiguous array of the kind and shape of x that is not a view of the state."""
    if type(g) is not type(x) or g.dtype != x.dtype or g.shape != x.shape:
        shape = tuple(np.shape(g))
        if shape != tuple(x.shape):
            raise InputError(
                f"The gradient has shape {shape}, but the iterates have shape {tuple(x.shape)}: "
                "return an array of the same shape."
            )
        g = like(g, x)
    return contiguous(copied(g) if overlap(g, held) else g)


# ---------------------------------------------------------------- backends


class CompiledBackend:
    """One pass over memory in C (`kernels.c`), for NumPy arrays and torch tensors on the CPU."""

    def __init__(self, held: Array, weights: Sequence[Any], form: Form):
        _, *runs, nodes, dim = held.shape
        count, itemsize = int(np.prod(runs)), held.dtype.itemsize
        dtype = np.dtype(f"float{8 * itemsize}")
        tiles = -(-dim // max(16, CACHE_BYTES // (3 * nodes * itemsize)))
        width = min(dim, -(-dim // tiles // 16) * 16)
        threads = compiled.threads(count * nodes * dim)
        self.etas, (self.alphas, self.betas) = np.empty((*runs, nodes, 1)), np.empty((2, *runs, 1, 1))
        x, u, z, v = map(as_buffer, held)
        state = (x, u, z, v, self.etas, self.alphas, self.betas, np.empty((count, nodes)))
        workspace = np.empty((threads, 3, nodes, width), dtype), np.empty((count, -(-dim // width), nodes))
        sizes = (count, nodes, dim, width, form.kind, itemsize == 8)
        self.prepared = [
            compiled.prepare(*state, starts, neighbours, values.astype(dtype), *workspace, *sizes)
            for starts, neighbours, values in map(pad_csr, weights)
        ]
        self.measure()

    def measure(self) -> None:
        self.norms_safe = compiled.measure(self.prepared[0])

    def step(self, turn: int, g: Array, eta: Any, alpha: Any, beta: Any = 0.0) -> None:
        self.etas[...], self.alphas[...], self.betas[...] = map(as_buffer, (eta, alpha, beta))
        self.norms_safe = compiled.step(self.prepared[turn], as_buffer(g))


class CompiledRadius:
    """`form.values` of AdaNASA, in one pass in C over the coordinates that its radius is learned from."""

    def __init__(self, form: Any, state: State):
        self.form, self.radius = form, form.radius
        start, *_ = self.radius.unpack(state)
        *runs, self.nodes, self.dim = state.x.shape
        self.scratch = np.empty(tuple(start.shape), dtype_name(start))
        self.beta = np.empty((*runs, 1, 1))

    def __call__(self, s: State, g: Array, t: int) -> tuple[tuple[Any, ...], State]:
        step, beta = contiguous(self.radius.step(s, t)), self.form.beta(t)
        start, *before = self.radius.unpack(s)
        after = [copied(a) for a in before]
        self.beta[...] = as_buffer(beta)
        arrays = (*self.form.unpack(s), g, start, step, self.beta, *after, self.scratch)
        sizes = (self.beta.size, self.nodes, self.dim, self.radius.every, self.scratch.itemsize == 8)
        compiled.learn(*map(as_buffer, arrays), *sizes)  # type: ignore[call-arg]
        return (step, self.form.alpha(t), beta), self.radius.pack(s, *after, t)


def pad_csr(weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W in CSR form (row starts, columns, values), each row padded with zeros to a multiple of three entries."""
    from scipy.sparse import csr_array

    rows = csr_array(weights)
    counts = np.diff(rows.indptr)
    padded = -(-counts // 3) * 3
    starts = np.concatenate([[0], np.cumsum(padded)])
    neighbours = np.repeat(np.arange(len(counts)), padded)
    values = np.zeros(len(neighbours))
    positions = np.arange(len(rows.indices)) + np.repeat(starts[:-1] - rows.indptr[:-1], counts)
    neighbours[positions], values[positions] = rows.indices, rows.data
    return starts.astype(np.int32), neighbours.astype(np.int32), values


def as_buffer(a: Any) -> Any:
    """The same memory as an object with the buffer protocol; plain numbers unchanged."""
    return a.numpy() if hasattr(a, "numpy") else a


class TorchBackend:
    """Steps without a compiler: all messages in one buffer, then one product with W that writes into the state."""

    def __init__(self, held: Array, weights: Sequence[Any], form: TrackedAverage):
        import torch

        self.held, self.normalized = held, form.normalized
        self.messages = torch.empty_like(held[:3])
        self.weights = [torch.as_tensor(each, dtype=held.dtype) for each in weights]
        self.measure()

    def measure(self) -> None:
        self.norms = norm(self.held[2])
        self.norms_safe = not self.normalized or norms_safe(self.norms)

    def step(self, turn: int, g: Array, eta: Any, alpha: Any) -> None:
        import torch

        x, u, z, v = self.held
        new_x, new_u, new_z = self.messages
        scale = eta / self.norms if self.normalized else eta + 0 * self.norms
        torch.addcmul(x, z, scale, value=-1, out=new_x)
        torch.add(u, g, out=new_u)
        new_u.sub_(v)
        torch.lerp(z, new_u, torch.as_tensor(alpha, dtype=z.dtype), out=new_z)
        torch.matmul(self.weights[turn], self.messages, out=self.held[:3])
        v.copy_(g)
        self.measure()


class TritonBackend:
    """One kernel for a step: a program loads the columns of all nodes, updates, mixes and stores them."""

    norms_safe = True  # |z| is computed in float64, and 0 is handled in the kernel

    def __init__(self, held: Array, weights: Sequence[Any], form: Form):
        import torch
        import triton

        _, *self.runs, self.nodes, self.dim = held.shape
        self.held, self.kind = held, form.kind
        self.count, self.rows = held[0].numel() // (self.nodes * self.dim), triton.next_power_of_2(self.nodes)
        self.columns = max(32, min(256, GPU_TILE // self.rows))
        self.blocks = triton.cdiv(self.dim, self.columns)
        self.partial = torch.empty(self.count, self.blocks, self.nodes, device=held.device, dtype=torch.float64)
        self.squares = torch.empty(self.count, self.nodes, device=held.device, dtype=torch.float64)
        padded = torch.zeros(len(weights), self.rows, self.rows, device=held.device)
        padded[:, : self.nodes, : self.nodes] = torch.as_tensor(np.stack(weights))
        self.launches = [partial(self._launch, each) for each in padded]
        self.graphs = [CudaGraphs(launch) for launch in self.launches] if held[0].numel() <= SMALL else None
        self.measure()

    def measure(self) -> None:
        if self.kind == NORMALIZED:
            self.squares.copy_(self.held[2].double().square().sum(-1).view_as(self.squares))

    def step(self, turn: int, g: Array, eta: Any, alpha: Any, beta: Any = 1.0) -> None:
        # 1 - beta is rounded to 32 bits, rather than beta: it may be small
        inputs = (g, self._numbers(eta, self.nodes), self._numbers(alpha), self._numbers(1 - beta))
        if self.graphs is None:
            return self.launches[turn](*inputs)
        graphs = self.graphs[turn]
        if not graphs.captured:
            self._capture(graphs, inputs)
        graphs(*inputs)

    def _capture(self, graphs: CudaGraphs, inputs: tuple[Array, ...]) -> None:
        held, squares = self.held.clone(), self.squares.clone()
        graphs.capture(*inputs)  # takes steps as a warmup, which are undone here
        self.held.copy_(held)
        self.squares.copy_(squares)

    def _numbers(self, value: Any, rows: int = 1) -> Array:
        """A value of this step as `rows` float32 numbers for each run."""
        import torch

        shape = (*self.runs, rows, 1)
        if isinstance(value, float):  # unlike a copy, this does not wait for the GPU
            return torch.full(shape, value, dtype=torch.float32, device=self.held.device)
        value = torch.as_tensor(value, dtype=torch.float32, device=self.held.device)
        return value.expand(shape).contiguous()

    def _launch(self, weights: Array, *inputs: Array) -> None:
        import torch

        sizes = (self.dim, self.nodes, self.kind == NORMALIZED, self.kind == SCALED, self.rows, self.columns)
        arrays = (*self.held, *inputs, weights, self.squares, self.partial)
        triton_step()[(self.blocks, self.count)](*arrays, *sizes, num_warps=1)
        if self.kind == NORMALIZED:
            torch.sum(self.partial, 1, out=self.squares)


@cache
def triton_step() -> Any:
    """The kernel, defined on first use: Triton is only installed where CUDA is.

    `x`, `a` and `b` are mixed and `own` is not: x, u, z and v of D-NASA's family, and x, y, m and z of AdaNASA. One warp per
    program: then each thread has all nodes of its columns, and mixing them needs no shared memory.
    """
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def step(  # type: ignore[no-untyped-def]
        x_ptr, a_ptr, b_ptr, own_ptr, g_ptr, eta_ptr, alpha_ptr, rest_ptr, w_ptr, squares_ptr, partial_ptr, dim, nodes,
        NORMALIZED: tl.constexpr, SCALED: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    ):  # fmt: skip
        block, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
        rows, columns = tl.arange(0, R), block.to(tl.int64) * C + tl.arange(0, C)
        at = run * nodes * dim + rows[:, None].to(tl.int64) * dim + columns[None, :]
        inside = (rows[:, None] < nodes) & (columns[None, :] < dim)
        x, a = tl.load(x_ptr + at, inside, 0.0), tl.load(a_ptr + at, inside, 0.0)
        b, own = tl.load(b_ptr + at, inside, 0.0), tl.load(own_ptr + at, inside, 0.0)
        g = tl.load(g_ptr + at, inside, 0.0)
        eta, alpha = tl.load(eta_ptr + run * nodes + rows, rows < nodes, 0.0), tl.load(alpha_ptr + run)
        if SCALED:
            rest = tl.load(rest_ptr + run)  # 1 - beta
            average = (1 - alpha) * own + alpha * g
            a = a + average - own
            b = (1 - rest) * b + rest * (g * g)
            root = tl.sqrt(b)
            size = tl.where(tl.abs(a) > root, tl.abs(a), root)
            x = x - eta[:, None] * (a / tl.where(size == 0, 1.0, size))
            tl.store(own_ptr + at, average, inside)
        else:
            if NORMALIZED:  # z/|z| is 0 where z is 0
                squares = tl.load(squares_ptr + run * nodes + rows, rows < nodes, 1.0)
                scale = eta / tl.sqrt(tl.where(squares == 0, 1.0, squares))
            else:
                scale = eta + 0.0 * rows.to(tl.float64)
            x = x - (scale[:, None] * b.to(tl.float64)).to(tl.float32)
            a = a + g - own
            b = (1 - alpha) * b + alpha * a
            tl.store(own_ptr + at, g, inside)
        mixed_x, mixed_a, mixed_b = tl.zeros_like(x), tl.zeros_like(a), tl.zeros_like(b)
        for j in tl.static_range(R):
            weight = tl.load(w_ptr + rows * R + j)[:, None]
            sender = rows[:, None] == j
            mixed_x += weight * tl.sum(tl.where(sender, x, 0.0), 0)[None, :]
            mixed_a += weight * tl.sum(tl.where(sender, a, 0.0), 0)[None, :]
            mixed_b += weight * tl.sum(tl.where(sender, b, 0.0), 0)[None, :]
        if SCALED:
            mixed_b = tl.where(mixed_b < 0, 0.0, mixed_b)  # as the rule: NaN stays
        tl.store(x_ptr + at, mixed_x, inside)
        tl.store(a_ptr + at, mixed_a, inside)
        tl.store(b_ptr + at, mixed_b, inside)
        if NORMALIZED:
            wide = mixed_b.to(tl.float64)
            sums = tl.sum(wide * wide, 1)
            tl.store(partial_ptr + (run * tl.num_programs(0) + block) * nodes + rows, sums, rows < nodes)

    return step
