"""The update and exchange alone, 8 nodes on a ring or another graph, against the memory traffic they cannot avoid.

    python -m benchmarks.update [cpu | cuda] [dnasa | adanasa] [GRAPH]

D-NASA must read x, u, z, the gradient and the last gradient, and write x, u, z and the gradient: nine arrays of
nodes x parameters. AdaNASA must read x, y, z, m and the gradient, and write x, y, z and m: nine as well. The floor is a copy of
four arrays into four others, interleaved with the rest; on a GPU, "loads and stores" reads five arrays and writes four, after
D-NASA's norm. "Sequential" is the rule as it is written, "fused" what `solve` uses: the kernel in C, or on a GPU in Triton.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.steppers import make_rule, snapshot
from dnasa import topology
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Sequential
from dnasa.networks.simulated import connect
from dnasa.runs.timing import Timeline

SIZES = {"LeNet": 25_010, "10 million": 10_000_000, "92 million": 92_000_000}  # the last on a GPU only
NODES = 8
ARRAYS = {"copy": 8, "dnasa": 9, "adanasa": 9}


@torch.compile
def loads_and_stores(normalized: bool, x: Tensor, u: Tensor, z: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """What any program must read and write."""
    step = z / z.norm(dim=-1, keepdim=True) if normalized else z
    return x - step, u + g, z + v, g + 0


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


def measure(dim: int, device: str, calls: int, name: str = "dnasa", graph: str = "ring") -> dict[str, float]:
    start, g = (torch.randn(1, 1, NODES, dim, device=device) for _ in range(2))
    rule, network = make_rule(NODES, start, name), connect(topology.make(graph, NODES))
    sequential = Sequential(rule._replace(form=None), network, snapshot(rule, start.clone()), Timeline())
    fused = make_stepper([rule], [1], network, [snapshot(rule, start.clone())], Timeline())
    source, target = (torch.empty(4, NODES, dim, device=device).fill_(1.0) for _ in range(2))
    arrays = [start.clone() for _ in range(5 if device == "cuda" else 0)]
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        **({"loads and stores": lambda: loads_and_stores(name == "dnasa", *arrays)} if device == "cuda" else {}),
        "sequential": lambda: sequential.step((g,), 5),
        "fused": lambda: fused.step((g,), 5),
    }
    return times(works, device, calls)


def main(device: str = "cpu", rule: str = "dnasa", graph: str = "ring") -> None:
    for name, dim in [*SIZES.items()][: 3 if device == "cuda" else 2]:
        calls = 100 if device == "cuda" else 20 if dim < 1e6 else 1  # on a GPU, the first call of a batch waits for the CPU
        taken = measure(dim, device, calls, rule, graph)
        array = NODES * dim * 4
        copied = ARRAYS["copy"] * array / taken["copy"]
        print(f"{rule} on {device}, {graph} of {NODES} nodes x {dim:,} parameters ({name})")
        for kind, seconds in taken.items():
            rate = ARRAYS["copy" if kind == "copy" else rule] * array / seconds
            ratios = f"{seconds / taken['copy']:5.2f} times the copy, {100 * rate / copied:3.0f} % of its bandwidth"
            ratios += f", {taken['sequential'] / seconds:.1f} times as fast as the plain rule"
            print(f"  {kind:16s} {1e3 * seconds:9.3f} ms  {rate / 1e9:7.1f} GB/s  {ratios}")


if __name__ == "__main__":
    main(*sys.argv[1:])
