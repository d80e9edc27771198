"""The methods once more, node by node: what the rules are compared with.

They are written from the equations and not from the rules; `checked` of each rule says what else it was compared with.

Every twin takes a gradient oracle `gradient(i, x_i, t)`, W, the start and the schedules, and returns all iterates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnasa.core import Array, Schedule


def average(W: Array, values: Sequence[Any] | np.ndarray, i: int) -> Any:
    return sum(W[i, j] * values[j] for j in range(len(values)))


def dsgd(gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    trace = []
    for t in range(steps):
        half = [x[i] - eta(t) * gradient(i, x[i], t) for i in range(n)]
        x = [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def dmsgd(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, *, beta: float = 0.9
) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    m = [np.zeros_like(start) for _ in W]
    trace = []
    for t in range(steps):
        m = [beta * m[i] + gradient(i, x[i], t) for i in range(n)]
        half = [x[i] - eta(t) * m[i] for i in range(n)]
        x = [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def dadam(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
) -> list[Array]:
    """Adam at each node, coordinate by coordinate, with t = 1 in the first step; with a decay, AdamW."""
    n, d = len(W), len(start)
    x = [start.copy() for _ in W]
    m, v = np.zeros((n, d)), np.zeros((n, d))
    trace = []
    for t in range(1, steps + 1):
        half = [start.copy() for _ in W]
        for i in range(n):
            g = gradient(i, x[i], t - 1)
            for k in range(d):
                m[i, k] = beta1 * m[i, k] + (1 - beta1) * g[k]
                v[i, k] = beta2 * v[i, k] + (1 - beta2) * g[k] * g[k]
                m_hat, v_hat = m[i, k] / (1 - beta1**t), v[i, k] / (1 - beta2**t)
                half[i][k] = x[i][k] - eta(t - 1) * decay * x[i][k] - eta(t - 1) * m_hat / (np.sqrt(v_hat) + eps)
        x = [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def adanasa(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    alpha: Schedule,
    beta: Schedule,
    *,
    decay: float = 0.0,
) -> list[Array]:
    """As docs/adanasa.md prints it, coordinate by coordinate; with a decay, x shrinks once its gradient is taken."""
    n, d = len(W), len(start)
    every = max(1, d // 10_000)
    sample = range(0, d, every)
    x = [start.copy() for _ in W]
    y, z, m = np.zeros((n, d)), np.zeros((n, d)), np.zeros((n, d))
    S, A, r = np.zeros((n, d)), np.zeros(n), np.full(n, 1e-4 * (1 + np.linalg.norm(start)))
    trace = []
    for t in range(steps):
        half = [start.copy() for _ in W]
        for i in range(n):
            g = gradient(i, x[i], t)
            step = d ** (-1 / 3) * min(eta(t), 6 * r[i])
            x[i] = x[i] - step * decay * x[i]
            h, c = np.zeros(d), np.zeros(d)
            for k in range(d):
                old, corrected = z[i, k], g[k] + y[i, k] - z[i, k]
                z[i, k] = (1 - alpha(t)) * old + alpha(t) * g[k]
                y[i, k] += z[i, k] - old
                m[i, k] = beta(t) * m[i, k] + (1 - beta(t)) * g[k] ** 2
                if y[i, k]:
                    half[i][k] = x[i][k] - step * y[i, k] / max(np.sqrt(m[i, k]), abs(y[i, k]))
                else:
                    half[i][k] = x[i][k]
                if k in sample and g[k]:
                    h[k] = g[k] / max(np.sqrt(m[i, k]), abs(g[k]))
                if k in sample and corrected:
                    c[k] = corrected / max(np.sqrt(m[i, k]), abs(corrected))
            length, corrected_length = np.linalg.norm(h), np.linalg.norm(c)
            for k in sample:
                S[i, k] += step * c[k] / corrected_length
                A[i] += step * h[k] / length * (start[k] - x[i][k])
        x = [average(W, half, i) for i in range(n)]
        y, m = (np.array([average(W, values, i) for i in range(n)]) for values in (y, m))
        r = np.maximum(r, np.sqrt(every) * A / np.linalg.norm(S, axis=1))
        trace.append(np.array(x))
    return trace


def d2(gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    x_old: list[Array] = []
    g_old: list[Array] = []
    trace = []
    for t in range(steps):
        g = [gradient(i, x[i], t) for i in range(n)]
        if t == 0:
            half = [x[i] - eta(0) * g[i] for i in range(n)]
        else:
            half = [2 * x[i] - x_old[i] - eta(t) * g[i] + eta(t - 1) * g_old[i] for i in range(n)]
        x_old, g_old, x = x, g, [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def dsgt(gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    """Algorithm 1 of the D-NASA paper from its first line: u and v start at the gradient of the starting point."""
    n, x = len(W), [start.copy() for _ in W]
    v = [gradient(i, x[i], 0) for i in range(n)]
    u, trace = list(v), []
    for t in range(steps):
        moved = [x[j] - eta(t) * u[j] for j in range(n)]
        x = [average(W, moved, i) for i in range(n)]
        trace.append(np.array(x))
        v_new = [gradient(i, x[i], t + 1) for i in range(n)]
        u = [average(W, u, i) + v_new[i] - v[i] for i in range(n)]
        v = v_new
    return trace


def _averaged(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    alpha: Schedule,
    direction: Callable[[Array], Array],
    decay: float,
) -> list[Array]:
    n, d = len(W), len(start)
    x = [start.copy() for _ in W]
    u, v, z = ([np.zeros(d) for _ in range(n)] for _ in range(3))
    trace = []
    for t in range(steps):
        x_half = [x[i] - eta(t) * decay * x[i] - eta(t) * direction(z[i]) for i in range(n)]
        v_new = [gradient(i, x[i], t) for i in range(n)]
        u_half = [u[i] + v_new[i] - v[i] for i in range(n)]
        z_half = [(1 - alpha(t)) * z[i] + alpha(t) * u_half[i] for i in range(n)]
        x = [average(W, x_half, i) for i in range(n)]
        u = [average(W, u_half, i) for i in range(n)]
        z = [average(W, z_half, i) for i in range(n)]
        v = v_new
        trace.append(np.array(x))
    return trace


def dasagt(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    alpha: Schedule,
    *,
    decay: float = 0.0,
) -> list[Array]:
    return _averaged(gradient, W, start, steps, eta, alpha, lambda z: z, decay)


def dnasa(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    alpha: Schedule,
    *,
    decay: float = 0.0,
) -> list[Array]:
    def direction(z: Array) -> Array:
        length = np.sqrt(sum(value * value for value in z))
        return z / length if length > 0 else np.zeros_like(z)

    return _averaged(gradient, W, start, steps, eta, alpha, direction, decay)


def gt_hsgd(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, beta: Schedule
) -> list[Array]:
    """As published, with the first estimate on one batch and x_old at hand."""
    n, x = len(W), [start.copy() for _ in W]
    v_old = [np.zeros_like(start) for _ in W]
    y = [np.zeros_like(start) for _ in W]
    v = [gradient(i, x[i], 0) for i in range(n)]
    x_old, trace = x, []
    for t in range(steps):
        if t > 0:
            v_old, v = v, [gradient(i, x[i], t) + (1 - beta(t)) * (v[i] - gradient(i, x_old[i], t)) for i in range(n)]
        tracked = [y[j] + v[j] - v_old[j] for j in range(n)]
        y = [average(W, tracked, i) for i in range(n)]
        moved = [x[j] - eta(t) * y[j] for j in range(n)]
        x_old, x = x, [average(W, moved, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def kgt(gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, K: int = 10) -> list[Array]:
    """Round by round, with c = 0 at the start and eta_s = 1; the trace has the local iterates, too."""
    n, x = len(W), [start.copy() for _ in W]
    c = [np.zeros_like(start) for _ in W]
    trace = []
    for begin in range(0, steps, K):
        local, directions = list(x), [np.zeros_like(start) for _ in W]
        for t in range(begin, min(begin + K, steps)):
            for i in range(n):
                corrected = gradient(i, local[i], t) + c[i]
                local[i] = local[i] - eta(t) * corrected
                directions[i] = directions[i] + corrected
            trace.append(np.array(local))
        if begin + K <= steps:
            z = [directions[i] / K for i in range(n)]
            c = [c[i] - z[i] + average(W, z, i) for i in range(n)]
            x = [average(W, local, i) for i in range(n)]
            trace[-1] = np.array(x)
    return trace


def demuon(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    *,
    theta: float = 0.2,
    iterations: int = 5,
) -> list[Array]:
    """A matrix of two rows and a vector of two; iterations of Muon's polynomial on the singular values."""
    n, x = len(W), [start.copy() for _ in W]
    m, v = np.zeros((n, len(start))), np.zeros((n, len(start)))

    def msgn(matrix: Array) -> Array:
        U, S, V = np.linalg.svd(matrix, full_matrices=False)
        S = S / np.sqrt((S**2).sum())
        for _ in range(iterations):
            S = 3.4445 * S - 4.775 * S**3 + 2.0315 * S**5
        return U @ np.diag(S) @ V

    trace = []
    for t in range(steps):
        m_new = np.array([(1 - theta) * m[i] + theta * gradient(i, x[i], t) for i in range(n)])
        tracked = v + m_new - m
        v, m = np.array([average(W, tracked, i) for i in range(n)]), m_new
        moved = []
        for i in range(n):
            matrix, vector = msgn(v[i][:-2].reshape(2, -1)), v[i][-2:] / np.linalg.norm(v[i][-2:])
            moved.append(x[i] - eta(t) * np.concatenate([matrix.ravel(), vector]))
        x = [average(W, moved, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def sgp(gradient: Callable[..., Array], P: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    """The trace has z = x/w."""
    n, x, w = len(P), [start.copy() for _ in P], [1.0 for _ in P]
    z, trace = list(x), []
    for t in range(steps):
        half = [x[i] - eta(t) * gradient(i, z[i], t) for i in range(n)]
        x = [average(P, half, i) for i in range(n)]
        w = [average(P, w, i) for i in range(n)]
        z = [x[i] / w[i] for i in range(n)]
        trace.append(np.array(z))
    return trace


def push_dsgt(gradient: Callable[..., Array], C: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    """Push-DIGing in the letters of its authors; y starts at the gradient of the start."""
    n, u, v = len(C), [start.copy() for _ in C], [1.0 for _ in C]
    x = list(u)
    g = [gradient(i, x[i], 0) for i in range(n)]
    y, trace = list(g), []
    for t in range(steps):
        moved = [u[j] - eta(t) * y[j] for j in range(n)]
        u = [average(C, moved, i) for i in range(n)]
        v = [average(C, v, i) for i in range(n)]
        x = [u[i] / v[i] for i in range(n)]
        trace.append(np.array(x))
        g_new = [gradient(i, x[i], t + 1) for i in range(n)]
        y = [average(C, y, i) + g_new[i] - g[i] for i in range(n)]
        g = g_new
    return trace


def qg_dsgdm(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    *,
    beta: float = 0.9,
    mu: float = 0.9,
) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    m = [np.zeros_like(start) for _ in W]
    trace = []
    for t in range(steps):
        half = [x[i] - eta(t) * (beta * m[i] + gradient(i, x[i], t)) for i in range(n)]
        x_new = [average(W, half, i) for i in range(n)]
        d = [(x[i] - x_new[i]) / eta(t) for i in range(n)]
        m = [mu * m[i] + (1 - mu) * d[i] for i in range(n)]
        x = x_new
        trace.append(np.array(x))
    return trace


def mt(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, *, beta: float = 0.9
) -> list[Array]:
    """From u = c = 0."""
    n, x = len(W), [start.copy() for _ in W]
    u, c = ([np.zeros_like(start) for _ in W] for _ in range(2))
    trace = []
    for t in range(steps):
        u = [beta * u[i] + gradient(i, x[i], t) for i in range(n)]
        difference = [c[i] - u[i] for i in range(n)]
        x = [average(W, x, i) - eta(t) * (u[i] - c[i]) for i in range(n)]
        c = [average(W, difference, i) + u[i] for i in range(n)]
        trace.append(np.array(x))
    return trace


def gt_nsgdm(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, beta: Schedule
) -> list[Array]:
    n, x = len(W), [start.copy() for _ in W]
    v, y = ([np.zeros_like(start) for _ in W] for _ in range(2))
    trace = []
    for t in range(steps):
        v_new = [beta(t) * v[i] + (1 - beta(t)) * gradient(i, x[i], t) for i in range(n)]
        half = [y[i] + v_new[i] - v[i] for i in range(n)]
        v, y = v_new, [average(W, half, i) for i in range(n)]
        half = [x[i] - eta(t) * y[i] / np.sqrt(sum(value * value for value in y[i])) for i in range(n)]
        x = [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def edm(
    gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule, *, beta: float = 0.9
) -> list[Array]:
    """In one line, without psi: x+ = W[2x - x_old - eta m + eta_old m_old]; the first step is W[x - eta m]."""
    n, x = len(W), [start.copy() for _ in W]
    m = [np.zeros_like(start) for _ in W]
    x_old: list[Array] = []
    trace = []
    for t in range(steps):
        m_old, m = m, [beta * m[i] + (1 - beta) * gradient(i, x[i], t) for i in range(n)]
        if t == 0:
            half = [x[i] - eta(0) * m[i] for i in range(n)]
        else:
            half = [2 * x[i] - x_old[i] - eta(t) * m[i] + eta(t - 1) * m_old[i] for i in range(n)]
        x_old, x = x, [average(W, half, i) for i in range(n)]
        trace.append(np.array(x))
    return trace


def extra(gradient: Callable[..., Array], W: Array, start: Array, steps: int, eta: Schedule) -> list[Array]:
    """With W~ = (I + W) / 2, from two iterates and two gradients."""
    n, x = len(W), [start.copy() for _ in W]
    half = (np.eye(n) + W) / 2
    x_old: list[Array] = []
    g_old: list[Array] = []
    trace = []
    for t in range(steps):
        g = [gradient(i, x[i], t) for i in range(n)]
        if t == 0:
            x_new = [average(W, x, i) - eta(0) * g[i] for i in range(n)]
        else:
            correction = [average(half, x_old, i) - eta(t - 1) * g_old[i] for i in range(n)]
            x_new = [x[i] + average(W, x, i) - correction[i] - eta(t) * g[i] for i in range(n)]
        x_old, g_old, x = x, g, x_new
        trace.append(np.array(x))
    return trace


def gt_adam(
    gradient: Callable[..., Array],
    W: Array,
    start: Array,
    steps: int,
    eta: Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> list[Array]:
    """Coordinate by coordinate; the tracker starts at the gradient of the starting point."""
    n, d = len(W), len(start)
    x = [start.copy() for _ in W]
    g = [gradient(i, x[i], 0) for i in range(n)]
    s, trace = list(g), []
    m, v = np.zeros((n, d)), np.zeros((n, d))
    for t in range(steps):
        x_new = [average(W, x, i) for i in range(n)]
        for i in range(n):
            for k in range(d):
                m[i, k] = beta1 * m[i, k] + (1 - beta1) * s[i][k]
                v[i, k] = beta2 * v[i, k] + (1 - beta2) * s[i][k] ** 2
                x_new[i][k] -= eta(t) * m[i, k] / np.sqrt(v[i, k] + eps)
        x = x_new
        trace.append(np.array(x))
        g_new = [gradient(i, x[i], t + 1) for i in range(n)]
        s = [average(W, s, i) + g_new[i] - g[i] for i in range(n)]
        g = g_new
    return trace
