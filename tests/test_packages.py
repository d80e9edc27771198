"""The wheel and the source distribution install into empty environments, with and without a C compiler."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from launching import PATIENCE

import dnasa

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib.metadata
import dnasa
from dnasa.arrays import compiled

assert importlib.metadata.version("dnasa") == dnasa.__version__
result = dnasa.solve(dnasa.problems.LeastSquares(dim=5), dnasa.topology.ring(4), steps=50)
print(compiled is not None, *result.mean)
"""
TYPED = """
import numpy as np
import dnasa
from dnasa.core import Array


def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    return x - node + rng.standard_normal(3)


problem = dnasa.problems.Custom(gradient, start=np.zeros(3))
result: dnasa.Result = dnasa.solve(problem, dnasa.topology.ring(4), steps=10)
rule: dnasa.Rule = dnasa.rules.dsgd(dnasa.rules.schedules.constant(0.1))
print(result.final()["consensus"], result.mean, rule.needs)
"""


def run(*command: str | Path, **env: str) -> str:
    """From a folder without the sources, so that the installed package is used."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env
    done = subprocess.run(list(map(str, command)), cwd="/", env=settings, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both, made as a release makes them: the wheel from the source distribution."""
    folder = tmp_path_factory.mktemp("packages")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def install(package: Path, folder: Path, **env: str) -> Path:
    """The Python of an empty environment with the package and what it depends on."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", package, **env)
    return python


@pytest.mark.long
def test_the_packages_install_with_and_without_a_compiler(packages: Path, tmp_path: Path) -> None:
    (wheel,), (source,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    with_compiler = install(wheel, tmp_path / "wheel")
    without = install(source, tmp_path / "source", CC="/bin/false")
    fast, *numbers = run(with_compiler, "-c", PROGRAM).split()
    slow, *others = run(without, "-c", PROGRAM).split()
    assert (fast, slow) == ("True", "False")
    assert list(map(float, numbers)) == pytest.approx(list(map(float, others)), rel=1e-9)
    for python in (with_compiler, without):
        command = python.with_name("dnasa")
        assert "test loss" in run(command, "train", "--problem", "least_squares", "--steps", "5")
        assert "torch" not in run(python, "-m", "pip", "list")
    check_types(with_compiler, tmp_path)


def check_types(python: Path, folder: Path) -> None:
    """A user's program has the types of the installed package, and a mistake in it is found."""
    program, wrong = folder / "program.py", folder / "wrong.py"
    program.write_text(TYPED)
    wrong.write_text(TYPED.replace("steps=10", 'steps="ten"').replace("ring(4)", 'ring("4")'))
    mypy: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        folder / "cache",
        "--python-executable",
        python,
    ]
    assert "Success" in run(*mypy, program)
    done = subprocess.run([*map(str, mypy), str(wrong)], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert 'expected "int"' in done.stdout
    assert done.stdout.count(" error: ") == 2


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dnasa.__version__"}
    assert dnasa.__version__.removesuffix(".dev0") in (ROOT / "CHANGELOG.md").read_text()
