"""The baselines of experiments/baselines.py."""

import io
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.baselines import ScheduleFree, Training
from torch import nn


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    tokens, file = (np.arange(4000) ** 2 % 19).reshape(2, 2000).astype(np.uint16), io.BytesIO()
    np.savez(file, train=tokens, test=tokens)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tokens.npz.xz").write_bytes(lzma.compress(file.getvalue()))
    monkeypatch.setenv("DNASA_DATA", str(tmp_path))
    return Training("cpu", "gpt:1,12,8,dropout=0.0", 40)


def test_the_gradient_of_the_joint_batch_is_the_average_of_the_nodes_gradients(training: Training) -> None:
    point = training.problem.start(0)
    training.clip = float("inf")
    training.backward(0, 3, range(2))
    found = torch.cat([p.grad.flatten() for p in training.model.parameters() if p.grad is not None])
    expected = training.problem.gradient(point.expand(1, 1, 2, -1), range(2), [0], 3).mean((0, 1, 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("run", ["adamw,0.02", "muon,0.02", "plus,0.05", "normuon,0.02", "diloco,0.02"])
def test_baselines_learn(run: str, training: Training) -> None:
    method, rate = run.split(",")
    point = training.problem.start(0)
    before = float(training.problem.evaluate(point[None, None], range(2))["test_loss"])
    assert training.run(method, "linear", float(rate), 0.95, 0) < before


def test_the_answer_without_a_schedule_is_the_average_of_the_steps_after_the_warm_up() -> None:
    model = nn.Linear(3, 1, bias=False)
    free, steps = ScheduleFree(model, 0.95, orthogonal=True, steps=20), []
    for _ in range(20):
        model.weight.grad = torch.ones_like(model.weight)
        free.step(0.1, torch.ones(()))
        steps.append(free.z[0].clone())
    free.finish()
    torch.testing.assert_close(model.weight.detach(), torch.stack(steps[2:]).mean(0))
