"""The study of lengths: every cell is run once, the hardest stepsize of D-Adam is the one compared with, findings are true."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dnasa.reproduce import experiment, lengths
from dnasa.reproduce.experiment import Found, Part, RunSpec
from dnasa.reproduce.network_tasks import ACCURACY, LOSS, R2, Task, generated_table


def test_every_task_length_and_batch_is_a_part() -> None:
    parts = {part.name: part for part in lengths.parts(quick=False)}
    assert len(parts) == 8 * 4 * 2
    for part in parts.values():
        (runs,) = part.runs
        assert (runs.graph.name, runs.graph.nodes, runs.partition) == ("exact", 8, "iid")
        assert runs.table().value_counts(["rule", "seed"]).to_dict() == {
            (rule, seed): count for rule, count in (("adanasa", 1), ("dadam", 5)) for seed in range(3)
        }
    assert [part.name for part in experiment.select(list(parts.values()), "gpt/500")] == ["gpt/500/4", "gpt/500/32"]
    assert {name.partition("/")[0] for name, part in parts.items() if not part.gpu} == {
        "a9a",
        "covertype",
        "regression",
    }


@pytest.mark.pictures
def test_the_quick_study_needs_no_data_and_runs_nothing_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lengths, "QUICK_STEPS", (2, 3))
    monkeypatch.setattr(lengths, "QUICK_BATCHES", (2,))
    monkeypatch.setitem(lengths.QUICK, "digits", Task("digits", rows=300))
    report = lengths.EXPERIMENT.run(quick=True, progress=False, folder=tmp_path)
    rows = report.tables["lengths"]
    assert rows.task.tolist() == [name for name in ("gpt-small", "lstm", "digits", "regression") for _ in range(2)]
    assert rows.steps.tolist() == ["2", "3"] * 4
    assert f"in {(rows.within == 'yes').sum()} of 8 cells" in report.findings[0]
    assert all(picture.stat().st_size > 20_000 for picture in report.save(tmp_path))
    monkeypatch.setattr(experiment, "solve", None)
    assert lengths.EXPERIMENT.run(quick=True, folder=tmp_path).findings == report.findings


def found(**gains: tuple[Any, float, list[float]]) -> Found:
    """For each task its measure, AdaNASA's result and those of D-Adam, of one seed."""
    parts, rows = {}, {}
    for task, (measure, ours, theirs) in gains.items():
        etas = [10.0**-i for i in range(len(theirs))]
        runs = RunSpec(300, ("adanasa", "dadam"), {"dadam": tuple(etas)}, batch=4)
        parts[f"{task}/300/4"] = Part(f"{task}/300/4", [runs], Task("", measure=measure))
        rows[f"{task}/300/4"] = runs.table().assign(test=[ours, *theirs])
    return Found(False, parts, rows)


def test_findings_count_what_is_within_the_target_and_what_is_better() -> None:
    loss, nan = LOSS._replace(target=0.03), np.nan
    report = lengths.report(
        found(
            lost=(loss, 2.5, [3.0, 2.4, 2.6]),
            near=(loss, 2.42, [3.0, 2.4, 2.6]),
            points=(ACCURACY, 0.9, [0.8, nan, 0.7]),
            fit=(R2, 0.9, [0.5, 0.6, 0.906]),
            diverged=(loss, nan, [nan, nan, 2.0]),
            alone=(loss, 2.0, [nan, nan, nan]),
        )
    )
    table = report.tables["lengths"].set_index("task")
    assert table.within.to_dict() == {
        "lost": "NO", "near": "yes", "points": "yes", "fit": "NO", "diverged": "NO", "alone": "yes"
    }  # fmt: skip
    assert table["better by"].tolist() == ["-0.100", "-0.020", "+10.00", "-0.60", "", ""]
    assert table["D-Adam (eta)"].tolist()[:4] == [
        "2.400 (0.1)",
        "2.400 (0.1)",
        "80.00 % (1, edge)",
        "90.60 % (0.01, edge)",
    ]
    count, missed = report.findings
    assert "within 0.030 in loss or 0.50 points of D-Adam" in count
    assert "in 3 of 6 cells, and better in 2." in count
    assert missed == (
        "Not within the target: lost, 300 steps, batch 4 (-0.100); fit, 300 steps, batch 4 (-0.60); "
        "diverged, 300 steps, batch 4 (diverged)."
    )


def test_the_generated_table_is_a_regression_with_noise_of_variance_1() -> None:
    table = generated_table(5000)
    assert (table.task, len(table.labels), len(table.test_labels)) == ("regression", 4000, 1000)
    inputs = table.inputs.astype(float)
    features = np.hstack([np.ones((4000, 1)), inputs, inputs**2, inputs[:, :1] * inputs[:, 1:2]])
    residual = table.labels.ravel() - features @ np.linalg.lstsq(features, table.labels.ravel(), rcond=None)[0]
    assert table.encoding is not None
    assert table.encoding.target_scale is not None
    variance = residual.var() * float(table.encoding.target_scale[0]) ** 2
    assert 1 < variance < 3  # what is not quadratic comes on top
    pd.testing.assert_frame_equal(pd.DataFrame(table.inputs), pd.DataFrame(generated_table(5000).inputs))
