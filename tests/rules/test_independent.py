"""The rules against published code: the same problem, the same W and the same stepsize give the same iterates.

Each function below is the update of a public repository, written down again from what its code does. They are in matrix form,
row i for node i, and step t uses sample t. Where the published code differs, the docstring says how. Published updates that
are the rule's equations line by line are its twin: `tests/helpers/twins.py` names them.
"""

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dnasa import rules, simulate, topology
from dnasa.core import Array, Rule
from dnasa.rules import schedules

NODES, DIM, STEPS = 6, 6, 30
GRAPH = topology.ring(NODES, weights="lazy")
W = GRAPH.sparse.toarray()
UNBALANCED = nx.DiGraph([*((i, (i + 1) % NODES) for i in range(NODES)), (0, 2), (0, 3), (1, 4)])
P = topology.from_networkx(UNBALANCED).sparse.toarray()  # column-stochastic
LAYOUT = (("matrix", (2, 2)), ("vector", (2,)))
ETA = 0.05
Gradient = Callable[[Array, int], Array]
START = np.random.default_rng(1).standard_normal(DIM)


def quadratic(noise: float = 0.3) -> Gradient:
    """g_i(x) = (1 + noise) A_i (x - b_i): one sample scales all gradients of a node and step, wherever they are taken."""
    random = np.random.default_rng(0)
    half = random.standard_normal((NODES, DIM, DIM)) / np.sqrt(DIM)
    A = half @ half.transpose(0, 2, 1) + 0.5 * np.eye(DIM)
    b = random.standard_normal((NODES, DIM))
    drawn = 1 + noise * random.standard_normal((STEPS + 1, NODES, 1))
    return lambda X, t: drawn[t] * np.einsum("nij,nj->ni", A, X - b)


def ours(rule: Rule, gradient: Gradient) -> list[Array]:
    def of_node(x: Array, node: int, t: int) -> Array:
        return gradient(np.tile(x, (NODES, 1)), t)[node]

    return list(simulate(rule, P if rule.needs.directed else W, of_node, START, STEPS)[1:])


def start() -> Array:
    return np.tile(START, (NODES, 1))


def exact_diffusion(gradient: Gradient) -> list[Array]:
    """team-decent/decent-bench, ED: it mixes with (I + W) / 2, which is W here."""
    x, out = start(), []
    y, y_new = x, x - ETA * gradient(x, 0)
    for k in range(STEPS):
        x = W @ (x + y_new - y)
        y, y_new = y_new, x - ETA * gradient(x, k + 1)
        out.append(x)
    return out


