"""Many copies of a sequential model at once, layer by layer: every copy has its own parameters and its own batch.

The parameters of R models are the rows of one array `(R, d)`, in the order of `module.parameters()`. Each layer computes
forward and backward for all models in one call and writes its gradients into an `(R, d)` array.
Activations are rows `(R, b, ...)` or, between convolutions, planes `(R, C, b, H, W)`: there the product of the kernels
`(R, O, C*k*k)` with the patches `(R, C*k*k, b*H*W)` already has the layout of the next layer's planes.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

INCREASING = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.LeakyReLU, nn.Hardtanh)  # these commute with the maximum
ACTIVATIONS = (*INCREASING, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
Saved = Any


class Stack:
    """The layers of a sequential model, for any number of models at once."""

    def __init__(self, layers: "list[Layer]"):
        self.layers = layers
        self.sizes = [layer.size for layer in layers]
        self.first = next((i for i, layer in enumerate(layers) if layer.size), len(layers))
        self.shares = self.first < len(layers) and isinstance(layers[self.first], Conv2d)

    def _shared(self, x: Tensor) -> Tensor:
        """Inputs that are the same for all models, once: a GPU's time goes into the patches of the first convolution."""
        return x[:1] if self.shares and x.is_cuda and x.stride(0) == 0 else x

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, outputs), without storing activations."""
        x = self._shared(x)
        with torch.no_grad():
            for layer, p in zip(self.layers, flat.split(self.sizes, dim=1), strict=True):
                x, _ = layer.forward(p, x)
        return x

    def footprint(self, flat: Tensor, x: Tensor) -> int:
        """How many numbers the gradient at `x` stores between forward and backward."""
        total = x.numel()
        with torch.no_grad():
            for layer, p in zip(self.layers, flat.split(self.sizes, dim=1), strict=True):
                x, saved = layer.forward(p, x)
                total += x.numel() + _count(saved)
        return total

    def gradient(self, flat: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """(R, d); `loss_gradient` gives the gradient of each model's loss at its outputs.

        Where the model `shares`, `x` may have fewer entries than models: each is shared by a group of consecutive models.
        """
        g, saved, x = torch.empty_like(flat), [], self._shared(x)
        with torch.no_grad():
            parts, slots = flat.split(self.sizes, dim=1), g.split(self.sizes, dim=1)
            for layer, p in zip(self.layers, parts, strict=True):
                x, for_backward = layer.forward(p, x)
                saved.append(for_backward)
            dy: Any = loss_gradient(x)
            for i in range(len(self.layers) - 1, self.first - 1, -1):
                dy = self.layers[i].backward(parts[i], saved[i], dy, slots[i], i > self.first)
        return g


def _count(saved: Any) -> int:
    if isinstance(saved, Tensor):
        return saved.numel()
    return sum(map(_count, saved)) if type(saved) is tuple else 0


def as_stack(module: nn.Module) -> Stack | None:
    """The module as a stack of known layers, or None if it contains anything else."""
    modules = list(_flattened(module))
    for i in range(len(modules) - 1):
        increasing = isinstance(modules[i], INCREASING) and getattr(modules[i], "negative_slope", 0) >= 0
        if increasing and isinstance(modules[i + 1], nn.MaxPool2d):  # pooling first leaves less to compute
            modules[i], modules[i + 1] = modules[i + 1], modules[i]
    layers: list[Layer] = []
    planes = False
    for part in modules:
        spatial = isinstance(part, (nn.Conv2d, *POOLING))
        if spatial and not planes:
            layers.append(TO_PLANES)
        elif planes and not spatial and not isinstance(part, ACTIVATIONS):
            if not isinstance(part, nn.Flatten):
                return None
            layers.append(TO_ROWS)
        layer = _layer(part)
        if layer is None:
            return None
        if not (planes and layer is FLATTEN_ROWS):  # TO_ROWS has flattened the planes
            layers.append(layer)
        planes = spatial or (planes and isinstance(part, ACTIVATIONS))
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    complete = sum(layer.size for layer in layers) == sum(parameter.numel() for parameter in trained)
    return Stack(layers) if trained and complete and not planes else None


def _flattened(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _flattened(child)
    else:
        yield module


def _layer(part: nn.Module) -> "Layer | None":
    if type(part) is nn.Linear:
        return Linear(part)
    if type(part) is nn.Tanh:
        return TANH
    if type(part) is nn.Conv2d:
        plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
        return Conv2d(part) if plain and not isinstance(part.padding, str) else None
    if type(part) is nn.Flatten:
        return FLATTEN_ROWS if part.start_dim == 1 and part.end_dim == -1 else None
    supported = type(part) in (*ACTIVATIONS, *POOLING) and not getattr(part, "return_indices", False)
    return Plain(part) if supported else None


class Layer:
    """`forward(p, x) -> y, saved`; `backward(p, saved, dy, g, needs_dx) -> dx` also writes the gradients at p to g."""

    size = 0  # parameters of one model

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        raise NotImplementedError

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        raise NotImplementedError


class Linear(Layer):
    def __init__(self, module: nn.Linear):
        self.outputs, self.inputs = module.weight.shape
        self.bias = module.bias is not None
        self.size = self.outputs * (self.inputs + self.bias)

    def _weight(self, p: Tensor) -> Tensor:
        return p[:, : self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        rows = x.reshape(len(x), -1, self.inputs)
        weight = self._weight(p).transpose(1, 2)
        if not x.is_cuda:
            weight = weight.contiguous()  # batched products with a transposed factor are several times slower on a CPU
        y = torch.bmm(rows, weight)
        if self.bias:
            y += p[:, None, -self.outputs :]
        return y.view(*x.shape[:-1], self.outputs), rows

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        rows = dy.reshape(len(dy), -1, self.outputs)
        torch.bmm(rows.transpose(1, 2), saved, out=self._weight(g))
        if self.bias:
            torch.sum(rows, dim=1, out=g[:, -self.outputs :])
        return torch.bmm(rows, self._weight(p)).view(*dy.shape[:-1], self.inputs) if needs_dx else None


class Conv2d(Layer):
    """On planes: the patches of all models as columns, one batched product with the kernels.

    As the first layer it also takes fewer inputs than models: each is then shared by a group of consecutive models.
    """

    def __init__(self, module: nn.Conv2d):
        self.outputs, self.inputs, *sides = module.weight.shape
        self.kernel = (sides[0], sides[1])
        self.stride: Any = module.stride
        self.padding: Any = module.padding
        self.weights = module.weight.numel()
        self.terms = self.weights // self.outputs  # of the sum for one output
        self.bias = module.bias is not None
        self.size = self.weights + self.outputs * self.bias

    def _weight(self, p: Tensor) -> Tensor:
        return p[:, : self.weights].view(len(p), self.outputs, self.terms)

    def _touched(self, entry: int, size: int, axis: int) -> slice:
        """The pixels that a row or column of the kernel touches, for outputs of this size along the axis."""
        step = self.stride[axis]
        return slice(entry, entry + (size - 1) * step + 1, step)

    def _with_biases(self, p: Tensor) -> Tensor:
        """The kernels, with the biases as the weights of a last row of ones."""
        weight = self._weight(p)
        return torch.cat((weight, p[:, self.weights :, None]), 2) if self.bias else weight.contiguous()

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        top, left = self.padding
        padded = (pad(x, (left, left, top, top)) if top or left else x).contiguous()
        (high, wide), (down, across) = self.kernel, self.stride
        patches = padded.unfold(3, high, down).unfold(4, wide, across).permute(0, 1, 5, 6, 2, 3, 4)
        height, width = patches.shape[-2:]
        columns = x.new_empty(len(x), self.terms + self.bias, x.shape[2] * height * width)
        columns[:, : self.terms].view(patches.shape).copy_(patches)
        columns[:, self.terms :] = 1.0
        y = torch.bmm(self._with_biases(p).view(len(x), -1, columns.shape[1]), columns)
        return y.view(len(p), self.outputs, -1, height, width), (columns, padded.shape)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        columns, shape = saved
        height, width = dy.shape[-2:]
        flat = dy.reshape(len(dy), self.outputs, -1)
        slopes = torch.bmm(flat.view(len(columns), -1, flat.shape[2]), columns.transpose(1, 2))
        slopes = slopes.view(len(dy), self.outputs, -1)
        self._weight(g).copy_(slopes[..., : self.terms])
        if self.bias:
            g[:, self.weights :].copy_(slopes[..., -1])
        if not needs_dx:
            return None
        dcolumns = torch.bmm(self._weight(p).transpose(1, 2), flat)
        dcolumns = dcolumns.view(len(dy), self.inputs, -1, shape[2], height, width)
        dx = dy.new_zeros(shape)
        for k, (i, j) in enumerate(product(*map(range, self.kernel))):
            dx[..., self._touched(i, height, 0), self._touched(j, width, 1)] += dcolumns[:, :, k]
        top, left = self.padding
        return dx[..., top : shape[3] - top, left : shape[4] - left]


class Plain(Layer):
    """A module without parameters that acts on every plane or row separately, through autograd."""

    def __init__(self, module: nn.Module):
        self.module = module

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            y = self.module(source.flatten(0, 1).clone())  # it may work in place
            y = y.view(*x.shape[:2], *y.shape[1:])
        return y.detach(), (source, y)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        source, y = saved
        return torch.autograd.grad(y, source, dy)[0]


class Simple(Layer):
    """A layer without parameters: `forward(x) -> y, saved` and `backward(saved, dy) -> dx`."""

    def __init__(self, forward: Callable[[Tensor], tuple[Tensor, Saved]], backward: Callable[[Saved, Tensor], Tensor]):
        self._forward, self._backward = forward, backward

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        return self._forward(x)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        return self._backward(saved, dy)


def _rows_to_planes(shape: tuple[int, ...], dy: Tensor) -> Tensor:
    models, channels, batch, height, width = shape
    return dy.reshape(models, batch, channels, height, width).transpose(1, 2).contiguous()


TANH = Simple(lambda x: (y := torch.tanh(x), y), lambda y, dy: torch.ops.aten.tanh_backward(dy, y))
FLATTEN_ROWS = Simple(lambda x: (x.flatten(2), x.shape), lambda shape, dy: dy.view(shape))
# (R, b, C, H, W) -> (R, C, b, H, W)
TO_PLANES = Simple(lambda x: (x.transpose(1, 2).contiguous(), None), lambda _, dy: dy.transpose(1, 2))
# (R, C, b, H, W) -> (R, b, C*H*W)
TO_ROWS = Simple(lambda x: (x.transpose(1, 2).flatten(2), x.shape), _rows_to_planes)
