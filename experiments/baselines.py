"""Tuned methods with exact averages, where all nodes hold the same model: what a data center would run.

python experiments/baselines.py cuda gpt:12,768,512 800 adamw,linear,1.6e-3,0.95,0 muon,linear,1.6e-3,0.95,0

Each run is METHOD,SCHEDULE,RATE,BETA2,SEED. One model takes the joint batch of all nodes, whose gradient is the average
of theirs; `diloco` trains a model at each node and averages what they did in 30 steps.

adamw    PyTorch's; matrices decay by 0.1, the gradient is clipped at 1
muon     PyTorch's for the hidden matrices, AdamW for the rest; on exact averages, SUDA-Muon and DeMuon come down to it
plus     ScheduleFree+ (Defazio, 2026): Adam with Polyak's stepsize times RATE, and an average of the iterates
normuon  SF-NorMuon (Apte et al., 2026)
diloco   AdamW inside, Nesterov's momentum outside; on the complete graph, GASLoC and Factored Gossip DiLoCo come down to it
"""

import sys
import time
from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor, nn

import dnasa
from dnasa.problems.losses import cross_entropy
from dnasa.rules import schedules
from dnasa.rules.adanasa import is_hidden
from dnasa.rules.demuon import orthogonalized

BATCH, DECAY = 8, 0.1
LOCAL, OUTER, MOMENTUM = 30, 0.7, 0.9  # DiLoCo's
SCHEDULES: dict[str, Any] = {
    "linear": schedules.linear,
    "cosine": schedules.cosine,
    "flat": lambda rate, steps: lambda t: rate * schedules.warm_up(t, steps / 10),
}


