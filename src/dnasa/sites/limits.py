"""How large the numbers of another site may be, compared with this site's own."""

import math
from collections.abc import Sequence

import numpy as np

from dnasa.core import Array

FACTOR, DIVERGED = 1e9, 1e15  # some rules send squares of gradients, which differ by a factor of 1e5 between sites


def wrong(arrived: Sequence[Array], own: Sequence[Array]) -> str:
    """What is wrong with these messages, where this site sent `own`; empty if nothing is.

    The root mean square of a message may be `FACTOR` times this site's own, or times 1 if that is less. While this site's own
    numbers diverge, nothing is said of the others'.
    """
    for stack, sent in zip(arrived, own, strict=True):
        if not is_floating(stack):
            continue
        size, mine = root_mean_square(stack), root_mean_square(sent)
        if size <= FACTOR * max(1.0, mine) or not mine <= DIVERGED:
            continue
        if not math.isfinite(size):
            return "it sent numbers that are not finite"
        return f"it sent numbers of size {size:.1e}, those of this site have {mine:.1e}"
    return ""


def is_floating(a: Array) -> bool:
    return a.dtype.kind == "f" if isinstance(a, np.ndarray) else bool(a.is_floating_point())


def root_mean_square(a: Array) -> float:
    """In one pass over memory; if squares overflow, once more in double precision."""
    flat = a.reshape(-1)
    count = max(1, flat.shape[0])
    if isinstance(flat, np.ndarray):
        square = float(np.vdot(flat, flat))
        return math.sqrt((square if math.isfinite(square) else float(np.square(flat, dtype=np.float64).sum())) / count)
    flat = flat.float() if flat.dtype.itemsize == 2 else flat
    square = float(flat.dot(flat))
    return math.sqrt((square if math.isfinite(square) else float(flat.double().square().sum())) / count)
