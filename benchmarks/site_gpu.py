"""An exchange of 10 million float32 numbers between two sites on one machine: GPU tensors, and arrays in main memory.

    python -m benchmarks.site_gpu [FOLDER]

GPU tensors travel through pinned memory. "Copies" is what that costs alone: to main memory and back, pinned and not. "Step" is
AdaNASA's, which exchanges three arrays. FOLDER holds `berlin.toml` and `paris.toml` with their keys; without it, both are made.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

import dnasa
from dnasa.optim import Decentralized

NAMES = ("berlin", "paris")
DIM = int(os.environ.get("DIM", 10_000_000))


def make_sites(folder: Path) -> None:
    from dnasa.sites.keys import make_authority, make_site

    make_authority(folder / "keys")
    for name in NAMES:
        make_site(folder / "keys", name)
        addresses = "\n".join(f'{site} = "127.0.0.1:{47200 + i}"' for i, site in enumerate(NAMES))
        (folder / f"{name}.toml").write_text(f'keys = "keys/{name}"\n[sites]\n{addresses}\n')


def median(work: Callable[[], object], device: str, calls: int = 15) -> float:
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[3:])[(calls - 3) // 2]


def copies(pinned: bool) -> Callable[[], object]:
    there = torch.randn(1, DIM, device="cuda")
    here = torch.empty(1, DIM, pin_memory=pinned)

    def work() -> None:
        here.copy_(there)
        there.copy_(here)

    return work


def optimizer(network: dnasa.Network, device: str) -> Decentralized:
    parts = [nn.Parameter(torch.randn(DIM // 10, device=device)) for _ in range(10)]
    opt = Decentralized(parts, network, steps=1000)
    opt.node.parameters.gradient.normal_()
    return opt


@torch.no_grad()
def site(file: str) -> None:
    network = dnasa.connect("path", sites=file)
    devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    for device in devices:
        exchange = partial(network.multiply, (torch.randn(1, DIM, device=device),), 0)
        report(f"exchange of {4 * DIM / 1e6:.0f} MB, {device}", median(exchange, device), network)
    report(f"step of AdaNASA, {devices[0]}", median(optimizer(network, devices[0]).step, devices[0]), network)
    if devices[0] == "cuda":
        for pinned in (True, False):
            report(f"copies alone, {'pinned' if pinned else 'pageable'}", median(copies(pinned), "cuda"), network)


def report(what: str, seconds: float, network: dnasa.Network) -> None:
    if network.rank == 0:
        print(f"{what:30} {1e3 * seconds:8.1f} ms", flush=True)


def main(folder: Path) -> int:
    if not (folder / f"{NAMES[0]}.toml").exists():
        make_sites(folder)
    command = [sys.executable, "-m", "benchmarks.site_gpu", "--site"]
    started = [subprocess.Popen([*command, str(folder / f"{name}.toml")]) for name in NAMES]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--site"]:
        site(sys.argv[2])
    elif sys.argv[1:]:
        sys.exit(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            sys.exit(main(Path(made)))
