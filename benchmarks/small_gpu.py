"""Small problems on a GPU: a D-NASA step of 8 nodes x 32 rows, recorded as CUDA graphs and launched piece by piece.

    python -m benchmarks.small_gpu

Both ways in turns; the GPU's own time for the same kernels is what no way of launching them can beat.
"""

import statistics
import time
from unittest import mock

import torch

from benchmarks import networks
from dnasa import fused
from dnasa.problems import classification

STEPS = 300


def step_of(name: str, small: int):
    """A step with graphs (as by default) or, with `small=0`, without."""
    with mock.patch.object(fused, "SMALL", small):
        return networks.dnasa_step(networks.task(name, "cuda"), 1)


def seconds(step, small: int) -> float:
    with mock.patch.object(classification, "SMALL", small):
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / STEPS


def busy(step, small: int) -> float:
    """Seconds of the GPU's own work in a step."""
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with mock.patch.object(classification, "SMALL", small), torch.profiler.profile(activities=kinds) as profile:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 20 / 1e6


def main() -> None:
    for name in ("a9a network", "LeNet"):
        ways = {"recorded": classification.SMALL, "piece by piece": 0}
        steps = {way: step_of(name, small) for way, small in ways.items()}
        taken = {way: [] for way in ways}
        for _ in range(5):
            for way, small in ways.items():
                taken[way].append(seconds(steps[way], small))
        for way, small in ways.items():
            whole, own = statistics.median(taken[way]), busy(steps[way], small)
            print(f"{name}, {way}: {1e6 * whole:.0f} us a step, of which the GPU is busy {1e6 * own:.0f} us")


if __name__ == "__main__":
    main()
