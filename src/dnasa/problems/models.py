"""The networks of the paper, and the small one behind the default data."""

from itertools import pairwise

from torch import nn


def perceptron(*sizes: int) -> nn.Module:
    """Linear layers with tanh between: d-64-2 for a9a and MiniBooNE in the paper."""
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Module:
    """LeNet for 28 x 28 images, as in the paper."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )
