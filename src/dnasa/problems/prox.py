"""Proximal operators of h, for min f + h: `prox(x, step)` is argmin_y h(y) + |y - x|^2 / (2 step), of each row of x.

`x` has shape (..., d); `step` is a number, or an array that broadcasts with x. A projection does not depend on the step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnasa.arrays import adds_up, checksum, like, maximum, minimum, moderate, nonzero, norm
from dnasa.checks import UserCode, nodes_text, positive
from dnasa.core import Array, InputError, Prox
from dnasa.problems.problem import as_array_like

__all__ = ["ball", "box", "l1"]


def l1(weight: Any) -> Prox:
    """h = weight |x|_1, or sum_j weight_j |x_j|: soft thresholding.

    Args:
        weight: A number, or one for each coordinate; not negative.
    """
    weights = _numbers("The weight of l1", weight)
    if not (weights >= 0).all():
        raise InputError("The weight of l1 must not be negative.")

    def prox(x: Array, step: Any) -> Array:
        bound = step * _like("The weight of l1", weights, x)
        return x - maximum(minimum(x, bound), -bound)

    return _named(prox, "l1", weights)


def box(low: Any, high: Any) -> Prox:
    """low <= x <= high: projection.

    Args:
        low: A number, or one for each coordinate; -inf is no bound.
        high: A number, or one for each coordinate; inf is no bound.
    """
    lower, upper = _numbers("low", low), _numbers("high", high)
    if not (lower <= upper).all():
        raise InputError("The box is empty: low must not be above high.")

    def project(x: Array, step: Any) -> Array:
        return minimum(maximum(x, _like("low", lower, x)), _like("high", upper, x))

    return _named(project, "box", lower, upper)


def ball(radius: float) -> Prox:
    """|x| <= radius: projection.

    Args:
        radius: The largest Euclidean norm of a row, above 0.
    """
    positive("radius", radius)

    def project(x: Array, step: Any) -> Array:
        length = norm(x)
        return x * minimum(radius / nonzero(length), length**0)

    return _named(project, "ball", np.asarray(radius))


def _named(prox: Prox, name: str, *numbers: np.ndarray) -> Prox:
    """The function under a name with its numbers, by which a resumed run recognizes it."""
    texts = (str(each) if each.ndim == 0 else checksum(each) for each in numbers)
    prox.__qualname__ = f"{name}({', '.join(texts)})"
    return prox


def checked(prox: Prox, nodes: Sequence[int] | None = None) -> Prox:
    """Wrap a prox with an error for a result that is no array of the shape of x, or not finite although x is.

    The rows of x belong to these nodes; without them, x is a mean iterate.
    """
    where = "the mean iterate" if nodes is None else nodes_text(nodes)

    def applied(x: Array, step: Any) -> Array:
        with UserCode(lambda: f"prox at {where}"):
            y = as_array_like(prox(x, step), x, f"result of prox at {where}")
        if adds_up(y):
            return y
        if (~(abs(y) < np.inf).all(-1) & moderate(x) & (abs(step + 0 * x) < np.inf).all(-1)).any():
            raise InputError(f"prox is not finite at {where} although x is: check the function prox.")
        return y

    return applied


def _like(name: str, numbers: np.ndarray, x: Array) -> Array:
    if numbers.ndim and len(numbers) != x.shape[-1]:
        raise InputError(
            f"{name} has {len(numbers)} numbers and x has {x.shape[-1]}: give one number, or one for each coordinate."
        )
    return like(numbers, x)


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.full((), np.nan)
    if numbers.ndim > 1 or np.isnan(numbers).any():
        raise InputError(f"{name} must be a number, or one for each coordinate.")
    return numbers
