"""The figures are drawn, and their tables agree with the curves."""

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest

from dnasa import data, topology
from dnasa.comparing import drawing, plots, tuning
from dnasa.comparing.statistics import final, over_seeds
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.engine.loop import solve
from dnasa.problems import LeastSquares
from dnasa.reproduce import datasets, figure, runs, synthetic

pytestmark = pytest.mark.pictures
FEW = {"search": partial(runs.run, rules=("dsgd", "dnasa"), etas=(0.5, 5), loss_scale="1/n")}


def test_speedup_counts_the_steps_to_the_same_gradient_norm() -> None:
    rows = [
        {"schedule": "fixed", "nodes": n, "seed": 0, "step": t, "grad_norm": 1 / (1 + n * t), "test_loss": 0.0}
        for n in (5, 10, 20)
        for t in range(0, 101)
    ]
    table = synthetic.speedup(pd.DataFrame(rows)).set_index("nodes")
    assert table["speedup over n = 5"][20] == pytest.approx(4, rel=0.1)
    assert table["speedup over n = 5"][10] == pytest.approx(2, rel=0.1)


def test_the_best_stepsize_is_by_the_mean_over_seeds_and_never_a_diverged_one() -> None:
    result = solve(LeastSquares(dim=10), topology.ring(4), ["dsgd", "dnasa"], eta=[1e-4, 1e-2, 1e160], seed=[0, 1], steps=80)
    table = over_seeds(final(result.history), "test_loss")
    best = tuning.best(table, "test_loss").set_index("rule")
    assert best.loc["dsgd"].eta == 1e-2
    assert np.isnan(best.loc["dnasa"].eta)
    assert [tuning.diverged_text(rows) for _, rows in table.groupby("rule", sort=False)] == ["1e+160", "none"]


def generated(name: str) -> Dataset:
    """Small data with the shapes of the real data; MiniBooNE is missing."""
    if name == "miniboone":
        raise InputError("missing")
    shape = (1, 28, 28) if name == "mnist" else (5,)
    x = np.random.default_rng(0).standard_normal((90, *shape)).astype(np.float32)
    return data.from_arrays(x, (x.reshape(90, -1)[:, 0] > 0).astype(int))


@pytest.mark.parametrize(
    ("name", "module", "smaller"),
    [
        ("fig1", synthetic, {"SIZES": (3, 6)}),
        ("fig2", synthetic, {"ETAS": (1e-3, 5e-3, 1e-1)}),
        ("fig3", datasets, FEW),
        ("fig4", datasets, FEW | {"GRAPHS": ("ring", "ladder")}),
        ("fig6", datasets, FEW),
    ],
)
def test_figures_are_drawn_with_their_numbers(
    name: str, module: ModuleType, smaller: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On small data, with short runs and few stepsizes."""
    for attribute, value in smaller.items():
        monkeypatch.setattr(module, attribute, value)
    for place in (runs, datasets):
        monkeypatch.setattr(place, "dataset", generated)
    monkeypatch.setattr(runs, "solve", lambda *a, **k: solve(*a, **(k | {"steps": min(k["steps"], 100), "evaluate": 10})))
    monkeypatch.setattr(datasets, "QUICK_STEPS", dict.fromkeys(datasets.QUICK_STEPS, 4))
    monkeypatch.setattr(drawing, "FAR_WORSE", 0)
    monkeypatch.setattr(drawing, "ROOM", 0.001)
    report = figure(name)(quick=True, progress=False)
    if name == "fig3":  # three panels in a row
        axes: Any = report.figures[name].axes
        assert [axis.get_subplotspec().rowspan.start for axis in axes] == [0, 0, 0]
        assert any(kind == plots.OFF for axis in axes for kind, _ in plots.rows_above(axis))
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    assert (name != "fig3") or report.notes[0] == "miniboone is left out: missing"
    for table in report.tables:
        assert len(pd.read_csv(tmp_path / f"{table}.csv")) > 1


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig6"])
def test_a_figure_without_its_data_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(which: str) -> NoReturn:
        raise InputError("put the file there")

    monkeypatch.setattr(runs, "dataset", load)
    with pytest.raises(InputError, match="put the file there"):
        figure(name)(quick=True, progress=False)
