"""D-NASA's update and exchange alone, 8 nodes on a ring, against the memory traffic they cannot avoid.

    python -m benchmarks.update [cpu | cuda]

A step must read x, u, z, the gradient and the last gradient, and write x, u and z: eight arrays of nodes x parameters. The
floor is a copy of four arrays into four others, timed in turns in the same run. "Plain" is the rule as it is written, "fused"
what `solve` uses.
"""

import statistics
import sys
import time

import torch

from dnasa import rules, topology
from dnasa.fused import Fused
from dnasa.networks.simulated import connect
from dnasa.stepping import InTurn
from dnasa.timing import Timeline

SIZES = {"LeNet": 25_010, "10 million": 10_000_000}
NODES = 8


def times(works: dict, device: str, calls: int, rounds: int = 9) -> dict[str, float]:
    """Median seconds per call, all in turns."""
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
    rule, network = rules.build(rules.variants("dnasa"), NODES, 1000, start), connect(topology.ring(NODES))
    fused, plain = (kind(rule, network, rule.init(start.clone()), Timeline()) for kind in (Fused, InTurn))
    source, target = (torch.empty(4, NODES, dim, device=device).fill_(1.0) for _ in range(2))
    works = {
        "copy": lambda: target.copy_(source),
        "fused": lambda: fused.step(g, 5),
        "plain": lambda: plain.step(g, 5),
    }
    return times(works, device, calls)


def main(device: str) -> None:
    for name, dim in SIZES.items():
        taken = measure(dim, device, calls=20 if dim < 1e6 or device == "cuda" else 1)
        print(f"{device}, {NODES} nodes x {dim:,} parameters ({name})")
        for kind in ("copy", "fused", "plain"):
            rate = 8 * NODES * dim * 4 / taken[kind] / 1e9
            print(
                f"  {kind:6s} {1e3 * taken[kind]:9.3f} ms  {rate:7.1f} GB/s  {taken[kind] / taken['copy']:5.2f} times the copy"
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
