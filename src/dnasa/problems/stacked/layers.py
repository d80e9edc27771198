"""The layers of a sequential module for many models at once: every model has its own parameters and its own batch.

The parameters of R models are the rows of one array `(R, d)`, in the order of `module.parameters()`. Each layer computes
forward and backward for all models in one call and writes its gradients into an `(R, d)` array.
Activations are rows `(R, b, ...)` or, between convolutions, planes `(R, C, b, H, W)`: there the product of the kernels
`(R, O, C*k*k)` with the patches `(R, C*k*k, b*H*W)` already has the layout of the next layer's planes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dnasa.problems.stacked import gpu_kernels

Saved = Any


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
    """On planes: the patches of all models as columns, one batched product with the kernels. On a GPU, where
    every model has its own inputs, kernels avoid storing patches.

    As the first layer it also takes fewer inputs than models: each is then shared by a group of consecutive models.
    """

    def __init__(self, module: nn.Conv2d):
        self.outputs, self.inputs, *sides = module.weight.shape
        self.kernel = (sides[0], sides[1])
        self.stride, self.dilation = module.stride, module.dilation
        self.padding: Any = module.padding
        self.weights = module.weight.numel()
        self.terms = self.weights // self.outputs  # of the sum for one output
        self.bias = module.bias is not None
        self.size = self.weights + self.outputs * self.bias

    def _weight(self, p: Tensor) -> Tensor:
        return p[:, : self.weights].view(len(p), self.outputs, self.terms)

    def _pixels(self, i: int, j: int, height: int, width: int) -> tuple[slice, slice]:
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

    def _biases(self, p: Tensor) -> Tensor | None:
        return p[:, self.weights :] if self.bias else None

    def _with_biases(self, p: Tensor) -> Tensor:
        """The kernels, with the biases as the weights of a last row of ones."""
        weight, biases = self._weight(p), self._biases(p)
        return weight.contiguous() if biases is None else torch.cat((weight, biases[..., None]), 2)

    def _on_gpu(self, p: Tensor, x: Tensor) -> bool:
        simple = self.stride == self.dilation == (1, 1) and self.outputs <= gpu_kernels.MAX_OUTPUTS
        return simple and len(x) == len(p) >= gpu_kernels.MIN_MODELS and gpu_kernels.applies(x)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        top, left = self.padding
        padded = (F.pad(x, (left, left, top, top)) if top or left else x).contiguous()
        if self._on_gpu(p, x):
            return gpu_kernels.convolve(padded, self._weight(p), self._biases(p), self.kernel), padded
        height, width = (
            (size - spread * (kernel - 1) - 1) // stride + 1
            for size, spread, kernel, stride in zip(
                padded.shape[3:], self.dilation, self.kernel, self.stride, strict=True
            )
        )
        patches = self._patches(padded, height, width)
        columns = x.new_empty(len(x), self.terms + self.bias, x.shape[2] * height * width)
        columns[:, : self.terms].view(patches.shape).copy_(patches)
        columns[:, self.terms :] = 1.0
        y = torch.bmm(self._with_biases(p).view(len(x), -1, columns.shape[1]), columns)
        return y.view(len(p), self.outputs, -1, height, width), (columns, padded.shape)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        backward = self._backward_on_gpu if isinstance(saved, Tensor) else self._backward_of_patches
        dx = backward(p, saved, dy, g, needs_dx)
        if dx is None or not any(self.padding):
            return dx
        (top, left), (height, width) = self.padding, dx.shape[3:]
        return dx[..., top : height - top, left : width - left]

    def _backward_on_gpu(self, p: Tensor, x: Tensor, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        dy = dy.contiguous()
        gpu_kernels.weight_gradients(x, dy, self._weight(g), self._biases(g), self.kernel)
        return gpu_kernels.input_gradients(dy, self._weight(p), self.kernel) if needs_dx else None

    def _backward_of_patches(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
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
        for k, (i, j) in enumerate(self._entries()):
            rows, cells = self._pixels(i, j, height, width)
            dx[..., rows, cells] += dcolumns[:, :, k]
        return dx


class Embedding(Layer):
    def __init__(self, module: nn.Embedding):
        self.shape = module.weight.shape
        self.size = module.weight.numel()

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        index = x.flatten(1)[..., None].expand(-1, -1, self.shape[1])
        return p.view(-1, *self.shape).gather(1, index).view(*x.shape, self.shape[1]), index

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        g.zero_()
        g.view(-1, *self.shape).scatter_add_(1, saved, dy.reshape(saved.shape))
        return None


class LayerNorm(Layer):
    def __init__(self, module: nn.LayerNorm):
        self.shape, self.eps = module.normalized_shape, module.eps
        self.affine, self.bias = module.weight is not None, module.bias is not None
        self.width = module.weight.numel() if self.affine else 0
        self.size = self.width * (self.affine + self.bias)

    def _broadcast(self, part: Tensor, x: Tensor) -> Tensor:
        return part.reshape(len(part), *[1] * (x.dim() - 1 - len(self.shape)), *self.shape)

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            normal = F.layer_norm(source, self.shape, eps=self.eps)
        y = normal.detach()
        if self.affine:
            y = y * self._broadcast(p[:, : self.width], x)
        if self.bias:
            y = y + self._broadcast(p[:, self.width :], x)
        return y, (source, normal)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        source, normal = saved
        flat = (len(dy), -1, self.width)
        if self.affine:
            torch.sum((dy * normal.detach()).view(flat), dim=1, out=g[:, : self.width])
        if self.bias:
            torch.sum(dy.reshape(flat), dim=1, out=g[:, self.width :])
        if self.affine:
            dy = dy * self._broadcast(p[:, : self.width], dy)
        return torch.autograd.grad(normal, source, dy)[0]


class Tanh(Layer):
    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        y = torch.tanh(x)
        return y, y

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        return torch.ops.aten.tanh_backward(dy, saved)


class MaxPool2d(Layer):
    def __init__(self, module: nn.MaxPool2d):
        stride = module.stride if module.stride is not None else module.kernel_size
        pairs = [
            [v, v] if isinstance(v, int) else list(v)
            for v in (module.kernel_size, stride, module.padding, module.dilation)
        ]
        self.settings = (*pairs, module.ceil_mode)
        kernel, step, padding, dilation = pairs
        self.kernel = (kernel[0], kernel[1])
        whole = padding == [0, 0] and dilation == [1, 1] and not module.ceil_mode
        self.disjoint = kernel == step and whole and kernel[0] * kernel[1] <= gpu_kernels.MAX_WINDOW

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        if self.disjoint and gpu_kernels.applies(x):
            y, places = gpu_kernels.pool(x.contiguous(), self.kernel)
            return y, (x.shape, places)
        images = x.flatten(0, 1)
        y, indices = torch.ops.aten.max_pool2d_with_indices(images, *self.settings)
        return y.view(*x.shape[:3], *y.shape[2:]), (images, indices)

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        images, indices = saved
        if isinstance(images, torch.Size):
            return gpu_kernels.unpool(dy.contiguous(), indices, images, self.kernel)
        dx = torch.ops.aten.max_pool2d_with_indices_backward(dy.reshape(indices.shape), images, *self.settings, indices)
        return dx.view(*dy.shape[:3], *dx.shape[2:])


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


class ToPlanes(Layer):
    """(R, b, C, H, W) -> (R, C, b, H, W)"""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        return x.transpose(1, 2).contiguous(), None

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        return dy.transpose(1, 2) if needs_dx else None


class ToRows(Layer):
    """(R, C, b, H, W) -> (R, b, C*H*W)"""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        return x.transpose(1, 2).flatten(2), x.shape

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        models, channels, batch, height, width = saved
        return dy.reshape(models, batch, channels, height, width).transpose(1, 2).contiguous()


class FlattenRows(Layer):
    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
        return x.flatten(2), x.shape

    def backward(self, p: Tensor, saved: Saved, dy: Tensor, g: Tensor, needs_dx: bool) -> Tensor | None:
        return dy.view(saved)
