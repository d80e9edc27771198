"""One D-NASA step of 8 nodes x batch 32 against one ordinary shared-weight forward/backward of the same 256 samples.

    python -m benchmarks.networks

Also: what adding runs to a batch costs. Medians, taken in turns in one run, so that a noisy machine is noisy for all.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from dnasa import rules, topology
from dnasa.data import from_arrays
from dnasa.experiments.tasks import classification
from dnasa.networks import simulated
from dnasa.stepping import stepping
from dnasa.timing import Timeline

NODES, BATCH = 8, 32


def task(name: str, device: str = "cpu"):
    generator = np.random.default_rng(0)
    shape, classes = ((123,), 2) if name == "a9a network" else ((1, 28, 28), 10)
    x, y = generator.standard_normal((4000, *shape)).astype(np.float32), np.arange(4000) % classes
    return classification(from_arrays(x, y), NODES, device=device)


def ordinary(problem) -> Callable[[], None]:
    model, x, y = problem.make(), problem.inputs[: NODES * BATCH], problem.labels[: NODES * BATCH]

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return step


def dnasa_step(problem, runs: int) -> Callable[[], None]:
    network = simulated.connect(topology.paper_random())
    x = torch.stack([problem.start(0).expand(NODES, -1)] * runs)[None]
    rule = rules.build(rules.variants("dnasa"), NODES, 1000, x)
    run, held = stepping(rule, network, rule.init(x), Timeline(), overlap=False), {"t": 1}

    def step() -> None:
        g = problem.gradient(run.x, network.here, range(runs), held["t"])
        run.step(g, held["t"])
        held["t"] += 1

    return step


def medians(*steps: Callable[[], None], rounds: int) -> list[float]:
    times = np.zeros((rounds, len(steps)))
    for step in steps:
        step()
    for i in range(rounds):
        for j, step in enumerate(steps):
            began = time.perf_counter()
            step()
            times[i, j] = time.perf_counter() - began
    return list(np.median(times, axis=0))


def main() -> None:
    print(f"{torch.get_num_threads()} threads")
    for name, rounds in (("a9a network", 300), ("LeNet", 25)):
        problem = task(name)
        plain, one, four = medians(ordinary(problem), dnasa_step(problem, 1), dnasa_step(problem, 4), rounds=rounds)
        print(
            f"{name}: ordinary {1e3 * plain:.2f} ms, D-NASA step {1e3 * one:.2f} ms: {one / plain:.2f} times; "
            f"4 runs side by side {1e3 * four:.2f} ms: {four / one:.2f} times one run"
        )


if __name__ == "__main__":
    main()
