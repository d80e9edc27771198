"""What the processes of an optimizer do that is to survive: one is killed, another hangs. Not a test."""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import dnasa


def main(rule: str, folder: str, pace: Any = "0") -> None:
    pace = float(pace)
    network = dnasa.connect("ring", survive=True, timeout=4)
    model = torch.nn.Linear(3, 1)
    opt = dnasa.optim.Decentralized(model, network, rule)
    generator = torch.Generator().manual_seed(network.rank)
    first = opt.t
    while opt.t < 120:
        if network.rank == 1 and first == 0 and opt.t == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if network.rank == 3 and opt.t == 60:
            ctypes.PyDLL(None).sleep(600)
        time.sleep(pace)
        x = torch.randn(8, 3, generator=generator)
        opt.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
        if opt.t % 25 == 0:
            opt.consensus()
    with opt.averaged():
        report = {
            "nodes": opt.nodes,
            "first": first,
            "lost": opt.lost_steps,
            "error": (model.weight - 1).square().sum().item(),
        }
    Path(folder, f"{network.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
