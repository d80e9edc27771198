"""Interrupted, killed and damaged runs: exact resume, and clear errors."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run, succeed
from conftest import needs_mpi
from launching import ENVIRONMENT, PATIENCE, free_port, has_lines, launch, stdout_of, wait_until

from dnasa import topology
from dnasa.channels import faulty
from dnasa.core import Array, InputError, Interrupted, RunError
from dnasa.engine.loop import solve
from dnasa.networks import connect
from dnasa.problems import LeastSquares
from dnasa.runs import checkpoints
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.result import Result

TRAIN = "train --problem least_squares --nodes 4 --steps 400 --evaluate 50".split()


def history(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "history.csv").drop(columns="seconds")


def small(folder: Path | None = None, steps: int = 60, **more: Any) -> Result:
    saved: dict[str, Any] = {"folder": folder, "record": Record(checkpoint_every=10)} if folder else {}
    chosen: dict[str, Any] = {"steps": steps, "evaluate": 15}
    return solve(LeastSquares(dim=4), **{"network": topology.ring(4)} | chosen | saved | more)


def test_a_refused_resume_changes_nothing(tmp_path: Path) -> None:
    small(tmp_path / "done")
    fail_at(45, tmp_path / "begun")
    for name in ("done", "begun"):
        before = {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.*")}
        with pytest.raises(InputError):
            small(tmp_path / name, resume=True, seed=4)
        assert {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.*")} == before
    with pytest.raises(InputError, match="is done"):
        small(tmp_path / "done", resume=True)


def test_rejected_checkpoints_do_not_replace_new_ones(tmp_path: Path) -> None:
    fail_at(45, tmp_path / "a")
    (tmp_path / "a" / "history.csv").write_text("damaged")
    fail_at(25, tmp_path / "a", resume=True)
    assert [checkpoints.step_of(p) for p in checkpoints.newest_first(tmp_path / "a" / "checkpoints")] == [20, 10]
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


class Stop(BaseException):
    """Ends a run as a signal would: it is no error of the problem's."""


class Stopping(LeastSquares):
    """Fails at a step."""

    def __init__(self, at: int):
        super().__init__(dim=4)
        self.at = at

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        if t == self.at:
            raise Stop
        return super().gradient(x, nodes, seeds, t)


class Terminated(Stopping):
    """Gets two signals at a step: a scheduler sends SIGTERM to all processes, and torchrun to its own."""

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        for _ in range(2 * (t == self.at)):
            signal.raise_signal(signal.SIGTERM)
        return LeastSquares.gradient(self, x, nodes, seeds, t)


def test_a_second_sigterm_does_not_keep_a_run_from_writing_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="at step 46"):
        solve(Terminated(45), topology.ring(4), steps=60, evaluate=15, folder=tmp_path / "a")
    assert [checkpoints.step_of(p) for p in checkpoints.newest_first(tmp_path / "a" / "checkpoints")] == [46]


def fail_at(t: int, folder: Path, **more: Any) -> None:
    saved: Any = {"folder": folder, "record": Record(checkpoint_every=10)}
    with pytest.raises(Stop):
        solve(Stopping(t), topology.ring(4), steps=60, evaluate=15, **saved | more)


@pytest.mark.parametrize("at", [3, 10, 11, 29, 59])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(at: int, tmp_path: Path) -> None:
    fail_at(at, tmp_path / "a")
    resumed, uninterrupted = small(tmp_path / "a", resume=True), small()
    np.testing.assert_array_equal(resumed.x, uninterrupted.x)
    columns = [name for name in uninterrupted.history if name != "seconds"]
    pd.testing.assert_frame_equal(resumed.history[columns], uninterrupted.history[columns], check_exact=True)
    assert Result.load(tmp_path / "a").history[columns].equals(uninterrupted.history[columns])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at", range(5, 10))
def test_a_run_on_an_exact_graph_resumes_in_every_phase_of_its_period(at: int, overlap: bool, tmp_path: Path) -> None:
    graph = connect(topology.exact(5), overlap=overlap)
    assert graph.topology.period == 5
    options: Any = {"steps": 12, "evaluate": 4}
    with pytest.raises(Stop):
        solve(Stopping(at), graph, folder=tmp_path / "a", record=Record(checkpoint_every=1), **options)
    resumed = solve(LeastSquares(dim=4), graph, folder=tmp_path / "a", resume=True, **options)
    np.testing.assert_array_equal(resumed.x, solve(LeastSquares(dim=4), graph, **options).x)


