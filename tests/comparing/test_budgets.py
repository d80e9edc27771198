"""Studies at equal bytes and equal predicted seconds, to which others add rules."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run, succeed

from dnasa import rules
from dnasa.comparing import budgets, study_file, study_report
from dnasa.comparing.study_report import StudyReport

STUDY = """
problems = ["digits"]
graphs = ["ring", "path"]
partitions = ["by_label"]
rules = ["dsgd:constant", "kgt", "d2", "dnasa"]
model = "linear"
steps = 24
batch = 4
nodes = 4
seeds = 2
etas = [0.1, 1]

[budget.bytes]

[budget.slow]
compute = 0.01
bandwidth = 1
latency = 20
"""
MINE = """
from dnasa import rules
rules.rule("mine", title="Mine")(lambda eta: rules.dsgd(lambda t: eta(t) / 2))
"""
PLACE = ["graph", "budget"]
pytestmark = pytest.mark.xdist_group("budgets")  # one worker runs the study that most of them read


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "s.toml").write_text(STUDY)
    done = succeed("study", "s.toml", "--out", "a", "--latex", cwd=folder)
    ranks = (folder / "a" / "table.tex").read_text().split("\n\n")[-1]
    assert r"\label{tab:s-ranks}" in ranks
    assert r"Method & Bytes & Slow & All & Best of 4 & Points from the best \\" in ranks
    assert "D2 needs all eigenvalues of W above -1/3" in done.stdout
    assert "Average ranks" in done.stdout
    assert "Stepsizes were chosen by the validation accuracy" in done.stdout
    return folder


def test_links_are_those_of_budgets_or_of_each_network() -> None:
    clocks = [{"bandwidth": speed, "latency": 1, "compute": 0.1} for speed in (10, 100)]
    for budgets_of, said in ((("near", "far"), 2), (("", ""), 0)):
        cells: Any = [(SimpleNamespace(settings={"clock": c}, budget=b), None) for c, b in zip(clocks, budgets_of, strict=True)]
        assert study_report._links(cells).count("Mbit/s") == said


def test_each_rule_takes_the_steps_that_the_budget_pays_for(whole: Path) -> None:
    rows = pd.read_csv(whole / "a" / "results.csv").set_index(["rule", *PLACE]).steps
    x, three = (arrays * 650 * 32 * 1514 / 1448 / 1e6 for arrays in (1, 3))  # seconds to send them at 1 Mbit/s

    def seconds(sending: float) -> float:
        return 0.01 + 2 * 0.02 + 2 * sending  # a gradient, an announcement and a message, two neighbors

    by_bytes = {"dsgd:constant": 24, "dnasa": 8, "kgt": 24 * 10 // 2}
    by_seconds = {"dsgd:constant": 24, "dnasa": 24 * seconds(x) / seconds(three)}
    for budget, expected in (("bytes", by_bytes), ("slow", by_seconds)):
        for rule, steps in expected.items():
            assert rows[rule, "ring", budget] == pytest.approx(steps, abs=1)
    assert rows["dsgd:constant", "path", "bytes"] == 24 * 8 // 6  # a path of 4 has 6 ends of edges, a ring 8
    assert ("d2", "ring", "bytes") not in rows.index
    history = pd.read_csv(whole / "a" / "digits-ring-by_label-slow-dnasa" / "history.csv")
    assert history.clock_seconds.max() <= 24 * seconds(x) + 0.05


def test_a_rule_is_added_without_running_the_others(whole: Path, tmp_path: Path) -> None:
    """As from a repository, which has the rows and no runs."""
    shutil.copy(whole / "s.toml", tmp_path)
    (tmp_path / "my_rules.py").write_text(MINE)
    (tmp_path / "a").mkdir()
    for name in ("results.csv", "files.json"):
        shutil.copy(whole / "a" / name, tmp_path / "a")
    done = succeed("study", "s.toml", "--out", "a", "--rules", "mine", "--plugin", "my_rules.py", cwd=tmp_path)
    ran = {line.split(": ")[0].rpartition(", ")[2] for line in done.stdout.splitlines() if line.startswith("[")}
    assert ran == {"mine"}
    before, after = (pd.read_csv(folder / "a" / "results.csv") for folder in (whole, tmp_path))
    pd.testing.assert_frame_equal(after[after.rule != "mine"].reset_index(drop=True), before)
    table = pd.read_csv(tmp_path / "a" / "table.csv").set_index(["rule", *PLACE])
    same = pd.read_csv(whole / "a" / "table.csv").set_index(["rule", *PLACE])
    pd.testing.assert_series_equal(table["mean"].reindex(same.index), same["mean"])
    assert len(table) == len(same) + 4
    del rules.RULES["mine"]
    again = succeed("study", "s.toml", "--out", "a", cwd=tmp_path)
    assert "mine (diminishing)" in again.stdout  # the rows of others are shown without their plugins, too
    assert not any(line.startswith("[") for line in again.stdout.splitlines())


def test_an_unknown_rule_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    done = run("study", "s.toml", "--rules", "nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: --rules: Unknown rule 'nothing'")


def test_results_without_the_list_of_files_are_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / "a" / "results.csv", tmp_path)
    assert "no files.json of a study: copy that too" in refused("study", whole / "s.toml", "--out", tmp_path)


def test_the_table_has_the_paired_differences_of_the_runs(whole: Path) -> None:
    rows = pd.read_csv(whole / "a" / "results.csv").replace("dsgd:constant", "dsgd")
    rows = rows.set_index(["rule", *PLACE])[["seed 0", "seed 1"]]
    table = pd.read_csv(whole / "a" / "table.csv").set_index(["rule", *PLACE])
    for place, cell in table.groupby(level=PLACE):
        best = cell[cell.best].index[0]
        for key in cell.index:
            assert cell.difference[key] == pytest.approx(np.mean(rows.loc[key] - rows.loc[best]), abs=1e-6), place


def test_rows_with_other_settings_are_not_used(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "a", tmp_path / "a", ignore=lambda folder, names: [name for name in names if "-" in name])
    (tmp_path / "s.toml").write_text(
        STUDY.replace("steps = 24", "steps = 12").replace('"ring", "path"', '"ring"').replace(', "kgt", "d2"', "")
    )
    done = run("study", "s.toml", "--out", "a", cwd=tmp_path)
    assert "[1/4] digits, ring, by_label, bytes, dsgd:constant: 4 runs of 12 steps" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 24", 'steps = 24\nfigure = "curves"'), "figure and x have no effect with budgets"),
        (("latency = 20", "latency = -1"), "latency must be at least 0"),
    ],
)
def test_mistakes_in_a_budget_are_named(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY.replace(*change))
    assert words in refused("study", "s.toml", cwd=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"), [(("budget", "bag"), "it has no column budget"), ((",24,", ",many,"), "Unable to parse string 'many'")]
)
def test_a_damaged_file_of_results_is_refused(change: tuple[str, str], words: str, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "a", tmp_path / "a")
    results = tmp_path / "a" / "results.csv"
    results.write_text(results.read_text().replace(*change))
    line = refused("study", whole / "s.toml", "--out", tmp_path / "a")
    assert f"results.csv cannot be read: {words}" in line
    assert "Restore the file, or delete it" in line


def test_equal_rules_share_a_rank_and_so_do_those_that_cannot_run(whole: Path) -> None:
    study, rows = study_file.read(whole / "s.toml"), budgets.read(whole / "a")
    for rule, values in {"dsgd:constant": [0.4, 0.4], "kgt": [0.2, 0.2], "dnasa": [0.1, 0.7]}.items():  # 0.1 + 0.7 < 0.4 + 0.4
        rows.loc[rows.rule == rule, ["seed 0", "seed 1"]] = values
    rows = rows[~rows.rule.isin(["d2", "kgt"]) | (rows.graph == "path")]
    rows.loc[rows.rule == "d2", ["seed 0", "seed 1"]] = 0.1
    board = StudyReport(study, budgets.by_place(rows, study.cells), []).board().set_index("method")["all"]
    assert board.to_dict() == {
        "D-SGD (constant)": 1.5,
        "D-NASA": 1.5,
        "K-GT (diminishing)": (3.5 + 3) / 2,  # with D2 on the ring, better on the path
        "D2 (diminishing)": (3.5 + 4) / 2,
    }
