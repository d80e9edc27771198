"""Every example runs as its docstring says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import PATIENCE, launch
from test_distributed import ENGINES

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *words, cwd):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("engine", [ENGINES[0], pytest.param("torch", marks=pytest.mark.long)])
def test_own_model_learns_on_real_processes(engine):
    done = launch(engine, 2, EXAMPLES / "own_model.py", "100")
    assert done.returncode == 0, done.stderr[-2000:]
    accuracies = [float(number) for number in re.findall(r"accuracy\s+([\d.]+)", done.stdout)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 80


@pytest.mark.long
def test_own_model_learns_in_one_process(tmp_path):
    assert "consensus error 0.00e+00" in run("own_model.py", "100", cwd=tmp_path)


@pytest.mark.long
def test_the_residual_net_learns(tmp_path):
    rows = [line.split() for line in run("residual_net.py", "60", cwd=tmp_path).splitlines()]
    accuracy = rows[0].index("test_accuracy")
    assert float(rows[-1][accuracy]) > 0.3 > float(rows[1][accuracy])


def test_sensors_locate_the_source(tmp_path):
    out = run("custom_gradient.py", cwd=tmp_path)
    assert float(re.findall(r"error of the mean ([\d.]+)", out)[-1]) < 0.1
    assert (tmp_path / "localisation.png").stat().st_size > 10_000


def test_the_quickstart_runs(tmp_path):
    out = run("quickstart.py", cwd=tmp_path)
    assert "rho = 0.805" in out
    assert (tmp_path / "quickstart" / "history.csv").exists()
    assert (tmp_path / "quickstart" / "history.png").exists()
