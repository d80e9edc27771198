"""The gradients of 8 nodes with their own weights against one ordinary forward/backward of the same samples.

    python -m benchmarks.supervised              # on a GPU: a residual net and a GPT in three precisions
    python -m benchmarks.supervised --quick      # small ones, on a CPU too

The ordinary one has shared weights and is measured eagerly and as a CUDA graph.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from dnasa.data import Dataset
from dnasa.problems import Supervised
from dnasa.problems.cuda_graphs import CudaGraphs
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import gpt, resnet

NODES = 8
PRECISIONS = ("float32", "TF32", "bfloat16")


def residual_net(quick: bool) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((1000, 3, 32, 32)).astype(np.float32)
    labels = generator.integers(0, 10, 1000)
    return {
        "model": partial(resnet, widths=(8, 16) if quick else (32, 64, 128)),
        "data": Dataset("images", inputs, labels, inputs[:10], labels[:10]),
        "batch": 4 if quick else 32,
    }


def character_gpt(quick: bool) -> dict[str, Any]:
    layers, width, heads, context = (2, 32, 2, 16) if quick else (6, 384, 6, 256)
    windows = sliding_window_view(np.random.default_rng(0).integers(0, 65, 10_000), context + 1)
    inputs, labels = windows[:, :-1], windows[:, 1:]
    return {
        "model": partial(gpt, 65, layers, width, heads, context),
        "data": Dataset("text", inputs, labels, inputs[:10], labels[:10]),
        "batch": 2 if quick else 8,
    }


CASES = {"residual net": residual_net, "GPT": character_gpt}


def make_problem(case: dict[str, Any], device: str, precision: str) -> Supervised:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "TF32"
    shards = np.array_split(np.arange(len(case["data"].labels)), NODES)
    autocast = "bfloat16" if precision == "bfloat16" else None
    return Supervised(**case, loss=cross_entropy, shards=shards, device=device, autocast=autocast, train_metrics=False)


def ordinary(problem: Supervised) -> Callable[[Tensor, Tensor], Tensor]:
    """All gradients of one model on the joint batch."""
    module, mixed = problem._seeded(0), problem.module.autocast
    parameters = list(module.parameters())

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(problem.device.type, torch.bfloat16, enabled=mixed):
            loss = cross_entropy(module(x), y)
        return torch.autograd.grad(loss, parameters)[0]

    return gradient


def ways(problem: Supervised) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured; captured in a CUDA graph where it says so."""
    x, y = problem.batch_of(torch.arange(NODES * problem.batch, device=problem.device))
    gradient = ordinary(problem)
    yield "ordinary, eager", partial(gradient, x, y)
    points, steps = problem.start(0).expand(1, 1, NODES, -1).contiguous(), count()

    def step() -> Tensor:
        return problem.gradient(points, range(NODES), [0], next(steps))

    if problem.device.type == "cpu":
        yield "8 nodes, one by one", step
        return
    yield "ordinary, CUDA graph", partial(CudaGraphs(gradient), x, y)
    yield "8 nodes, streams", step
    if not getattr(problem.executor, "capturable", True):
        print("    (not as a CUDA graph: it could not be captured)")


def milliseconds(step: Callable[[], object], limit: float) -> float:
    """Median of repeated measurements, within about `limit` seconds."""
    for _ in range(3):
        step()
    times: list[float] = []
    end = time.perf_counter() + limit
    while len(times) < 30 and (len(times) < 3 or time.perf_counter() < end):
        wait()
        began = time.perf_counter()
        for _ in range(3):
            step()
        wait()
        times.append((time.perf_counter() - began) / 3)
    return 1e3 * float(np.median(times))


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(name: str, precision: str, device: str, quick: bool) -> None:
    problem = make_problem(CASES[name](quick), device, precision)
    size = sum(int(np.prod(shape)) for _, shape in problem.layout)
    print(f"{name}, {size / 1e6:.1f} M parameters, {NODES} x {problem.batch} samples, {precision}")
    eager = captured = None
    for way, step in ways(problem):
        try:
            taken = milliseconds(step, 0.3 if quick else 1.0)
        except Exception as error:  # the other measurements are still of use
            print(f"  {way:24s} failed: {type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}")
            continue
        eager, captured = eager or taken, taken if way.endswith("graph") else captured
        against = f", {taken / captured:.2f} x the CUDA graph" if captured else ""
        print(f"  {way:24s} {taken:8.2f} ms, {taken / eager:.2f} x eager{against}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}")
    for name in CASES:
        for precision in PRECISIONS if device == "cuda" else PRECISIONS[:1]:
            try:
                measure(name, precision, device, quick)
            except Exception as error:  # the next case may work
                print(f"{name}, {precision} failed: {type(error).__name__}: {error}", flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
