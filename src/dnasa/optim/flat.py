"""The trained parameters of an optimizer as one vector, since rules may normalise the whole of it; so do their gradients."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dnasa.core import InputError
from dnasa.optim.parameters import check_parameters, parameter_names, views


class Flat:
    """`vector` and `gradient` are `(1, d)`; the parameters and their gradients are views of them."""

    def __init__(self, groups: Sequence[dict[str, Any]]):
        everyone = [p for group in groups for p in group["params"]]
        self.groups = groups
        self.trained = [p for p in everyone if p.requires_grad]
        self.frozen = [p for p in everyone if not p.requires_grad]
        self.names = parameter_names(groups)
        sizes = [sum(p.numel() for p in group["params"] if p.requires_grad) for group in groups]
        self.slices = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self.join()

    def join(self) -> None:
        """Make the parameters, where they are now, views of one vector."""
        check_parameters(self.trained)
        self.vector = torch.cat([p.detach().reshape(-1) for p in self.trained])[None]
        self.gradient = torch.zeros_like(self.vector)
        self.values = views(self.vector, self.trained)
        self.gradients = views(self.gradient, self.trained)
        for p, value in zip(self.trained, self.values, strict=True):
            p.data = value
        self.clear_gradients()

    def follow(self) -> None:
        """After the model was moved to another device."""
        gradients = [p.grad for p in self.trained]
        self.join()
        for p, gradient in zip(self.trained, gradients, strict=True):
            p.grad = gradient

    def moved(self) -> bool:
        return any(p.data_ptr() != value.data_ptr() for p, value in zip(self.trained, self.values, strict=True))

    def versions(self) -> int:
        """Changes when a parameter is changed other than through `p.data`."""
        return sum(p._version for p in self.trained)

    def clear_gradients(self) -> None:
        self.gradient.zero_()
        for p, view in zip(self.trained, self.gradients, strict=True):
            p.grad = view
        for p in self.frozen:
            p.grad = None

    def collect_gradients(self) -> None:
        """Into the flat vector; a parameter without a gradient has gradient zero."""
        if self.moved():
            raise InputError(
                "The parameters were moved or replaced: make the optimizer after model.to(...) and loading."
            )
        for p, view in zip(self.trained, self.gradients, strict=True):
            if not p.requires_grad:
                raise InputError("A parameter that was trained is frozen now: make a new optimizer after freezing.")
            if p.grad is None:
                view.zero_()
            elif p.grad.is_sparse:
                view.copy_(p.grad.to_dense())
            elif p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
        if any(p.grad is not None for p in self.frozen):
            raise InputError("A parameter that was frozen has a gradient now: make a new optimizer after unfreezing.")

    def decayed_gradient(self) -> Tensor:
        """The gradient with the weight decay added; steppers copy what they need of it."""
        decays = [group["weight_decay"] for group in self.groups]
        if not any(decays):
            return self.gradient
        g = self.gradient.clone()
        for part, decay in zip(self.slices, decays, strict=True):
            if decay:
                g[:, part].add_(self.vector[:, part], alpha=decay)
        return g
