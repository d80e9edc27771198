"""What each process of `churn.py` does: train a network on its rows of the digits, and test the mean of all nodes."""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import dnasa

NODES = 8
BATCH = 16


def end_connections(store_port: int) -> None:
    """Shut down all connections to other processes, but not the one to the store: a communication abort."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if connection.type == socket.SOCK_STREAM and connection.getpeername()[1] != store_port:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected
        finally:
            connection.close()


def obey_faults(store_port: int) -> None:
    """SIGUSR1: the communication is aborted; SIGUSR2: no Python code runs for 70 seconds, in any thread."""
    signal.signal(signal.SIGUSR1, lambda *_: end_connections(store_port))
    signal.signal(signal.SIGUSR2, lambda *_: ctypes.PyDLL(None).sleep(70))


def main(address: str, steps: int, pace: float, folder: str, hidden: bool) -> None:
    network = dnasa.connect(dnasa.topology.ring(NODES), join=address, timeout=10)
    obey_faults(int(address.rpartition(":")[2]))
    node = network.rank
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    train, test = torch.arange(len(x)) % 5 > 0, torch.arange(len(x)) % 5 == 0
    own_x, own_y = x[train][node::NODES], y[train][node::NODES]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    rule = {"rule": "dnasa"} if hidden else {"steps": steps}
    opt = dnasa.optim.Decentralized(model, network, **rule)
    joined, generator, progress = opt.t, torch.Generator().manual_seed(node), Path(folder, f"node-{node}")
    while opt.t < steps:
        began = time.monotonic()
        rows = torch.randint(len(own_x), (BATCH,), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(model(own_x[rows]), own_y[rows]).backward()
        opt.step()
        time.sleep(max(0.0, pace - (time.monotonic() - began)))
        progress.write_text(str(opt.t))
    with opt.averaged():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    report = {"node": node, "joined": joined, "steps": opt.t, "lost": opt.lost_steps, "accuracy": accuracy}
    Path(folder, f"done-{node}.json").write_text(json.dumps(report | {"nodes": opt.nodes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5] == "hidden")
