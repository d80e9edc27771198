"""Every public function that takes a path takes it as text and as a Path."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import dnasa
from dnasa import data, solve, topology, trained
from dnasa.comparing import grid, plots
from dnasa.problems import LeastSquares
from dnasa.runs.folder import RunFolder
from dnasa.tasks import models, tasks

PUBLIC = [
    dnasa,
    *(part for name in dnasa.__all__ if isinstance(part := getattr(dnasa, name), ModuleType)),
    grid,
    tasks,
]


def table(folder: Path) -> Path:
    rows = "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(40))
    (folder / "rows.csv").write_text("x,y,target\n" + rows)
    return folder / "rows.csv"


def text(folder: Path) -> Path:
    (folder / "words.txt").write_text("to be or not to be, that is the question\n" * 20)
    return folder / "words.txt"


def shards(folder: Path) -> Path:
    for node in range(2):
        (folder / f"node-{node}.csv").write_text(table(folder).read_text())
    (folder / "rows.csv").unlink()
    return folder


def model(folder: Path) -> Path:
    rows = data.from_arrays(np.eye(10, 4), np.arange(10) % 2)
    assert rows.encoding is not None
    trained.save(folder / "model", trained.TrainedModel(models.make("mlp:4", rows)(), rows.encoding), "mlp:4")
    return folder / "model"


def result(**options: Any) -> dnasa.Result:
    return solve(LeastSquares(dim=2), topology.ring(3), steps=2, **options)


def saved(folder: Path) -> Path:
    return result().save(folder / "run")


def nothing(folder: Path) -> Path:
    return folder / "new.svg"


# what makes the file, and the function that is given its path
CALLS: dict[str, tuple[Callable[[Path], Path], Callable[[Any], Any]]] = {
    "data.load, a table": (table, lambda path: data.load(path, "target")),
    "data.load, a text": (text, lambda path: data.load(path, context=8)),
    "data.from_text": (text, lambda path: data.from_text(path, context=8)),
    "data.from_shards": (shards, lambda path: data.from_shards(path, range(2), 2, "target")),
    "tasks.classification": (table, lambda path: tasks.classification(path, 2, target="target")),
    "Result.save": (nothing, lambda path: result().save(path)),
    "Result.load": (saved, dnasa.Result.load),
    "save_figure": (nothing, lambda path: plots.save_figure(Figure(), path)),
    "solve(folder=)": (nothing, lambda path: result(folder=path)),
    "RunFolder": (nothing, RunFolder),
    "compare(folder=)": (
        nothing,
        lambda path: grid.compare(LeastSquares(dim=2), topology.ring(3), ["dnasa"], steps=2, folder=path),
    ),
    "trained.load": (model, trained.load),
    "dnasa.load": (model, dnasa.load),
}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", CALLS)
def test_a_path_may_be_text_or_a_path(name: str, kind: Callable[[Path], Any], tmp_path: Path) -> None:
    make, call = CALLS[name]
    path = make(tmp_path)
    assert call(kind(path)) is not None or path.exists()


def functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in getattr(module, "__all__", vars(module)):
        part = getattr(module, name)
        owned = vars(part).items() if inspect.isclass(part) else [("", part)]
        yield from ((f"{module.__name__}.{name}.{member}".rstrip("."), value) for member, value in owned)


def test_no_public_function_wants_a_path_that_is_no_text() -> None:
    found = {}
    for module in PUBLIC:
        for name, function in functions(module):
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function) and function.__module__.startswith("dnasa"):
                for parameter in inspect.signature(function).parameters.values():
                    if "Path" in str(parameter.annotation):
                        found[f"{name}({parameter.name})"] = str(parameter.annotation)
    assert {"dnasa.data.from_text(path)", "dnasa.load(folder)", "dnasa.Result.load(path)"} <= found.keys()
    assert [where for where, kind in found.items() if "str" not in kind] == []
