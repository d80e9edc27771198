"""DiLoCo and NoLoCo: AdamW at each node, and an outer step with others after every H steps.

In both, theta are a node's parameters after H steps of AdamW that began at phi.

- DiLoCo (Douillard et al., 2023, arXiv 2311.08105, algorithm 1): SGD with Nesterov momentum 0.9 and learning rate 0.7 moves
  phi, which all nodes share, along the mean of phi - theta over all nodes.
- NoLoCo (Kolehmainen et al., 2025, arXiv 2506.10911): each node meets a random other one, with means over the pair,
      delta <- alpha delta + beta mean(theta - phi) - gamma (phi - mean(phi)),   phi <- phi + delta.
  Equations and constants are those of the authors' program, github.com/jkolehm/noloco, `sparse_optimizer_c.py` and
  `c4_noloco_mean_100m_8.yaml`: alpha = 0.5, beta = gamma = 0.7, H = 50. Its pipeline of layers is left out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

Average = Callable[[Tensor, int], Tensor]  # of a vector over those who take part in outer step k


class LocalSteps:
    """AdamW, with an outer step after every `every` steps, which subclasses define."""

    def __init__(self, model: nn.Module, inner: torch.optim.Optimizer, every: int, average: Average):
        self.parameters, self.inner, self.every, self.average = list(model.parameters()), inner, every, average
        self.t, self.phi = 0, self._theta()

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.t += 1
        if self.t % self.every == 0:
            self.outer_step(self._theta(), self.t // self.every)
            set_parameters(self.parameters, self.phi)

    def _theta(self) -> Tensor:
        return parameters_to_vector(self.parameters).detach()

    def outer_step(self, theta: Tensor, k: int) -> None:
        """Move phi."""
        raise NotImplementedError


class DiLoCo(LocalSteps):
    lr, momentum = 0.7, 0.9

    def __init__(self, *words: Any):
        super().__init__(*words)
        self.outer = torch.optim.SGD([self.phi], lr=self.lr, momentum=self.momentum, nesterov=True)

    def outer_step(self, theta: Tensor, k: int) -> None:
        self.phi.grad = self.average(self.phi - theta, k)
        self.outer.step()


class NoLoCo(LocalSteps):
    alpha, beta, gamma = 0.5, 0.7, 0.7

    def __init__(self, *words: Any):
        super().__init__(*words)
        self.delta = torch.zeros_like(self.phi)

    def outer_step(self, theta: Tensor, k: int) -> None:
        progress, phi = self.average(torch.stack([theta - self.phi, self.phi]), k)
        self.delta.mul_(self.alpha).add_(progress, alpha=self.beta).sub_(self.phi - phi, alpha=self.gamma)
        self.phi.add_(self.delta)


@torch.no_grad()
def set_parameters(parameters: list[nn.Parameter], row: Tensor) -> None:
    for part, values in zip(parameters, row.split([part.numel() for part in parameters]), strict=True):
        part.copy_(values.view_as(part))


def over_all(row: Tensor, k: int = 0) -> Tensor:
    """The mean over all processes, in place."""
    dist.all_reduce(row)
    return row.div_(dist.get_world_size())


def over_pair(row: Tensor, k: int) -> Tensor:
    """The mean with the partner of outer step k."""
    partner, other = partners(dist.get_world_size(), k)[dist.get_rank()], torch.empty_like(row)
    exchange = [dist.P2POp(dist.isend, row, partner), dist.P2POp(dist.irecv, other, partner)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return other.add_(row).div_(2)


def partners(nodes: int, k: int) -> list[int]:
    """A random pairing of an even number of nodes, the same at all of them: the partner of each."""
    order = np.random.default_rng(k).permutation(nodes)
    out = np.empty(nodes, int)
    out[order] = order.reshape(-1, 2)[:, ::-1].ravel()
    return out.tolist()
