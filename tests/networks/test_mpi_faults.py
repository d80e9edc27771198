"""MPI processes that die, hang or abort an exchange while the others continue; `tests/jobs/mpi_faults.py` runs more."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_mpi
from launching import ENVIRONMENT, JOBS, MPIRUN, PATIENCE
from mpi_faults import trial

from dnasa import networks
from dnasa.core import InputError
from dnasa.networks.liveness import HostProcess, start_time

processes = pytest.mark.xdist_group("processes")


@needs_mpi
@processes
def test_an_aborted_exchange_a_killed_process_and_one_lost_in_the_recovery_are_survived() -> None:
    assert set(trial(0, 4, ["abort", "kill", "in recovery"])) >= {"abort", "in recovery"}


@pytest.mark.long  # test_distributed.py has a short one
@needs_mpi
@pytest.mark.xdist_group("waiting")
def test_a_process_that_holds_pythons_lock_is_left_behind() -> None:
    assert set(trial(0, 2, ["deadlock"])) == {"deadlock"}


@pytest.mark.long
@needs_mpi
@processes
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_fault_is_survived(seed: int) -> None:
    assert len(trial(seed)) >= 5


@pytest.mark.long
@needs_mpi
@processes
def test_an_exchange_that_fails_again_and_again_ends_the_run() -> None:
    script = (
        "import numpy as np; from dnasa.core import ProcessLost; from dnasa.networks import connect\n"
        "network = connect('ring', survive=True)\n"
        "while True:\n"
        "    network.at(0).transport.comm.Revoke()\n"
        "    try: network.multiply((np.ones((1, 2)),), 0)\n"
        "    except ProcessLost: network = network.processes.membership.survivors()\n"
    )
    command = [*MPIRUN, "--with-ft", "ulfm", "-n", "2", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE)
    assert done.returncode == 1
    assert "had 3 errors of MPI in a row although all processes are running" in done.stderr


def test_a_slow_process_continues_and_one_that_hung_ends_itself_with_a_line() -> None:
    script = (
        "import ctypes, time; from dnasa.networks.liveness import Heartbeat\n"
        "heartbeat = Heartbeat(lambda: None, 3, timeout=2.0)\n"
        "time.sleep(2.5); heartbeat.end_if_silent(); print('slow', flush=True)\n"
        "ctypes.PyDLL(None).sleep(3); heartbeat.end_if_silent(); print('hung')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "slow\n"
    assert done.stderr == "Rank 3 did not run for 3 s and ends: the others continue without it.\n"
    assert done.returncode == -signal.SIGKILL


@needs_mpi
def test_a_process_that_hangs_before_all_have_connected_is_not_waited_for() -> None:
    script = (
        "from types import SimpleNamespace; from mpi4py import MPI; from dnasa.networks import mpi\n"
        "def never(*_): return MPI.COMM_SELF.Irecv(bytearray(1), 0, 7)\n"
        "link = mpi.Link(SimpleNamespace(rank=0, size=2, Iallgather=never))\n"
        "try: mpi.MPITransport(link, [range(1), range(1, 2)], 0.2)\n"
        "except mpi.RunError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert "did not answer for 0.2 s: one of them hangs" in done.stdout, done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_process_is_gone_after_kill_and_its_number_alone_does_not_identify_it() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        place = HostProcess.parse(str(HostProcess("a machine", child.pid, start_time(child.pid))))
        assert place.runs()
        assert not place._replace(started="1").runs()
        place.kill(timeout=PATIENCE)
        assert not place.runs()


def test_surviving_needs_the_failure_detector_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"OMPI_MCA_mpi_ft_enable": "1"})
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    networks.prepare_to_survive(20.0)
    assert "20" in os.environ.values()
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys)
    networks.prepare_to_survive(20.0)
    with pytest.raises(InputError, match="with the same timeout each time"):
        networks.prepare_to_survive(10.0)


@pytest.mark.long  # tests/networks/test_recovery.py has the optimizer, the tests above have MPI
@needs_mpi
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])  # hidden exchanges, and not
def test_the_optimizer_continues_without_a_killed_and_a_hung_process(rule: str, tmp_path: Path) -> None:
    job = str(JOBS / "survive_job.py")
    command = [*MPIRUN, "--with-ft", "ulfm", "-n", "4", sys.executable, job, rule, str(tmp_path)]
    subprocess.run(command, capture_output=True, timeout=PATIENCE, env=ENVIRONMENT)
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [report["nodes"] for report in reports] == [[0, 2]] * 2
    assert all(report["lost"] <= 4 for report in reports)
    assert all(report["error"] < 0.5 for report in reports)
