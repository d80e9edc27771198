"""Small problems on a GPU: a D-NASA step of 8 nodes x 32 rows, with its gradient as a CUDA graph and kernel by kernel.

    python -m benchmarks.small_gpu

Measurements are interleaved; the GPU's own time for the same kernels is the lower bound.
"""

import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from benchmarks import networks
from dnasa.problems.stacked import classification

STEPS = 300


def seconds(step: Callable[[], None], small: int) -> float:
    with mock.patch.object(classification, "SMALL", small):
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / STEPS


def busy(step: Callable[[], None], small: int) -> float:
    """Seconds of the GPU's own work in a step."""
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with mock.patch.object(classification, "SMALL", small), torch.profiler.profile(activities=kinds) as profile:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 20 / 1e6


def main() -> None:
    for name in ("a9a network", "LeNet"):
        modes = {"CUDA graphs": classification.SMALL, "kernel by kernel": 0}
        steps = {mode: networks.dnasa_step(networks.make_problem(name, "cuda"), 1) for mode in modes}
        taken: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(5):
            for mode, small in modes.items():
                taken[mode].append(seconds(steps[mode], small))
        for mode, small in modes.items():
            whole, own = statistics.median(taken[mode]), busy(steps[mode], small)
            print(f"{name}, {mode}: {1e6 * whole:.0f} us a step, of which the GPU is busy {1e6 * own:.0f} us")


if __name__ == "__main__":
    main()
