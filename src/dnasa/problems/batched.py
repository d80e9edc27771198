"""Many copies of one sequential network at once: every copy has its own parameters and its own batch.

The parameters of R models are the rows of one array `(R, d)`, in the order of `module.parameters()`. Known layers go
forward and backward by hand, all models in one call each, and write their gradients straight into an `(R, d)` array.
Activations travel as rows `(R, b, ...)` or, between convolutions, as planes `(R, C, b, H, W)`: there the product of the kernels
`(R, O, C*k*k)` with the patches `(R, C*k*k, b*H*W)` is already the next layer's planes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Kept = Any
ELEMENTWISE = (
    nn.Tanh,
    nn.ReLU,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Hardtanh,
    nn.Identity,
)
GROWING = (
    nn.Tanh,
    nn.ReLU,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.Hardtanh,
)  # max-pooling may go first: the maximum stays the maximum
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


class Layer:
    """`forward(p, x) -> y, kept`; `backward(p, kept, dy, g, wanted) -> dx` also writes the parameters' gradients to g."""

    size = 0  # parameters of one model

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        raise NotImplementedError

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        raise NotImplementedError


class Linear(Layer):
    def __init__(self, module: nn.Linear):
        self.outputs, self.inputs = module.weight.shape
        self.bias = module.bias is not None
        self.size = self.outputs * (self.inputs + self.bias)

    def _weight(self, p: Tensor) -> Tensor:
        return p[:, : self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        rows = x.reshape(len(x), -1, self.inputs)
        weight = self._weight(p).transpose(1, 2)
        if not x.is_cuda:
            weight = weight.contiguous()  # batched products with a transposed factor are several times slower here
        y = torch.bmm(rows, weight)
        if self.bias:
            y += p[:, None, -self.outputs :]
        return y.view(*x.shape[:-1], self.outputs), rows

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        rows = dy.reshape(len(dy), -1, self.outputs)
        torch.bmm(rows.transpose(1, 2), kept, out=self._weight(g))
        if self.bias:
            torch.sum(rows, dim=1, out=g[:, -self.outputs :])
        return torch.bmm(rows, self._weight(p)).view(*dy.shape[:-1], self.inputs) if wanted else None


class Conv2d(Layer):
    """On planes: the patches of all models as columns, one batched product with the kernels."""

    def __init__(self, module: nn.Conv2d):
        self.outputs, self.inputs, *self.kernel = module.weight.shape
        self.stride, self.dilation = module.stride, module.dilation
        self.padding: Any = module.padding
        self.weights = module.weight.numel()
        self.bias = module.bias is not None
        self.size = self.weights + self.outputs * self.bias

    def _weight(self, p: Tensor) -> Tensor:
        return p[:, : self.weights].view(len(p), self.outputs, -1)

    def _reach(self, i: int, j: int, height: int, width: int) -> tuple[slice, slice]:
        """The pixels that entry (i, j) of the kernel touches, for an output of that height and width."""
        (di, dj), (si, sj) = self.dilation, self.stride
        return slice(i * di, i * di + (height - 1) * si + 1, si), slice(j * dj, j * dj + (width - 1) * sj + 1, sj)

    def _entries(self) -> Iterator[tuple[int, int]]:
        return ((i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1]))

    def _patches(self, x: Tensor, height: int, width: int) -> Tensor:
        """(R, C, ki, kj, b, height, width), a view of the contiguous planes."""
        models, channels, batch, rows, cells = x.stride()
        (di, dj), (si, sj) = self.dilation, self.stride
        shape = (*x.shape[:2], *self.kernel, x.shape[2], height, width)
        return x.as_strided(shape, (models, channels, di * rows, dj * cells, batch, si * rows, sj * cells))

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        padded = (
            F.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0])) if any(self.padding) else x
        )
        height, width = (
            (size - spread * (kernel - 1) - 1) // stride + 1
            for size, spread, kernel, stride in zip(
                padded.shape[3:], self.dilation, self.kernel, self.stride, strict=True
            )
        )
        flat = self._patches(padded.contiguous(), height, width).reshape(len(x), -1, x.shape[2] * height * width)
        y = torch.bmm(self._weight(p), flat)
        if self.bias:
            y += p[:, self.weights :, None]
        return y.view(len(x), self.outputs, -1, height, width), (flat, padded.shape)

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        columns, shape = kept
        height, width = dy.shape[-2:]
        flat = dy.reshape(len(dy), self.outputs, -1)
        torch.bmm(flat, columns.transpose(1, 2), out=self._weight(g))
        if self.bias:
            torch.sum(flat, dim=2, out=g[:, self.weights :])
        if not wanted:
            return None
        dcolumns = torch.bmm(self._weight(p).transpose(1, 2), flat)
        dcolumns = dcolumns.view(len(dy), self.inputs, -1, shape[2], height, width)
        dx = dy.new_zeros(shape)
        for k, (i, j) in enumerate(self._entries()):
            rows, cells = self._reach(i, j, height, width)
            dx[..., rows, cells] += dcolumns[:, :, k]
        (top, left) = self.padding
        return dx[..., top : shape[3] - top, left : shape[4] - left] if any(self.padding) else dx


