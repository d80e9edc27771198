"""Your own gradients: a step of `solve` against the same method written by hand, and how much longer it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.custom

D-NASA, 30 nodes on a ring, d = 10, robust regression with a new sample for every node and step. Each pair of loops runs
in turns, several times; the ratio is that of the medians. A loop by hand has one generator for all nodes, no evaluation
and no checks.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dnasa
from dnasa.problems import Custom

NODES, DIM, STEPS, ROUNDS = 30, 10, 1000, 7
THETA = np.random.default_rng(0).normal(size=(NODES, DIM))
THETA_TORCH = torch.from_numpy(THETA)
GRAPH = dnasa.topology.ring(NODES)
W = np.asarray(GRAPH.weights)


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


def torch_loss(x: torch.Tensor, node: int, rng: np.random.Generator) -> torch.Tensor:
    a = torch.from_numpy(rng.standard_normal(DIM))
    return torch.log1p((a @ (x - THETA_TORCH[node]) + 0.1 * rng.standard_normal()) ** 2)


def by_autograd(x: torch.Tensor, node: int, rng: np.random.Generator) -> torch.Tensor:
    point = x.detach().requires_grad_()
    return torch.autograd.grad(torch_loss(point, node, rng), point)[0]


# ---------------------------------------------------------------- D-NASA by hand


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


# ---------------------------------------------------------------- measurement


def solved(problem: Custom) -> Callable[[int], Any]:
    return lambda steps: dnasa.solve(problem, GRAPH, steps=steps, progress=False)


CASES = {
    "NumPy, node by node": (plain_loop, solved(Custom(of_a_node, np.zeros(DIM))), 1.5),
    "NumPy, batched": (vectorised_loop, solved(Custom(batched, np.zeros(DIM), batched=True)), 1.5),
    "torch, autograd": (torch_loop, solved(Custom.from_loss(torch_loss, np.zeros(DIM))), 2.0),
}


def compare(name: str, steps: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of a step by hand and with `solve`, medians of several rounds."""
    works = CASES[name][:2]
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for times, work in zip(seconds, works, strict=True):
            began = time.perf_counter()
            work(steps)
            times.append(time.perf_counter() - began)
    hand, ours = (1e3 * statistics.median(times) / steps for times in seconds)
    return hand, ours


def main() -> None:
    print(f"{'ms a step':22s} {'by hand':>8s} {'solve':>8s} {'ratio':>6s} {'target':>7s}")
    for name, (_, _, target) in CASES.items():
        hand, ours = compare(name, STEPS if "torch" not in name else STEPS // 5, ROUNDS)
        print(f"{name:22s} {hand:8.3f} {ours:8.3f} {ours / hand:6.2f} {target:7.1f}")


if __name__ == "__main__":
    main()
