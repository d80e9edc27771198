"""Any torch module as a function of one vector of parameters: its gradients, and its outputs when tested."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from dnasa.checks import first_line
from dnasa.core import InputError, Layout
from dnasa.problems.losses import Loss

BATCH_NORM = nn.modules.batchnorm._BatchNorm


class FlatModule:
    """The mean loss of a batch as a function of the trained parameters, in the order of `module.parameters()`.

    Frozen parameters and buffers are constant. Batch norm layers in training mode are the exception: gradients use the
    statistics of the batch, tests the statistics they are given.
    """

    def __init__(self, module: nn.Module, loss: Loss, autocast: bool):
        self.loss, self.autocast = loss, autocast
        trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
        if not trained or any(nn.parameter.is_lazy(part) for part in module.parameters()):
            raise InputError("The model has no parameters to train, or lazy layers without a shape yet.")
        self.names, self.sizes = list(trained), [part.numel() for part in trained.values()]
        self.layout: Layout = tuple((name, tuple(part.shape)) for name, part in trained.items())
        self.device = trained[self.names[0]].device
        self.norms = [name for name, part in module.named_modules() if _has_statistics(part)]
        self.training = _clone(module)
        self.tested = _clone(module).eval()
        self.counting = _clone(module).eval()  # its batch norm layers store the statistics of a batch
        self.statistic_sizes: dict[str, int] = {}
        for name in self.norms:
            norm: Any = self.training.get_submodule(name)
            self.statistic_sizes |= {f"{name}.{kind}": norm.num_features for kind in ("running_mean", "running_var")}
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None  # so it uses those of the batch
            norm = self.counting.get_submodule(name).train()
            norm.momentum, norm.num_batches_tracked = 1.0, None
        self.without_dropout = _clone(self.training).eval()

    def constants(self) -> dict[str, Tensor]:
        """The tensors that are neither trained nor computed from data."""
        frozen = {name: part for name, part in self.tested.named_parameters() if not part.requires_grad}
        buffers = {name: part for name, part in self.tested.named_buffers() if name not in self.statistic_sizes}
        return frozen | buffers

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, out: Tensor, scale: float = 1.0, dropout: bool = True) -> Tensor:
        """Write the gradient of one model into `out`; returns the loss."""
        parts = self._leaves(flat)
        with torch.enable_grad():
            value = self._value(self.training if dropout else self.without_dropout, parts, x, y)
            slopes = torch.autograd.grad(scale * value, parts, allow_unused=True, materialize_grads=True)
        torch.cat([slope.reshape(-1) for slope in slopes], out=out)
        return value.detach()

    def row_gradients(self, flat: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the loss of each row by itself, `(rows, d)`, the outputs, and the slopes of the loss at these."""

        def of_row(row: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            def run(flat: Tensor) -> Any:
                return functional_call(self.training, dict(zip(self.names, self._split(flat), strict=True)), (row[None],))

            with self._precision():
                outputs, back, *_ = vjp(run, flat)
                slopes = grad(self.loss)(outputs, target[None])
            return back(slopes)[0], outputs, slopes

        return vmap(of_row, randomness="different")(x, y)

    def _value(self, module: nn.Module, parts: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
        with self._precision():
            return self.loss(functional_call(module, dict(zip(self.names, parts, strict=True)), (x,)), y)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def _leaves(self, flat: Tensor) -> list[Tensor]:
        """The parameters as leaves of autograd; the copy has the same alignment, and hence bits, wherever `flat` lies."""
        return [part.detach().requires_grad_() for part in self._split(flat.clone())]

    def _split(self, flat: Tensor) -> list[Tensor]:
        return [piece.view(shape) for piece, (_, shape) in zip(flat.split(self.sizes), self.layout, strict=True)]

    def statistics(self, flat: Tensor, batches: Iterable[Tensor]) -> Tensor:
        """Means and variances of the inputs of all batch norm layers, averaged over the batches."""
        each = []
        for x in batches:
            buffers = {name: flat.new_zeros(size) for name, size in self.statistic_sizes.items()}
            self._run(self.counting, flat, x, buffers)
            each.append(torch.cat(list(buffers.values())))
        return torch.stack(each).mean(0)

    def outputs(self, flat: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        """The outputs in a test; without statistics, batch norm has those of the module."""
        return self._run(self.tested, flat, x, {} if statistics is None else self.split_statistics(statistics))

    def split_statistics(self, statistics: Tensor) -> dict[str, Tensor]:
        pieces = statistics.split(list(self.statistic_sizes.values()))
        return dict(zip(self.statistic_sizes, pieces, strict=True))

    def _run(self, module: nn.Module, flat: Tensor, x: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        parameters = dict(zip(self.names, self._split(flat), strict=True))
        with torch.no_grad(), self._precision():
            outputs: Tensor = functional_call(module, {**parameters, **buffers}, (x,))
        return outputs.to(flat.dtype) if self.autocast else outputs  # losses of bfloat16 numbers are coarse

    def check(self, flat: Tensor, x: Tensor, y: Tensor) -> int:
        """Refuse a model or a loss that cannot work; returns about how many bytes autograd stores for each row."""
        before = {name: part.clone() for name, part in self.training.named_buffers()}
        saved: list[int] = []

        def count(part: Tensor) -> Tensor:
            saved.append(part.nbytes)
            return part

        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda part: part):
                value = self._value(self.training, self._leaves(flat), x, y)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = f"inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)}"
            raise InputError(f"The model or its loss does not take {shapes}: {first_line(error)}.") from error
        check_number("loss", value)
        if not value.requires_grad:
            raise InputError("The loss does not depend on the trained parameters: compute it with torch.")
        for name, part in self.training.named_buffers():
            if name not in before or not torch.equal(part, before[name]):
                raise InputError(
                    f"The model changes its buffer '{name}' in training: only batch norm may. Call .eval() on that layer."
                )
        return max(1, (x.nbytes + sum(saved)) // len(x))


def check_number(name: str, value: object) -> None:
    if not isinstance(value, Tensor) or value.ndim:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"The {name} returned {what}: return a tensor with one number, the mean over the batch.")


def _has_statistics(part: nn.Module) -> bool:
    return isinstance(part, BATCH_NORM) and part.training and part.running_mean is not None


def _clone(module: nn.Module) -> nn.Module:
    """Another module with the same parameters and buffers."""
    return copy.deepcopy(module, {id(part): part for part in chain(module.parameters(), module.buffers())})
