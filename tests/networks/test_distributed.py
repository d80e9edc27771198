"""Real processes: the same answer as the simulator, whatever carries the messages, and nothing hangs."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import needs_mpi
from launching import JOBS, launch, launch_script, stdout_of
from thread_network import run_threads

from dnasa import solve, topology
from dnasa.core import InputError
from dnasa.networks.processes import blocks
from dnasa.problems import Custom, LeastSquares

pytestmark = pytest.mark.xdist_group("processes")  # one of these at a time: they need the cores
JOB = str(JOBS / "distributed_job.py")


ENGINES = [pytest.param("mpi", marks=needs_mpi), "torch"]


LONG = pytest.mark.long


EVERY = [
    *(pytest.param("mpi", processes, marks=needs_mpi) for processes in (1, 3)),
    *(("torch", processes) for processes in (1, 3)),
]


@LONG  # tests/rules/test_expressiveness.py has a short one with torch, the command line below with MPI
@pytest.mark.parametrize(("engine", "processes"), EVERY)
def test_real_processes_give_the_simulators_iterates_and_samples(engine: str, processes: int) -> None:
    out = stdout_of(launch(engine, processes, JOB, "same", engine))
    assert re.findall("same (.*)", out) == ["ring", "random", "star", "sparse", "exact", "complete"]


@LONG
@pytest.mark.parametrize("engine", ENGINES)
def test_the_optimizer_and_hidden_exchanges_give_the_simulators_iterates(engine: str) -> None:
    assert "same optimizer" in stdout_of(launch(engine, 4, JOB, "optimizer", engine))


@LONG
@pytest.mark.parametrize("what", ["kill", "hang"])
def test_over_torch_a_process_that_dies_or_hangs_ends_all_with_its_name(what: str) -> None:
    """By us or, where torchrun ends the others before they can say anything, by torchrun."""
    done = launch("torch", 3, JOB, "wait", "torch", what)
    assert done.returncode != 0
    named = r"No answer from rank 2: |rank\s*: 2 \(local_rank: 2\)\s+exitcode\s*: -9"
    assert re.search(named, done.stderr), done.stderr[-2000:]


@LONG
@pytest.mark.parametrize("engine", ENGINES)
def test_a_process_that_raises_ends_all_with_its_reason(engine: str) -> None:
    done = launch(engine, 3, JOB, "wait", engine, "raise")
    assert done.returncode != 0
    assert re.search(r"rank 2: At step \d+: The gradient of node [45] is not finite", done.stderr), done.stderr[-2000:]


def test_processes_with_different_settings_end_before_the_first_step() -> None:
    problem = Custom(lambda x, node, rng: pytest.fail("a step was taken"), np.zeros(3), fingerprint="x")
    with pytest.raises(InputError, match="steps is 5 at rank 0 and 6 at rank 1"):
        run_threads(topology.ring(2), lambda network: solve(problem, network, "dsgd", eta=0.1, steps=5 + network.rank))


@pytest.mark.long
@pytest.mark.parametrize("engine", [pytest.param("mpi", marks=needs_mpi), "torch"])
def test_the_setting_that_differs_between_processes_is_named(engine: str) -> None:
    out = stdout_of(launch_script(engine, 2, JOB, "settings", engine))
    found = re.findall("different settings: (.*) is (.*) at rank 0 and (.*) at rank 1", out)
    assert found == [
        ("seed", "0", "1"),
        ("data", "set 0", "set 1"),
        ("--topology", "complete", "star"),
        ("--rounds", "1", "2"),
        ("--every", "1", "2"),
        ("--compress", "None", "bfloat16"),
    ]
    assert out.count("done") == 2


@pytest.mark.parametrize("engine", [ENGINES[0], pytest.param("torch", marks=LONG)])
def test_the_command_line_runs_on_processes_and_writes_one_set_of_files(engine: str, tmp_path: Path) -> None:
    words = "train --problem least_squares --nodes 4 --topology ring --steps 60 --evaluate 20".split()
    words += ["--out", "run"]
    out = stdout_of(launch(engine, 2, "-m", "dnasa", *words, cwd=tmp_path))
    assert out.count("D-NASA on least_squares") == 1
    assert "bytes sent per step" in out
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    assert history.step.tolist() == [0, 20, 40, 60]
    simulated = solve(LeastSquares(), topology.ring(4), steps=60, evaluate=20).history
    columns = ["train_loss", "test_loss", "grad_norm", "consensus"]
    np.testing.assert_allclose(history[columns], simulated[columns], rtol=1e-8, atol=1e-12)


def test_blocks_share_the_nodes_in_order() -> None:
    assert blocks(8, 3) == [range(0, 2), range(2, 5), range(5, 8)]
    assert blocks(5, 5) == [range(i, i + 1) for i in range(5)]
    with pytest.raises(InputError, match="9 processes cannot share 8 nodes"):
        blocks(8, 9)
