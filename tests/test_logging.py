"""Metrics in TensorBoard, Weights & Biases and MLflow, with the real packages where they are installed."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_resume import run

import dnasa
from dnasa import logging
from dnasa.core import InputError

PROBLEM = dnasa.problems.Custom(lambda x, node, rng: x - [node, 1.0], start=np.zeros(2))
RING = dnasa.topology.ring(4)


class Listed:
    """A tool that stores what it is given."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, Mapping[str, float]]]] = {}

    def start(self, run: str) -> "Listed":
        self.runs[run] = []
        return self

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        list(self.runs.values())[-1].append((step, metrics))

    def close(self) -> None:
        self.runs["closed"] = []


def test_a_log_is_a_callback_that_writes_every_evaluation_and_does_not_stop_the_run() -> None:
    tool = Listed()
    with logging.Log(tool.start) as log:
        result = dnasa.solve(PROBLEM, RING, steps=20, evaluate=5, record=dnasa.Record(callback=log))
    assert [step for step, _ in tool.runs["0 dnasa diminishing seed=0"]] == result.history.step.tolist()
    _, last = tool.runs["0 dnasa diminishing seed=0"][-1]
    assert last["consensus"] == result.history.consensus.iloc[-1]
    assert not {"run", "step", "seed", "nodes"} & last.keys()
    assert "closed" in tool.runs


def test_runs_with_the_same_rule_and_seed_have_names_of_their_own() -> None:
    tool = Listed()
    rule = dnasa.rules.dsgd(lambda t: 0.1)
    dnasa.solve(PROBLEM, RING, [rule, rule], steps=5, record=dnasa.Record(callback=logging.Log(tool.start)))
    assert len(tool.runs) == 2


def test_values_that_are_not_finite_are_left_out() -> None:
    tool = Listed()
    logging.Log(tool.start).log({"loss": float("nan"), "accuracy": 0.5}, 3)
    assert tool.runs == {"run": [(3, {"accuracy": 0.5})]}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_the_history_of_a_training_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = "train --problem least_squares --nodes 4 --steps 20 --seeds 2 --out run --tensorboard".split()
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    for number, folder in enumerate(sorted((tmp_path / "run" / "tensorboard").iterdir())):
        rows = history[history.run == number]
        steps, values = zip(*scalars(folder)["grad_norm"], strict=True)
        assert list(steps) == rows.step.tolist()
        assert values == pytest.approx(rows.grad_norm.tolist(), rel=1e-6)


def test_tensorboard_reads_what_a_loop_of_its_own_logs_for_each_process(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with logging.tensorboard(tmp_path) as log:
        for rank in range(2):
            log.log({"loss": 0.5 + rank}, 7, run=f"rank {rank}")
    assert scalars(tmp_path / "rank-1") == {"loss": [(7, 1.5)]}


def test_a_name_with_separators_stays_inside_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with logging.tensorboard(tmp_path / "logs") as log:
        log.log({"loss": 1.0}, 0, run="../outside/x")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.long
def test_wandb_has_a_run_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = logging.wandb("project", mode="offline", dir=str(tmp_path))
    result = dnasa.solve(PROBLEM, RING, steps=20, seed=[0, 1], record=dnasa.Record(callback=log))
    summaries = [writer.run.summary["consensus"] for writer in log._writers.values()]  # type: ignore[attr-defined]
    log.close()
    assert summaries == pytest.approx(result.final().consensus.tolist())
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 2


@pytest.mark.long
def test_mlflow_has_a_run_for_each_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with logging.mlflow("study", address) as log:
        result = dnasa.solve(PROBLEM, RING, steps=20, seed=[0, 1], record=dnasa.Record(callback=log))
    client = mlflow.MlflowClient(address)
    found = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    for run_, consensus in zip(sorted(found, key=lambda one: one.info.run_name), result.final().consensus, strict=True):
        assert run_.info.status == "FINISHED"
        assert client.get_metric_history(run_.info.run_id, "consensus")[-1].value == pytest.approx(consensus)


@pytest.mark.parametrize(
    ("start", "module", "extra"),
    [
        (lambda: logging.tensorboard("x"), "torch.utils.tensorboard", "tensorboard"),
        (lambda: logging.wandb("x"), "wandb", "wandb"),
        (lambda: logging.mlflow("x"), "mlflow", "mlflow"),
    ],
)
def test_a_tool_that_is_not_installed_is_named_with_the_command_that_installs_it(
    start: Callable[..., Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"is not installed: `pip install 'dnasa\[{extra}\]'`"):
        start()


def test_tensorboard_on_the_command_line_needs_a_folder() -> None:
    done = run("train", "--tensorboard")
    assert done.returncode == 2
    assert done.stderr == "Error: --tensorboard writes into the folder of the run: give --out.\n"


def test_a_run_that_replaces_another_removes_its_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = "train --problem least_squares --nodes 4 --steps 5 --quiet --out run".split()
    run(*words, "--tensorboard", cwd=tmp_path)
    assert (tmp_path / "run" / "tensorboard").exists()
    run(*words, "--force", cwd=tmp_path)
    assert not (tmp_path / "run" / "tensorboard").exists()
