"""The rules against published code: the same problem, the same W and the same stepsize give the same iterates.

Each function below is the update of a public repository, written down again from what its code does. They are in matrix form,
row i for node i, and step t uses sample t. Where the published code differs, the docstring says how.
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


# ---------------------------------------------------------------- decent-bench


def atc_tracking(gradient: Gradient) -> list[Array]:
    """team-decent/decent-bench, ATC_Tracking."""
    x, g, out = start(), gradient(start(), 0), []
    y = g
    for k in range(STEPS):
        x = W @ (x - ETA * y)
        new = gradient(x, k + 1)
        y, g = W @ y + new - g, new
        out.append(x)
    return out


def exact_diffusion(gradient: Gradient, weights: Array) -> list[Array]:
    """team-decent/decent-bench, ED: it mixes with (I + W) / 2, which is what it is given here."""
    x, out = start(), []
    y, y_new = x, x - ETA * gradient(x, 0)
    for k in range(STEPS):
        x = weights @ (x + y_new - y)
        y, y_new = y_new, x - ETA * gradient(x, k + 1)
        out.append(x)
    return out


def extra(gradient: Gradient) -> list[Array]:
    """team-decent/decent-bench, EXTRA. It takes the gradient at the last iterate a second time: where gradients are
    stochastic, on another sample than the first time, unlike the rule here and unlike the paper's recursion."""
    x_old = start()
    g_old = gradient(x_old, 0)
    mixed_old = W @ x_old
    x = mixed_old - ETA * g_old
    out = [x]
    for k in range(1, STEPS):
        g, mixed = gradient(x, k), W @ x
        x, x_old = x + mixed - 0.5 * x_old - 0.5 * mixed_old - ETA * (g - g_old), x
        g_old, mixed_old = g, mixed
        out.append(x)
    return out


def kgt(gradient: Gradient, local_steps: int) -> list[Array]:
    """team-decent/decent-bench, KGT: c = 0 at the start; its default eta_s = 0.01 is 1 here."""
    x, c, out = start(), np.zeros((NODES, DIM)), []
    for begin in range(0, STEPS, local_steps):
        local = x
        for t in range(begin, begin + local_steps):
            local = local - ETA * (gradient(local, t) + c)
        z = (x - local) / (local_steps * ETA)
        x = W @ (x - local_steps * ETA * z)
        c = c - z + W @ z
        out.append(x)
    return out


# ---------------------------------------------------------------- authors' repositories


def momentum_tracking(gradient: Gradient, beta: float = 0.9) -> list[Array]:
    """yukiTakezawa/MomentumTracking, MTOptimizer, without its fixed L2 penalty of 0.001. It begins with a sum over all nodes,
    from which u = c = (g - mean(g)) / (1 - beta); here u = c = 0."""
    x, out = start(), []
    u = c = np.zeros((NODES, DIM))
    for t in range(STEPS):
        g = gradient(x, t)
        u = beta * u + g
        x = W @ x - ETA * (u - c)
        c = W @ (c - u) + u
        out.append(x)
    return out


def quasi_global(gradient: Gradient, beta: float = 0.9, factor: float = 0.1) -> list[Array]:
    """epfml/quasi-global-momentum, decentralized_qg_sgd without its Nesterov option: mu = 1 - factor."""
    x, m, out = start(), np.zeros((NODES, DIM)), []
    for t in range(STEPS):
        new = W @ (x - ETA * (beta * m + gradient(x, t)))
        m = (1 - factor) * m + factor * (x - new) / ETA
        x = new
        out.append(x)
    return out


def sgd(gradient: Gradient, momentum: float) -> list[Array]:
    """epfml/quasi-global-momentum, decentralized_sgd: torch's SGD at each node, then a weighted average of the parameters."""
    x, buffer, out = start(), np.zeros((NODES, DIM)), []
    for t in range(STEPS):
        buffer = momentum * buffer + gradient(x, t)
        x = W @ (x - ETA * buffer)
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


def push_diging(gradient: Gradient) -> list[Array]:
    """MidoAssran/maopy, PushDIGing."""
    x, w, out = start(), np.ones((NODES, 1)), []
    tracker = previous = gradient(x, 0)
    for k in range(STEPS):
        x = x - ETA * tracker
        x, tracker, w = P @ x, P @ tracker, P @ w
        g = gradient(x / w, k + 1)
        tracker, previous = tracker + g - previous, g
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


