"""The benchmarks run, at their smallest sizes."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks import suite
from benchmarks.machines import NEEDS, permitted
from conftest import needs_mpi
from launching import ENVIRONMENT, PATIENCE, launch, wait_until

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long
NETWORKS = """
problem = networks.make_problem("a9a network")
print(len(networks.medians(networks.forward_backward(problem), networks.dnasa_step(problem, 2), rounds=1)), "medians")
"""
FORMS = """
limits = [adanasa_forms.limit(form, [1.0, -1 / 3]) for form in (adanasa_forms.Form(), adanasa_forms.Form(late=True))]
print("limits", *map(round, limits))
adanasa_forms.accuracy("digits", "iid", 3, "cpu", "tracked-first,learned-step")
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
    "codecs": (CODECS, "moniqua:4 without the extension"),
    "optimizer_gpu": (OPTIMIZER, "copy step kernel plain send zero_grad"),
    "parameters": ("parameters.WIDTH = 3\nparameters.main('cpu')", "memory of their own costs"),
    "growth": ("print(*growth.measure('runs', 2))", "size seconds peak held"),
    "networks": (NETWORKS, "2 medians"),
    "suite": ("print(suite.solve_seconds(steps=3, runs=2) > 0)", "True"),
    "survive": ("print(survive.rank_of('self'))", "None"),
    "supervised": ("supervised.measure('GPT', 'float32', 'cpu', quick=True)", "8 nodes, one by one"),
    "adanasa_forms": (FORMS, "limits 38 1"),
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
    [
        (1.0, 0, "No slower"),
        (1.4, 0, "No slower"),
        (1.45, 1, "The goal of 1.4 is lost"),
        (2.0, 1, "Slower than before"),
    ],
)
def test_the_check_fails_where_a_goal_is_lost(
    ratio: float, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    committed = tmp_path / "results.json"
    committed.write_text('{"rows": [{"what": "step", "ratio": 1.3}]}')
    monkeypatch.setattr(suite, "RESULTS", committed)
    assert suite.check([suite.Row("step", "copy", ratio, 1.0, 1.4)]) == status
    assert said in capsys.readouterr().out


def test_a_goal_that_was_missed_before_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = tmp_path / "results.json"
    committed.write_text('{"rows": [{"what": "step", "ratio": 1.6}]}')
    monkeypatch.setattr(suite, "RESULTS", committed)
    assert suite.check([suite.Row("step", "copy", 1.7, 1.0, 1.4)]) == 0


def run_on_processes(engine: str, folder: Path, code: str, *words: object) -> str:
    script = folder / "benchmark.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\n")
    done = launch(engine, 2, script, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


FEW_EXCHANGES = """
from benchmarks import exchange
measure = exchange.interleaved
exchange.interleaved = lambda comm, *works, rounds=20: measure(comm, *works, rounds=20)
exchange.NODES = 2
exchange.main()
"""
FEW_STEPS = """
from benchmarks import overlap
overlap.RATIOS, overlap.EVEN, overlap.STEPS, overlap.BLOCKS = (0.1,), 0, 3, 1
overlap.main()
"""


@needs_mpi
@pytest.mark.xdist_group("processes")
def test_exchanges_are_measured_between_processes(tmp_path: Path) -> None:
    out = run_on_processes("mpi", tmp_path, FEW_EXCHANGES, "--step")
    assert "with the weighted sums" in out
    assert "whole D-NASA step" in out


@pytest.mark.xdist_group("processes")
def test_hidden_exchanges_are_measured_and_drawn(tmp_path: Path) -> None:
    out = run_on_processes("torch", tmp_path, FEW_STEPS, tmp_path / "overlap.png")
    assert "| sequential | hidden |" in out
    assert (tmp_path / "overlap.png").stat().st_size > 10_000


LINKS = [sys.executable, "-u", "-m", "benchmarks.links", "--nodes", "2", "--evaluate", "1", "--seconds", "0.1"]
needs_namespaces = pytest.mark.skipif(not permitted(), reason=NEEDS)


def namespaces() -> set[str]:
    out = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in out.splitlines()}


@needs_namespaces
@pytest.mark.xdist_group("processes")
def test_slow_links_are_measured_and_drawn(tmp_path: Path) -> None:
    methods = "adanasa-4bit,dnasa,ddp,diloco-10,noloco-10,alone"
    words = ["--links", "100:5", "--steps", "2", "--lrs", "0.01", "--tasks", "gpt,resnet", "--methods", methods]
    command = [*LINKS, *words, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = pd.read_csv(tmp_path / "links.csv").set_index(["task", "method"])
    assert (rows.seconds > 0).all()
    assert set(rows.index[rows.predicted > 0].get_level_values("method")) == {"adanasa-4bit", "dnasa"}
    for task in ("gpt", "resnet"):
        sent = rows.bytes[task]
        assert sent["alone"] < sent["diloco-10"] < sent["adanasa-4bit"] < sent["ddp"] < sent["dnasa"]
    assert len(pd.read_csv(tmp_path / "curves.csv")) == 2 * 5 * 3
    assert (tmp_path / "links.png").stat().st_size > 10_000


@needs_namespaces
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measurement_leaves_no_namespaces(how: signal.Signals, tmp_path: Path) -> None:
    command = [*LINKS, "--steps", "1000000", "--methods", "ddp", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as process:
        prefix = f"m{process.pid % 100000}-"
        wait_until(lambda: sum(name.startswith(prefix) for name in namespaces()) == 3, process)
        process.send_signal(how)
        assert process.wait(PATIENCE) != 0
    assert not [name for name in namespaces() if name.startswith(prefix)]
