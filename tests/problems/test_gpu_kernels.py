"""The kernels for convolutions and pools on a GPU against torch's own layers.

With `TRITON_INTERPRET=1` they run without a GPU, in Triton's interpreter.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dnasa.problems.stacked import gpu_kernels
from dnasa.problems.stacked.batched import Models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.skipif(DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"), reason="needs a GPU")

SHAPES = {  # inputs, outputs, kernel, height, width, batch
    "LeNet's second": (6, 16, (5, 5), 12, 12, 3),
    "an odd number of rows": (2, 3, (3, 3), 7, 9, 2),
    "one pixel": (3, 2, (4, 2), 4, 2, 1),
    "a kernel of one": (5, 7, (1, 1), 6, 5, 2),
    "many channels": (20, 64, (3, 3), 6, 6, 2),
    "more pixels than a block": (1, 4, (5, 3), 20, 22, 2),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def parted(p: Tensor, outputs: int, terms: int) -> tuple[Tensor, Tensor | None]:
    """The kernels and the biases of all models, as views."""
    biases = p[:, outputs * terms :]
    return p[:, : outputs * terms].view(len(p), outputs, terms), biases if biases.shape[1] else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_convolutions_and_their_gradients_are_those_of_torch(name: str, bias: bool) -> None:
    inputs, outputs, kernel, height, width, batch = SHAPES[name]
    models, terms = 3, inputs * kernel[0] * kernel[1]
    p, x = random(models, outputs * (terms + bias)), random(models, inputs, batch, height, width, seed=1)
    dy = random(models, outputs, batch, height - kernel[0] + 1, width - kernel[1] + 1, seed=2)
    g = torch.full_like(p, torch.nan)
    y = gpu_kernels.convolve(x, *parted(p, outputs, terms), kernel)
    gpu_kernels.weight_gradients(x, dy, *parted(g, outputs, terms), kernel)
    dx = gpu_kernels.input_gradients(dy, parted(p, outputs, terms)[0], kernel)
    for r in range(models):
        conv = nn.Conv2d(inputs, outputs, kernel, bias=bias, dtype=torch.float64, device=DEVICE)
        nn.utils.vector_to_parameters(p[r].double(), conv.parameters())
        images = x[r].transpose(0, 1).double().requires_grad_()
        expected = conv(images)
        expected.backward(dy[r].transpose(0, 1).double())
        slopes = torch.cat([part.grad.flatten() for part in conv.parameters() if part.grad is not None])
        assert images.grad is not None
        for ours, theirs in (
            (y[r], expected.detach().transpose(0, 1)),
            (g[r], slopes),
            (dx[r], images.grad.transpose(0, 1)),
        ):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize(("kernel", "height", "width"), [((2, 2), 8, 6), ((3, 2), 10, 7), ((1, 1), 3, 3)])
def test_pools_and_their_gradients_are_those_of_torch(kernel: tuple[int, int], height: int, width: int) -> None:
    x = random(2, 3, 4, height, width)
    x[0, 0, 0] = 1.0  # equal numbers: the first counts
    x[1, 0, 0, kernel[0] - 1, kernel[1] - 1] = torch.nan  # the last of its window
    y, places = gpu_kernels.pool(x, kernel)
    images = x.flatten(0, 1).requires_grad_()
    expected = nn.functional.max_pool2d(images, kernel)
    assert torch.equal(y.flatten(0, 1).nan_to_num(7.0), expected.nan_to_num(7.0))
    dy = random(*y.shape, seed=1)
    dx = gpu_kernels.unpool(dy, places, x.shape, kernel)
    expected.backward(dy.flatten(0, 1))
    assert images.grad is not None
    assert torch.equal(dx.flatten(0, 1), images.grad)


@pytest.mark.parametrize("sharing", [1, 2])
def test_networks_have_the_gradients_that_they_have_without_the_kernels(
    sharing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sharing` models have the same inputs; then their first convolution uses patches."""
    layers = (
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, (2, 3), padding=(0, 2), bias=False),
    )
    models = Models(nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d((3, 1)), nn.Flatten(), nn.Linear(24, 5)).to(DEVICE))
    count, batch = 4, 3
    flat, inputs = random(count, sum(models.sizes)), random(count // sharing, batch, 2, 8, 8, seed=1)
    labels = torch.arange(count * batch, device=DEVICE).view(count, batch) % 5
    used: list[int] = []
    convolve = gpu_kernels.convolve

    def counted(x: Tensor, *rest: Any) -> Tensor:
        used.append(len(x))
        return convolve(x, *rest)

    monkeypatch.setattr(gpu_kernels, "MIN_MODELS", 1)
    monkeypatch.setattr(gpu_kernels, "convolve", counted)
    gradients = {}
    for applies in (False, True):
        monkeypatch.setattr(gpu_kernels, "applies", lambda x, applies=applies: applies)
        gradients[applies] = models.gradient(flat, inputs, labels, 1 / batch)
    assert used == [count] * (2 if sharing == 1 else 1)
    torch.testing.assert_close(gradients[True], gradients[False], rtol=1e-4, atol=1e-5)
