"""The baseline of experiments/adamw.py."""

import importlib
from unittest import mock

import numpy as np
import torch

from dnasa import schedules, simulate
from dnasa.rules import RULES


def test_adamw_with_an_all_reduce_is_that_of_torch_on_the_clipped_average_gradient() -> None:
    with mock.patch.dict(RULES):  # it registers itself
        module = importlib.import_module("experiments.adamw")
    target, steps = np.random.default_rng(0).standard_normal((4, 5)), 40

    def gradient(x: np.ndarray, node: int, t: int) -> np.ndarray:
        return 3 * np.tanh(x - target[node])

    parts = [torch.ones(4, dtype=torch.float64), torch.ones(1, dtype=torch.float64)]
    groups = [{"params": [part], "weight_decay": decay} for part, decay in zip(parts, (module.DECAY, 0), strict=True)]
    optimizer, eta = torch.optim.AdamW(groups, betas=(0.9, 0.95)), schedules.linear(0.3, steps)
    for t in range(steps):
        x = torch.cat(parts).numpy()
        joint = torch.from_numpy(np.mean([gradient(x, node, t) for node in range(4)], axis=0))
        parts[0].grad, parts[1].grad = (joint * min(1, 1 / joint.norm())).split([4, 1])
        for group in optimizer.param_groups:
            group["lr"] = eta(t)
        optimizer.step()
    rule = module.adamw(eta, schedules.constant(0.95), layout=[("weight", (2, 2)), ("bias", (1,))])
    found = simulate(rule, np.full((4, 4), 0.25), gradient, np.ones(5), steps)[-1]
    np.testing.assert_allclose(found, np.tile(torch.cat(parts).numpy(), (4, 1)), rtol=1e-9)
