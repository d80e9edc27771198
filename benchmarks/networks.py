"""One D-NASA step of 8 nodes x batch 32 against one ordinary shared-weight forward/backward of the same 256 samples.

    python -m benchmarks.networks

Also: what adding runs to a batch costs. Medians of interleaved measurements, so that noise affects all equally.
"""

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.steppers import dnasa_stepper
from dnasa import topology
from dnasa.data import from_arrays, partition
from dnasa.networks import simulated
from dnasa.problems import Classification
from dnasa.tasks.tasks import on_shards

NODES, BATCH = 8, 32


def make_problem(name: str, device: str = "cpu") -> Classification:
    generator = np.random.default_rng(0)
    shape, classes = ((123,), 2) if name == "a9a network" else ((1, 28, 28), 10)
    x, y = generator.standard_normal((4000, *shape)).astype(np.float32), np.arange(4000) % classes
    rows = from_arrays(x, y)
    problem: Any = on_shards(rows, partition("iid", rows.labels, NODES), device=device)
    return problem


def forward_backward(problem: Classification) -> Callable[[], None]:
    """An ordinary training step of one model, without an update."""
    model, x, y = problem.make(), problem.inputs.tensor[: NODES * BATCH], problem.labels.tensor[: NODES * BATCH]

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return step


def dnasa_step(problem: Classification, runs: int) -> Callable[[], None]:
    network = simulated.connect(topology.paper_random())
    x = torch.stack([problem.start(0).expand(NODES, -1)] * runs)[None]
    stepper, steps = dnasa_stepper(network, x), count(1)

    def step() -> None:
        t = next(steps)
        stepper.step((problem.gradient(stepper.x, network.local_nodes, range(runs), t),), t)

    return step


def medians(*steps: Callable[[], object], rounds: int) -> list[float]:
    """Median seconds of each, interleaved."""
    times = np.zeros((rounds, len(steps)))
    for step in steps:
        step()
    for i in range(rounds):
        for j, step in enumerate(steps):
            began = time.perf_counter()
            step()
            times[i, j] = time.perf_counter() - began
    return np.median(times, axis=0).tolist()


def main() -> None:
    print(f"{torch.get_num_threads()} threads")
    for name, rounds in (("a9a network", 300), ("LeNet", 25)):
        problem = make_problem(name)
        plain, one, four = medians(forward_backward(problem), dnasa_step(problem, 1), dnasa_step(problem, 4), rounds=rounds)
        print(
            f"{name}: forward/backward {1e3 * plain:.2f} ms, D-NASA step {1e3 * one:.2f} ms: {one / plain:.2f} times; "
            f"4 runs side by side {1e3 * four:.2f} ms: {four / one:.2f} times one run"
        )


if __name__ == "__main__":
    main()
