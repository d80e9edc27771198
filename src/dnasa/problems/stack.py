"""Many copies of a sequential model at once, layer by layer: every copy has its own parameters and its own batch.

The parameters of R models are the rows of one array `(R, d)`, in the order of `module.parameters()`. Each layer computes
forward and backward for all models in one call and writes its gradients into an `(R, d)` array.
Activations are rows `(R, b, ...)` or, between convolutions, planes `(R, C, b, H, W)`: there the product of the kernels
`(R, O, C*k*k)` with the patches `(R, C*k*k, b*H*W)` already has the layout of the next layer's planes.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

INCREASING = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.LeakyReLU, nn.Hardtanh)  # these commute with the maximum
ACTIVATIONS = (*INCREASING, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
Saved = tuple[Tensor, ...]


class Layer(Protocol):
    """One layer of R models. Rows of `p` are their parameters, rows of `g` the gradients at these, both `(R, size)`."""

    size: int = 0

    @abstractmethod
    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        """The outputs, and what the gradients need."""

    def write_gradient(self, saved: Saved, dy: Tensor, g: Tensor) -> None:
        """Write the gradient at the parameters into `g`, given that at the outputs."""
        return None

    @abstractmethod
    def input_gradient(self, p: Tensor, saved: Saved, dy: Tensor) -> Tensor:
        """The gradient at the inputs, given that at the outputs."""


class Stack:
    """The layers of a sequential model, for any number of models at once."""

    def __init__(self, layers: list[Layer]):
        self.layers = layers
        self.sizes = [layer.size for layer in layers]
        self.first = next(i for i, layer in enumerate(layers) if layer.size)

    def _forward(self, flat: Tensor, x: Tensor) -> tuple[Tensor, list[Saved]]:
        saved = []
        for layer, p in zip(self.layers, flat.split(self.sizes, dim=1), strict=True):
            x, needed = layer.forward(p, x)
            saved.append(needed)
        return x, saved

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, outputs)."""
        with torch.no_grad():
            return self._forward(flat, x)[0]

    def footprint(self, flat: Tensor, x: Tensor) -> int:
        """How many numbers the gradient at `x` stores between forward and backward."""
        with torch.no_grad():
            _, saved = self._forward(flat, x)
        return x.numel() + sum(part.numel() for parts in saved for part in parts)

    def gradient(self, flat: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients (R, d), and the outputs; `loss_gradient` gives the gradient of each model's loss at its outputs."""
        g = torch.empty_like(flat)
        parameters, gradients = flat.split(self.sizes, dim=1), g.split(self.sizes, dim=1)
        with torch.no_grad():
            outputs, saved = self._forward(flat, x)
            dy = loss_gradient(outputs)
            for i in reversed(range(self.first, len(self.layers))):
                self.layers[i].write_gradient(saved[i], dy, gradients[i])
                if i > self.first:
                    dy = self.layers[i].input_gradient(parameters[i], saved[i], dy)
        return g, outputs


# ---------------------------------------------------------------- from a module to layers


def as_stack(module: nn.Module) -> Stack | None:
    """The module as a stack of known layers, or None if it contains anything else."""
    layers: list[Layer] = []
    planes = False
    for part in _pools_first(list(_in_sequence(module))):
        spatial = isinstance(part, (nn.Conv2d, *POOLING))
        if planes and _flattens(part):
            layers.append(Differentiated(_to_rows))
            planes = False
            continue
        if planes and not spatial and not isinstance(part, ACTIVATIONS):
            return None
        if spatial and not planes:
            layers.append(Differentiated(_to_planes))
            planes = True
        layer = _layer(part)
        if layer is None:
            return None
        layers.append(layer)
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    complete = sum(layer.size for layer in layers) == trained
    return Stack(layers) if complete and not planes else None


def _in_sequence(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _in_sequence(child)
    else:
        yield module


def _pools_first(parts: list[nn.Module]) -> list[nn.Module]:
    """Move maxima before the activation they commute with: that leaves less to compute."""
    for i in range(len(parts) - 1):
        increasing = isinstance(parts[i], INCREASING) and getattr(parts[i], "negative_slope", 0) >= 0
        if increasing and isinstance(parts[i + 1], nn.MaxPool2d):
            parts[i], parts[i + 1] = parts[i + 1], parts[i]
    return parts


def _flattens(part: nn.Module) -> bool:
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _layer(part: nn.Module) -> Layer | None:
    if type(part) is nn.Linear:
        return Linear(part)
    if type(part) is nn.Tanh:
        return Tanh()
    if type(part) is nn.Conv2d:
        plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
        return Conv2d(part) if plain and not isinstance(part.padding, str) else None
    supported = type(part) in (*ACTIVATIONS, *POOLING) and not getattr(part, "return_indices", False)
    return Differentiated(_for_each_row(part)) if supported or _flattens(part) else None


# ---------------------------------------------------------------- layers


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
        return y.view(*x.shape[:-1], self.outputs), (rows,)

    def write_gradient(self, saved: Saved, dy: Tensor, g: Tensor) -> None:
        (inputs,) = saved
        rows = dy.reshape(len(dy), -1, self.outputs)
        torch.bmm(rows.transpose(1, 2), inputs, out=self._weight(g))
        if self.bias:
            torch.sum(rows, dim=1, out=g[:, -self.outputs :])

    def input_gradient(self, p: Tensor, saved: Saved, dy: Tensor) -> Tensor:
        rows = dy.reshape(len(dy), -1, self.outputs)
        return torch.bmm(rows, self._weight(p)).view(*dy.shape[:-1], self.inputs)


class Conv2d(Layer):
    """On planes: the patches of all models as columns, one batched product with the kernels."""

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
        y = torch.bmm(self._with_biases(p), columns)
        return y.view(len(p), self.outputs, -1, height, width), (columns, padded)

    def write_gradient(self, saved: Saved, dy: Tensor, g: Tensor) -> None:
        columns, _ = saved
        slopes = torch.bmm(dy.reshape(len(dy), self.outputs, -1), columns.transpose(1, 2))
        self._weight(g).copy_(slopes[..., : self.terms])
        if self.bias:
            g[:, self.weights :].copy_(slopes[..., -1])

    def input_gradient(self, p: Tensor, saved: Saved, dy: Tensor) -> Tensor:
        _, padded = saved
        height, width = dy.shape[-2:]
        flat = dy.reshape(len(dy), self.outputs, -1)
        dcolumns = torch.bmm(self._weight(p).transpose(1, 2), flat)
        dcolumns = dcolumns.view(len(dy), self.inputs, -1, padded.shape[2], height, width)
        dx = torch.zeros_like(padded)
        for k, (i, j) in enumerate(product(*map(range, self.kernel))):
            dx[..., self._touched(i, height, 0), self._touched(j, width, 1)] += dcolumns[:, :, k]
        top, left = self.padding
        return dx[..., top : dx.shape[3] - top, left : dx.shape[4] - left]

    def _touched(self, entry: int, size: int, axis: int) -> slice:
        """The pixels that a row or column of the kernel touches, for outputs of this size along the axis."""
        step = self.stride[axis]
        return slice(entry, entry + (size - 1) * step + 1, step)


class Tanh(Layer):
    """The activation of the paper's models, by hand: autograd would take a tenth of a small model's step."""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        y = torch.tanh(x)
        return y, (y,)

    def input_gradient(self, p: Tensor, saved: Saved, dy: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(dy, *saved)


class Differentiated(Layer):
    """A function without parameters, which autograd differentiates."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        self.function = function

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            y = self.function(source)
        return y.detach(), (source, y)

    def input_gradient(self, p: Tensor, saved: Saved, dy: Tensor) -> Tensor:
        source, y = saved
        with torch.enable_grad():
            tied = _Tied.apply(y, dy)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(tied, source)[0]


class _Tied(torch.autograd.Function):
    """A number whose gradient at y is dy: giving dy to `torch.autograd.grad` imports sympy, half a second at the first step."""

    @staticmethod
    def forward(context: Any, y: Tensor, dy: Tensor) -> Tensor:
        context.save_for_backward(dy)
        return y.new_empty(())

    @staticmethod
    def backward(context: Any, *one: Any) -> tuple[Tensor, None]:
        (dy,) = context.saved_tensors
        return dy, None


def _for_each_row(module: Any) -> Callable[[Tensor], Tensor]:
    """A module that acts on every row, or plane, separately."""
    own = copy.copy(module)
    own.inplace = False  # the inputs are still needed

    def function(x: Tensor) -> Tensor:
        y: Tensor = own(x.flatten(0, 1))
        return y.view(*x.shape[:2], *y.shape[1:])

    return function


def _to_planes(x: Tensor) -> Tensor:
    """(R, b, C, H, W) -> (R, C, b, H, W)."""
    return x.transpose(1, 2).contiguous()


def _to_rows(x: Tensor) -> Tensor:
    """(R, C, b, H, W) -> (R, b, C*H*W)."""
    return x.transpose(1, 2).flatten(2)
