"""Gradients and weights that are not finite, found before they are sent and named by parameter."""

from collections.abc import Sequence

from torch import Tensor


def finite(a: Tensor) -> bool:
    """A sum is the quick check; large finite numbers may overflow it."""
    return bool(a.sum().isfinite()) or bool(a.isfinite().all())


def describe(gradients: Sequence[Tensor], weights: Sequence[Tensor], names: Sequence[str]) -> str:
    """Which parameter is not finite: its weights, or else its gradient."""
    for what, tensors in (("weights", weights), ("gradient", gradients)):
        for name, a in zip(names, tensors, strict=True):
            bad = int((~a.isfinite()).sum())
            if bad:
                return f"the {what} of {name} {'are' if what == 'weights' else 'is'} not finite ({bad} of {a.numel()} numbers)"
    return "the weight decay is not finite"
