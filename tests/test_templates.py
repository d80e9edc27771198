"""The folders to copy in `templates/`: a rule as a package, and a benchmark for benchopt."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import check_grad

ROOT = Path(__file__).parent.parent
BENCHMARK = ROOT / "templates" / "benchopt"


def python(*words: object, path: Path, cwd: Path) -> str:
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(path), str(ROOT / "src"))), "PATH": programs}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.docs
def test_the_rule_of_an_installed_template_works_by_name(tmp_path: Path) -> None:
    copy, site = shutil.copytree(ROOT / "templates" / "plugin", tmp_path / "copy"), tmp_path / "site"
    quick = ("--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--disable-pip-version-check")
    python("-m", "pip", "install", *quick, "--target", site, copy, path=site, cwd=tmp_path)
    assert (site / "dnasa_my_rule.py").is_file()
    words = "train --problem spike --nodes 4 --steps 20 --rule my_rule --eta 0.1".split()
    assert "My rule on spike" in python("-m", "dnasa", *words, path=site, cwd=tmp_path)
    untouched = "import sys, dnasa.cli; assert 'dnasa_my_rule' not in sys.modules"
    python("-c", untouched, path=site, cwd=tmp_path)
    assert "1 passed" in python("-m", "pytest", "-c", os.devnull, copy / "tests", path=site, cwd=tmp_path)


class Part:
    """Replaces benchopt's base classes: arguments become attributes."""

    def __init__(self, **options: Any):
        vars(self).update(options)

    def get_seed(self, **_: bool) -> int:
        return 0


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes the dataset, objective or solver of a file of templates/benchopt, with benchopt or without."""
    names = "BaseDataset", "BaseObjective", "BaseSolver"
    monkeypatch.setitem(sys.modules, "benchopt", SimpleNamespace(**dict.fromkeys(names, Part)))
    monkeypatch.setitem(sys.modules, "benchopt.stopping_criterion", SimpleNamespace(StoppingCriterion=Part))

    def make(file: str, kind: str, **options: Any) -> Any:
        made = runpy.run_path(str(BENCHMARK / file))[kind]
        single = {name: values[0] for name, values in getattr(made, "parameters", {}).items() if "," not in name}
        return made(**single | options)

    return make


@pytest.mark.parametrize("loss", ["logistic", "least_squares"])
def test_without_noise_the_benchmarks_own_descent_is_dsgd_and_its_reference_the_minimum(
    loss: str, part: Callable[..., Any]
) -> None:
    objective = part("objective.py", "Objective", loss=loss, batch=None)
    data = part("datasets/simulated.py", "Dataset", n_samples=100, n_features=3).get_data()
    assert objective.skip(**data) == (False, None)
    given = objective.get_objective()
    assert check_grad(lambda x: given["value"](x, 2), lambda x: given["gradient"](x, 2), np.ones(3)) < 1e-6

    def run(file: str, **options: Any) -> tuple[np.ndarray, dict[str, float]]:
        solver = part(f"solvers/{file}.py", "Solver", **options)
        solver.set_objective(**given)
        solver.run(0)
        assert objective.evaluate_result(**solver.get_result()) == objective.evaluate_result(objective.start, 0.0)
        solver.run(60)
        return solver.x, objective.evaluate_result(**solver.get_result())

    (ours, measured), (plain, by_hand) = run("dnasa", rule="dsgd:constant", eta=0.1), run("dgd", eta=0.1)
    np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)
    assert measured == pytest.approx(by_hand)
    assert measured["bytes"] == 60 * 2 * 3 * 8  # steps, neighbours, numbers, bytes of a number
    best, reference = run("lbfgs")
    assert np.linalg.norm(np.mean([given["gradient"](best[0], node) for node in range(8)], axis=0)) < 1e-8
    assert reference["value"] < min(measured["value"], run("dnasa", rule="dnasa", eta=None)[1]["value"])


def test_the_benchmark_leaves_out_what_cannot_run_with_the_reason(part: Callable[..., Any]) -> None:
    data = part("datasets/known.py", "Dataset").get_data()
    assert {*data["y"]} == {-1.0, 1.0}
    assert "Unknown topology 'rign'" in part("objective.py", "Objective", topology="rign").skip(**data)[1]
    objective = part("objective.py", "Objective", topology="directed_ring")
    objective.set_data(**data)
    for rule, eta, reason in [("dsgt", None, "needs a stepsize"), ("dsgt", 0.1, "needs an undirected graph")]:
        assert reason in part("solvers/dnasa.py", "Solver", rule=rule, eta=eta).skip(**objective.get_objective())[1]
    assert part("solvers/dgd.py", "Solver").skip(**objective.get_objective())[0]


@pytest.mark.docs
def test_benchopt_runs_the_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("benchopt", reason="the benchmark needs benchopt: pip install benchopt")
    copy = shutil.copytree(BENCHMARK, tmp_path / "copy")
    options = ("--max-runs", 5, "--no-display", "--output", "short", "--dataset", "simulated")
    python("-m", "benchopt", "run", copy, *options, path=copy, cwd=tmp_path)
    rows = pd.read_parquet(copy / "outputs" / "short.parquet")
    assert [*rows.stop_val.unique()] == [0, 1, 2, 4, 8, 16]
    assert (
        rows.solver_name.nunique() == 13
    )  # two untuned rules, three with three stepsizes, and those of the other files
    last = rows[(rows.stop_val == 16) & (rows.p_obj_loss == "logistic")].groupby("solver_name").objective_value.mean()
    assert (last < np.log(2)).all()  # the value at the start
    assert last.idxmin() == "L-BFGS"
    assert "against_bytes" in (copy / "outputs" / "copy_short.html").read_text(encoding="utf-8")
    assert " passed" in python("-m", "benchopt", "test", copy, "--skip-env", path=copy, cwd=tmp_path)
