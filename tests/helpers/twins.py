"""The methods once more, in matrix form: what the rules are compared with.

They are written from the equations and not from the rules; `checked` of each rule says what else it was compared with.

Every twin takes the gradients `g(X, t)` of all nodes at the rows of X, W, the starting rows X and the schedules, and yields X
after each step. Where a rule has a proximal step, so has its twin: `prox(X, step)`, of each row.
"""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from dnasa.core import Array, Prox, Schedule, no_prox

Gradient = Callable[[Array, int], Array]
Twin = Iterator[Array]


def lengths(Z: Array) -> Array:
    """The norm of each row; 1 where it is 0."""
    norms = np.array([[np.sqrt(sum(value * value for value in row))] for row in Z])
    return np.where(norms > 0, norms, 1.0)


def dsgd(g: Gradient, W: Array, X: Array, eta: Schedule, prox: Prox = no_prox) -> Twin:
    """Also epfml/quasi-global-momentum, decentralized_sgd: torch's SGD at each node, then a weighted average."""
    for t in count():
        X = W @ prox(X - eta(t) * g(X, t), eta(t))
        yield X


def dmsgd(g: Gradient, W: Array, X: Array, eta: Schedule, beta: float = 0.9) -> Twin:
    """Also epfml/quasi-global-momentum, decentralized_sgd with momentum."""
    M = 0 * X
    for t in count():
        M = beta * M + g(X, t)
        X = W @ (X - eta(t) * M)
        yield X


def dadam(
    g: Gradient,
    W: Array,
    X: Array,
    eta: Schedule,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
) -> Twin:
    """With a decay, AdamW."""
    M, V = 0 * X, 0 * X
    for t in count(1):
        G = g(X, t - 1)
        M, V = beta1 * M + (1 - beta1) * G, beta2 * V + (1 - beta2) * G * G
        step = M / (1 - beta1**t) / (np.sqrt(V / (1 - beta2**t)) + eps)
        X = W @ (X - eta(t - 1) * decay * X - eta(t - 1) * step)
        yield X


