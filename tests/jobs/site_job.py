"""What a site of `site_processes.py` does: train a network on its rows of the digits, and test the mean of all nodes.

Arguments: the file of the sites, a folder for reports, and options as JSON. Not a test.
"""

import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import dnasa

BATCH = 16


def end_connections() -> None:
    """Shut down all connections with other sites: a communication abort."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family == socket.AF_INET and connection.getpeername():  # not the one that listens
                connection.shutdown(socket.SHUT_RDWR)


def obey_faults(hang: int) -> None:
    """SIGUSR1: the communication is aborted; SIGUSR2: no Python code runs for so many seconds, in any thread."""
    signal.signal(signal.SIGUSR1, lambda *_: end_connections())
    signal.signal(signal.SIGUSR2, lambda *_: ctypes.PyDLL(None).sleep(hang))


def note_losses(members: Any, path: Path) -> None:
    """Write down when the members must meet."""
    meet = members.meet

    def noted() -> None:
        with path.open("a") as file:
            print(time.time(), file=file)
        meet()

    members.meet = noted


def write(path: Path, report: dict[str, Any]) -> None:
    """Whole, whenever this process is killed."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report))
    os.replace(new, path)


def last_step(folder: Path) -> float:
    """The step after which all end, once it is known."""
    end = folder / "end"
    return int(end.read_text()) if end.exists() else float("inf")


def main(
    sites: str, folder: Path, timeout: float = 10.0, pace: float = 0.0, hang: int = 0, steps: int = 1000, rule: str = "adanasa"
) -> None:
    """With `pace`, a step takes at least so many seconds."""
    faulthandler.register(signal.SIGQUIT)
    logging.basicConfig(level="INFO", format=f"%(asctime)s.%(msecs)03d {Path(sites).stem}: %(message)s", datefmt="%H:%M:%S")
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_: str(message)
    network = dnasa.connect("ring", sites=sites, timeout=timeout)
    members: Any = network.processes.membership.survivors.__self__.members  # type: ignore[union-attr]
    node, nodes = members.node, network.nodes
    note_losses(members, folder / f"losses-{node}")
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    train, test = torch.arange(len(x)) % 5 > 0, torch.arange(len(x)) % 5 == 0
    own_x, own_y = x[train][node::nodes], y[train][node::nodes]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = dnasa.optim.Decentralized(model, network, rule, steps=steps if rule == "adanasa" else None)
    generator, progress = torch.Generator().manual_seed(node), folder / f"progress-{node}-{os.getpid()}"
    obey_faults(hang)
    while opt.t < last_step(folder):
        began = time.monotonic()
        rows = torch.randint(len(own_x), (BATCH,), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(model(own_x[rows]), own_y[rows]).backward()
        opt.step()
        time.sleep(max(0.0, pace - (time.monotonic() - began)))
        nodes_now = list(map(int, opt.nodes))
        write(progress, {"step": opt.t, "lost": opt.lost_steps, "view": members.view.number, "nodes": nodes_now})
    with opt.averaged():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    write(folder / f"done-{node}", {"steps": opt.t, "accuracy": accuracy, "nodes": opt.nodes})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), **json.loads(sys.argv[3]))
