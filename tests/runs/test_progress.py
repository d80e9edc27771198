"""What a run prints while it is under way: a bar, JSON lines, or nothing."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run

import dnasa
from dnasa.core import InputError
from dnasa.runs import progress

PROBLEM = dnasa.problems.Custom(lambda x, node, rng: x - node, start=np.zeros(2))
TRAIN = "train --problem least_squares --nodes 4 --steps 20 --seeds 2 --out run".split()


def lines(done: SimpleNamespace) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_speed_and_remaining_time_count_from_the_first_step_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    speed = progress.Display(steps=1000, batch=32)
    speed.advance(500)  # a run that was resumed
    assert speed.remaining(500) is None
    speed.advance(520)
    assert speed.steps_per_second == 10
    assert speed.remaining(520) == 48


def test_json_lines_are_the_rows_of_the_history(tmp_path: Path) -> None:
    rows = lines(run(*TRAIN, "--log-json", cwd=tmp_path))
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    assert [row["step"] for row in rows] == history.step.tolist()
    assert [row["grad_norm"] for row in rows] == history.grad_norm.tolist()
    assert all(row["steps"] == 20 for row in rows)
    assert rows[-1]["remaining_seconds"] == 0
    assert rows[-1]["samples_per_second"] > 0


def test_quiet_prints_nothing_and_the_next_command_prints_again(tmp_path: Path) -> None:
    done = run(*TRAIN, "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Runs in" in run("runs", ".", cwd=tmp_path).stdout


def test_a_comparison_and_a_resumed_run_have_the_same_output_options(tmp_path: Path) -> None:
    words = "compare --rules dsgd,dnasa --etas 0.1 --problem least_squares --nodes 4 --steps 20".split()
    assert {row["rule"] for row in lines(run(*words, "--log-json", cwd=tmp_path))} == {"dsgd", "dnasa"}
    run(*TRAIN, "--checkpoint-every", 10, cwd=tmp_path)
    folder = tmp_path / "run"
    (folder / "status.json").write_text('{"state": "interrupted"}')
    next((folder / "checkpoints").glob("step-*20-*"), folder / "none").unlink(missing_ok=True)
    assert lines(run("resume", folder, "--log-json"))[-1]["step"] == 20


def test_pipes_get_a_line_each_minute_unless_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options: Any = {"rule": ["dsgd", "dnasa"], "eta": 0.001, "steps": 40, "evaluate": 10}
    dnasa.solve(PROBLEM, dnasa.topology.ring(4), **options)
    assert capsys.readouterr().err == "", "It took less than a minute."
    monkeypatch.setattr(progress.Lines, "EVERY", 0.0)
    result = dnasa.solve(PROBLEM, dnasa.topology.ring(4), **options)
    out, err = capsys.readouterr()
    first, *_, last = err.splitlines()
    assert first.startswith("Step 1 of 40, loss "), "The speed is not known yet."
    loss = result.history[result.history.step == 30].consensus.min()
    assert re.fullmatch(rf"Step 40 of 40, loss {loss:.4g}, 0:00:00 left", last)
    assert out == ""
    dnasa.solve(PROBLEM, dnasa.topology.ring(4), progress=False, **options)
    assert capsys.readouterr().err == ""


def test_an_unknown_progress_is_refused() -> None:
    with pytest.raises(InputError, match="progress is True, False, None or 'json', not 'yes'"):
        dnasa.solve(PROBLEM, dnasa.topology.ring(4), steps=5, progress="yes")  # type: ignore[arg-type]


def test_a_loss_that_is_not_measured_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress.Lines(steps=40, batch=1)
    display.update(3)
    display.show(4, [{"train_loss": np.nan, "consensus": 0.0}])
    display.update(4)
    display.show(5, [{"train_loss": loss, "consensus": 0.0} for loss in (np.nan, 0.5)])
    display.update(5)
    assert capsys.readouterr().err.splitlines() == [
        f"Step {line} left" for line in ("3 of 40, 0:00:00", "4 of 40, 0:00:00", "5 of 40, loss 0.5, 0:00:00")
    ]
