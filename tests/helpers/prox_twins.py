"""The methods with a proximal step once more, node by node: what the rules are held against.

As in `twins`, with the proximal operator of one node's vector, `prox(x, step)`.
"""

from collections.abc import Callable

import numpy as np
from twins import average

from dnasa.core import Array, Prox, Schedule


def dsgd(gradient: Callable[..., Array], W: Array, start: Array, steps: int, prox: Prox, eta: Schedule) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    trace = []
    for t in range(steps):
        half = [prox(x[i] - eta(t) * gradient(i, x[i], t), eta(t)) for i in range(n)]
        x = [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def dsgt(gradient: Callable[..., Array], W: Array, start: Array, steps: int, prox: Prox, eta: Schedule) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    v = [gradient(i, x[i], 0) for i in range(n)]
    u, trace = list(v), []
    for t in range(steps):
        moved = [prox(x[j] - eta(t) * u[j], eta(t)) for j in range(n)]
        x = [average(W, moved, i) for i in range(n)]
        trace.append(np.array(x))
        v_new = [gradient(i, x[i], t + 1) for i in range(n)]
        u = [average(W, u, i) + v_new[i] - v[i] for i in range(n)]
        v = v_new
    return trace


def gt_hsgd(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, prox: Prox, eta: Schedule, beta: Schedule
) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    x_old = list(x)
    y, v = ([np.zeros_like(start) for _ in W] for _ in range(2))
    trace = []
    for t in range(steps):
        v_new = [
            gradient(i, x[i], t) + ((1 - beta(t)) * (v[i] - gradient(i, x_old[i], t)) if t > 0 else 0) for i in range(n)
        ]
        tracked = [y[i] + v_new[i] - v[i] for i in range(n)]
        y = [average(W, tracked, i) for i in range(n)]
        moved = [prox(x[i] - eta(t) * y[i], eta(t)) for i in range(n)]
        x_old, v = x, v_new
        x = [average(W, moved, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def _prox_averaged(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    alpha: Schedule,
    moved: Callable[[Array, Array, int], Array],
) -> list[Array]:
    n, d = len(W), len(start)
    x = [start.copy() for _ in W]
    u, v, z = ([np.zeros(d) for _ in range(n)] for _ in range(3))
    trace = []
    for t in range(steps):
        x_half = [moved(x[i], z[i], t) for i in range(n)]
        v_new = [gradient(i, x[i], t) for i in range(n)]
        u_half = [u[i] + v_new[i] - v[i] for i in range(n)]
        z_half = [(1 - alpha(t)) * z[i] + alpha(t) * u_half[i] for i in range(n)]
        x, u, z = ([average(W, half, i) for i in range(n)] for half in (x_half, u_half, z_half))
        v = v_new
        trace.append(np.array(x))
    return trace


def dasagt(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, prox: Prox, eta: Schedule, alpha: Schedule
) -> list[Array]:
    """Prox-DASA-GT: y = prox(x - gamma z), x + alpha (y - x)."""

    def moved(x: Array, z: Array, t: int) -> Array:
        gamma = eta(t) / alpha(t)
        return x + alpha(t) * (prox(x - gamma * z, gamma) - x)

    return _prox_averaged(gradient, W, start, steps, alpha, moved)


def dnasa(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, prox: Prox, eta: Schedule, alpha: Schedule
) -> list[Array]:
    def moved(x: Array, z: Array, t: int) -> Array:
        length = np.sqrt(sum(value * value for value in z))
        return prox(x - eta(t) * z / length, eta(t) / length) if length > 0 else prox(x, 0.0)

    return _prox_averaged(gradient, W, start, steps, alpha, moved)


def soft_threshold(weight: float) -> Prox:
    def prox(x: Array, step: float) -> Array:
        return np.array([np.sign(value) * max(abs(value) - step * weight, 0.0) for value in x])

    return prox
