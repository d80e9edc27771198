"""Many copies of one model at once, each with its own parameters and its own batch.

A sequential model of known layers runs layer by layer for all copies (`layers.py`), any other through torch's vmap.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dnasa.core import InputError, Layout, first_line
from dnasa.problems.modules import counting_saved
from dnasa.problems.stacked import layers
from dnasa.problems.stacked.layers import Layer

INCREASING = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.LeakyReLU, nn.Hardtanh)  # these commute with the maximum
ACTIVATIONS = (*INCREASING, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
WITH_PARAMETERS: dict[type, Callable[[Any], Layer]] = {
    nn.Linear: layers.Linear,
    nn.Embedding: layers.Embedding,
    nn.LayerNorm: layers.LayerNorm,
}
NORMS, DROPOUT = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd
UNSUPPORTED = {
    NORMS: "stores statistics of its batches: use nn.GroupNorm or nn.LayerNorm, or call .eval() on it",
    DROPOUT: "draws random numbers of its own: leave it out, or call .eval() on it",
    nn.RNNBase: "cannot be run for many models at once: write the recurrence with nn.Linear",
}


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """(R, b): the loss of every row of every model."""
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


class Models:
    """Many copies of one model, layer by layer where its layers are known and by torch's vmap otherwise."""

    def __init__(self, module: nn.Module):
        check(module)
        self.module = module
        self.stack: Stack | None = stack(module)
        self.layout: Layout = tuple((name, tuple(part.shape)) for name, part in module.named_parameters())
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.mapped = vmap(grad(self._loss, has_aux=True))

    def _call(self, flat: Tensor, x: Tensor) -> Tensor:
        pieces = zip(self.layout, flat.split(self.sizes), strict=True)
        return functional_call(self.module, {name: piece.view(shape) for (name, shape), piece in pieces}, (x,))

    def _loss(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        each = cross_entropies(self._call(flat, x), y)
        return (each * weight).sum(), each

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, classes)"""
        if self.stack:
            return self.stack.logits(flat, x)
        with torch.no_grad():
            return vmap(self._call)(flat, x)

    def gradient(
        self, flat: Tensor, x: Tensor, y: Tensor, weight: float | Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """The gradients (R, d) of the weighted sums of all rows' losses; the losses (R, b) are appended to `losses`."""
        if not self.stack:
            g, each = self.mapped(flat, x, y, flat.new_ones(y.shape) * weight)
            if losses is not None:
                losses.append(each)
            return g

        def at_logits(logits: Tensor) -> Tensor:
            if losses is not None:
                losses.append(cross_entropies(logits, y))
            slope = torch.softmax(logits, -1)
            slope.scatter_add_(-1, y[..., None], slope.new_full((*y.shape, 1), -1.0))
            return slope * (weight if isinstance(weight, float) else weight[..., None])

        return self.stack.gradient(flat, x, at_logits)

    def footprint(self, point: Tensor, x: Tensor) -> int:
        """Approximate bytes that the gradient of one model at one row needs; also checks that the model runs."""
        try:
            self.gradient(point[None], x[None], torch.zeros(1, 1, dtype=torch.long, device=x.device), 1.0)
            if self.stack:
                return self.stack.footprint(point[None], x[None]) * point.element_size()
            with counting_saved() as sizes, torch.enable_grad():
                self._call(point.detach().clone().requires_grad_(), x)
        except RuntimeError as error:
            shape = tuple(x.shape[1:])
            raise InputError(f"This model does not take rows of shape {shape}: {first_line(error)}.") from error
        return x.numel() * x.element_size() + sum(sizes)


def check(module: nn.Module) -> None:
    """Refuse by name what cannot work for many models at once."""
    for name, part in module.named_modules():
        inactive = isinstance(part, (NORMS, DROPOUT)) and (not part.training or getattr(part, "p", 1) == 0)
        for kind, why in UNSUPPORTED.items():
            if isinstance(part, kind) and not inactive:
                raise InputError(f"Layer '{name or 'model'}' ({type(part).__name__}) {why}.")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise InputError(f"Parameter '{frozen[0]}' is frozen; all parameters are trained: make it a buffer instead.")
    if not any(True for _ in module.parameters()):
        raise InputError("The model has no parameters to train.")


class Stack:
    """The layers of a sequential model, for any number of models at once."""

    def __init__(self, sequence: list[Layer]):
        self.layers = sequence
        self.sizes = [layer.size for layer in sequence]
        self.first = next((i for i, layer in enumerate(sequence) if layer.size), len(sequence))
        self.shares = self.first < len(sequence) and isinstance(sequence[self.first], layers.Conv2d)

    def _shared(self, x: Tensor) -> Tensor:
        """Inputs that are the same for all models, once: a GPU's time goes into the patches of the first convolution."""
        return x[:1] if self.shares and x.is_cuda and x.stride(0) == 0 else x

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, classes), without storing activations."""
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
        """(R, d); `loss_gradient` gives the gradient of each model's loss at its logits.

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


def stack(module: nn.Module) -> Stack | None:
    """The module as a stack of known layers, or None when it contains anything else."""
    modules = list(_flattened(module))
    for i in range(len(modules) - 1):
        increasing = isinstance(modules[i], INCREASING) and getattr(modules[i], "negative_slope", 0) >= 0
        if increasing and isinstance(modules[i + 1], nn.MaxPool2d):  # pooling first leaves less to compute
            modules[i], modules[i + 1] = modules[i + 1], modules[i]
    sequence: list[Layer] = []
    planes = False
    for part in modules:
        spatial = isinstance(part, (nn.Conv2d, *POOLING))
        if spatial and not planes:
            sequence.append(layers.ToPlanes())
        elif planes and not spatial and not isinstance(part, ACTIVATIONS):
            if not isinstance(part, nn.Flatten):
                return None
            sequence.append(layers.ToRows())
        made = _layers(part, planes)
        if made is None:
            return None
        sequence.extend(made)
        planes = spatial or (planes and isinstance(part, ACTIVATIONS))
    shared = sum(layer.size for layer in sequence) != sum(parameter.numel() for parameter in module.parameters())
    return None if planes or shared else Stack(sequence)


def _flattened(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _flattened(child)
    else:
        yield module


def _layers(part: nn.Module, planes: bool) -> list[Layer] | None:
    if type(part) is nn.Tanh:
        return [layers.Tanh()]
    if type(part) is nn.MaxPool2d and not part.return_indices:
        return [layers.MaxPool2d(part)]
    if type(part) is nn.Conv2d:
        supported = part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
        return [layers.Conv2d(part)] if supported else None
    if type(part) is nn.Flatten:
        supported = part.start_dim == 1 and part.end_dim == -1
        return ([] if planes else [layers.FlattenRows()]) if supported else None
    if type(part) is nn.Embedding and (part.padding_idx is not None or part.max_norm is not None):
        return None
    if type(part) in WITH_PARAMETERS:
        return [WITH_PARAMETERS[type(part)](part)]
    return [layers.Plain(part)] if type(part) in (*ACTIVATIONS, nn.AvgPool2d, nn.AdaptiveAvgPool2d) else None
