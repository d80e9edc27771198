"""Runs that last: folders, locks, exact resume, and the right words when something is wrong."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from launching import BIN, ENVIRONMENT, MPIRUN, free_port
from test_distributed import needs_mpi

from dnasa import checkpoints, cli, topology
from dnasa.core import InputError, RunError
from dnasa.networks import faulty
from dnasa.problems import LeastSquares
from dnasa.records import Result, RunFolder
from dnasa.solve import solve


def run(*words, cwd="."):
    """The command line in this process, which is quicker than one of its own."""
    said = io.StringIO(), io.StringIO()
    cli.running.engine, cli.console.quiet = "simulated", False
    with (
        redirect_stdout(said[0]),
        redirect_stderr(said[1]),
        chdir(cwd),
        mock.patch("sys.argv", ["dnasa", *map(str, words)]),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=said[0].getvalue(), stderr=said[1].getvalue())


TRAIN = "train --problem least_squares --nodes 4 --steps 400 --evaluate 50".split()


def history(folder):
    return pd.read_csv(folder / "history.csv").drop(columns="seconds")


def small(folder=None, steps=60, **more):
    keep = {"folder": folder, "checkpoint_every": 10} if folder else {}
    return solve(LeastSquares(dim=4), topology.ring(4), **{"steps": steps, "evaluate": 15} | keep | more)


def test_a_refused_resume_changes_nothing(tmp_path):
    small(tmp_path / "done")
    fail_at(45, tmp_path / "begun")
    for name in ("done", "begun"):
        before = {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.*")}
        with pytest.raises(InputError):
            small(tmp_path / name, resume=True, seed=4)
        assert {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.*")} == before
    with pytest.raises(InputError, match="is done"):
        small(tmp_path / "done", resume=True)


def test_other_settings_are_noticed_without_a_checkpoint_too(tmp_path):
    fail_at(5, tmp_path / "a")
    with pytest.raises(InputError, match="seed was"):
        small(tmp_path / "a", resume=True, seed=4)


def test_rejected_checkpoints_do_not_push_out_new_ones(tmp_path):
    fail_at(45, tmp_path / "a")
    (tmp_path / "a" / "history.csv").write_text("spoilt")
    fail_at(25, tmp_path / "a", resume=True)
    assert [checkpoints.step_of(p) for p in checkpoints.found(tmp_path / "a" / "checkpoints")] == [20, 10]
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


def test_options_named_like_a_file_stay_options(tmp_path):
    (tmp_path / "ring").touch()
    assert run(*TRAIN, "--out", "a", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["options"]["topology"] == "ring"


def test_what_is_given_wins_over_a_config(tmp_path):
    words = "train --problem least_squares --nodes 4 --rule dsgd --eta 0.01 --steps 20 --checkpoint-every 5".split()
    assert run(*words, "--out", tmp_path / "a").returncode == 0
    config = tmp_path / "a" / "config.json"
    for more in (["--rule", "dnasa"], ["--data", "digits", "--rule", "dnasa"]):
        done = run("train", "--config", config, *more)
        assert done.returncode == 0, done.stderr
        assert ("digits" if "--data" in more else "least_squares") in done.stdout


class Stop(Exception):
    pass


class Stopping(LeastSquares):
    """Fails at a step."""

    def __init__(self, at):
        super().__init__(dim=4)
        self.at = at

    def gradient(self, x, nodes, seeds, t):
        if t == self.at:
            raise Stop
        return super().gradient(x, nodes, seeds, t)


def fail_at(t, folder, **more):
    with pytest.raises(Stop):
        solve(Stopping(t), topology.ring(4), steps=60, evaluate=15, folder=folder, checkpoint_every=10, **more)


# ---------------------------------------------------------------- the folder


def test_a_config_repeats_its_run(tmp_path):
    first = run(*TRAIN, "--out", tmp_path / "a", "--seed", "3")
    assert first.returncode == 0, first.stderr
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["options"]["seed"] == 3
    assert config["options"]["topology"] == "ring"
    assert set(config["versions"]) >= {"dnasa", "python", "numpy", "torch"}
    assert "the data" in config["run"]
    again = run("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b")
    assert again.returncode == 0, again.stderr
    assert history(tmp_path / "a").equals(history(tmp_path / "b"))
    other = run("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "c", "--steps", "50")
    assert other.returncode == 0, other.stderr
    assert history(tmp_path / "c").step.tolist() == [0, 50]


def test_a_run_that_is_there_is_not_replaced_unless_forced(tmp_path):
    small(tmp_path / "a", steps=20)
    done = run(*TRAIN, "--out", tmp_path / "a")
    assert done.returncode == 2
    assert "holds a run already" in done.stderr
    assert history(tmp_path / "a").step.tolist() == [0, 15, 20]
    forced = run(*TRAIN, "--out", tmp_path / "a", "--force")
    assert forced.returncode == 0, forced.stderr
    assert history(tmp_path / "a").step.iloc[-1] == 400


def test_a_folder_in_use_is_locked_and_shown_as_running(tmp_path):
    folder = RunFolder(tmp_path / "a", {"command": "train", "options": {}})
    folder.open()
    folder.begin({}, 10)
    with pytest.raises(InputError, match="in use by another run"):
        RunFolder(tmp_path / "a", resume=True).open()
    assert RunFolder(tmp_path / "a", resume=True).state == "running"
    folder.close()
    assert RunFolder(tmp_path / "a", resume=True).state == "killed"


def test_runs_and_report_show_what_there_is(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        assert run(*TRAIN, "--seed", seed, "--out", tmp_path / "runs" / name).returncode == 0
    fail_at(33, tmp_path / "runs" / "c")
    (tmp_path / "runs" / "d").mkdir()
    (tmp_path / "runs" / "d" / "config.json").write_text("{")
    table = run("runs", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    for word in ("dnasa", "least_squares", "done", "failed", "damaged", "400 / 400"):
        assert word in table.stdout
    report = run("report", "runs/a", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "gradient norm" in report.stdout.replace("\n", " ") or "gradient" in report.stdout
    assert run("report", "runs/c", cwd=tmp_path).returncode == 2
    assert run("runs", "nowhere", cwd=tmp_path).returncode == 2


def test_history_is_on_disk_as_it_happens(tmp_path):
    fail_at(40, tmp_path / "a")
    assert history(tmp_path / "a").step.tolist() == [0, 15, 30]
    assert [checkpoints.step_of(p) for p in checkpoints.found(tmp_path / "a" / "checkpoints")] == [40, 30, 20]


# ---------------------------------------------------------------- resume


@pytest.mark.parametrize("at", [1, 10, 11, 29, 59])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(at, tmp_path):
    fail_at(at, tmp_path / "a")
    resumed, whole = small(tmp_path / "a", resume=True), small()
    np.testing.assert_array_equal(resumed.x, whole.x)
    columns = [name for name in whole.history if name != "seconds"]
    pd.testing.assert_frame_equal(resumed.history[columns], whole.history[columns], check_exact=True)
    assert Result.load(tmp_path / "a").history[columns].equals(whole.history[columns])


def test_a_network_resumes_exactly_too(tmp_path):
    """torch arrays, several rules, seeds and stepsizes side by side."""
    words = "compare --rules dsgt,d2,dnasa --etas 0.1,0.3 --seeds 2 --weights lazy --steps 60 --evaluate 20".split()
    whole = run(*words, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    script = (
        "import os, signal, sys; from dnasa.problems import classification as c; from dnasa import cli\n"
        "original = c.Classification.gradient\n"
        "def gradient(self, x, nodes, seeds, t):\n"
        "    if t == 47: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return original(self, x, nodes, seeds, t)\n"
        "c.Classification.gradient = gradient; cli.main()"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, *words, "--out", str(tmp_path / "a"), "--checkpoint-every", "10"],
        capture_output=True,
        timeout=100,
    )
    assert killed.returncode == -signal.SIGKILL
    done = run("resume", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert history(tmp_path / "a").equals(history(tmp_path / "whole"))
    np.testing.assert_array_equal(Result.load(tmp_path / "a").x, Result.load(tmp_path / "whole").x)
    assert "Resumed from the checkpoint of step 40." in (tmp_path / "a" / "log.txt").read_text()


def test_ctrl_c_finishes_the_step_and_says_how_to_go_on(tmp_path):
    words = [*TRAIN[:-4], "--steps", "200000", "--evaluate", "100000", "--out", str(tmp_path / "a")]
    process = subprocess.Popen(
        [sys.executable, "-m", "dnasa", *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background may ignore it
    )
    for _ in range(200):
        time.sleep(0.1)
        if (tmp_path / "a" / "history.csv").exists():
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    step = int(re.search(r"Interrupted at step (\d+); continue with: dnasa resume", errors)[1])
    assert RunFolder(tmp_path / "a", resume=True).state == "interrupted"
    (found,) = checkpoints.found(tmp_path / "a" / "checkpoints")
    assert checkpoints.step_of(found) == step > 0


@pytest.mark.parametrize("how", ["truncated", "changed"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(how, tmp_path, capsys):
    fail_at(45, tmp_path / "a")
    newest = checkpoints.found(tmp_path / "a" / "checkpoints")[0]
    data = bytearray(newest.read_bytes())
    if how == "truncated":
        del data[len(data) // 2 :]
    else:
        data[-5] ^= 4
    newest.write_bytes(data)
    resumed = small(tmp_path / "a", resume=True)
    np.testing.assert_array_equal(resumed.x, small().x)
    assert "is damaged: its checksum does not match. The checkpoint before is used." in capsys.readouterr().out
    assert "Resumed from the checkpoint of step 30." in (tmp_path / "a" / "log.txt").read_text()


def test_a_full_disk_ends_the_run_with_a_clear_word_and_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    fsync, left = os.fsync, [12]

    def full(number):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RunError, match=r"No space left on device; the last good one is of step [1-4]0\. Make room, then resume"
    ):
        small(tmp_path / "a")
    monkeypatch.undo()
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


def test_another_run_is_not_taken_for_the_kept_one(tmp_path):
    fail_at(33, tmp_path / "a")
    for more, words in (
        ({"seed": 9}, r"seed was \[0\] and is \[9\]"),
        ({"steps": 70}, "steps was 60 and is 70"),
        ({"evaluate": 14}, "the evaluation steps was"),
        ({"start": np.ones(4)}, "the starting point was"),
        ({"network": faulty.connect(topology.ring(4), drop=0.1)}, "the faults was None"),
    ):
        with pytest.raises(InputError, match=words):
            small(tmp_path / "a", resume=True, **more)
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)


def test_wrong_words_to_resume_are_answered(tmp_path):
    for words, answer in (
        (["resume", tmp_path / "nowhere"], "holds no run to continue"),
        (["train", "--checkpoint-every", "5", "--steps", "5"], "Checkpoints need a folder"),
        (
            ["train", "--checkpoint-every", "0", "--out", tmp_path / "z"],
            "checkpoint_every must be a positive whole number",
        ),
        (["train", "--config", tmp_path / "none.json"], "cannot read"),
        (["train", "--survive"], "Only MPI can go on"),
        (["train", "--drop", "1.5"], "drop must be a probability"),
        (["train", "--stale", "-1"], "stale must be"),
    ):
        done = run(*words)
        assert done.returncode == 2, done.stderr
        assert answer in done.stderr
        assert len(done.stderr.splitlines()) == 1
    (tmp_path / "bad.json").write_text('{"command": "train", "options": {"steps": [1]}}')
    assert "steps must be a text, a number" in run("train", "--config", tmp_path / "bad.json").stderr
    (tmp_path / "odd.json").write_text('{"command": "train", "options": {"stepps": 5}}')
    assert "No such option" in run("train", "--config", tmp_path / "odd.json").stderr


# ---------------------------------------------------------------- other processes


@needs_mpi
@pytest.mark.xdist_group("processes")
def test_a_run_moves_between_the_simulator_mpi_and_torch(tmp_path):
    fail_at(33, tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    kept = json.loads(config.read_text())
    steps = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_resume import *; from dnasa.networks import connect\n"
    )
    steps += "network = connect(topology.ring(4), timeout=20)\n"
    steps += "try: solve(Stopping(int(sys.argv[3])), topology.ring(4), steps=60, evaluate=15, network=network, "
    steps += "folder=sys.argv[2], checkpoint_every=10, resume=True)\n"
    steps += "except Stop: pass"
    here = os.path.dirname(__file__)
    mpi = [*MPIRUN, "-n", "2", sys.executable, "-c", steps, here, str(tmp_path / "a"), "47"]
    done = subprocess.run(mpi, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-1500:]
    script = tmp_path / "go_on.py"
    script.write_text(steps)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "--master-port",
        str(free_port()),
    ]
    done = subprocess.run(
        [*torchrun, str(script), here, str(tmp_path / "a"), "57"],
        capture_output=True,
        text=True,
        timeout=90,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    np.testing.assert_allclose(small(tmp_path / "a", resume=True).x, small().x, rtol=0, atol=1e-12)
    log = (tmp_path / "a" / "log.txt").read_text()
    assert re.findall(r"Resumed from the checkpoint of step (\d+)", log) == ["30", "40", "50"]
    assert json.loads(config.read_text()) == kept


@needs_mpi
@pytest.mark.xdist_group("processes")
def test_the_others_go_on_when_processes_are_killed(tmp_path):
    words = "train --problem least_squares --nodes 8 --steps 1500 --evaluate 100 --survive --out".split()
    command = [*MPIRUN, "--with-ft", "ulfm", "-n", "4", str(BIN / "dnasa"), *words, str(tmp_path / "a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    file = tmp_path / "a" / "history.csv"
    for lines, victim in ((4, 0), (9, 2)):  # the first to die is the one who writes
        while not (file.exists() and len(file.read_text().splitlines()) > lines):
            time.sleep(0.02)
            assert process.poll() is None, process.communicate()
        os.kill(worker(process.pid, victim), signal.SIGKILL)
        time.sleep(0.3)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors[-2000:]
    result = Result.load(tmp_path / "a")
    assert [loss["nodes"] for loss in result.settings["lost"]] == [[0, 1], [4, 5]]
    assert result.history.step.tolist() == list(range(0, 1501, 100))
    assert result.history.nodes.iloc[[0, -1]].tolist() == [8, 4]
    assert result.history.test_loss.iloc[-1] < 0.1 * result.history.test_loss.iloc[0]
    assert "Lost at step" in out
    assert "Lost nodes 0, 1 and their data" in (tmp_path / "a" / "log.txt").read_text()


def worker(parent, rank):
    """The process id of that rank under this mpirun."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")  # noqa: SIM115
            words = open(f"/proc/{pid}/cmdline", "rb").read()  # noqa: SIM115
        except OSError:
            continue
        if (
            f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment
            and str(parent).encode() in b" ".join(environment) + words
        ):
            return int(pid)
    raise AssertionError("no such process")


@pytest.mark.xdist_group("processes")
def test_torchrun_restarts_from_the_newest_checkpoint_by_itself(tmp_path):
    script = tmp_path / "go.py"
    script.write_text(
        "import os, signal, sys; from dnasa.problems import LeastSquares; from dnasa import cli\n"
        "original = LeastSquares.gradient\n"
        "def gradient(self, x, nodes, seeds, t):\n"
        "    if t == 170 and os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return original(self, x, nodes, seeds, t)\n"
        "LeastSquares.gradient = gradient; cli.main()"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    words = [*TRAIN, "--timeout", "10", "--checkpoint-every", "50", "--out", str(tmp_path / "a")]
    done = subprocess.run(
        [*torchrun, "--master-port", str(free_port()), str(script), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Resumed from the checkpoint of step 150." in (tmp_path / "a" / "log.txt").read_text()
    assert run(*TRAIN, "--out", tmp_path / "whole").returncode == 0
    np.testing.assert_allclose(Result.load(tmp_path / "a").x, Result.load(tmp_path / "whole").x, rtol=0, atol=1e-12)
