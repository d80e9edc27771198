"""What the kernel for GPUs computes, in plain torch: in its place where there is no GPU, and its twin where there is one."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor


def step(
    arrays: Sequence[Tensor], g: Tensor, W: Tensor, eta: Tensor, length: Tensor, alpha: Tensor, beta: Tensor, scaled: bool
) -> list[Tensor]:
    x, u, z, v = (a.double() for a in arrays)
    if scaled:
        v, before = (1 - alpha) * v + alpha * g, v
        u, z = u + v - before, beta * z + (1 - beta) * g**2
        largest = torch.maximum(z**0.5, abs(u))
        x = x - eta * u / torch.where(largest == 0, 1, largest)
    else:
        x, u, v = x - eta * z / length, u + g - v, g
        z = (1 - alpha) * z + alpha * u
    x, u, z = (W.double() @ a for a in (x, u, z))
    return [a.float() for a in (x, u, z.clamp(min=0) if scaled else z, v.clone())]


def use_twin(patch: pytest.MonkeyPatch, compile: Any = lambda function, **options: function) -> None:
    """With this kernel, and whatever torch would compile left as it is."""
    patch.setitem(sys.modules, "dnasa.engine.kernel_gpu", sys.modules[__name__])
    patch.setattr(torch, "compile", compile)