class Torch:
    """Optimizers of PyTorch that share a rate."""

    def __init__(self, model: nn.Module, beta2: float, muon: bool):
        hidden = [p for p in model.parameters() if muon and is_hidden(p.shape)]
        rest = [p for p in model.parameters() if not (muon and is_hidden(p.shape))]
        groups = [
            {"params": [p for p in rest if (p.ndim > 1) == decays], "weight_decay": DECAY * decays} for decays in (True, False)
        ]
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=(0.9, beta2), fused=rest[0].is_cuda)]
        if hidden:
            self.optimizers.append(torch.optim.Muon(hidden, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"))

    def step(self, rate: float, loss: Tensor) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def finish(self) -> None:
        pass


class ScheduleFree:
    """z steps, x averages z, and the model is at y between them while it trains."""

    def __init__(self, model: nn.Module, beta2: float, orthogonal: bool, steps: int):
        self.parameters: Any = list(model.parameters())
        self.beta2, self.orthogonal, self.steps = beta2, orthogonal, steps
        self.x, self.z = ([p.detach().clone() for p in self.parameters] for _ in range(2))
        self.m, self.v = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.t, self.longest, self.weights, self.slope = 0, 1e-8, 0.0, 0.0

    @torch.no_grad()
    def step(self, rate: float, loss: Tensor) -> None:
        self.t += 1
        mix, gradients = 0.9, [p.grad for p in self.parameters]
        if not self.orthogonal:  # Polyak's stepsize; the window of the average grows
            progress = (self.t - 1) / self.steps
            mix = 1 - (1 - 0.925) ** (1 - progress) * (1 - 0.965) ** progress
            ahead = sum((g * (z - x)).sum() for g, z, x in zip(gradients, self.z, self.x, strict=True))
            self.slope = 0.9 * self.slope + 0.1 * sqrt(pi / 2) * float(sum(g.abs().sum() for g in gradients))
            rate *= max(0.0, float(loss + mix * ahead)) / (self.slope / (1 - 0.9**self.t))
        self.longest = max(self.longest, rate)
        warming = self.t <= self.steps // 10
        self.weights += 0.0 if warming else self.longest**2
        c = 1.0 if warming else self.longest**2 / self.weights
        for p, g, x, z, m, v in zip(self.parameters, gradients, self.x, self.z, self.m, self.v, strict=True):
            z.sub_(rate * (self._direction(g, m, v) + (DECAY * p if p.ndim > 1 else 0)))
            x.lerp_(z, c)
            p.copy_(torch.lerp(z, x, mix))

    def _direction(self, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
        if self.orthogonal and is_hidden(g.shape):
            o = orthogonalized(m.lerp_(g, 0.05))
            rows = v[:, :1].lerp_((o * o).mean(1, keepdim=True), 1 - self.beta2)
            o = o / (rows.sqrt() + 1e-8)
            return 0.2 * sqrt(o.numel()) * o / o.norm()
        v.lerp_(g * g, 1 - self.beta2)
        return m.lerp_(g, 0.1) / (1 - 0.9**self.t) / ((v / (1 - self.beta2**self.t)).sqrt() + 1e-8)

    @torch.no_grad()
    def finish(self) -> None:
        torch._foreach_copy_(self.parameters, self.x)


class Training:
    """Runs on the same problem, with a model that is compiled once."""

    def __init__(self, device: str, model: str, steps: int):
        rows = dnasa.data.load("code", context=int(model.split(",")[2]))
        self.problem = dnasa.on_shards(rows, rows.shards, BATCH, device=device, model=model)
        self.device, self.steps, self.nodes = device, steps, range(len(rows.shards))
        self.model = self.problem.network(self.problem.start(0)).train()
        self.compiled = torch.compile(self.model) if device == "cuda" else self.model

    def backward(self, seed: int, t: int, nodes: range) -> Tensor:
        """Leave the clipped gradients of the loss on the joint batch of these nodes in the model."""
        inputs, targets = (a.flatten(0, -2) for a in self.problem.batch_of(self.problem.drawn(nodes, [seed], t)))
        self.model.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            outputs = self.compiled(inputs)
        loss = cross_entropy(outputs.float(), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return loss.detach()

    def run(self, method: str, schedule: str, rate: float, beta2: float, seed: int) -> float:
        nn.utils.vector_to_parameters(self.problem.start(seed), self.model.parameters())
        rates = SCHEDULES[schedule](rate, self.steps)
        self.clip = float("inf") if method == "plus" else 1.0  # Polyak's stepsize needs the gradient itself
        if method == "diloco":
            self._diloco(rates, beta2, seed)
        else:
            free = method in ("plus", "normuon")
            kind: Any = ScheduleFree(self.model, beta2, method == "normuon", self.steps) if free else None
            kind = kind or Torch(self.model, beta2, muon=method == "muon")
            for t in range(self.steps):
                kind.step(rates(t), self.backward(seed, t, self.nodes))
            kind.finish()
        point = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return float(self.problem.evaluate(point[None, None], self.nodes)["test_loss"])

    def _diloco(self, rates: Callable[[int], float], beta2: float, seed: int) -> None:
        parameters: Any = list(self.model.parameters())
        nodes = self.nodes
        inner = [Torch(self.model, beta2, muon=False) for _ in nodes]
        common = [p.detach().clone() for p in parameters]
        momentum = [torch.zeros_like(p) for p in common]
        for first in range(0, self.steps, LOCAL):
            change = [torch.zeros_like(p) for p in common]
            for node in nodes:
                with torch.no_grad():
                    torch._foreach_copy_(parameters, common)
                for t in range(first, min(first + LOCAL, self.steps)):
                    inner[node].step(rates(t), self.backward(seed, t, range(node, node + 1)))
                with torch.no_grad():
                    for total, new, old in zip(change, parameters, common, strict=True):
                        total += (old - new) / len(nodes)
            for old, total, m in zip(common, change, momentum, strict=True):
                m.mul_(MOMENTUM).add_(total)
                old -= OUTER * (total + MOMENTUM * m)
        with torch.no_grad():
            torch._foreach_copy_(parameters, common)


def main(device: str, model: str, steps: str, *runs: str) -> None:
    training = Training(device, model, int(steps))
    for run in runs:
        method, schedule, rate, beta2, seed = run.split(",")
        began = time.perf_counter()
        loss = training.run(method, schedule, float(rate), float(beta2), int(seed))
        print(f"{run:36}{loss:.4f}   {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main(*sys.argv[1:])
