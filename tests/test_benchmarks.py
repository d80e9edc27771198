"""The benchmarks run, at their smallest sizes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import suite
from launching import ENVIRONMENT, PATIENCE

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long
NETWORKS = """
problem = networks.make_problem("a9a network")
print(len(networks.medians(networks.forward_backward(problem), networks.dnasa_step(problem, 2), rounds=1)), "medians")
"""
OPTIMIZER = """
import torch
torch.compile = lambda function, **options: function
for case in optimizer_gpu.CASES.values():
    print(*optimizer_gpu.measure(case, 20, "cpu", calls=1))
"""
CODECS = """
print(*codecs.packing(300, 1), *codecs.exchanges(codecs.simulated.connect, 300, 1))
"""
SMALL = {  # what runs, and what it prints
    "custom": ("print(*(custom.compare(name, 5, 1) for name in custom.CASES), 'ms')", "ms"),
    "update": ("print(*update.measure(10, 'cpu', calls=1, name='adanasa'))", "copy sequential fused"),
    "attacks": ("attacks.main(runs=24, steps=3)", "private: error of a row"),
    "codecs": (CODECS, "moniqua:4 without the extension"),
    "optimizer_gpu": (OPTIMIZER, "copy step plain send zero_grad"),
    "growth": ("print(*growth.measure('runs', 2))", "size seconds peak held"),
    "networks": (NETWORKS, "2 medians"),
    "suite": ("print(suite.solve_seconds(steps=3, runs=2) > 0)", "True"),
    "supervised": ("supervised.measure('GPT', 'float32', 'cpu', quick=True)", "8 nodes, one by one"),
    "foundation": ("print(foundation.seconds_per_step(10, 3) > 0)", "True"),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name: str) -> None:
    code, expected = SMALL[name]
    command = [sys.executable, "-c", f"from benchmarks import {name}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("ratio", "status", "said"),
    [(1.0, 0, "No slower"), (1.4, 0, "No slower"), (1.45, 1, "The goal of 1.4 is lost"), (2.0, 1, "Slower than before")],
)
def test_the_check_fails_where_a_goal_is_lost(
    ratio: float, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    committed = tmp_path / "results.json"
    committed.write_text('{"rows": [{"what": "step", "ratio": 1.3}]}')
    monkeypatch.setattr(suite, "RESULTS", committed)
    assert suite.check([suite.Row("step", "copy", ratio, 1.0, 1.4)]) == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--wat", 2)])
def test_the_suite_measures_nothing_for_help_and_unknown_options(
    word: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "steps_on_networks", lambda: pytest.fail("it measures"))
    monkeypatch.setattr(sys, "argv", ["suite", word])
    with pytest.raises(SystemExit) as end:
        suite.main()
    assert end.value.code == status
