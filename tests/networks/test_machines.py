"""Both engines across machines with addresses of their own, started as docs/distributed.md says."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.machines import NEEDS, Machines, machines, permitted
from conftest import needs_mpi
from launching import BIN, ENVIRONMENT, PATIENCE, has_lines, wait_until

from dnasa import solve, topology
from dnasa.problems import LeastSquares

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.skipif(not permitted(), reason=NEEDS)]
LONG = pytest.mark.long
COUNTS = [2, pytest.param(4, marks=LONG)]
PORTS = range(20000, 20100)  # those that a firewall lets through
DAEMON = 20200  # and the one of mpirun's daemons
RENDEZVOUS = 29500
VARIABLES = [word for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in ENVIRONMENT for word in ("-x", name)]


def mpirun(made: Machines, *options: object) -> list[Any]:
    interface = ["--prtemca", "prte_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"]
    ports = ["--mca", "btl_tcp_port_min_v4", PORTS.start, "--mca", "btl_tcp_port_range_v4", len(PORTS)]
    daemons = ["--prtemca", "oob_tcp_static_ipv4_ports", DAEMON, "--prtemca", "plm_ssh_agent", made.shell]
    common = ["--allow-run-as-root", "--hostfile", made.hostfile, *interface, *ports, *daemons, *VARIABLES]
    return [BIN / "mpirun", *options, *common, "-n", len(made.names)]


def train(made: Machines, steps: int, *options: object) -> list[Any]:
    words = ["--nodes", len(made.names), "--steps", steps, "--evaluate", 20, "--out", made.disk / "run"]
    return ["-m", "dnasa", "train", "--problem", "least_squares", *words, *options]


def start(made: Machines, i: int, *words: object) -> subprocess.Popen[str]:
    environment = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "eth0"}
    command = made.on(i, *words)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_equal_to_the_simulator(made: Machines, processes: Sequence[subprocess.Popen[str]]) -> None:
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)[-3000:]
    real = pd.read_csv(made.disk / "run" / "history.csv")
    simulated = solve(LeastSquares(), topology.exact(len(made.names)), steps=60, evaluate=20).history
    columns = ["step", "train_loss", "test_loss", "grad_norm", "consensus"]
    np.testing.assert_allclose(real[columns], simulated[columns], rtol=1e-8, atol=1e-12)


@needs_mpi
@pytest.mark.parametrize("count", COUNTS)
def test_mpi_across_machines_equals_the_simulator(count: int, tmp_path: Path) -> None:
    with machines(count, tmp_path) as made:
        process = start(made, 0, *mpirun(made), sys.executable, *train(made, 60))
        check_equal_to_the_simulator(made, [process])


def torchrun(made: Machines, steps: int) -> list[subprocess.Popen[str]]:
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{made.names[0]}:{RENDEZVOUS}"]
    words = ["--nnodes", len(made.names), "--nproc-per-node", 1, *where, *train(made, steps)]
    return [start(made, i, sys.executable, "-m", "torch.distributed.run", *words) for i in range(len(made.names))]


@LONG  # eight processes import torch; the other engine has a short one
@pytest.mark.parametrize("count", [2, 4])
def test_torch_across_machines_equals_the_simulator(count: int, tmp_path: Path) -> None:
    with machines(count, tmp_path) as made:
        check_equal_to_the_simulator(made, torchrun(made, 60))


ACCEPT = """
import socket
server = socket.create_server(("", 20000))
print("ready", flush=True)
connection, _ = server.accept()
assert len(connection.makefile("rb").read()) == 10**6
"""
CONNECT = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 20000)) as connection:
    print(time.monotonic() - began)
    connection.sendall(bytes(10**6))
"""


def test_a_limited_link_delays_and_still_delivers(tmp_path: Path) -> None:
    with machines(2, tmp_path) as made:
        for delay in (50, 0):
            made.limit(rate=100, delay=delay)
            with subprocess.Popen(made.on(1, sys.executable, "-c", ACCEPT), stdout=subprocess.PIPE) as server:
                assert server.stdout is not None
                server.stdout.readline()
                done = subprocess.run(made.on(0, sys.executable, "-c", CONNECT, made.names[1]), capture_output=True)
            assert done.returncode == 0, done.stderr
            assert float(done.stdout) > 2 * delay / 1000  # seconds, there and back
            assert server.returncode == 0  # it has received everything


@LONG
def test_torch_listens_on_the_interface_and_ports_that_were_chosen(tmp_path: Path) -> None:
    """Only the rendezvous and the store of the process group, on one machine each, listen on all addresses."""
    with machines(2, tmp_path) as made:
        made.limit_ports(PORTS)
        processes = torchrun(made, 10**6)
        wait_until(partial(has_lines, made.disk / "run" / "history.csv", 2), processes[0])
        sockets = [made.listening(i) for i in range(2)]
        for i, found in enumerate(sockets):
            assert f"10.77.0.{i + 1}" in [address for address, _ in found]
        assert {int(port) for found in sockets for _, port in found} <= {*PORTS, RENDEZVOUS}
        assert sum(address == "*" for found in sockets for address, _ in found) <= 2


@LONG
@needs_mpi
def test_a_run_survives_a_machine_whose_link_is_cut(tmp_path: Path) -> None:
    """Nobody is told so: the others find out by its heartbeats. mpirun itself waits for the machine, the run does not."""
    steps = 20_000
    with machines(3, tmp_path) as made:
        command = mpirun(made, "--with-ft", "ulfm")
        process = start(made, 0, *command, sys.executable, *train(made, steps, "--survive", "--timeout", 20))
        run = made.disk / "run"
        wait_until(partial(has_lines, run / "history.csv", 5), process)
        assert {int(port) for address, port in made.listening(1) if address == "0.0.0.0"} <= {*PORTS, DAEMON}
        made.cut(2)
        wait_until(lambda: json.loads((run / "status.json").read_text())["state"] == "done", process)
        history = pd.read_csv(run / "history.csv")
        assert history.step.iloc[-1] == steps
        assert history.nodes.tolist() == sorted(history.nodes, reverse=True)
        assert set(history.nodes) == {3, 2}
        assert "Lost nodes 2" in (run / "log.txt").read_text()
