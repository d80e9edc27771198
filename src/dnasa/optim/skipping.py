"""Gradients that no node uses: those that overflowed in mixed precision, and those that are not finite."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from dnasa.core import RunError, choose
from dnasa.optim.flat import views
from dnasa.optim.recovery import Recovery


class Skipping:
    """All nodes decide together whether to skip a step, since the step of one needs the messages of the others.

    `joined` says whether processes have different numbers of batches, inside `Join`.
    """

    def __init__(self, recovery: Recovery, nonfinite: str):
        self.recovery = recovery
        self.node = recovery.node
        self.nonfinite = nonfinite
        self.joined = False
        choose("value of nonfinite", nonfinite, dict.fromkeys(("raise", "skip")))

    def all_skip(self, gradients: tuple[Tensor, ...], found_inf: Tensor | None) -> bool:
        """A GradScaler gives `found_inf`, whether this node's gradient has overflowed."""
        unusable = not self._usable(gradients) if found_inf is None else bool(found_inf)
        if found_inf is None and self.nonfinite == "raise" and not self.joined:
            return False
        return self.vote(True, unusable)[1]

    def vote(self, has_batch: bool, unusable: bool) -> tuple[bool, bool]:
        """Whether any node has a batch, and whether any node cannot use its gradient."""
        with self.recovery.exchange():
            self.node.snapshot()
            votes = self.node.network.mean(torch.tensor([[float(has_batch), float(unusable)]])).view(-1).tolist()
        return votes[0] > 0, votes[1] > 0

    def _usable(self, gradients: tuple[Tensor, ...]) -> bool:
        node = self.node
        worst = None if node.alone_on_gpu else next((g for g in gradients if not finite(g)), None)
        if worst is None:
            return True
        parameters = node.parameters
        reason = describe(views(worst, parameters.trained), parameters.values, parameters.names)
        reason = f"At {node.network.processes.name_of(node.network.rank)}, step {node.t + 1}: {reason}."
        if self.nonfinite == "skip":
            warnings.warn(f"{reason} All skip this step.", stacklevel=4)
            return False
        reason += " Check this process's batch and loss, or let all skip such steps: nonfinite='skip'."
        node.network.processes.membership.fail(reason)
        raise RunError(reason)


def finite(a: Tensor) -> bool:
    """A sum is the quick check; large finite numbers may overflow it."""
    return bool(a.sum().isfinite()) or bool(a.isfinite().all())


def describe(gradients: Sequence[Tensor], weights: Sequence[Tensor], names: Sequence[str]) -> str:
    """Which parameter is not finite: its weights, or else its gradient."""
    parts = [(f"weights of {name} are", a) for name, a in zip(names, weights, strict=True)]
    parts += [(f"gradient of {name} is", a) for name, a in zip(names, gradients, strict=True)]
    what, worst = next((what, a) for what, a in parts if not finite(a))
    return f"the {what} not finite ({int((~worst.isfinite()).sum())} of {worst.numel()} numbers)"
