"""What it costs that parameters keep their own memory, instead of being views of one vector.

    python -m benchmarks.parameters [cpu | cuda]

A perceptron of 10 million float32 parameters in 40 tensors, trained by AdaNASA on one node. After each step the new point is
copied into the parameters, and before it they are compared with the last one: tensor by tensor, against one copy and one
comparison of the whole vector. On a GPU a node alone compares nothing, and could update a vector in place without that copy.
All are interleaved in one run; only their ratios are meant to be compared with those of other machines.
"""

import copy
import sys
from collections.abc import Callable

import torch
from torch import nn

import dnasa
from benchmarks.update import times
from dnasa.optim import Decentralized
from dnasa.optim.flat import Flat

LAYERS, WIDTH, ROWS = 20, 707, 32  # 20 weights and 20 biases


@torch.no_grad()
def measure(device: str, calls: int) -> dict[str, float]:
    """Seconds of each."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model, x = nn.Sequential(*layers).to(device), torch.randn(ROWS, WIDTH, device=device)
    opt = Decentralized(model, dnasa.connect("ring", device=device), steps=100_000)

    def train() -> None:
        with torch.enable_grad():
            opt.zero_grad()
            model(x).square().mean().backward()
        opt.step()

    train()
    parts, point, vector = Flat([{"params": list(copy.deepcopy(model).parameters())}]), opt.flat, opt.flat
    works: dict[str, Callable[[], object]] = {
        "training step": train,
        "step()": opt.step,
        "copy by tensor": lambda: parts.show(point),
        "one copy": lambda: vector.copy_(point),
        "compare by tensor": lambda: parts.differ(point),
        "one comparison": lambda: torch.equal(vector, point),
    }
    return times(works, device, calls)


def main(device: str) -> None:
    taken = measure(device, calls=3 if device == "cpu" else 50)
    alone_on_gpu = device == "cuda"
    extra = taken["copy by tensor"] - (0 if alone_on_gpu else taken["one copy"])
    extra += 0 if alone_on_gpu else taken["compare by tensor"] - taken["one comparison"]
    for name, seconds in taken.items():
        print(f"{name:18s} {1e3 * seconds:8.3f} ms  {100 * seconds / taken['training step']:6.1f} % of a training step")
    for name in ("training step", "step()"):
        print(f"memory of their own costs {100 * extra / taken[name]:.1f} % of {name}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