def adam(gradient: Gradient, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> list[Array]:
    """epfml/quasi-global-momentum, decentralized_adam: Adam at each node, then a weighted average of the parameters."""
    x, first, second, out = start(), np.zeros((NODES, DIM)), np.zeros((NODES, DIM)), []
    for index in range(STEPS):
        g = gradient(x, index)
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g * g
        denominator = np.sqrt(second) / np.sqrt(1 - beta2 ** (index + 1)) + eps
        x = W @ (x - ETA / (1 - beta1 ** (index + 1)) * first / denominator)
        out.append(x)
    return out


def prox_dasa_gt(gradient: Gradient, lr: float, alpha: float) -> list[Array]:
    """tesixiao/ProxDASA, PROXDASAGT without its regularizer: there u is tracked and exchanged, but z averages g; here u."""
    x, z, out = start(), np.zeros((NODES, DIM)), []
    u = previous = gradient(x, 0)
    for t in range(STEPS):
        y = x - lr * z
        g = gradient(x, t)
        x = (1 - alpha) * x + alpha * y
        u, previous = u + g - previous, g
        z = (1 - alpha) * z + alpha * u
        x, z, u = W @ x, W @ z, W @ u
        out.append(x)
    return out


def gradient_push(gradient: Gradient) -> list[Array]:
    """facebookresearch/stochastic_gradient_push, GossipDataParallel: the gradient at x/w, a step of x, then push-sum."""
    x, w, out = start(), np.ones((NODES, 1)), []
    for t in range(STEPS):
        debiased = x / w
        numerator = debiased * w - ETA * gradient(debiased, t)
        x, w = P @ numerator, P @ w
        out.append(x / w)
    return out


def d2(gradient: Gradient) -> list[Array]:
    """epfml/quasi-global-momentum, decentralized_d2: the newest stepsize multiplies both gradients; here each keeps its own."""
    x, out = start(), []
    x_old = g_old = np.empty(0)
    for t in range(STEPS):
        g = gradient(x, t)
        half = x - ETA * g if t == 0 else 2 * x - x_old - ETA * (g - g_old)
        x_old, g_old, x = x, g, W @ half
        out.append(x)
    return out


def diging(gradient: Gradient) -> list[Array]:
    """epfml/quasi-global-momentum, decentralized_sgd_with_gradient_tracking: x is mixed before the step, as in DIGing."""
    x, y, g_old, out = start(), np.zeros((NODES, DIM)), np.zeros((NODES, DIM)), []
    for t in range(STEPS):
        g = gradient(x, t)
        y = y + g - g_old
        x, y, g_old = W @ x - ETA * y, W @ y, g
        out.append(x)
    return out


def tracked_momentum(gradient: Gradient, direction: Callable[[Array], Array], momentum: float) -> list[Array]:
    """MozarTuring/DeMuon, the loop of its algorithms "demuon", "gt_nsgdm" and, with momentum 0 and no direction, "gt_dsgd"."""
    x, m, y, out = start(), np.zeros((NODES, DIM)), np.zeros((NODES, DIM)), []
    for t in range(STEPS):
        new = momentum * m + (1 - momentum) * gradient(x, t)
        y, m = W @ (y + new - m), new
        x = W @ (x - ETA * np.array([direction(row) for row in y]))
        out.append(x)
    return out


def of_whole_vector(y: Array) -> Array:
    return y / np.sqrt((y**2).sum())


def of_each_tensor(y: Array) -> Array:
    """Newton-Schulz for the matrix, in float64 (there in bfloat16, with 1e-7 added to the norm); unit length for the vector."""
    X = y[:4].reshape(2, 2)
    X = X / (np.linalg.norm(X) + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
    return np.concatenate([X.ravel(), y[4:] / np.linalg.norm(y[4:])])


CONSTANT: Any = schedules.constant(ETA)
AVERAGED = (schedules.constant(0.2 * ETA), schedules.constant(0.2))
SAME: dict[str, tuple[Callable[[Gradient], list[Array]], Callable[[], Rule]]] = {
    "dadam: epfml": (adam, lambda: rules.dadam(CONSTANT)),
    "dasagt: authors, with u in z": (lambda g: prox_dasa_gt(g, ETA, 0.2), lambda: rules.dasagt(*AVERAGED)),
    "sgp: authors": (gradient_push, lambda: rules.sgp(CONSTANT)),
    "d2: decent-bench": (exact_diffusion, lambda: rules.d2(CONSTANT)),
    "edm without momentum: decent-bench": (exact_diffusion, lambda: rules.edm(CONSTANT, beta=0.0)),
    "d2: epfml": (d2, lambda: rules.d2(CONSTANT)),
    "mt without momentum: epfml": (diging, lambda: rules.mt(CONSTANT, beta=0.0)),
    "gt_hsgd with beta = 1: DeMuon's gt_dsgd": (
        lambda g: tracked_momentum(g, lambda y: y, 0.0),
        lambda: rules.gt_hsgd(CONSTANT, schedules.constant(1.0)),
    ),
    "gt_nsgdm: DeMuon": (
        lambda g: tracked_momentum(g, of_whole_vector, 0.9),
        lambda: rules.gt_nsgdm(CONSTANT, schedules.constant(0.9)),
    ),
    "demuon: authors": (
        lambda g: tracked_momentum(g, of_each_tensor, 0.8),
        lambda: rules.demuon(CONSTANT, layout=LAYOUT, theta=0.2),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_rule_gives_the_iterates_of_published_code(name: str) -> None:
    published, rule = SAME[name]
    tolerance = 1e-5 if "demuon" in name else 1e-10  # 1e-7 in the norm
    for actual, expected in zip(ours(rule(), quadratic()), published(quadratic()), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
