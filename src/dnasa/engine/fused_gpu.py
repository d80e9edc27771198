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

    def step(self, gradients: Gradients, t: int) -> None:
        form, state, W = self.form, self.state, self.weights[t % len(self.weights)]
        scaled = form.radius is not None
        g = contiguous(gradients[0].detach())
        factor = form.shrink and form.shrink(state, t)
        if factor is not None:
            state = state._replace(x=factor * state.x)
        eta, alpha, *rest = [schedule(t) for schedule in form.schedules]
        lengths = torch.ones_like(g[..., :1])
        if form.radius is not None:
            self.set_step(t)
            eta, S, A, r = self.learn(state, g, W)
            state = state._replace(S=S, A=A, r=r, average=form.radius.average(state, t))
        elif form.normalized:
            lengths = self.lengths(state.z)
        nodes, runs = (torch.zeros_like(each, dtype=torch.float64) for each in (lengths, lengths[..., :1, :]))
        alphas, betas = runs + alpha, runs + (rest[0] if scaled else 0)
        arrays = [*map(contiguous, form.unpack(state))]
        self.state = form.pack(state, self.kernel(arrays, g, W, nodes + eta, lengths, alphas, betas, scaled))
        self.sent.compute(self.network, 1)
        self.sent.add(self.network, self.row_bytes, t)


def _learn(radius: Radius, state: Any, g: Tensor, W: Tensor) -> tuple[Tensor, ...]:
    """AdaNASA's step, and what its radius is learned from, after the exchange."""
    eta = radius.step(state, 0)
    S, A = radius.sums(state, eta, g, 0)
    mixed = (W * A.mT).sum(-1, keepdim=True)  # compiled with the rest, which a product would not be
    after = radius.receive(state._replace(S=S), mixed)
    return eta, S, after.A, after.r