class Embedding(Layer):
    def __init__(self, module: nn.Embedding):
        self.shape = module.weight.shape
        self.size = module.weight.numel()

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        index = x.flatten(1)[..., None].expand(-1, -1, self.shape[1])
        return p.view(-1, *self.shape).gather(1, index).view(*x.shape, self.shape[1]), index

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        g.zero_()
        g.view(-1, *self.shape).scatter_add_(1, kept, dy.reshape(kept.shape))
        return None


class LayerNorm(Layer):
    def __init__(self, module: nn.LayerNorm):
        self.shape, self.eps = module.normalized_shape, module.eps
        self.affine, self.bias = module.weight is not None, module.bias is not None
        self.width = module.weight.numel() if self.affine else 0
        self.size = self.width * (self.affine + self.bias)

    def _spread(self, part: Tensor, x: Tensor) -> Tensor:
        return part.reshape(len(part), *[1] * (x.dim() - 1 - len(self.shape)), *self.shape)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            normal = F.layer_norm(source, self.shape, eps=self.eps)
        y = normal.detach()
        if self.affine:
            y = y * self._spread(p[:, : self.width], x)
        if self.bias:
            y = y + self._spread(p[:, self.width :], x)
        return y, (source, normal)

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        source, normal = kept
        flat = (len(dy), -1, self.width)
        if self.affine:
            torch.sum((dy * normal.detach()).view(flat), dim=1, out=g[:, : self.width])
        if self.bias:
            torch.sum(dy.reshape(flat), dim=1, out=g[:, self.width :])
        if self.affine:
            dy = dy * self._spread(p[:, : self.width], dy)
        return torch.autograd.grad(normal, source, dy)[0]


class Tanh(Layer):
    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        y = torch.tanh(x)
        return y, y

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        return torch.ops.aten.tanh_backward(dy, kept)


class MaxPool2d(Layer):
    def __init__(self, module: nn.MaxPool2d):
        stride = module.stride if module.stride is not None else module.kernel_size
        pairs = [
            [v, v] if isinstance(v, int) else list(v)
            for v in (module.kernel_size, stride, module.padding, module.dilation)
        ]
        self.how = (*pairs, module.ceil_mode)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        images = x.flatten(0, 1)
        y, where = torch.ops.aten.max_pool2d_with_indices(images, *self.how)
        return y.view(*x.shape[:3], *y.shape[2:]), (images, where)

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        images, where = kept
        dx = torch.ops.aten.max_pool2d_with_indices_backward(dy.reshape(where.shape), images, *self.how, where)
        return dx.view(*dy.shape[:3], *dx.shape[2:])


class Plain(Layer):
    """A module without parameters that treats every plane or row alike, by autograd of its own."""

    def __init__(self, module: nn.Module):
        self.module = module

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            y = self.module(source.flatten(0, 1).clone())  # it may work in place
            y = y.view(*x.shape[:2], *y.shape[1:])
        return y.detach(), (source, y)

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        source, y = kept
        return torch.autograd.grad(y, source, dy)[0]


class ToPlanes(Layer):
    """(R, b, C, H, W) -> (R, C, b, H, W)"""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        return x.transpose(1, 2).contiguous(), None

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        return dy.transpose(1, 2) if wanted else None


