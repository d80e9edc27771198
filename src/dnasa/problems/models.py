"""The models of the paper, the small one behind the default data, a residual net, and a GPT."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

from dnasa.checks import choose
from dnasa.core import InputError

__all__ = ["gpt", "lenet", "perceptron", "replace_batch_norm", "resnet"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def perceptron(*sizes: int, activation: str = "tanh", dropout: float = 0.0) -> nn.Module:
    """Linear layers, with an activation and dropout after each but the last: d-64-2 for a9a and MiniBooNE in the paper.

    Args:
        *sizes: The number of inputs, of units in each hidden layer, and of outputs.
        activation: "tanh", "relu", "gelu" or "silu".
        dropout: The probability that a unit is dropped.

    Examples:
        >>> model = perceptron(64, 32, 10)  # 64 inputs, 32 hidden units, 10 classes
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), choose("activation", activation, ACTIVATIONS)()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def lenet(classes: int = 10) -> nn.Module:
    """LeNet for 28 x 28 images, as in the paper.

    Args:
        classes: The number of classes.
    """
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
        nn.Linear(84, classes),
    )


def resnet(channels: int = 3, classes: int = 10, widths: Sequence[int] = (32, 64, 128), norm: str = "batch") -> nn.Module:
    """A residual net with two blocks in each stage; 0.7 million parameters by default.

    Args:
        channels: The channels of an image.
        classes: The number of classes.
        widths: The channels of each stage.
        norm: "batch", or "group" as `replace_batch_norm` makes it.
    """
    normalized = choose("norm", norm, {"batch": lambda model: model, "group": replace_batch_norm})
    parts = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    for stage, width in enumerate(widths):
        before, stride = (width, 1) if stage == 0 else (widths[stage - 1], 2)
        parts += [Block(before, width, stride), Block(width, width, 1)]
    return normalized(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)))


class Block(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.first_norm(self.first(x)))
        return relu(self.shortcut(x) + self.second_norm(self.second(inner)))


BATCH_NORM = nn.modules.batchnorm._BatchNorm
GROUPS = 8
CHANNELS = 2  # at least, in each group: a single channel would lose its mean


def replace_batch_norm(model: nn.Module) -> nn.Module:
    """Replace batch norm by group norm and weight standardization, which do not depend on the other rows of a batch.

    Every batch norm layer becomes a group norm, and the filters of the Conv2d registered right before it are standardized,
    as in BiT (Kolesnikov et al., 2020). It works in place, unless the model itself is a batch norm layer, and returns the
    model. Parameters keep their names and values. Running statistics are dropped, so a trained model has to be trained
    further. There are up to 8 groups of at least 2 channels; BatchNorm1d becomes a single group, layer norm over the features.

    Args:
        model: Any module whose layers have their shapes.

    Examples:
        >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)))[0]
        StandardizedConv2d(3, 32, kernel_size=(3, 3), stride=(1, 1))
    """
    # a shared layer stays shared
    group_norms: dict[nn.Module, nn.GroupNorm] = {
        part: _group_norm(part) for part in model.modules() if isinstance(part, BATCH_NORM)
    }
    layers: list[Any] = [
        part for part in model.modules() if part in group_norms or any(True for _ in part.parameters(recurse=False))
    ]
    for before, norm in pairwise(layers):
        matches = norm in group_norms and type(before) is nn.Conv2d and before.out_channels == norm.num_features
        if matches and before.weight[0].numel() > 1:  # a filter of a single number would become 0
            before.__class__ = StandardizedConv2d
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in group_norms:
                setattr(parent, name, group_norms[child])
    return group_norms.get(model, model)


def _group_norm(norm: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    width = norm.num_features
    most = 1 if isinstance(norm, nn.BatchNorm1d) else max(1, min(GROUPS, width // CHANNELS))
    groups = max(count for count in range(1, most + 1) if width % count == 0)
    group_norm = nn.GroupNorm(groups, width, norm.eps, norm.affine).train(norm.training)
    group_norm.weight, group_norm.bias = norm.weight, norm.bias
    return group_norm


class StandardizedConv2d(nn.Conv2d):
    """Filters with mean 0 and variance 1 / (numbers in a filter), so that outputs are about as large as inputs."""

    def forward(self, x: Tensor) -> Tensor:
        filters = self.weight.flatten(1)
        size = filters.shape[1]
        weight = (layer_norm(filters, (size,), eps=1e-6) / size**0.5).view_as(self.weight)
        return self._conv_forward(x, weight, self.bias)


def gpt(symbols: int, layers: int = 6, width: int = 384, heads: int = 6, context: int = 256, dropout: float = 0.2) -> nn.Module:
    """Predicts the next token at every position; 10.8 million parameters by default.

    Args:
        symbols: The number of different characters or tokens.
        layers: The number of layers.
        width: The size of the embedding, a multiple of `heads`.
        heads: The attention heads of each layer.
        context: The longest input, in tokens.
        dropout: The probability that a unit is dropped.
    """
    if width % heads:
        raise InputError(f"A width of {width} cannot be divided among {heads} heads: choose a multiple of {heads}.")
    return GPT(symbols, layers, width, heads, context, dropout)


class GPT(nn.Module):
    """A transformer with norms before its layers and learned positions; its last layer is the embedding of the tokens."""

    def __init__(self, symbols: int, layers: int, width: int, heads: int, context: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        options: Any = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, **options) for _ in range(layers)
        )
        for layer in self.layers:
            layer.dropout = nn.Identity()  # GPT-2 has none after the activation
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        future = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("future", future, persistent=False)
        self._initialize(layers)
        self.head.weight = self.embedding.weight

    def _initialize(self, layers: int) -> None:
        """Initialize as GPT-2: the layers that add to the residual stream begin smaller."""
        for name, part in self.named_parameters():
            if part.ndim == 2:
                adds = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(part, std=0.02 / (2 * layers) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(part)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[-1]
        x = self.dropout(self.embedding(tokens) + self.positions[:length])
        for layer in self.layers:
            x = layer(x, cast(Tensor, self.future)[:length, :length], is_causal=True)
        return self.head(self.norm(x))
