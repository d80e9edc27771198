"""Speed and memory of the simulator: all of Figure 1, and a ring of 100,000 nodes.

python -m benchmarks.foundation
"""

import resource
import time

from dnasa import solve, topology
from dnasa.problems import LeastSquares
from dnasa.reproduce import figure


def seconds_per_step(nodes: int, steps: int) -> float:
    graph, problem = topology.ring(nodes), LeastSquares(dim=10)
    began = time.perf_counter()
    result = solve(problem, graph, steps=steps, evaluate=[steps])
    assert result.runs.diverged.isna().all()
    return (time.perf_counter() - began) / steps


def main() -> None:
    print("ring, least squares, d = 10, D-NASA, one step including its samples")
    for nodes in (1_000, 3_000, 10_000, 30_000, 100_000):
        each = seconds_per_step(nodes, steps=1000 if nodes == 100_000 else 320)
        print(f"  {nodes:>7,} nodes: {1e3 * each:8.3f} ms a step, {1e9 * each / nodes:6.1f} ns a node")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  1,000 steps of 100,000 nodes: {1000 * each:.0f} s, peak memory so far {peak:.2f} GB")
    began = time.perf_counter()
    figure("fig1")(progress=False)
    print(f"Figure 1 (3 sizes x 2 schedules x 10 seeds x 15,000 steps): {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
