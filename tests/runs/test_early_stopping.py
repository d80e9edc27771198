"""Early stopping: the best average of the evaluated answers is the result, and runs stop by themselves."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dnasa
from dnasa import pages
from dnasa.cli import app
from dnasa.comparing import run_table
from dnasa.data import Dataset
from dnasa.runs.early_stopping import EarlyStopping
from dnasa.runs.history import Evaluation
from dnasa.tasks.sources import PATIENCE, SourceOptions, make_source

NODES = 4


def noise(rows: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Classes that hardly depend on the inputs, so that a model soon overfits."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, 20)).astype(np.float32)
    return inputs, (inputs[:, 0] + 2 * rng.normal(size=rows) > 0).astype(int)


def overfitting() -> dnasa.problems.Problem:
    inputs, labels = noise()
    data = Dataset("noise", inputs[:120], labels[:120], inputs[120:], labels[120:])
    parts = np.array_split(np.arange(120), NODES)
    shards, validation = [part[12:] for part in parts], [part[:12] for part in parts]
    return dnasa.on_shards(data, shards, validation=validation, model="mlp:32")


def solved(**options: object) -> dnasa.Result:
    settings = {"steps": 150, "evaluate": 5, "record": dnasa.Record(patience=4), "progress": False} | options
    return dnasa.solve(overfitting(), dnasa.topology.ring(NODES), "adanasa", **settings)  # type: ignore[arg-type]


def test_the_model_with_about_the_smallest_validation_loss_is_the_result() -> None:
    result = solved()
    history, problem = result.history, overfitting()
    best = history.index[history.validation_loss <= 1.01 * history.validation_loss.min()][-1]
    assert 0 < best < len(history) - 1
    assert len(history) - 1 - best == 4
    (row,) = result.final().itertuples()
    assert row.step == history.step[best]
    again = problem.evaluate(result.mean[None, None], range(NODES))
    assert float(again["validation_loss"]) == pytest.approx(history.validation_loss[best], rel=1e-5)
    assert float(again["test_loss"]) == pytest.approx(row.test_loss, rel=1e-5)


def test_the_last_model_about_as_good_as_the_best_is_kept() -> None:
    stopping = EarlyStopping(patience=3, runs=1)
    for loss, flag in (
        (1.0, 1),
        (0.8, 1),
        (0.807, 1),
        (0.815, 0),
        (0.809, 0),
        (0.808, 1),
        (0.79, 1),
        (0.80, 0),
        (0.9, 0),
        (0.9, 0),
    ):
        rows = [{"validation_loss": loss}]
        assert stopping.improved(rows) == [flag]
        assert not stopping.stops
        stopping.update([rows[0] | {"improved": flag}])
    assert stopping.stops
    assert stopping.improved([{"validation_loss": 0.5}]) == [0]


def warning_of(data: Path) -> str:
    options = SourceOptions(data=str(data), target="y", nodes=2, steps=400, model="mlp:64")
    return " ".join(make_source(options, range(2), False).rows.warnings)  # type: ignore[union-attr]


def test_few_validation_rows_of_the_rarer_class_are_told(tmp_path: Path) -> None:
    few, many = (table(tmp_path / f"{rows}.csv", rows) for rows in (160, 700))
    assert re.search(
        r"a tenth of the rows has about \d of the rarer classes.* --model linear depends less on it", warning_of(few)
    )
    assert "tenth of the rows" not in warning_of(many)
    assert warning_of(many) == "The event is b: --labels a,b makes b the event, --labels b,a makes a."


@pytest.mark.parametrize("kept", [{"patience": 4}, {"average": True}], ids=lambda kept: next(iter(kept)))
def test_an_interrupted_run_resumes_with_its_best_model(kept: dict[str, Any], tmp_path: Path) -> None:
    whole = solved(folder=tmp_path / "whole", record=dnasa.Record(checkpoint_every=5, **kept))
    steps = whole.history.step
    best, last = int(whole.final().step[0]), int(steps.iloc[-1])
    assert best < last - 10 if "patience" in kept else best == last == 150
    assert (np.asarray(whole.x) != np.asarray(solved(record=dnasa.Record()).x)).any()

    def fail(evaluation: Evaluation) -> None:
        if evaluation.step == last - 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solved(folder=tmp_path / "part", record=dnasa.Record(checkpoint_every=5, callback=fail, **kept))
    resumed = solved(folder=tmp_path / "part", record=dnasa.Record(checkpoint_every=5, **kept), resume=True)
    assert (np.asarray(resumed.x) == np.asarray(whole.x)).all()
    assert list(resumed.history.step) == list(steps)
    assert list(resumed.history.improved) == list(whole.history.improved)


def table(path: Path, rows: int) -> Path:
    inputs, labels = noise(rows)
    lines = [",".join(f"c{i}" for i in range(20)) + ",y"]
    lines += [",".join(f"{v:.3f}" for v in x) + f",{'ab'[y]}" for x, y in zip(inputs, labels, strict=True)]
    path.write_text("\n".join(lines))
    return path


def patience_of(data: object, **options: object) -> int | None:
    chosen = SourceOptions(data=str(data), nodes=2, **({"steps": 200, "model": "mlp:64"} | options))  # type: ignore[arg-type]
    source = make_source(chosen, range(2), validate=False)
    on, off = (f"Early stopping is {state}" in source.description for state in ("on", "off"))
    assert on == (source.patience is not None) != off
    return source.patience


def test_own_tables_stop_early_by_default_and_nothing_else_does(tmp_path: Path) -> None:
    small, tiny = table(tmp_path / "t.csv", 160), table(tmp_path / "tiny.csv", 40)
    assert patience_of(small, target="y") == PATIENCE
    assert patience_of(small, target="y", early_stopping=False) is None
    assert patience_of(small, target="y", model="linear") is None, "two classes: it has a penalty"
    large = table(tmp_path / "large.csv", 700)
    linear = SourceOptions(data=str(large), target="y", nodes=2, steps=200, model="linear")
    assert make_source(linear, range(2), validate=False).average
    assert not make_source(replace(linear, early_stopping=False), range(2), validate=False).average
    assert patience_of(large, target="y", model="linear", early_stopping=True) == PATIENCE
    assert patience_of(small, target="y", steps=11) == PATIENCE  # 5.5 passes over 128 rows
    assert patience_of(small, target="y", steps=10) is None
    assert patience_of(small, target="y", class_weight="balanced") == PATIENCE
    assert patience_of(tiny, target="y") is None
    assert patience_of(tiny, target="y", early_stopping=True) == PATIENCE
    assert patience_of("digits", steps=10_000) is None
    assert patience_of("digits", early_stopping=True) == PATIENCE


def train(*words: object) -> str:
    done = CliRunner().invoke(app, ["train", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_saved_run_has_the_tests_of_its_best_model_and_is_repeated(tmp_path: Path) -> None:
    own = ["--data", table(tmp_path / "t.csv", 160), "--target", "y", "--model", "mlp:64", "--nodes", 2, "--steps"]
    own.append(200)
    printed = train(*own, "--out", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "model.json").read_text())["trained"]
    result = dnasa.Result.load(tmp_path / "run")
    kept, last = result.final().step[0], result.history.step.iloc[-1]
    assert about["steps"] == kept < last
    for text in (printed, CliRunner().invoke(app, ["report", str(tmp_path / "run")]).output):
        assert (
            f"The model of step {kept} is kept, the last with a validation loss within 1 % of the smallest; the run ended at "
            f"step {last}." in " ".join(text.split())
        )
        assert re.search(rf"│ +{kept} │", text)  # a row of the table
    (folder,) = pages.read(tmp_path / "run")["folders"]
    (row,) = run_table.table(tmp_path).to_dict("records")
    assert (folder["lines"][0]["answer"]["step"], row["step"]) == (kept, f"{kept} / 200")
    for accuracy in (folder["lines"][0]["answer"]["test_accuracy"], row["test accuracy"]):
        assert accuracy == pytest.approx(result.final().test_accuracy[0], rel=1e-6)
    assert any("Early stopping is on" in line for line in folder["events"])
    config = tmp_path / "run" / "config.json"
    for words in (
        ["--config", config, "--no-early-stopping", "--steps", 20, "--out", tmp_path / "off"],
        ["--config", tmp_path / "off" / "config.json"],
    ):
        printed = train(*words)
        assert "Early stopping is off: it is switched off, and the last model is kept." in printed
        assert "is kept, the last with" not in printed
