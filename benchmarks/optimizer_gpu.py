"""The optimizer's own work on a GPU against copying memory.

    python -m benchmarks.optimizer_gpu [PARAMETERS ...]

Models of 10 and 100 million float32 parameters, unless other sizes are given. "Step" is that of a node alone, so that nothing
is exchanged; "plain" is the rule as it is written. "Send" is what a node with neighbours compiles: all of a step except the
exchange. "Copy" is `b.copy_(a)` of one array (two arrays of traffic), interleaved with the rest. The arrays that cannot be
avoided:

- D-NASA reads x, u, v, z and g, and z once more for its norm before anything can be written, and writes x, u, v and z: ten.
  A step then copies x into the parameters, which keep their own memory: two more.
  Without hidden exchanges its `send` reads u, v, z and g, and writes u and z: six.
- AdaNASA reads x, y, z, m and g, and writes x, y, z and m: nine, in a step two more as above, and in `send` nine. An average is
  read and written, too.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import dnasa
from benchmarks.update import times
from dnasa.engine.torch_compile import with_compiled_messages
from dnasa.optim import Decentralized


class Case(NamedTuple):
    options: dict[str, Any]
    step: int  # arrays that a step must read or write
    send: int


CASES = {
    "D-NASA": Case({"rule": "dnasa"}, step=12, send=6),
    "AdaNASA": Case({"rule": "adanasa", "steps": 10_000}, step=11, send=9),
    "AdaNASA with an average": Case({"rule": "adanasa"}, step=13, send=11),
}


def optimizer(kind: str, parameters: int, device: str, options: dict[str, Any]) -> Decentralized:
    parts = [nn.Parameter(torch.randn(parameters // 10, device=device)) for _ in range(10)]
    opt = Decentralized(parts, dnasa.connect(device=device), **options)
    if kind == "plain":
        opt.node.rule = opt.node.rule._replace(form=None)
    opt.node.parameters.gradient.normal_()
    for _ in range(3):
        opt.step()
    return opt


@torch.no_grad()
def measure(case: Case, parameters: int, device: str, calls: int = 20) -> dict[str, float]:
    """Seconds of each."""
    made = {kind: optimizer(kind, parameters, device, case.options) for kind in ("step", "plain")}
    plain = made["plain"]
    state = plain.node.snapshot().state
    rule = with_compiled_messages(made["step"].node.rule, state)
    a, b = torch.randn(parameters, device=device), torch.empty(parameters, device=device)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: b.copy_(a),
        **{kind: each.step for kind, each in made.items()},
        "send": lambda: rule.send(state, (plain.node.parameters.gradient,), 5),
        "zero_grad": plain.zero_grad,
    }
    return times(works, device, calls)


def main(sizes: list[int]) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for parameters in sizes:
        for name, case in CASES.items():
            taken = measure(case, parameters, "cuda")
            arrays = {"copy": 2, "send": case.send, "zero_grad": 1, "step": case.step, "plain": case.step}
            rates = {kind: arrays[kind] * 4 * parameters / seconds for kind, seconds in taken.items()}
            print(f"{name}, {parameters:,} parameters")
            for kind, rate in rates.items():
                share = 100 * rate / rates["copy"]
                print(f"  {kind:10s} {1e3 * taken[kind]:8.3f} ms  {rate / 1e9:7,.0f} GB/s  {share:4.0f} % of copying")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000_000, 100_000_000])
