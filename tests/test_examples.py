"""Every example runs as its docstring says."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from launching import PATIENCE, launch, stdout_of
from test_distributed import ENGINES

pytestmark = pytest.mark.docs
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *words: str, cwd: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.xdist_group("processes")
@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_own_model_learns_on_real_processes(engine: str) -> None:
    out = stdout_of(launch(engine, 2, EXAMPLES / "own_model.py", "100"))
    accuracies = [float(number) for number in re.findall(r"accuracy\s+([\d.]+)", out)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 80


def test_sensors_locate_the_source(tmp_path: Path) -> None:
    out = run("custom_gradient.py", cwd=tmp_path)
    assert float(re.findall(r"error of the mean ([\d.]+)", out)[-1]) < 0.1
    assert (tmp_path / "localisation.png").stat().st_size > 10_000


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    runpy.run_path(str(EXAMPLES / "quickstart.py"))
    assert "rho = 0.805" in capsys.readouterr().out
    assert (tmp_path / "quickstart" / "history.csv").exists()
    assert (tmp_path / "quickstart" / "history.png").exists()


# name: what it prints at the end of a shorter run, of so many steps, and at most how large that number is
SHORT = {
    "phase_retrieval": (300, r"D-SGT \(constant\) relative distance (\S+)", 0.1),
    "sensor_localisation": (150, r", ([\d.]+) at the end", 0.5),
    "sparse_logistic": (300, r"D-NASA .* solution ([\d.]+)", 0.5),
    "lqr_robots": (20, r"([\d.]+) with the learned ones", 2.0),
    "federated_tables": (30, r"together +test accuracy ([\d.]+)", 100.0),
}
WHOLE = {
    "phase_retrieval": (r"D-SGT \(constant\) relative distance (\S+)", 1e-10),
    "sensor_localisation": (r", ([\d.]+) at the end", 0.1),
    "sparse_logistic": (r"D-NASA .* solution ([\d.]+)", 0.05),
    "lqr_robots": (r"([\d.]+) with the learned ones", 1.45),
    "jax_gradient": (r"([\d.]+) at the end", 0.005),
}


@pytest.mark.parametrize("name", SHORT)
def test_examples_draw(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps, pattern, bound = SHORT[name]
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module(name)
    monkeypatch.setattr(example, "STEPS", steps)
    monkeypatch.setattr(example, "SEEDS", 1, raising=False)
    example.main(str(tmp_path / "figure.png"))
    assert float(re.findall(pattern, capsys.readouterr().out)[-1]) <= bound
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE)
def test_an_example_reaches_what_its_page_says(name: str, tmp_path: Path) -> None:
    if name == "jax_gradient":
        pytest.importorskip("jax", reason="the example needs jax: pip install jax")
    pattern, bound = WHOLE[name]
    assert float(re.findall(pattern, run(f"{name}.py", cwd=tmp_path))[-1]) <= bound
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.long
def test_clinics_together_are_as_good_as_all_rows_in_one_place(tmp_path: Path) -> None:
    accuracies = [float(number) for number in re.findall(r"accuracy ([\d.]+)", run("federated_tables.py", cwd=tmp_path))]
    *alone, together, everything = accuracies
    assert together > max(alone)
    assert abs(together - everything) < 1


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_adapters_of_four_sites_are_as_good_as_those_of_all_texts_in_one_place(tmp_path: Path) -> None:
    differences = re.findall(r"minus the best pooled(.*)", run("lora_sites.py", cwd=tmp_path))
    assert max(map(float, differences[0].split())) < 0.02
