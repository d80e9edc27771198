"""Gradients of many models at once are the gradients of each."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dnasa
from dnasa import topology
from dnasa.core import InputError
from dnasa.problems import Classification
from dnasa.problems.losses import cross_entropy, stacked
from dnasa.problems.models import lenet, perceptron
from dnasa.problems.shrinkage import Shrinkage
from dnasa.problems.stack import as_stack

CROSS_ENTROPY: Any = stacked(cross_entropy)


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(4, 5, (2, 1), bias=False), nn.GELU()),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(10, 3),
    )


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (lambda: perceptron(6, 4, 3), (6,)),
    "lenet": (lenet, (1, 28, 28)),
    "convolutions": (convolutions, (2, 18, 20)),
    "deep rows": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Flatten(), nn.Linear(10, 3)), (2, 4)),
    "falling activation": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.LeakyReLU(-0.5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)),
        (1, 8, 8),
    ),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (6,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_many_models_are_those_of_each(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    each = [make().double() for _ in range(4)]
    models = as_stack(make().double())
    assert models is not None
    flat = torch.stack([torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in each])
    x = torch.randn(4, 5, *shape, dtype=torch.double)
    y, weight = torch.randint(0, 3, (4, 5)), torch.rand(5, dtype=torch.double)
    g, _ = models.gradient(flat, x, lambda logits: CROSS_ENTROPY.gradient(logits, y, weight))
    for i, model in enumerate(each):
        (nn.functional.cross_entropy(model(x[i]), y[i], reduction="none") * weight).sum().backward()
        expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        torch.testing.assert_close(g[i], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(models.outputs(flat, x)[i], model(x[i]).detach(), rtol=0, atol=1e-10)


def problem(nodes: int = 4, how: Callable[..., nn.Module] = perceptron, **options: Any) -> Classification:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((90, 6)).astype(np.float32)
    y = (x @ generator.standard_normal((6, 3))).argmax(1)
    shards = np.array_split(np.arange(60), [10, 25, 45])
    return Classification(lambda: how(6, 5, 3), x[:60], y[:60], shards, x[60:], y[60:], batch=8, dtype="float64", **options)


def test_the_first_gradient_loads_nothing_heavy() -> None:
    code = """
import sys, torch
from dnasa.problems.models import lenet
from dnasa.problems.stack import as_stack
module = lenet()
size = sum(p.numel() for p in module.parameters())
as_stack(module).gradient(torch.zeros(2, size), torch.zeros(2, 3, 1, 28, 28), lambda outputs: outputs)
print("sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_evaluation_is_that_of_the_plain_network() -> None:
    task = problem()
    mean = torch.stack([task.start(0), task.start(1)])[:, None]
    evaluated = task.evaluate(mean, range(4))
    for i in range(2):
        net: Any = task._seeded(i)
        each = nn.functional.cross_entropy(net(task.inputs.tensor), task.labels.tensor, reduction="none")
        loss = torch.stack([each[shard].mean() for shard in task.shards]).mean()
        loss.backward()
        assert evaluated["train_loss"][i].item() == pytest.approx(loss.item(), abs=1e-10)
        gradient = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        torch.testing.assert_close(evaluated["gradient"][i, 0], gradient, rtol=0, atol=1e-10)
        right = (net(task.test_inputs.tensor).argmax(1) == task.test_labels.tensor).double().mean()
        assert evaluated["test_accuracy"][i].item() == pytest.approx(right.item())


def test_parts_of_the_nodes_average_to_the_whole() -> None:
    task = problem()
    mean = task.start(0)[None, None]
    whole = task.evaluate(mean, range(4))
    first, rest = task.evaluate(mean, range(1)), task.evaluate(mean, range(1, 4))
    for name, value in whole.items():
        torch.testing.assert_close(0.25 * first[name] + 0.75 * rest[name], value, rtol=0, atol=1e-10)


def test_small_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task, x = problem(), torch.randn(2, 3, 4, 53, dtype=torch.double)
    whole, evaluated = task.gradient(x, range(4), [0, 1, 2], 5), task.evaluate(x[:, :, 0], range(4))
    monkeypatch.setattr(task.executor, "capacity", 5 * task.batch)
    torch.testing.assert_close(task.gradient(x, range(4), [0, 1, 2], 5), whole)
    for name, value in task.evaluate(x[:, :, 0], range(4)).items():
        torch.testing.assert_close(value, evaluated[name])


def test_loss_scale_scales_the_gradient_and_nothing_reported() -> None:
    x = torch.randn(1, 1, 4, 53, dtype=torch.double)
    plain, scaled = problem(), problem(loss_scale=0.25)
    torch.testing.assert_close(scaled.gradient(x, range(4), [0], 3), plain.gradient(x, range(4), [0], 3) / 4)
    torch.testing.assert_close(
        scaled.evaluate(x[:, :, 0], range(4))["train_loss"], plain.evaluate(x[:, :, 0], range(4))["train_loss"]
    )


@given(st.floats(0.001, 10), st.floats(0.001, 0.5), st.floats(1e-3, 1e3))
def test_shrinkage_solves_the_fixed_point_of_the_evidence(ratio: float, curvature: float, length: float) -> None:
    """For one row: c = k / (1.5 |W|^2) with k = p v / (v + c), as for N of them."""
    weights = torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.double) * length
    c = (Shrinkage(ratio, curvature).gradient(weights)[0, 0] / weights[0, 0]).item()
    assert c == pytest.approx(ratio * curvature / (curvature + c) / (1.5 * length**2), rel=1e-6)


def test_shrinkage_adds_to_each_nodes_gradient_and_to_the_full_one_but_not_to_losses_and_biases() -> None:
    x, penalty = torch.randn(2, 1, 4, 53, dtype=torch.double), Shrinkage(0.3, 0.2)
    plain, shrunk = problem(loss_scale=0.5), problem(loss_scale=0.5, shrinkage=penalty)
    weights = torch.cat([(torch.ones(shape) if len(shape) > 1 else torch.zeros(shape)).flatten() for _, shape in plain.layout])
    added = shrunk.gradient(x, range(4), [0], 3) - plain.gradient(x, range(4), [0], 3)
    for v, k in np.ndindex(2, 4):
        torch.testing.assert_close(added[v, 0, k], penalty.gradient(weights * x[v, 0, k]) / 2)
    before, after = (task.evaluate(x[:, :, 0], range(4)) for task in (plain, shrunk))
    torch.testing.assert_close(after["gradient"] - before["gradient"], penalty.gradient(weights * x[:, :, 0]))
    torch.testing.assert_close(after["train_loss"], before["train_loss"])
    assert plain.fingerprint != shrunk.fingerprint


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        problem(device="cuda")


@pytest.mark.parametrize(
    ("shards", "words"),
    [([[0, 1], [99]], "row numbers from 0 to 3"), ([[], []], "not all be empty"), ([[0, 1], []], "Node 1 has no rows")],
)
def test_unusable_shards_are_refused(shards: list[Any], words: str) -> None:
    x = np.ones((4, 6), np.float32)
    with pytest.raises(InputError, match=words):
        dnasa.solve(Classification(lambda: perceptron(6, 5, 3), x, [0, 1, 2, 0], shards, x, [0] * 4), topology.ring(2), steps=2)
