"""On a GPU, the step of a form in `rules.forms` in one pass over memory (`kernel_gpu.py`), to rounding what the rule does."""

from typing import Any

import torch
from torch import Tensor

from dnasa.arrays import contiguous, nonzero, norm
from dnasa.communication import Network
from dnasa.core import Gradients, Rule
from dnasa.engine.steppers import Stepper
from dnasa.engine.torch_compile import compiled_or_plain, with_stored_schedules
from dnasa.rules.forms import Form, Radius
from dnasa.runs.snapshots import Snapshot


class FusedOnGpu(Stepper):
    """Steps of 32-bit numbers with a dense W; the new state is in new memory."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot):
        from dnasa.engine.kernel_gpu import step  # only there is Triton

        self.kernel = step
        self.form: Form = rule.form
        self.network = network
        self.state, self.sent = snapshot.state, snapshot.sent
        self.weights = [torch.as_tensor(W, dtype=self.x.dtype, device=self.x.device) for W in network.step_weights]
        self.row_bytes = self.form.width_sent(self.x.shape[-1]) * self.x.dtype.itemsize
        stored, self.set_step = with_stored_schedules(self.form, self.x)
        self.lengths = compiled_or_plain(lambda z: nonzero(norm(z)))
        self.learn = compiled_or_plain(lambda *arrays: _learn(stored.form.radius, *arrays))
        self.side = torch.cuda.Stream(self.x.device, priority=-1) if self.form.radius and self.x.is_cuda else None

    def step(self, gradients: Gradients, t: int) -> None:
        form, state, W = self.form, self.state, self.weights[t % len(self.weights)]
        scaled = form.radius is not None
        g = contiguous(gradients[0].detach())
        factor = form.shrink and form.shrink(state, t)
        if factor is not None:
            state = state._replace(x=factor * state.x)
        eta, alpha, *rest = [schedule(t) for schedule in form.schedules]
        lengths, learned = g, {}  # AdaNASA does not read lengths
        if form.radius is not None:
            eta = form.radius.step(state, t)
            if self.side is not None:
                self.side.wait_stream(torch.cuda.current_stream(g.device))
            with torch.cuda.stream(self.side):  # small kernels beside the large one, not after it
                self.set_step(t)
                learned = dict(zip(("S", "A", "r"), self.learn(state, eta, g, W), strict=True))
            state = state._replace(average=form.radius.average(state, t))
        else:
            lengths = self.lengths(state.z) if form.normalized else torch.ones_like(g[..., :1])
        nodes, runs = torch.Size([*g.shape[:-1], 1]), torch.Size([*g.shape[:-2], 1, 1])
        etas, alphas, betas = _of(nodes, eta, g), _of(runs, alpha, g), _of(runs, rest[0] if scaled else 0, g)
        arrays = [*map(contiguous, form.unpack(state))]
        self.state = form.pack(state, self.kernel(arrays, g, W, etas, lengths, alphas, betas, scaled))._replace(**learned)
        if self.side is not None:
            torch.cuda.current_stream(g.device).wait_stream(self.side)
        self.sent.compute(self.network, 1)
        self.sent.add(self.network, self.row_bytes, t)


def _of(shape: torch.Size, value: Any, like: Tensor) -> Tensor:
    """A number, or one for each run or node, in this shape and in float64."""
    if isinstance(value, Tensor):
        return value.double().expand(shape).contiguous()
    return torch.full(shape, value, dtype=torch.float64, device=like.device)


def _learn(radius: Radius, state: Any, eta: Tensor, g: Tensor, W: Tensor) -> tuple[Tensor, ...]:
    """What AdaNASA's radius is learned from, after the exchange, and the radius."""
    S, A = radius.sums(state, eta, g, 0)
    mixed = (W * A.mT).sum(-1, keepdim=True)  # compiled with the rest, which a product would not be
    after = radius.receive(state._replace(S=S), mixed)
    return S, after.A, after.r
