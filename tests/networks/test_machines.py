"""All engines across machines with addresses of their own, started as docs/distributed.md says."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.machines import NEEDS, Machines, address, address6, machines, permitted
from conftest import needs_mpi
from launching import BIN, ENVIRONMENT, PATIENCE, has_lines, wait_until
from local_sites import NAMES, write_sites
from site_processes import SiteProcesses

from dnasa import solve, topology
from dnasa.problems import LeastSquares

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.skipif(not permitted(), reason=NEEDS)]
LONG = pytest.mark.long
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


def train(made: Machines, steps: int, *options: object, run: str = "run") -> list[Any]:
    words = ["--steps", steps, "--evaluate", 20, "--out", made.disk / run]
    return ["-m", "dnasa", "train", "--problem", "least_squares", "--nodes", len(made.names), *words, *options]


def start(made: Machines, i: int, *words: object) -> subprocess.Popen[str]:
    environment = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "eth0"}
    command = made.on(i, *words)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_equal_to_the_simulator(made: Machines, processes: Sequence[subprocess.Popen[str]]) -> None:
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)[-3000:]
    simulated = solve(LeastSquares(), topology.exact(len(made.names)), steps=60, evaluate=20).history
    columns = ["step", "train_loss", "test_loss", "grad_norm", "consensus"]
    histories = list(made.disk.glob("run*/history.csv"))
    assert histories
    for path in histories:
        np.testing.assert_allclose(pd.read_csv(path)[columns], simulated[columns], rtol=1e-8, atol=1e-12)


@LONG  # test_distributed.py has MPI on one machine, the sites below have short runs on several
@needs_mpi
def test_mpi_across_machines_equals_the_simulator(tmp_path: Path) -> None:
    with machines(3, tmp_path) as made:
        process = start(made, 0, *mpirun(made), sys.executable, *train(made, 60))
        check_equal_to_the_simulator(made, [process])


def torchrun(made: Machines, steps: int) -> list[subprocess.Popen[str]]:
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{made.names[0]}:{RENDEZVOUS}"]
    words = ["--nnodes", len(made.names), "--nproc-per-node", 1, *where, *train(made, steps)]
    return [start(made, i, sys.executable, "-m", "torch.distributed.run", *words) for i in range(len(made.names))]


@LONG
def test_torch_across_machines_equals_the_simulator(tmp_path: Path) -> None:
    with machines(3, tmp_path) as made:
        check_equal_to_the_simulator(made, torchrun(made, 60))


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


# ---------------------------------------------------------------- sites


def check_sites(made: Machines, files: Sequence[Path]) -> None:
    words = [train(made, 60, "--sites", file, run=f"run-{file.stem}") for file in files]
    processes = [start(made, i, sys.executable, *words[i]) for i in range(len(files))]
    check_equal_to_the_simulator(made, processes)
    assert len(list(made.disk.glob("run-*"))) == len(files)


@LONG
def test_sites_across_machines_equal_the_simulator_over_ipv6(tmp_path: Path) -> None:
    with machines(3, tmp_path) as made:
        check_sites(made, write_sites(tmp_path, 3, addresses=[f"[{address6(i)}]:7400" for i in range(3)]))


@LONG
@pytest.mark.skipif(shutil.which("iptables") is None, reason="a firewall needs iptables")
def test_a_site_behind_a_firewall_takes_part(tmp_path: Path) -> None:
    with machines(3, tmp_path) as made:
        made.refuse_connections(1)
        addresses = [f"{address(i)}:7400" for i in range(3)]
        check_sites(made, write_sites(tmp_path, 3, hidden=NAMES[1:2], addresses=addresses))


TIMEOUT, SLACK = 4.0, 5.0  # seconds; the slack is for a busy machine


@contextmanager
def training(folder: Path, count: int = 3, hidden: Sequence[str] = ()) -> Iterator[tuple[Machines, SiteProcesses]]:
    """Sites that train together, on a machine each."""
    addresses = [f"{address(i)}:7400" for i in range(count)]
    options = {"timeout": TIMEOUT, "pace": 0.02, "steps": 10**6}
    with machines(count, folder) as made, SiteProcesses(folder, count, options, hidden, addresses, made.names) as job:
        wait_until(lambda: job.train_with(*range(count)))
        yield made, job


def check_detection(job: SiteProcesses, fault: Callable[[], object], seconds: float, what: str) -> None:
    """The first site misses the second one soon after the fault."""
    began = time.time()
    fault()
    wait_until(lambda: any(moment > began for moment in job.losses(0)))
    took = min(moment for moment in job.losses(0) if moment > began) - began
    print(f"{what}: noticed after {took:.2f} s")
    assert took < seconds + SLACK
    wait_until(lambda: job.train_with(0, 2))


@LONG
def test_a_killed_site_is_missed_within_a_second(tmp_path: Path) -> None:
    with training(tmp_path, hidden=("paris",)) as (_, job):
        check_detection(job, lambda: job.signal(1, signal.SIGKILL), 1, "killed")


@LONG
def test_a_machine_that_is_cut_off_is_missed_after_the_timeout_and_comes_back(tmp_path: Path) -> None:
    with training(tmp_path) as (made, job):
        check_detection(job, lambda: made.cut(1), TIMEOUT + 1, "cut off")
        time.sleep(2 * TIMEOUT)
        made.mend(1)
        wait_until(lambda: job.train_with(0, 1, 2))
        assert all(map(job.runs, range(3)))


def steps_of(job: SiteProcesses) -> list[int]:
    return [job.progress(site).step for site in range(len(job.processes))]


@LONG
@pytest.mark.skipif(shutil.which("iptables") is None, reason="a firewall needs iptables")
def test_a_firewall_between_two_pairs_of_sites_stops_both_and_neither_trains_alone(tmp_path: Path) -> None:
    with training(tmp_path, 4) as (made, job):
        for rule in ("-A", "-D"):
            for here, there in ((0, 2), (0, 3), (1, 2), (1, 3)):
                made.reject(here, there, rule)
                made.reject(there, here, rule)
            if rule == "-A":
                time.sleep(2 * TIMEOUT)
                before = steps_of(job)
                time.sleep(2 * TIMEOUT)
                assert steps_of(job) == before
                assert max(before) - min(before) <= 2
        wait_until(lambda: min(steps_of(job)) > max(before) + 10)
        wait_until(lambda: job.train_with(0, 1, 2, 3))


@LONG
def test_a_link_that_breaks_as_another_recovers_does_not_split_the_run(tmp_path: Path) -> None:
    with training(tmp_path) as (made, job):
        made.cut(2)
        time.sleep(TIMEOUT / 2)
        made.separate(0, 1)
        made.mend(2)
        wait_until(lambda: job.train_with(0, 2) or job.train_with(1, 2))
        pair = [0, 2] if job.train_with(0, 2) else [1, 2]
        (alone,) = {0, 1, 2} - {*pair}
        before = steps_of(job)
        wait_until(lambda: all(job.progress(site).step > before[site] + 20 for site in pair))
        assert job.progress(alone).step <= before[alone] + 1
        made.reunite(0, 1)
        wait_until(lambda: job.train_with(0, 1, 2))


@LONG
def test_two_sites_that_cannot_reach_each_other_train_together_again_once_they_can(tmp_path: Path) -> None:
    with training(tmp_path) as (made, job):
        began = time.time()
        made.separate(0, 1)
        wait_until(lambda: job.train_with(0, 2) or job.train_with(1, 2))  # whoever notices it first
        assert time.time() < began + TIMEOUT + 1 + SLACK
        time.sleep(2 * TIMEOUT)
        made.reunite(0, 1)
        wait_until(lambda: job.train_with(0, 1, 2))
