"""How fast nodes agree through channels: averaging with late messages, and with CHOCO, over gamma and graphs.

`python -m benchmarks.channels` prints the factor by which the distance to the mean shrinks in a step; 1 and more diverges.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dnasa import topology
from dnasa.channels import compression, exchange
from dnasa.networks import simulated
from dnasa.randomness import Streams

NODES, STEPS = 8, 600
GRAPHS = ("ring", "complete", "exponential", "star", "path", "hypercube")
GAINS = (0.25, 0.5, 1.0, 2.0)
Step = Callable[[np.ndarray, int], np.ndarray]
STALE = (1, 3, 8, 16)
NAMES = ("topk:0.01", "topk:0.1", "4bit", "sign")


def factor(step: Step, y: np.ndarray) -> float:
    """The mean factor per step, until the nodes agree to ten digits or are far apart."""
    sizes = [distance(y)]
    for t in range(STEPS):
        y = step(y, t)
        sizes.append(distance(y))
        if not 1e-10 < sizes[-1] / sizes[0] < 1e10:
            break
    return float((sizes[-1] / sizes[0]) ** (1 / (len(sizes) - 1)))


def distance(y: np.ndarray) -> float:
    return float(np.linalg.norm(y - y.mean(0)))


def late(W: np.ndarray, stale: int, gain: float) -> Step:
    """`channels.faulty(stale=)` with another factor on late differences."""
    changes: list[np.ndarray] = []

    def step(y: np.ndarray, t: int) -> np.ndarray:
        ages = Streams("late").at(0, 0, t).integers(0, stale + 1, size=len(W))[:, None]
        changes.insert(0, gain * (W @ y - y))
        for age, change in enumerate(changes):
            arrived = (ages <= age) * change
            y, changes[age] = y + arrived, change - arrived
        del changes[stale:]
        return y

    return step


def compressed(name: str, graph: topology.Topology, gain: float) -> Step:
    default = compression(name).settings[1]
    channel = compression(f"{name},gamma={min(1.0, gain * default)}")
    network = simulated.connect(graph, channel=channel)
    memory: list[Any] = [()]

    def step(y: np.ndarray, t: int) -> np.ndarray:
        (mixed,), memory[0] = exchange(network, memory[0], (y,), t)
        return mixed

    return step


def main() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((NODES, 1000)) * np.exp(rng.standard_normal(1000))  # numbers of very different sizes
    print("factor per step, where gamma is its default times", *GAINS, sep="  ")
    for name in GRAPHS:
        graph = topology.make(name, NODES)
        W = graph.sparse.toarray()
        for stale in STALE:
            each = (factor(late(W, stale, gain * (1 + stale) ** -0.5), y[:, :4]) for gain in GAINS)
            print(f"{name:12} up to {stale:2} late  ", *(f"{value:.3f}" for value in each))
        for how in NAMES:
            print(f"{name:12} {how:12}  ", *(f"{factor(compressed(how, graph, gain), y):.3f}" for gain in GAINS))


if __name__ == "__main__":
    main()