class ToRows(Layer):
    """(R, C, b, H, W) -> (R, b, C*H*W)"""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        return x.transpose(1, 2).flatten(2), x.shape

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        models, channels, batch, height, width = kept
        return dy.reshape(models, batch, channels, height, width).transpose(1, 2).contiguous()


class FlattenRows(Layer):
    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Kept]:
        return x.flatten(2), x.shape

    def backward(self, p: Tensor, kept: Kept, dy: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        return dy.view(kept)


WITH_PARAMETERS: dict[type, Callable[[Any], Layer]] = {
    nn.Linear: Linear,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
}


class Stack:
    """The layers of a sequential network, for any number of models side by side."""

    def __init__(self, layers: list[Layer]):
        self.layers = layers
        self.sizes = [layer.size for layer in layers]
        self.first = next((i for i, layer in enumerate(layers) if layer.size), len(layers))

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, classes), without keeping anything."""
        with torch.no_grad():
            for layer, p in zip(self.layers, flat.split(self.sizes, dim=1), strict=True):
                x, _ = layer.forward(p, x)
        return x

    def footprint(self, flat: Tensor, x: Tensor) -> int:
        """How many numbers the gradient at `x` keeps between forward and backward."""
        total = x.numel()
        with torch.no_grad():
            for layer, p in zip(self.layers, flat.split(self.sizes, dim=1), strict=True):
                x, kept = layer.forward(p, x)
                total += x.numel() + numbers_held(kept)
        return total

    def gradient(self, flat: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """(R, d); `loss_gradient` gives the gradient of each model's loss at its logits."""
        g, kept = torch.empty_like(flat), []
        with torch.no_grad():
            parts, slots = flat.split(self.sizes, dim=1), g.split(self.sizes, dim=1)
            for layer, p in zip(self.layers, parts, strict=True):
                x, keep = layer.forward(p, x)
                kept.append(keep)
            dy: Any = loss_gradient(x)
            for i in range(len(self.layers) - 1, self.first - 1, -1):
                dy = self.layers[i].backward(parts[i], kept[i], dy, slots[i], i > self.first)
        return g


def numbers_held(kept: Kept) -> int:
    if isinstance(kept, Tensor):
        return kept.numel()
    return sum(map(numbers_held, kept)) if type(kept) is tuple else 0


def stack(module: nn.Module) -> Stack | None:
    """The module as a stack of known layers, or None when it holds anything else."""
    modules = list(_flattened(module))
    for i in range(len(modules) - 1):
        grows = isinstance(modules[i], GROWING) and getattr(modules[i], "negative_slope", 0) >= 0
        if grows and isinstance(modules[i + 1], nn.MaxPool2d):
            modules[i], modules[i + 1] = modules[i + 1], modules[i]
    layers: list[Layer] = []
    planes = False
    for part in modules:
        spatial = isinstance(part, (nn.Conv2d, *POOLING))
        if spatial and not planes:
            layers.append(ToPlanes())
        elif planes and not spatial and not isinstance(part, ELEMENTWISE):
            if not isinstance(part, nn.Flatten):
                return None
            layers.append(ToRows())
        made = _layers(part, planes)
        if made is None:
            return None
        layers.extend(made)
        planes = spatial or (planes and isinstance(part, ELEMENTWISE))
    shared = sum(layer.size for layer in layers) != sum(parameter.numel() for parameter in module.parameters())
    return None if planes or shared else Stack(layers)


def _flattened(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _flattened(child)
    else:
        yield module


def _layers(part: nn.Module, planes: bool) -> list[Layer] | None:
    if type(part) is nn.Tanh:
        return [Tanh()]
    if type(part) is nn.MaxPool2d and not part.return_indices:
        return [MaxPool2d(part)]
    if type(part) is nn.Conv2d:
        usual = part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
        return [Conv2d(part)] if usual else None
    if type(part) is nn.Flatten:
        usual = part.start_dim == 1 and part.end_dim == -1
        return ([] if planes else [FlattenRows()]) if usual else None
    if type(part) is nn.Embedding and (part.padding_idx is not None or part.max_norm is not None):
        return None
    if type(part) in WITH_PARAMETERS:
        return [WITH_PARAMETERS[type(part)](part)]
    return [Plain(part)] if type(part) in (*ELEMENTWISE, nn.AvgPool2d, nn.AdaptiveAvgPool2d) else None