def gt_hsgd(gradient: Gradient, beta: float) -> list[Array]:
    """OscarYau525/docom, GtHsgd (of the DoCoM paper, not of the method's authors): the first estimate there is over
    `initial_batch_num` batches, here over one."""
    x, v_old, tracker, out = start(), np.zeros((NODES, DIM)), np.zeros((NODES, DIM)), []
    v = gradient(x, 0)
    x_old = x
    for t in range(STEPS):
        if t > 0:
            v_old, v = v, gradient(x, t) - (1 - beta) * gradient(x_old, t) + (1 - beta) * v
        x_old = x
        tracker = W @ (tracker + v - v_old)
        x = W @ (x - ETA * tracker)
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


def gt_adam(gradient: Gradient, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> list[Array]:
    """OPT4SMART/disropt, GTAdamTorch: there sqrt(v) + eps; here sqrt(v + eps). Its cap of 1e6 on v is never reached."""
    x, g, out = start(), gradient(start(), 0), []
    d, m, v = g, np.zeros((NODES, DIM)), np.zeros((NODES, DIM))
    for k in range(STEPS):
        m, v = beta1 * m + (1 - beta1) * d, np.minimum(beta2 * v + (1 - beta2) * d**2, 1e6)
        x = W @ x - ETA * m / np.sqrt(v + eps)
        new = gradient(x, k + 1)
        d, g = W @ d + new - g, new
        out.append(x)
    return out


# ---------------------------------------------------------------- comparisons

CONSTANT: Any = schedules.constant(ETA)
AVERAGED = (schedules.constant(0.2 * ETA), schedules.constant(0.2))
SAME: dict[str, tuple[Callable[[Gradient], list[Array]], Callable[[], Rule]]] = {
    "dsgd: epfml": (lambda g: sgd(g, 0.0), lambda: rules.dsgd(CONSTANT)),
    "dmsgd: epfml": (lambda g: sgd(g, 0.9), lambda: rules.dmsgd(CONSTANT)),
    "dadam: epfml": (adam, lambda: rules.dadam(CONSTANT)),
    "dasagt: authors, with u in z": (lambda g: prox_dasa_gt(g, ETA, 0.2), lambda: rules.dasagt(*AVERAGED)),
    "sgp: authors": (gradient_push, lambda: rules.sgp(CONSTANT)),
    "push_dsgt: maopy": (push_diging, lambda: rules.push_dsgt(CONSTANT)),
    "dsgt: decent-bench": (atc_tracking, lambda: rules.dsgt(CONSTANT)),
    "d2: decent-bench": (lambda g: exact_diffusion(g, W), lambda: rules.d2(CONSTANT)),
    "edm without momentum: decent-bench": (lambda g: exact_diffusion(g, W), lambda: rules.edm(CONSTANT, beta=0.0)),
    "extra: decent-bench, gradients kept": (extra, lambda: rules.extra(CONSTANT)),
    "mt: authors, from zero": (momentum_tracking, lambda: rules.mt(CONSTANT)),
    "qg_dsgdm: authors": (quasi_global, lambda: rules.qg_dsgdm(CONSTANT)),
    "d2: epfml": (d2, lambda: rules.d2(CONSTANT)),
    "mt without momentum: epfml": (diging, lambda: rules.mt(CONSTANT, beta=0.0)),
    "gt_hsgd: docom": (lambda g: gt_hsgd(g, 0.2), lambda: rules.gt_hsgd(CONSTANT, schedules.constant(0.2))),
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
    "gt_adam: disropt, eps inside the root": (gt_adam, lambda: rules.gt_adam(CONSTANT)),
}


@pytest.mark.parametrize("name", SAME)
def test_the_rule_gives_the_iterates_of_published_code(name: str) -> None:
    published, rule = SAME[name]
    tolerance = 1e-5 if "demuon" in name else 1e-10  # 1e-7 in the norm
    for actual, expected in zip(ours(rule(), quadratic()), published(quadratic()), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def test_k_gt_gives_the_iterates_of_decent_bench_at_its_exchanges() -> None:
    actual = ours(rules.kgt(CONSTANT, local_steps=5), quadratic())[4::5]
    for a, b in zip(actual, kgt(quadratic(), 5), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)
