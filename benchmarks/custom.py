"""Your own gradients: a step of `solve` against the same method written by hand, and how much longer it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.custom

30 nodes on a ring (or `NODES=8`),
a new sample for every node and step: D-NASA on robust regression with d = 10, and D-SGT with a box in the
plane, where a step has little to compute. Each pair of loops runs in turns, several times; the ratio is that of the shortest
times. A loop by hand has one generator for all nodes, no evaluation and no checks.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dnasa
from dnasa.problems import Custom

NODES = int(os.environ.get("NODES", "30"))
DIM, STEPS, ROUNDS = 10, 1000, 7
THETA = np.random.default_rng(0).normal(size=(NODES, DIM))
THETA_TORCH = torch.from_numpy(THETA)
GRAPH = dnasa.topology.ring(NODES)
W = np.asarray(GRAPH.weights)
ROWS, LIMIT = 50, 0.5
POINTS = np.random.default_rng(1).normal(size=(NODES, ROWS, 2))


# ---------------------------------------------------------------- the gradients


def of_a_node(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    a = rng.standard_normal(DIM)
    residual = a @ (x - THETA[node]) + 0.1 * rng.standard_normal()
    return 2 * residual / (1 + residual**2) * a


def of_all(x: np.ndarray, samples: np.ndarray, nodes: Any = slice(None)) -> np.ndarray:
    a, noise = samples[..., :-1], samples[..., -1:]
    residual = (a * (x - THETA[nodes])).sum(-1, keepdims=True) + 0.1 * noise
    return 2 * residual / (1 + residual**2) * a


def batched(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    return of_all(x, rngs.standard_normal(DIM + 1), nodes)


def toward(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The gradient of a robust distance: 0.5 log(1 + |x - point|^2)."""
    r = x - points
    return r / (1 + (r * r).sum(-1, keepdims=True))


def planar_of_a_node(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    return toward(x, POINTS[node, rng.integers(ROWS)])


def planar_row(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    return toward(x, POINTS[nodes, rngs.integers(ROWS)])


def planar_noise(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    return toward(x, POINTS[nodes, 0] + rngs.standard_normal(2))


def torch_loss(x: torch.Tensor, node: int, rng: np.random.Generator) -> torch.Tensor:
    a = torch.from_numpy(rng.standard_normal(DIM))
    return torch.log1p((a @ (x - THETA_TORCH[node]) + 0.1 * rng.standard_normal()) ** 2)


def by_autograd(x: torch.Tensor, node: int, rng: np.random.Generator) -> torch.Tensor:
    point = x.detach().requires_grad_()
    return torch.autograd.grad(torch_loss(point, node, rng), point)[0]


# ---------------------------------------------------------------- by hand


def schedules(t: int) -> tuple[float, float]:
    return NODES**0.25 / (t + 1) ** 0.75, min(1.0, (NODES / (t + 1)) ** 0.5)


def by_hand(gradients: Callable[[np.ndarray], np.ndarray], steps: int) -> np.ndarray:
    x, u, v, z = np.zeros((4, NODES, DIM))
    for t in range(steps):
        eta, alpha = schedules(t)
        g = gradients(x)
        length = np.linalg.norm(z, axis=1, keepdims=True)
        x = W @ (x - eta * z / np.where(length > 0, length, 1))
        u = u + g - v
        z = W @ ((1 - alpha) * z + alpha * u)
        u = W @ u
        v = g
    return x


def plain_loop(steps: int) -> None:
    rng = np.random.default_rng(0)
    by_hand(lambda x: np.array([of_a_node(x[i], i, rng) for i in range(NODES)]), steps)


def vectorised_loop(steps: int) -> None:
    rng = np.random.default_rng(0)
    by_hand(lambda x: of_all(x, rng.standard_normal((NODES, DIM + 1))), steps)


def torch_loop(steps: int) -> None:
    rng, weights = np.random.default_rng(0), torch.from_numpy(W)
    x, u, v, z = torch.zeros(4, NODES, DIM, dtype=torch.float64)
    for t in range(steps):
        eta, alpha = schedules(t)
        g = torch.stack([by_autograd(x[i], i, rng) for i in range(NODES)])
        x = weights @ (x - eta * torch.nn.functional.normalize(z, dim=1))
        u = u + g - v
        z = weights @ ((1 - alpha) * z + alpha * u)
        u = weights @ u
        v = g


def planar_loop(gradients: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Callable[[int], None]:
    """D-SGT with a box; `gradients` takes the points and the generator of all nodes."""

    def loop(steps: int) -> None:
        rng = np.random.default_rng(0)
        x, u, v = np.zeros((3, NODES, 2))
        for t in range(steps):
            eta = 0.1 / (t + 1) ** 0.5
            g = gradients(x, rng)
            u = u + g - v
            x = W @ np.clip(x - eta * u, -LIMIT, LIMIT)
            u = W @ u
            v = g

    return loop


def planar_nodes(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array([planar_of_a_node(x[i], i, rng) for i in range(NODES)])


def planar_rows(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return toward(x, POINTS[np.arange(NODES), rng.integers(ROWS, size=NODES)])


def planar_noises(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return toward(x, POINTS[:, 0] + rng.standard_normal((NODES, 2)))


# ---------------------------------------------------------------- measurement


def solved(problem: Custom, rule: str = "dnasa", **options: Any) -> Callable[[int], Any]:
    return lambda steps: dnasa.solve(problem, GRAPH, rule, steps=steps, progress=False, **options)


def planar(gradient: Callable[..., np.ndarray], batched: bool = True) -> Callable[[int], Any]:
    problem = Custom(gradient, np.zeros(2), batched=batched, prox=dnasa.problems.prox.box(-LIMIT, LIMIT))
    return solved(problem, "dsgt", eta=0.1)


CASES = {
    "NumPy, node by node": (plain_loop, solved(Custom(of_a_node, np.zeros(DIM))), 1.5),
    "NumPy, batched": (vectorised_loop, solved(Custom(batched, np.zeros(DIM), batched=True)), 1.5),
    "torch, autograd": (torch_loop, solved(Custom.from_loss(torch_loss, np.zeros(DIM))), 2.0),
    "plane, node by node": (planar_loop(planar_nodes), planar(planar_of_a_node, batched=False), 1.5),
    "plane, batched": (planar_loop(planar_noises), planar(planar_noise), 1.5),
    "plane, batched, rows": (planar_loop(planar_rows), planar(planar_row), 1.5),
}


def compare(name: str, steps: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of a step by hand and with `solve`, the shortest of several rounds."""
    works = CASES[name][:2]
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for times, work in zip(seconds, works, strict=True):
            began = time.perf_counter()
            work(steps)
            times.append(time.perf_counter() - began)
    hand, ours = (1e3 * min(times) / steps for times in seconds)
    return hand, ours


def main() -> None:
    print(f"{'ms a step':22s} {'by hand':>8s} {'solve':>8s} {'ratio':>6s} {'target':>7s}")
    for name, (_, _, target) in CASES.items():
        hand, ours = compare(name, STEPS if "torch" not in name else STEPS // 5, ROUNDS)
        print(f"{name:22s} {hand:8.3f} {ours:8.3f} {ours / hand:6.2f} {target:7.1f}")


if __name__ == "__main__":
    main()
