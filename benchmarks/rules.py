"""The simulated step of every rule against D-NASA's, per array of state; and of several rules side by side against their sum.

    python -m benchmarks.rules

8 nodes on the exponential graph, gradients for free: a step is the rule and its exchange. Rules are measured alternately.
The floor moves the memory that a step cannot avoid: it reads the state and the gradients, and writes the state.
"""

import time

import numpy as np
import torch

from benchmarks.steppers import snapshot
from dnasa import topology
from dnasa.core import Layout, leaves, size
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper
from dnasa.networks.simulated import connect
from dnasa.rules.registry import RULES, groups, variants
from dnasa.runs.timing import Timeline

NODES, STEPS, ROUNDS = 8, 10, 15
COPY = "a copy"  # of one array
LAYOUTS: dict[str, Layout] = {"vector": (("a", (61_706,)),), "matrices": (("a", (200, 300)), ("b", (300,)))}


def stepper_of(name: str, layout: Layout) -> tuple[Stepper, int]:
    """And the number of arrays of the size of x in its state."""
    graph = topology.directed_exponential(NODES) if name in ("sgp", "push_dsgt") else topology.exponential(NODES)
    x = torch.ones(1, 1, NODES, size(layout), dtype=torch.float32)
    (group,) = groups(variants(name, [1e-3]), NODES, 10_000, x, layout)
    start = snapshot(group.rule, x)
    arrays = sum(part.shape[-1] == x.shape[-1] for part in leaves(start.state).values())
    return make_stepper([group.rule], [1], connect(graph), [start], Timeline()), arrays


def measure(layout: Layout) -> dict[str, tuple[float, int]]:
    """Milliseconds of a step, the median of all rounds, and the arrays of state."""
    made = {name: stepper_of(name, layout) for name in RULES}
    gradient = 0.1 * torch.randn(1, 1, NODES, size(layout))
    copies = torch.zeros(5, 2, *gradient.shape)
    times: dict[str, list[float]] = {name: [] for name in [*made, COPY]}
    for k in range(ROUNDS):
        for name, (stepper, _) in made.items():
            count = len(stepper.points(k * STEPS))
            began = time.perf_counter()
            for t in range(k * STEPS, (k + 1) * STEPS):
                stepper.step((gradient,) * count, t)
            times[name].append((time.perf_counter() - began) / STEPS)
        began = time.perf_counter()
        for _ in range(STEPS):
            copies[:, 0].copy_(copies[:, 1])
        times[COPY].append((time.perf_counter() - began) / STEPS / len(copies))
    arrays = {name: state for name, (_, state) in made.items()} | {COPY: 1}
    return {name: (1e3 * float(np.median(some)), arrays[name]) for name, some in times.items()}


def side_by_side(names: list[str], layout: Layout) -> float:
    """Milliseconds of a step of all these rules together, the median of all rounds."""
    x = torch.ones(len(names), 1, NODES, size(layout), dtype=torch.float32)
    rules = [groups(variants(name, [1e-3]), NODES, 10_000, x[:1], layout)[0].rule for name in names]
    starts = [snapshot(rule, x[:1]) for rule in rules]
    stepper = make_stepper(rules, [1] * len(rules), connect(topology.exponential(NODES)), starts, Timeline())
    gradient, times = 0.1 * torch.randn_like(x), []
    for k in range(ROUNDS):
        began = time.perf_counter()
        for t in range(k * STEPS, (k + 1) * STEPS):
            stepper.points(t)
            stepper.step((gradient,), t)
        times.append((time.perf_counter() - began) / STEPS)
    return 1e3 * float(np.median(times))


def growth(layout: Layout) -> None:
    """Rules with one gradient per step; linear growth is a ratio that does not grow with their number."""
    names = ["dsgd", "dsgt", "dnasa", "dmsgd", "dadam", "mt", "gt_adam", "gt_nsgdm"]
    alone = {name: side_by_side([name], layout) for name in names}
    for count in (2, 4, 8):
        together, separate = side_by_side(names[:count], layout), sum(alone[name] for name in names[:count])
        print(f"  {count} rules side by side: {together:.2f} ms, {together / separate:.2f} times the sum of each alone")


def main() -> None:
    for title, layout in LAYOUTS.items():
        table = measure(layout)
        base, (copy, _) = table["dnasa"][0] / table["dnasa"][1], table.pop(COPY)
        print(f"{title}, {size(layout):,} parameters; D-NASA {table['dnasa'][0]:.2f} ms")
        for name, (ms, arrays) in table.items():
            floor = copy * (2 * arrays + 1 + (name == "gt_hsgd")) / 2
            times = f"{ms / arrays / base:.2f} times D-NASA's per array, {ms / floor:.2f} times the floor"
            print(f"  {name:10s} {ms:7.2f} ms, {arrays} arrays, {times}")
    growth(LAYOUTS["vector"])


if __name__ == "__main__":
    main()
