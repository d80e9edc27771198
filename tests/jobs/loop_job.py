"""What the processes of `test_loop.py` do: a function below, then the engine. Not a test."""

import os
import sys
import time
from pathlib import Path

import torch
from launching import wait_until

import dnasa
from dnasa.optim import Decentralized, Join


def step(opt: Decentralized, model: torch.nn.Module) -> None:
    opt.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    opt.step()


def validate(engine: str) -> None:
    """Rank 0 is busy for longer than the timeout; then the gradient of rank 1 is not finite."""
    network = dnasa.connect("ring", engine, timeout=2)
    model = torch.nn.Linear(3, 1)
    opt = Decentralized(model.named_parameters(), network, "dnasa")
    for _ in range(5):
        step(opt, model)
    if network.rank == 0:
        time.sleep(5)
    opt.consensus()
    try:
        if network.rank == 1:
            model.weight.grad = torch.full((1, 3), float("nan"))
            opt.step()
        for _ in range(100):
            step(opt, model)
    except dnasa.core.RunError as error:
        Path(f"rank-{network.rank}").write_text(str(error))
    if engine == "mpi":  # mpirun ends the others when one exits
        wait_until(lambda: all(Path(f"rank-{rank}").exists() for rank in range(2)))
        os._exit(0)


def unequal(engine: str) -> None:
    """The loaders differ by two batches, inside Join and then without."""
    network = dnasa.connect("ring", engine)
    model = torch.nn.Linear(3, 1)
    opt = Decentralized(model.parameters(), network)
    with Join([opt]):
        for _ in range(3 + 2 * network.rank):
            step(opt, model)
    for _ in range(2 + 2 * network.rank):
        step(opt, model)
    with opt.averaged():
        print("not reached")


def tolerant(engine: str) -> None:
    """Rank 0 catches the errors of all its batches after the second, and goes on to the evaluation."""
    network = dnasa.connect("ring", engine, timeout=2)
    model = torch.nn.Linear(3, 1)
    opt = Decentralized(model.parameters(), network)
    for t in range(4):
        try:
            if network.rank == 0 and t == 2:
                model.weight.data.add_(1)
            step(opt, model)
        except dnasa.InputError:
            continue
    with opt.averaged():
        print("not reached")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
