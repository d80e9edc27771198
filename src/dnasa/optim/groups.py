"""Parameter groups, which differ in their weight decay and nothing else."""

from collections.abc import Sequence
from typing import Any

from dnasa.core import InputError

NO_LEARNING_RATE = (
    "Decentralized has no learning rate to set, its schedule is built in: leave 'lr' and learning-rate schedulers out "
    "(rules that need a stepsize take eta and schedule)."
)


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


def show_stepsize(groups: Sequence[dict[str, Any]], stepsize: float) -> None:
    """Show the stepsize as "lr", for logs."""
    for group in groups:
        dict.__setitem__(group, "lr", stepsize)


def parameter_names(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the trained parameters, as `named_parameters()` gives them, or else their numbers and shapes."""
    names = [name for group in groups for name in group.get("param_names", [None] * len(group["params"]))]
    parameters = [p for group in groups for p in group["params"]]
    return [
        f"parameter {i} of shape {tuple(p.shape)}" if name is None else f"'{name}'"
        for i, (name, p) in enumerate(zip(names, parameters, strict=True))
        if p.requires_grad
    ]
