"""Proximal operators of h, for min f + h: `prox(x, step)` is argmin_y h(y) + |y - x|^2 / (2 step), of each row of x.

`x` has shape (..., d); `step` is a number, or an array that broadcasts with x. A projection does not depend on the step.
"""

from typing import Any

import numpy as np

from dnasa.arrays import like, maximum, minimum, nonzero, norm
from dnasa.core import Array, InputError, Prox, positive


def l1(weight: Any) -> Prox:
    """h = weight |x|_1, or sum_j weight_j |x_j|: soft thresholding."""
    weights = _numbers("The weight of l1", weight)
    if not (weights >= 0).all():
        raise InputError("The weight of l1 must not be negative.")

    def prox(x: Array, step: Any) -> Array:
        bound = step * like(weights, x)
        return x - maximum(minimum(x, bound), -bound)

    return prox


def box(low: Any, high: Any) -> Prox:
    """low <= x <= high, numbers or one for each coordinate; -inf and inf are no bound: projection."""
    lower, upper = _numbers("low", low), _numbers("high", high)
    if not (lower <= upper).all():
        raise InputError("The box is empty: low must not be above high.")

    def project(x: Array, step: Any) -> Array:
        return minimum(maximum(x, like(lower, x)), like(upper, x))

    return project


def ball(radius: float) -> Prox:
    """|x| <= radius: projection."""
    positive("radius", radius)

    def project(x: Array, step: Any) -> Array:
        length = norm(x)
        return x * minimum(radius / nonzero(length), length**0)

    return project


def checked(prox: Prox) -> Prox:
    """With an error message where it does not return an array like x."""

    def applied(x: Array, step: Any) -> Array:
        y = prox(x, step)
        if type(y) is not type(x) or y.shape != x.shape or y.dtype != x.dtype:
            kind = f"{tuple(y.shape)}, {y.dtype}" if hasattr(y, "dtype") else type(y).__name__
            raise InputError(f"prox must return an array like x, {tuple(x.shape)}, {x.dtype}; it returned {kind}.")
        return y

    return applied


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, or one for each coordinate.") from None
    if numbers.ndim > 1 or np.isnan(numbers).any():
        raise InputError(f"{name} must be a number, or one for each coordinate.")
    return numbers
