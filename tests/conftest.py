"""Helpers shared by the tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # lines of pipes are not broken

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import typer.main
from launching import MPIRUN

from dnasa import topology
from dnasa.communication import Network
from dnasa.core import Array, Messages, Rule, State
from dnasa.rules import registry
from dnasa.topology import Topology

needs_mpi = pytest.mark.skipif(not shutil.which(MPIRUN[0]), reason="needs mpirun beside this Python")


class Bumpy:
    """Nonconvex, different at every node, noisy: f_i(x) = sum log(1 + (A_i x - b_i)^2) + sin(x), noise from (i, t)."""

    def __init__(self, nodes: int, dim: int = 6, noise: float = 0.3, scale: float = 1.0):
        generator = np.random.default_rng(7)
        self.A = generator.standard_normal((nodes, 4, dim))
        self.b = 3 * generator.standard_normal((nodes, 4))
        self.start = generator.standard_normal(dim)
        self.noise, self.scale = noise, scale

    def one(self, i: int, x: Array, t: int) -> Array:
        """Node i alone."""
        residual = self.A[i] @ x - self.b[i]
        noise = self.noise * normal(i, t, len(x))
        return self.scale * (self.A[i].T @ (2 * residual / (1 + residual**2)) + np.cos(x) + noise)

    def all(self, x: Array, t: int) -> Array:
        """All nodes of all runs: x of shape (..., n, d)."""
        flat = x.reshape(-1, *x.shape[-2:])
        return np.array([[self.one(i, run[i], t) for i in range(len(run))] for run in flat]).reshape(x.shape)


@cache
def normal(i: int, t: int, dim: int) -> Array:
    return np.random.default_rng([i, t]).standard_normal(dim)


def take_step(rule: Rule, state: State, gradient: Callable[..., Array], network: Network, t: int) -> State:
    """One step of a rule as its functions say, without any engine; `gradient(point, t)` for all nodes."""
    gradients = tuple(gradient(point, t) for point in rule.gradient_points(state, t))
    early = rule.early_messages(state, t)
    messages, state = rule.send(state, gradients, t)
    state = rule.receive(state, mixed(network, (*early, *messages), t))
    for send, receive in rule.then:
        messages, state = send(state, t)
        state = receive(state, mixed(network, messages, t))
    return state


ETAS = {  # stepsizes of rules that need another than 0.02, for small problems whose gradients are about 1
    "dsgd": 0.05,
    "dmsgd": 0.01,
    "d2": 0.05,
    "dasagt": 0.05,
    "kgt": 0.01,
    "sgp": 0.05,
    "edm": 0.05,
    "mt": 0.003,
    "gt_adam": 0.01,
    "gt_nsgdm": 0.05,
}


def eta_of(rule: str) -> float | None:
    return ETAS.get(rule, 0.02) if registry.find(rule).needs_eta else None


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases in which any two values of different factors meet at least once; far fewer than the full product."""

    def pairs(case: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(a, case[a], b, case[b]) for a, b in combinations(range(len(case)), 2)}

    everything = list(product(*(range(len(factor)) for factor in factors)))
    missing = set().union(*map(pairs, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda case: len(missing & pairs(case)))
        missing -= pairs(best)
        chosen.append(best)
    return [tuple(factor[i] for factor, i in zip(factors, case, strict=True)) for case in sorted(chosen)]


def mixed(network: Network, messages: Messages, t: int) -> Messages:
    return network.multiply(messages, t) if messages else ()


@pytest.fixture
def bumpy() -> type[Bumpy]:
    return Bumpy


GRAPHS = {
    "ring": lambda: topology.ring(8, weights="lazy"),
    "star": lambda: topology.star(7),
    "random": lambda: topology.random(8, p=0.5, seed=3),
    "torus": lambda: topology.torus(9),
    "two": lambda: topology.complete(2),
    "one": lambda: topology.ring(1),
}


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Topology:
    """Graphs that all rules accept."""
    return GRAPHS[request.param]()


@pytest.fixture(autouse=True, scope="session")
def render() -> Iterator[Callable[..., None]]:
    """Saves a figure, which takes most of the time of a small run: elsewhere the file holds the name of its format only."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        original = Figure.savefig
        patch.setattr(Figure, "savefig", lambda figure, file, format: file.write(format.encode()))
        yield original


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, render: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests with one of these marks look at the file of a figure."""
    if any(map(request.node.get_closest_marker, ("pictures", "docs", "long"))):
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", render)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A file is not forced to the disk, which only a power cut would show; a wrong descriptor is still an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True, scope="session")
def commands_made_once() -> Iterator[None]:
    """Not again for each run of one in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


def pytest_collection_finish() -> None:
    """Modules and tests stay, so collections of garbage need not look at them, nor be as many."""
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_make_parametrize_id(config: pytest.Config, val: object) -> str | None:
    """Files in bytes hold the time at which they were made: names with it would differ between the workers."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
