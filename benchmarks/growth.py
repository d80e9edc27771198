"""Seconds and memory of a D-NASA step (update and exchange) as the problem grows.

    python -m benchmarks.growth [figure.png]

Against nodes (10 parameters each, ring and exponential graph), against parameters (8 nodes) and against runs side by side
(20 nodes x 100). Each point is a process of its own, so that its peak memory is its own.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CACHE = 32e6  # bytes: about where the last cache of a server's processor ends


def measure(kind: str, size: int) -> dict[str, float]:
    """One point, in this process."""
    from benchmarks.steppers import dnasa_stepper
    from dnasa import topology
    from dnasa.networks.simulated import connect

    cases: dict[str, Callable[[], tuple[Any, tuple[int, ...]]]] = {
        "ring": lambda: (topology.ring(size), (size, 10)),
        "exponential": lambda: (topology.exponential(size), (size, 10)),
        "parameters": lambda: (topology.ring(8), (8, size // 8)),
        "wide": lambda: (topology.ring(64), (64, size // 64)),
        "runs": lambda: (topology.ring(20), (size, 20, 100)),
    }
    graph, shape = cases[kind]()
    x: Any = np.ones((1, 1, *shape) if len(shape) == 2 else (1, *shape))
    if kind in ("parameters", "wide"):
        import torch

        x = torch.as_tensor(x, dtype=torch.float32)
    g = x + 1
    stepper = dnasa_stepper(connect(graph), x)
    for t in (1, 2):
        stepper.step((g,), t)
    calls, began = 0, time.perf_counter()
    while calls < 3 or (time.perf_counter() - began < 0.5 and calls < 1000):
        stepper.step((g,), 3 + calls)
        calls += 1
    seconds = (time.perf_counter() - began) / calls
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bytes_held = 8 * x.nbytes if isinstance(x, np.ndarray) else 8 * x.numel() * 4
    return {"size": size, "seconds": seconds, "peak": peak, "held": bytes_held}


def points(kind: str, sizes: list[int]) -> list[dict[str, float]]:
    rows = []
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.growth", "--point", kind, str(size)]
        rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        row = rows[-1]
        print(f"{kind:12s} {size:>11,}  {1e3 * row['seconds']:9.3f} ms  {row['peak'] / 1e9:5.2f} GB", flush=True)
    return rows


def draw(path: str, panels_of: list[tuple[str, dict[str, list[dict[str, float]]]]]) -> None:
    from dnasa.comparing.plots import legend_below, panels, save_figure

    figure, axes = panels(len(panels_of), width=4.4)
    for axis, (label, lines) in zip(axes[0], panels_of, strict=True):
        for name, rows in lines.items():
            sizes, seconds = [row["size"] for row in rows], [1e3 * row["seconds"] for row in rows]
            axis.loglog(sizes, seconds, "o-", label=name)
        axis.loglog(sizes, [seconds[-1] * size / sizes[-1] for size in sizes], "k:", label="linear")
        ends = [row["size"] for row in rows if row["held"] > CACHE]
        if ends:
            axis.axvline(ends[0], color="0.6", linestyle="--", linewidth=1)
            axis.text(ends[0], seconds[0], "32 MB held ", fontsize=7, color="0.4", ha="right")
        axis.set(xlabel=label, ylabel="milliseconds per step")
    legend_below(figure)
    save_figure(figure, path)


def main() -> None:
    nodes = [10, 100, 1000, 10_000, 100_000]
    rings, exponentials = points("ring", nodes), points("exponential", nodes)
    parameters = points("parameters", [10**k for k in range(3, 9)])
    runs = points("runs", [1, 10, 100, 1000])
    points("wide", [64_000_000])
    if len(sys.argv) > 1:
        draw(
            sys.argv[1],
            [
                ("nodes, 10 parameters each", {"ring": rings, "exponential graph": exponentials}),
                ("parameters in all, 8 nodes", {"ring": parameters}),
                ("runs side by side, 20 nodes x 100", {"ring": runs}),
            ],
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--point"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