def adanasa(
    g: Gradient,
    W: Array,
    X: Array,
    eta: Schedule,
    alpha: Schedule,
    beta: Schedule,
    decay: float = 0.0,
    hidden: tuple[int, int] = (0, 0),
    every: int = 1,
) -> Twin:
    """As docs/adanasa.md prints it; with a decay, x shrinks once its gradient is taken.

    The first numbers of x may be a hidden matrix.
    """
    d, size = X.shape[1], hidden[0] * hidden[1]
    k = max(1, d // 10_000)
    start, Y, Z, M, S, A = X[:, ::k], 0 * X, 0 * X, 0 * X, 0 * X[:, ::k], 0 * X[:, :1]
    r = 1e-4 * (1 + np.linalg.norm(X, axis=1, keepdims=True))

    def h(G: Array) -> Array:
        """Divided by the root of the second moments, at most 1."""
        largest = np.maximum(np.sqrt(M), abs(G))
        return G / np.where(largest > 0, largest, 1)

    for t in count():
        G = g(X, t)
        step = d ** (-1 / 3) * np.minimum(eta(t), 6 * r)
        X = X - step * decay * X
        corrected, Z_old = G + Y - Z, Z
        Z = (1 - alpha(t)) * Z + alpha(t) * G
        Y = Y + Z - Z_old
        M = beta(t) * M + (1 - beta(t)) * G**2
        own = (G / np.sqrt(np.where(M > 0, M, 1)))[:, ::k]
        tracked = h(corrected)[:, ::k]
        S = S + step * tracked / lengths(tracked)
        A = A + step / lengths(tracked) * (own * (start - X[:, ::k])).sum(1, keepdims=True)
        direction = h(Y)
        for row, v in zip(direction, Y + alpha(t) * (G - Z), strict=True):
            row[:size] = 0.2 * max(hidden) ** 0.5 * msgn(v[:size].reshape(hidden)).ravel() if size else row[:0]
        X = X - step * direction
        if (t + 1) % every == 0:
            Y, A = W @ Y, W @ A
            X = W @ X if every == 1 or (t + 1) % (2 * every) == 0 else X
            M, Z = (W @ M, Z) if every == 1 else (M, Y)
            told = lengths(S) > 0.1 * d ** (-1 / 3) * 6 * r  # shorter sums have canceled
            r = np.where(told, np.maximum(r, np.sqrt(k) * A / lengths(S)), r)
        yield X


def msgn(v: Array, iterations: int = 5) -> Array:
    """Iterations of Muon's polynomial on the singular values."""
    U, S, V = np.linalg.svd(v, full_matrices=False)
    S = S / np.sqrt((S**2).sum())
    for _ in range(iterations):
        S = 3.4445 * S - 4.775 * S**3 + 2.0315 * S**5
    return (U * S) @ V


def d2(g: Gradient, W: Array, X: Array, eta: Schedule) -> Twin:
    X_old, step_old = X, 0 * X
    for t in count():
        step = eta(t) * g(X, t)
        X_old, X, step_old = X, W @ (2 * X - X_old - step + step_old), step
        yield X


def dsgt(g: Gradient, W: Array, X: Array, eta: Schedule, prox: Prox = no_prox) -> Twin:
    """Algorithm 1 of the D-NASA paper from its first line: u and v start at the gradient of the starting point.

    Also team-decent/decent-bench, ATC_Tracking.
    """
    U = V = g(X, 0)
    for t in count():
        X = W @ prox(X - eta(t) * U, eta(t))
        yield X
        V, V_old = g(X, t + 1), V
        U = W @ U + V - V_old


def adgt(g: Gradient, W: Array, X: Array, prox: Prox = no_prox) -> Twin:
    """In stepsizes: a tiny move, then at most the neighbors' mean limit and the node's own, and ten times the longest one."""

    def norms(Z: Array) -> Array:
        return np.linalg.norm(Z, axis=1, keepdims=True)

    G = U = g(X, 0)
    step = sent = 1e-6 * (1 + norms(X)) / norms(U)
    moves = [0 * norms(X)]
    for t in count(1):
        X_old, X = X, W @ prox(X - step * U, step)
        yield X
        G_old, G = G, g(X, t)
        U = W @ U + G - G_old
        limit = norms(X - X_old) / (2 * norms(G - G_old))
        sent = np.minimum(1.2 / np.sqrt(W @ (1 / sent**2)), limit) if t > 1 else limit
        moves.append(norms(X - X_old))
        step = np.minimum(sent, np.maximum(1e-6 * (1 + norms(X)), 10 * np.max(moves, 0)) / norms(U))


def averaged(g: Gradient, W: Array, X: Array, alpha: Schedule, moved: Callable[[Array, Array, int], Array]) -> Twin:
    U, V, Z = 0 * X, 0 * X, 0 * X
    for t in count():
        G = g(X, t)
        U, V = U + G - V, G
        X, U, Z = W @ moved(X, Z, t), W @ U, W @ ((1 - alpha(t)) * Z + alpha(t) * U)
        yield X


def dasagt(
    g: Gradient, W: Array, X: Array, eta: Schedule, alpha: Schedule, prox: Prox | None = None, decay: float = 0.0
) -> Twin:
    """With a proximal step, Prox-DASA-GT: y = prox(x - gamma z), x + alpha (y - x)."""

    def moved(X: Array, Z: Array, t: int) -> Array:
        if prox is None:
            return X - eta(t) * decay * X - eta(t) * Z
        gamma = eta(t) / alpha(t)
        return X + alpha(t) * (prox(X - gamma * Z, gamma) - X)

    return averaged(g, W, X, alpha, moved)


def dnasa(g: Gradient, W: Array, X: Array, eta: Schedule, alpha: Schedule, prox: Prox = no_prox, decay: float = 0.0) -> Twin:
    def moved(X: Array, Z: Array, t: int) -> Array:
        gamma = eta(t) * (abs(Z).max(1, keepdims=True) > 0) / lengths(Z)
        return prox(X - eta(t) * decay * X - gamma * Z, gamma)

    return averaged(g, W, X, alpha, moved)


def gt_hsgd(g: Gradient, W: Array, X: Array, eta: Schedule, beta: Schedule, prox: Prox = no_prox) -> Twin:
    """As OscarYau525/docom, GtHsgd (of the DoCoM paper), whose first estimate can be over several batches."""
    V, V_old, Y, X_old = g(X, 0), 0 * X, 0 * X, X
    for t in count():
        if t > 0:
            V_old, V = V, g(X, t) + (1 - beta(t)) * (V - g(X_old, t))
        Y = W @ (Y + V - V_old)
        X_old, X = X, W @ prox(X - eta(t) * Y, eta(t))
        yield X


def kgt(g: Gradient, W: Array, X: Array, eta: Schedule, K: int = 10) -> Twin:
    """Round by round, with c = 0 at the start and eta_s = 1; the local iterates are yielded, too.

    Also team-decent/decent-bench, KGT, whose default is eta_s = 0.01.
    """
    C = 0 * X
    for begin in count(0, K):
        Z = 0 * X
        for t in range(begin, begin + K):
            corrected = g(X, t) + C
            X, Z = X - eta(t) * corrected, Z + corrected / K
            if t < begin + K - 1:
                yield X
        C, X = C - Z + W @ Z, W @ X
        yield X


def demuon(g: Gradient, W: Array, X: Array, eta: Schedule, theta: float = 0.2, iterations: int = 5) -> Twin:
    """A matrix of two rows and a vector of two."""

    def direction(v: Array) -> Array:
        return np.concatenate([msgn(v[:-2].reshape(2, -1), iterations).ravel(), v[-2:] / np.linalg.norm(v[-2:])])

    M, V = 0 * X, 0 * X
    for t in count():
        M_old, M = M, (1 - theta) * M + theta * g(X, t)
        V = W @ (V + M - M_old)
        X = W @ (X - eta(t) * np.array([direction(v) for v in V]))
        yield X


def sgp(g: Gradient, P: Array, X: Array, eta: Schedule) -> Twin:
    """It yields z = x/w."""
    w = np.ones((len(P), 1))
    for t in count():
        X, w = P @ (X - eta(t) * g(X / w, t)), P @ w
        yield X / w


def push_dsgt(g: Gradient, C: Array, U: Array, eta: Schedule) -> Twin:
    """Push-DIGing in the letters of its authors; y starts at the gradient of the start. Also MidoAssran/maopy, PushDIGing."""
    v, Y = np.ones((len(C), 1)), g(U, 0)
    G = Y
    for t in count():
        U, v = C @ (U - eta(t) * Y), C @ v
        yield U / v
        G, G_old = g(U / v, t + 1), G
        Y = C @ Y + G - G_old


def qg_dsgdm(g: Gradient, W: Array, X: Array, eta: Schedule, beta: float = 0.9, mu: float = 0.9) -> Twin:
    """Also the authors' code, epfml/quasi-global-momentum, decentralized_qg_sgd without its Nesterov option."""
    M = 0 * X
    for t in count():
        X_old, X = X, W @ (X - eta(t) * (beta * M + g(X, t)))
        M = mu * M + (1 - mu) * (X_old - X) / eta(t)
        yield X


def mt(g: Gradient, W: Array, X: Array, eta: Schedule, beta: float = 0.9) -> Twin:
    """Also the authors' code, yukiTakezawa/MomentumTracking, without its L2 penalty and from u = c = 0."""
    U, C = 0 * X, 0 * X
    for t in count():
        U = beta * U + g(X, t)
        X, C = W @ X - eta(t) * (U - C), W @ (C - U) + U
        yield X


def gt_nsgdm(g: Gradient, W: Array, X: Array, eta: Schedule, beta: Schedule) -> Twin:
    V, Y = 0 * X, 0 * X
    for t in count():
        V_old, V = V, beta(t) * V + (1 - beta(t)) * g(X, t)
        Y = W @ (Y + V - V_old)
        X = W @ (X - eta(t) * Y / lengths(Y))
        yield X


def edm(g: Gradient, W: Array, X: Array, eta: Schedule, beta: float = 0.9) -> Twin:
    """In one line, without psi: x+ = W[2x - x_old - eta m + eta_old m_old]; the first step is W[x - eta m]."""
    M, X_old, step_old = 0 * X, X, 0 * X
    for t in count():
        M = beta * M + (1 - beta) * g(X, t)
        X_old, X, step_old = X, W @ (2 * X - X_old - eta(t) * M + step_old), eta(t) * M
        yield X


def extra(g: Gradient, W: Array, X: Array, eta: Schedule) -> Twin:
    """With W~ = (I + W) / 2, from two iterates and two gradients.

    Also team-decent/decent-bench, EXTRA, which takes the old gradient on a new sample.
    """
    X_old, X, step_old = X, W @ X - eta(0) * g(X, 0), eta(0) * g(X, 0)
    for t in count(1):
        yield X
        step = eta(t) * g(X, t)
        X_old, X, step_old = X, X + W @ X - (X_old + W @ X_old) / 2 - step + step_old, step


def gt_adam(
    g: Gradient, W: Array, X: Array, eta: Schedule, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> Twin:
    """The tracker starts at the gradient of the starting point. OPT4SMART/disropt, GTAdamTorch, has sqrt(v) + eps."""
    M, V, S = 0 * X, 0 * X, g(X, 0)
    G = S
    for t in count():
        M, V = beta1 * M + (1 - beta1) * S, beta2 * V + (1 - beta2) * S**2
        X = W @ X - eta(t) * M / np.sqrt(V + eps)
        yield X
        G, G_old = g(X, t + 1), G
        S = W @ S + G - G_old


def trace(
    twin: Callable[..., Twin], g: Gradient, W: Array, start: Array, steps: int, *etas: Schedule, **options: object
) -> Array:
    """The iterates of all steps, from the same starting point at all nodes."""
    made = twin(g, W, np.tile(start, (len(W), 1)), *etas, **options)
    return np.array([X for _, X in zip(range(steps), made, strict=False)])
