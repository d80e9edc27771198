"""The trained parameters of an optimizer, and their gradients, as one vector: rules may normalize the whole of it."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.core import InputError, Layout

NO_LEARNING_RATE = "Decentralized has no learning rate to set: leave 'lr' and schedulers out; some rules take eta and schedule."


class ParameterGroup(dict[str, Any]):
    """A parameter group whose "lr" can only be read."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            raise InputError(NO_LEARNING_RATE)
        super().__setitem__(key, value)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is set key by key otherwise


def check_group(group: dict[str, Any]) -> None:
    for key in group:
        if key == "lr":
            raise InputError(NO_LEARNING_RATE)
        if key not in ("params", "weight_decay"):
            raise InputError(f"Parameter groups may differ in weight_decay only, not in '{key}': leave it out.")


class Flat:
    """`gradient` is `(1, d)`, and the parameters' gradients are views of it.

    The parameters keep their own memory: tools that save models take tensors of one memory for copies of each other.
    Of parameters that FSDP2 has divided, the vector has the shards of this process.
    """

    def __init__(self, groups: Sequence[dict[str, Any]]):
        everyone = [p for group in groups for p in group["params"]]
        self.groups = groups
        self.trained = [p for p in everyone if p.requires_grad]
        self.frozen = [p for p in everyone if not p.requires_grad]
        names = [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]
        self.names = [
            f"parameter {i} of shape {tuple(p.shape)}" if name is None else f"'{name}'"
            for i, (name, p) in enumerate(zip(names, everyone, strict=True))
            if p.requires_grad
        ]
        sizes = [sum(p.requires_grad for p in group["params"]) for group in groups]
        self.decay: Tensor | None = None  # the weight decay of each parameter
        self.read = [0.0] * len(groups)  # from the groups, what `decay` was made from
        self.slices = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self.place_gradients()
        self.clear_gradients()

    def place_gradients(self) -> None:
        """Allocate the gradients where the parameters are now."""
        check_parameters(self.trained)
        values = self.values
        self.gradient = values[0].new_zeros(1, sum(value.numel() for value in values))
        self.gradients = views(self.gradient, values)

    @property
    def layout(self) -> Layout:
        return tuple((str(i), tuple(p.shape)) for i, p in enumerate(self.trained))

    @property
    def values(self) -> list[Tensor]:
        """The parameters as plain tensors: writing to them does not change their version."""
        return [local(p).data for p in self.trained]

    def row(self) -> Tensor:
        """A copy of all parameters, `(1, d)`."""
        return torch.cat([value.reshape(-1) for value in self.values])[None]

    def show(self, row: Tensor) -> None:
        values = self.values
        torch._foreach_copy_(values, views(row, values))

    def moved(self) -> bool:
        """Whether a parameter has another device, dtype or shape than its gradient."""
        pairs = zip(self.trained, self.gradients, strict=True)
        return any((p.device, p.dtype, local(p).shape) != (g.device, g.dtype, g.shape) for p, g in pairs)

    def versions(self) -> int:
        """A number that changes with every change of a parameter except through `p.data`."""
        return sum(p._version for p in self.trained)

    def clear_gradients(self) -> None:
        """Set all gradients to zero.

        `p.grad` is a new view each time, since `model.to(device)` changes that tensor itself. A parameter that is not
        contiguous gets none: its layer would be slower with a contiguous gradient.
        """
        self.gradient.zero_()
        for p, view in zip(self.trained, self.gradients, strict=True):
            p.grad = divided(view.detach(), p) if p.is_contiguous() else None
        for p in self.frozen:
            p.grad = None
        self.cleared = self.gradient._version

    def untouched(self) -> bool:
        """Whether no backward pass has changed the gradients since they were cleared."""
        pairs = zip(self.trained, self.gradients, strict=True)
        return (
            self.gradient._version == self.cleared
            and all(p.grad is None or _shares(p.grad, view) for p, view in pairs)
            and not self.gradient.any()  # a compiled pass may leave no version
        )

    def collect_gradients(self) -> None:
        """Collect the gradients in the flat vector; a parameter without a gradient has gradient zero."""
        if self.moved():
            raise InputError("The parameters were moved or replaced: make the optimizer after model.to(...) and loading.")
        for p, view in zip(self.trained, self.gradients, strict=True):
            if not p.requires_grad:
                raise InputError("A parameter that was trained is frozen now: make a new optimizer after freezing.")
            if p.grad is None:
                view.zero_()
            elif not _shares(p.grad, view):
                view.copy_(p.grad.to_dense() if p.grad.is_sparse else local(p.grad))
        if any(p.grad is not None for p in self.frozen):
            raise InputError("A parameter that was frozen has a gradient now: make a new optimizer after unfreezing.")

    def check_complete(self, model: nn.Module) -> None:
        """Refuse a parameter of the model that has a gradient and is not here."""
        known = {id(p) for p in (*self.trained, *self.frozen)}
        for name, p in model.named_parameters():
            if p.grad is not None and id(p) not in known:
                raise InputError(f"Parameter '{name}' is not trained: make the optimizer after such changes of the model.")

    def show_stepsize(self, stepsize: float) -> None:
        for group in self.groups:
            dict.__setitem__(group, "lr", stepsize)

    @property
    def decays(self) -> list[float]:
        return [group["weight_decay"] for group in self.groups]

    def read_decay(self) -> None:
        """Make the groups' weight decay a row, `(1, 1)` where it is the same everywhere; None where it is 0."""
        self.read, row = self.decays, self.gradient.new_empty(self.gradient.shape)
        parts = views(row, self.gradients)
        for some, decay in zip(self.slices, self.read, strict=True):
            for part in parts[some]:
                part.fill_(decay)
        self.decay = None if not any(self.read) else row[:, :1].clone() if len({*self.read}) == 1 else row


def _shares(gradient: Tensor, view: Tensor) -> bool:
    return not gradient.is_sparse and local(gradient).data_ptr() == view.data_ptr()


def check_parameters(trained: Sequence[Tensor]) -> None:
    if not trained:
        raise InputError("There is no parameter to train: all are frozen.")
    places = [local(p).data_ptr() for p in trained if local(p).numel()]
    if len({*places}) < len(places):
        raise InputError("Two parameters share their memory: tie weights by using one parameter in both places.")
    kinds = sorted({f"{p.dtype} on {p.device}" for p in trained})
    if len(kinds) > 1:
        raise InputError(f"All parameters must have one dtype and one device; here are {' and '.join(kinds)}.")
    if trained[0].dtype not in (torch.float32, torch.float64):
        raise InputError(f"Parameters of {trained[0].dtype} are too coarse: store them in float32 and use torch.autocast.")


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat vector in the shapes of these tensors."""
    parts = torch._utils._unflatten_dense_tensors(flat.view(-1), list(like))
    return [
        part if part.numel() else part.view(a.shape) for part, a in zip(parts, like, strict=True)
    ]  # torch flattens empty ones


def local(a: Tensor) -> Tensor:
    """What this process has of a tensor: a shard, if FSDP2 has divided it."""
    return getattr(a, "_local_tensor", a)


def divided(part: Tensor, p: Tensor) -> Tensor:
    """A tensor in the place of `local(p)` as one like p."""
    if local(p) is p:
        return part
    from torch.distributed.tensor import DTensor

    return DTensor(part, p._spec, requires_grad=False)  # type: ignore[attr-defined]
