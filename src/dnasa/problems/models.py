"""The networks of the paper, and the small one behind the default data."""

from torch import nn


def perceptron(inputs: int, hidden: int, classes: int) -> nn.Module:
    """Two layers with tanh between."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))
