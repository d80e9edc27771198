"""On a CPU, the step of a form in `rules.forms` in one pass over memory, in C (`kernels.c`).

The rule itself remains the definition: a step here gives the same numbers to rounding (`tests/engine/test_fused.py`) with less
memory traffic. It reads the four large arrays of the state and the gradient, and writes the four in place. Where the next
step needs |z|, it is computed in the same pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dnasa.arrays import compiled, contiguous, copied, dtype_name, on_gpu, overlap, stack
from dnasa.channels.exchange import exchange
from dnasa.communication import Network
from dnasa.core import Array, Gradients, Messages, Rule, State
from dnasa.engine.simulate import next_state
from dnasa.engine.steppers import Stepper
from dnasa.rules.forms import Form, Radius
from dnasa.runs.snapshots import Snapshot

PLAIN, NORMALIZED, SCALED = range(3)  # kinds of a step, as `kernels.c` numbers them
CACHE_BYTES = 16 << 10  # of a tile, so that it fits in the L1 cache next to the arrays themselves


def supports(rule: Rule, network: Network, state: State) -> bool:
    """Whether all nodes are here with their W, and the rule has a form that runs in C."""
    return one_product(network) and rule.form is not None and _runs_in_c(state.x)


def one_product(network: Network) -> bool:
    """Whether an exchange is one product with a matrix that is at hand."""
    return bool(network.step_weights) and network.settings.every == 1 and network.settings.channel is None


def _runs_in_c(x: Array) -> bool:
    return not on_gpu(x) and compiled is not None and dtype_name(x) in ("float32", "float64")


def with_fused_messages(rule: Rule, state: State) -> Rule:
    """AdaNASA with its messages computed in one pass in C, for exchanges that are not a product here; other rules as they are.

    The step, with W = I, is taken in one of two copies of the state, in turns: a state lasts until the step after it is done,
    and an exchange that fails changes nothing.
    """
    form = rule.form
    if form is None or form.radius is None or not _runs_in_c(state.x):
        return rule
    copies = [stack(form.unpack(state)) for _ in range(2)]
    kernels = [Kernel(held, [np.eye(held.shape[-2])], form, state) for held in copies]

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        held = copies[t % 2]
        for target, source in zip(held, form.unpack(s), strict=True):
            target[...] = source
        g = as_owned_contiguous(g, held)
        after = kernels[t % 2].step(0, form.pack(s, held), g, t)
        return (*held[:3], after.A), after

    return rule._replace(send=send, form=None)


class Fused(Stepper):
    """Steps in place: `x` and `state` are those of the current step, and change with the next one."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot):
        self.rule, self.form = rule, rule.form
        self.network = network
        self.sent = snapshot.sent
        self.held = stack(self.form.unpack(snapshot.state))
        self.state = self.form.pack(snapshot.state, self.held)
        self.row_bytes = self.form.width_sent(self.x.shape[-1]) * self.x.dtype.itemsize
        self.kernel = Kernel(self.held, network.step_weights, self.form, self.state)

    def step(self, gradients: Gradients, t: int) -> None:
        (g,) = gradients
        g = as_owned_contiguous(g, self.held)
        if self.kernel.norms_safe:
            self.state = self.kernel.step(t % len(self.network.step_weights), self.state, g, t)
            if self.form.radius is not None:
                self.state = self.form.radius.receive(self.state, *exchange(self.network, (), (self.state.A,), t)[0])
        else:
            self._plain_step(g, t)
        self.sent.compute(self.network, 1)
        self.sent.add(self.network, self.row_bytes, t)

    def _plain_step(self, g: Array, t: int) -> None:
        """Step with the rule itself, where |z| is 0 or its square may have underflowed or overflowed."""

        def mix(messages: Messages, number: int) -> Messages:
            return exchange(self.network, (), messages, t)[0]

        self.held[...] = stack(self.form.unpack(next_state(self.rule, self.state, (g,), t, mix)))
        self.kernel.measure()


def as_owned_contiguous(g: Array, held: Array) -> Array:
    """The gradient as a contiguous array that is not a view of the state."""
    return contiguous(copied(g) if overlap(g, held) else g)


class Kernel:
    """Steps the arrays that it was created with: `held` is what the form unpacks, in one array. Three of the four are mixed."""

    def __init__(self, held: Array, weights: Sequence[Any], form: Form, state: State):
        _, *runs, nodes, dim = held.shape
        count, itemsize = int(np.prod(runs)), held.dtype.itemsize
        dtype = np.dtype(f"float{8 * itemsize}")
        tiles = -(-dim // max(16, CACHE_BYTES // (3 * nodes * itemsize)))
        width = min(dim, -(-dim // tiles // 16) * 16)
        threads = compiled.threads(count * nodes * dim)
        self.form = form
        self.etas, (self.alphas, self.betas) = np.empty((*runs, nodes, 1)), np.zeros((2, *runs, 1, 1))
        x, u, z, v = map(as_buffer, held)
        arrays = (x, u, z, v, self.etas, self.alphas, self.betas, np.empty((count, nodes)))
        workspace = np.empty((threads, 3, nodes, width), dtype), np.empty((count, -(-dim // width), nodes))
        if form.radius is not None:
            kind = SCALED
            self.scratch = np.empty(tuple(state.start.shape), dtype)
            self.sizes = (count, nodes, dim, form.radius.every, itemsize == 8)
        else:
            kind = NORMALIZED if form.normalized else PLAIN
        sizes = (count, nodes, dim, width, kind, itemsize == 8)
        self.prepared = [
            compiled.prepare(*arrays, starts, columns, values.astype(dtype), *workspace, *sizes)
            for starts, columns, values in map(pad_csr, weights)
        ]
        self.measure()

    def measure(self) -> None:
        """Compute |z|; `norms_safe` says whether the next step can divide by it, if it has to."""
        self.norms_safe = compiled.measure(self.prepared[0])

    def step(self, turn: int, state: State, g: Array, t: int) -> State:
        """Take step t with the `turn`-th W, in place; the state with the rest of it after the step."""
        form = self.form
        factor = form.shrink and form.shrink(state, t)
        if factor is not None:
            x, *_ = form.unpack(state)
            x *= factor
        eta, alpha, *beta = [as_buffer(schedule(t)) for schedule in form.schedules[:3]]
        self.alphas[...] = alpha
        if beta:
            self.betas[...] = beta[0]
        if form.radius is not None:
            eta = contiguous(form.radius.step(state, t))
            state = self._add_to_sums(form.radius, eta, state, g, t)
        self.etas[...] = as_buffer(eta)
        self.norms_safe = compiled.step(self.prepared[turn], as_buffer(g))
        return state

    def _add_to_sums(self, radius: Radius, step: Array, state: State, g: Array, t: int) -> State:
        """What AdaNASA's radius is learned from, in one pass over a sample of the coordinates."""
        S, A = copied(state.S), copied(state.A)
        arrays = (*self.form.unpack(state), g, state.start, step, self.betas, S, A, self.scratch)
        compiled.learn(*map(as_buffer, arrays), *self.sizes)  # changes S and A in place
        return state._replace(S=S, A=A, average=radius.average(state, t))


def pad_csr(weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W in CSR form (row starts, columns, values), each row padded with zeros to a multiple of three entries."""
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
