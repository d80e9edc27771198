"""D-NASA's update and exchange alone, 8 nodes on a ring, against the memory traffic they cannot avoid.

    python -m benchmarks.update [cpu | cuda]

A step must read x, u, z, the gradient and the last gradient, and write x, u and z: eight arrays of nodes x parameters. The
floor is a copy of four arrays into four others, interleaved with the rest. "Sequential" is the rule as it is written,
"fused" what `solve` uses.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.steppers import make_rule, snapshot
from dnasa import topology
from dnasa.engine.fused import Fused
from dnasa.engine.steppers import Sequential
from dnasa.networks.simulated import connect
from dnasa.runs.timing import Timeline

SIZES = {"LeNet": 25_010, "10 million": 10_000_000}
NODES = 8


def times(works: dict[str, Callable[[], object]], device: str, calls: int, rounds: int = 9) -> dict[str, float]:
    """Median seconds per call of each, interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                work()
            if device == "cuda":
                torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - began) / calls)
    return {name: statistics.median(each) for name, each in taken.items()}


def measure(dim: int, device: str, calls: int) -> dict[str, float]:
    start, g = (torch.randn(1, 1, NODES, dim, device=device) for _ in range(2))
    rule, network = make_rule(NODES, start), connect(topology.ring(NODES))
    fused = Fused(rule, network, snapshot(rule, start.clone()), Timeline())
    sequential = Sequential(rule, network, snapshot(rule, start.clone()), Timeline())
    source, target = (torch.empty(4, NODES, dim, device=device).fill_(1.0) for _ in range(2))
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "fused": lambda: fused.step((g,), 5),
        "sequential": lambda: sequential.step((g,), 5),
    }
    return times(works, device, calls)


def main(device: str) -> None:
    for name, dim in SIZES.items():
        taken = measure(dim, device, calls=20 if dim < 1e6 or device == "cuda" else 1)
        print(f"{device}, {NODES} nodes x {dim:,} parameters ({name})")
        for kind, seconds in taken.items():
            rate = 8 * NODES * dim * 4 / seconds / 1e9
            print(
                f"  {kind:10s} {1e3 * seconds:9.3f} ms  {rate:7.1f} GB/s  {seconds / taken['copy']:5.2f} times the copy"
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