def test_ctrl_c_finishes_the_step_and_names_the_command_to_continue(tmp_path: Path) -> None:
    words = [*TRAIN[:-4], "--steps", "200000", "--evaluate", "1000", "--out", str(tmp_path / "a")]
    process = subprocess.Popen(
        [sys.executable, "-m", "dnasa", *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background may ignore it
    )
    wait_until(partial(has_lines, tmp_path / "a" / "history.csv", 2), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    (step,) = map(int, re.findall(r"Interrupted at step (\d+); continue with: dnasa resume", errors))
    assert RunFolder(tmp_path / "a", resume=True).state == "interrupted"
    (found,) = checkpoints.newest_first(tmp_path / "a" / "checkpoints")
    assert checkpoints.step_of(found) == step > 0


@pytest.mark.parametrize("how", ["truncated", "changed"])
def test_a_damaged_checkpoint_is_reported_and_replaced(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fail_at(45, tmp_path / "a")
    newest = checkpoints.newest_first(tmp_path / "a" / "checkpoints")[0]
    data = bytearray(newest.read_bytes())
    if how == "truncated":
        del data[len(data) // 2 :]
    else:
        data[-5] ^= 4
    newest.write_bytes(data)
    resumed = small(tmp_path / "a", resume=True)
    np.testing.assert_array_equal(resumed.x, small().x)
    assert "is damaged: its checksum does not match. The checkpoint before is used." in capsys.readouterr().err
    assert "Resumed from the checkpoint of step 30." in (tmp_path / "a" / "log.txt").read_text()


def test_a_full_disk_is_a_clear_error_and_leaves_a_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, left = os.fsync, [12]

    def full(number: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device\. Free some space, then resume"):
        small(tmp_path / "a")
    monkeypatch.undo()
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


def test_another_run_is_not_taken_for_the_saved_one(tmp_path: Path) -> None:
    fail_at(33, tmp_path / "a")
    for more, message in (
        ({"seed": 9}, r"seed was \[0\] and is \[9\]"),
        ({"steps": 70}, "steps was 60 and is 70"),
        ({"evaluate": 14}, "evaluate was"),
        ({"start": np.ones(4)}, "start was"),
        ({"network": connect(topology.ring(4), channel=faulty(drop=0.1))}, "channel was None"),
    ):
        with pytest.raises(InputError, match=message):
            small(tmp_path / "a", resume=True, **more)
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


@pytest.mark.long
@needs_mpi
@pytest.mark.xdist_group("processes")
def test_a_run_moves_between_the_simulator_mpi_and_torch(tmp_path: Path) -> None:
    fail_at(33, tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    before = json.loads(config.read_text())
    steps = "import sys; sys.path.insert(0, sys.argv[1]); from test_resume import *; from dnasa.networks import connect\n"
    steps += "network = connect(topology.ring(4), timeout=120)\n"
    steps += "try: solve(Stopping(int(sys.argv[3])), network, steps=60, evaluate=15, "
    steps += "folder=sys.argv[2], record=Record(checkpoint_every=10), resume=True)\n"
    steps += "except Stop: pass"
    (tmp_path / "resume.py").write_text(steps)
    for engine, processes, at in (("mpi", 2, 47), ("torch", 4, 57)):
        stdout_of(launch(engine, processes, tmp_path / "resume.py", os.path.dirname(__file__), tmp_path / "a", at))

    np.testing.assert_allclose(small(tmp_path / "a", resume=True).x, small().x, rtol=0, atol=1e-12)
    log = (tmp_path / "a" / "log.txt").read_text()
    assert re.findall(r"Resumed from the checkpoint of step (\d+)", log) == ["30", "40", "50"]
    assert json.loads(config.read_text()) == before


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_torchrun_restarts_from_the_newest_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, signal, sys; from dnasa.problems import LeastSquares; from dnasa import cli\n"
        "original = LeastSquares.gradient\n"
        "def gradient(self, x, nodes, seeds, t):\n"
        "    if t == 170 and os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return original(self, x, nodes, seeds, t)\n"
        "LeastSquares.gradient = gradient; cli.main()"
    )
    words = [*TRAIN, "--timeout", "60", "--checkpoint-every", "50", "--out", tmp_path / "a"]
    stdout_of(launch("torch", 2, "--max-restarts", 2, script, *words))
    assert "Resumed from the checkpoint of step 150." in (tmp_path / "a" / "log.txt").read_text()
    succeed(*TRAIN, "--out", tmp_path / "uninterrupted")
    np.testing.assert_allclose(Result.load(tmp_path / "a").x, Result.load(tmp_path / "uninterrupted").x, rtol=0, atol=1e-12)


def test_a_torchrun_job_continues_its_own_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job, code in (("one", 0), ("one", 0), ("two", 2), ("none", 2)):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        done = run(*TRAIN, "--engine", "simulated", "--out", tmp_path / "a")
        assert (done.returncode, "holds a run already" in done.stderr) == (code, code == 2)


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_an_elastic_job_continues_exactly_when_a_machine_joins_and_when_one_leaves(tmp_path: Path) -> None:
    """Its torchrun agents are started as docs/distributed.md says."""
    script, out, quick = tmp_path / "job.py", tmp_path / "a", tmp_path / "quick"
    script.write_text(
        "import pathlib, time; from dnasa.problems import LeastSquares; from dnasa import cli\n"
        "original = LeastSquares.gradient\n"
        "def gradient(self, x, nodes, seeds, t):\n"
        f"    time.sleep(0 if t < 100 or pathlib.Path({str(quick)!r}).exists() else 0.2)\n"
        "    return original(self, x, nodes, seeds, t)\n"
        "LeastSquares.gradient = gradient; cli.main()"
    )
    where = f"--rdzv-id job --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()} --local-addr 127.0.0.1"
    times = "--nnodes 1:2 --max-restarts 3 --rdzv-conf last_call_timeout=1,keep_alive_interval=1"
    words = [sys.executable, "-m", "torch.distributed.run", *where.split(), *times.split(), str(script), *TRAIN]
    environment = ENVIRONMENT | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start_agent() -> subprocess.Popen[bytes]:
        agent = subprocess.Popen([*words, "--checkpoint-every", "10", "--out", str(out)], env=environment)
        agents.callback(agent.terminate)
        return agent

    def resumed(times: int) -> bool:
        return (out / "log.txt").exists() and (out / "log.txt").read_text().count("Resumed from the checkpoint") == times

    with ExitStack() as agents:
        first = start_agent()
        wait_until(partial(has_lines, out / "history.csv", 3), first)
        second = start_agent()
        wait_until(partial(resumed, 1), first)
        second.terminate()
        wait_until(partial(resumed, 2), first)
        quick.touch()
        assert (second.wait(PATIENCE) != 0, first.wait(PATIENCE)) == (True, 0)
    succeed(*TRAIN, "--out", tmp_path / "uninterrupted")
    np.testing.assert_allclose(Result.load(out).x, Result.load(tmp_path / "uninterrupted").x, rtol=0, atol=1e-12)
