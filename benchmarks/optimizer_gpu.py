"""The optimizer's own work on a GPU against copying memory.

    python -m benchmarks.optimizer_gpu

A model of 100 million float32 parameters on a network of one node, so that nothing is exchanged. A step cannot avoid reading
x, u, v, z and g, and z once more for its norm before anything can be written, and writing x, u, v and z: ten arrays. "Copy" is
`b.copy_(a)` of one such array (two arrays of traffic), interleaved with the rest.
"""

from collections.abc import Callable

import torch
from torch import nn

import dnasa
from dnasa.optim import Decentralized
from dnasa.optim.compiled import InPlace

PARAMETERS, ARRAYS, ROUNDS = 100_000_000, 10, 30


def seconds(work: Callable[[], object], calls: int = 5) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def optimizer(fuse: bool) -> Decentralized:
    layers = [nn.Linear(10_000, 1_000, bias=False, device="cuda") for _ in range(PARAMETERS // 10_000_000)]
    opt = Decentralized(nn.ModuleList(layers).parameters(), dnasa.connect("ring", device="cuda"))
    opt.fuse = fuse
    opt.gradient.normal_()
    for _ in range(3):
        opt.step()
    return opt


def main() -> None:
    fused, plain = optimizer(True), optimizer(False)
    assert isinstance(fused.stepper, InPlace)
    a, b = torch.randn(PARAMETERS, device="cuda"), torch.empty(PARAMETERS, device="cuda")
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: b.copy_(a),
        "fused": fused.step,
        "plain": plain.step,
        "zero_grad": fused.zero_grad,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(seconds(work))
    median = {name: sorted(each)[ROUNDS // 2] for name, each in times.items()}
    array = PARAMETERS * 4
    copied = 2 * array / median["copy"]
    print(f"{torch.cuda.get_device_name()}, {PARAMETERS:,} float32 parameters, torch {torch.__version__}")
    print(f"copy: {copied / 1e9:,.0f} GB/s")
    for name in ("fused", "plain"):
        reached = ARRAYS * array / median[name]
        print(
            f"{name} step: {1e3 * median[name]:.3f} ms, {reached / 1e9:,.0f} GB/s, {100 * reached / copied:.0f} % of copying"
        )
    print(f"zero_grad: {1e3 * median['zero_grad']:.3f} ms")


if __name__ == "__main__":
    main()
