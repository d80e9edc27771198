"""What a page shows of run folders."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from command_line import run, succeed

import dnasa
from dnasa import data, pages
from dnasa.core import Array, InputError
from dnasa.inference import fit
from dnasa.pages import page, regression
from dnasa.pages.contents import _curve, read_history, round_numbers, table
from dnasa.tasks import datasets

pytestmark = pytest.mark.xdist_group("pages")  # one process trains the runs
HEADER = "run,rule,schedule,eta,seed,step,nodes,test_loss,consensus,samples,messages,bytes,seconds\n"
HUGE = "1" + "0" * 400  # too large for a float


def row(step: int, number: int = 0, loss: float = 0.5) -> str:
    return f"{number},dsgd,diminishing,1,{number},{step},4,{loss},0.25,10,{8 * step},{64 * step},0.5\n"


HUGE_ETA = HEADER + row(0).replace("diminishing,1", f"diminishing,{HUGE}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in a folder, one of which diverged; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("pages")
    common = "--steps 20 --nodes 5 --topology star --quiet".split()
    succeed("train", *common, "--out", folder / "good")
    assert run("train", *common, "--rule", "dsgd", "--eta", "1e200", "--out", folder / "bad").returncode == 1
    return folder


def contents(path: Path) -> dict[str, Any]:
    return pages.read(path)


def only(path: Path) -> dict[str, Any]:
    (folder,) = contents(path)["folders"]
    return folder


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 0.82, [0, 0.2, 0.4, 0.6, 0.8]),
        (-0.02, 0.073, [-0.02, 0, 0.02, 0.04, 0.06]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-130, 71, [-100, -50, 0, 50]),
    ],
)
def test_axes_have_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert round_numbers(low, high) == ticks


def test_curves_are_named_as_in_plots_and_runs_named_alike_are_numbered(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    assert read_history(file, {}) == []
    file.write_text(HEADER + row(0) + row(0, 1) + row(0).replace("0,dsgd", "2,dsgd", 1) + row(10)[:20])
    found = read_history(file, {})  # without the row that is being written
    name = "D-SGD (diminishing), eta = 1"
    assert [(line["name"], line["seed"]) for line in found] == [(name, 0), (name, 1), (f"{name}, no. 2", 0)]
    assert [line["columns"]["step"] for line in found] == [[0]] * 3


@pytest.mark.parametrize("text", [HEADER + "x" + row(0), HEADER + row(0).strip() + ",5\n", "a,b\n1,2\n", "\xff\n", HUGE_ETA])
def test_a_damaged_history_is_reported_in_the_page(text: str, tmp_path: Path, home: Path) -> None:
    shutil.copytree(home / "good", tmp_path / "run")
    (tmp_path / "run" / "history.csv").write_text(text, encoding="latin-1")
    assert "history.csv is damaged" in only(tmp_path / "run")["failures"][0]


def test_the_cohort_says_what_is_missing_or_too_few(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for k, name in enumerate(("bonn", "köln")):
        rows = pd.DataFrame({"kind": ["no", "yes"] * 60, "ward": ["er", ("icu", "er")[k]] * 60, "a": np.arange(120) % 7 / 2})
        rows.assign(b=[None, 2.5][k]).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    words = ["--shard-dir", tmp_path / "sites", "--target", "kind", "--steps", 5, "--model", "linear", "--quiet"]
    succeed("train", *words, "--out", tmp_path / "run")
    succeed("report", tmp_path / "run", "--html")
    shown = only(tmp_path / "run")["tests"]["tables"][-1]
    cohort = {line: cells for line, *cells in shown["rows"]}
    assert shown["title"] == "Cohort"
    assert shown["notes"] == [
        "Counts within the training rows are rounded to multiples of 5, the largest so that their sum is right."
    ]
    assert cohort["test rows, kind: yes"] == ["12", "12", "24"]
    assert cohort["ward: icu"][1] == "<5"
    assert cohort["b, mean (SD)"] == ["none", "2.5 (0)", "2.5 (0)"]
    assert cohort["b missing"] == ["96 (100.0 %)", "0", "96 (50.0 %)"]
    rows = data.from_shards(tmp_path / "sites", range(2), 2, "a", drop_columns="b", task="regression")[0]
    assert datasets.cohort(rows).iloc[2, 0] == "a, mean (SD)", "the target of a regression"
    tex = (tmp_path / "run" / "report.tex").read_text()
    assert r"caption{Cohort.}" in tex
    assert only(tmp_path / "run")["settings"]["dnasa"] == version("dnasa")
    assert only(tmp_path / "run")["settings"]["shard-dir"] == "sites", "without its folder"
    stored = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(stored | {"sites": ["few", stored["sites"][1]]}))
    assert only(tmp_path / "run")["tests"]["tables"][-1]["rows"][2][1:] == ["withheld", "12", "withheld"]
    assert {"begun"} < {*only(tmp_path / "run")["settings"]}
    assert r"& $<$5 &" in tex


def test_tables_with_intervals_have_a_few_columns_each_and_the_notes_of_the_page() -> None:
    frame = pd.DataFrame([["AUC", *["0.7 (0.6 to 0.8)"] * 5]], columns=["", *"abcde"])
    first, second = page.as_latex(table("Results for died", frame, ["Left out: évora (fewer than 5)."]))
    assert "Left out: évora (fewer than 5).\n\\end{table*}" in first
    assert "Further notes: part 1." in second
    assert r"& a & b & c \\" in first
    assert r"& d & e \\" in second
    assert [re.findall(r"label{(.*?)}", part) for part in (first, second)] == [["tab:results-1"], ["tab:results-2"]]
    assert len([*page.as_latex(table("Cohort", frame))]) == 1


def test_nothing_of_a_curve_touches_the_frame() -> None:
    line, bars = np.array([0.0, 0.5, 1.0]), [(0.5, 0.2, 1.5)]
    assert _curve("Calibration", "risk", "share", [("tenths", line, line)], bars)["ends"][3] > 1.05 * 1.45


def test_the_page_of_a_regression_and_its_latex_have_the_same_notes() -> None:
    rng = np.random.default_rng(0)
    frames = {site: pd.DataFrame({"a": rng.normal(size=60), "b": ["x", "y"] * 30}) for site in ("bonn", "ulm")}
    frames = {site: frame.assign(y=frame.a + rng.normal(size=60)) for site, frame in frames.items()}
    frames["ulm"].loc[:6, "a"] = np.nan
    found = fit("linear", frames, "y")
    for shown in (regression.render(found), regression.as_latex(found, "fit")):
        for words in ("Complete cases: rows with missing", "ulm leaves out 7 of 60 rows", "DerSimonian and Laird", "b: y"):
            assert words in shown


def test_the_numbers_of_a_page_are_those_of_the_run(home: Path) -> None:
    folder, history = only(home / "good"), pd.read_csv(home / "good" / "history.csv")
    assert folder["state"] == "done"
    assert folder["step"] == folder["steps"] == 20
    assert folder["lines"][0]["columns"]["test_accuracy"] == pytest.approx(history.test_accuracy.tolist(), rel=1e-6)
    assert folder["settings"]["topology"] == "star"
    stored = json.loads((home / "good" / "evaluation.json").read_text())
    (matrix,) = (one for one in folder["tests"]["tables"] if one["title"] == "Confusion matrix")
    assert [list(map(int, row[1:])) for row in matrix["rows"]] == stored["common"]["confusion"]
    assert folder["work"][0][0] == "gradient"
    assert folder["failures"] == []


def test_a_comparison_is_shown_with_the_chosen_stepsizes(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "good", tmp_path / "run")
    header = "rule,schedule,eta,mean,spread,low,high,runs,diverged,best,difference,difference_low,difference_high\n"
    lines = "dsgd,constant,0.3,0.5,0.1,0.4,0.6,3,0,True,0.0,0.0,0.0\ndnasa,diminishing,,0.25,nan,inf,,3,1,False,-0.25,,\n"
    (tmp_path / "run" / "table.csv").write_text(header + lines)
    assert only(tmp_path / "run")["comparison"] == [
        ["D-SGD", "constant", 0.3, 0.5, 0.1, 0.4, 0.6, 3.0, 0.0, 0.0],
        ["D-NASA", "diminishing", None, 0.25, None, None, None, 3.0, 1.0, -0.25],
    ]
    assert only(home / "good")["comparison"] == []


def test_a_page_says_what_failed(home: Path) -> None:
    failures = " ".join(only(home / "bad")["failures"])
    assert "Every run diverged" in failures
    assert re.search(r"D-SGD \(diminishing\), eta = 1e\+200, seed 0, diverged at step \d+ at node \d", failures)


@pytest.mark.parametrize(
    ("state", "line"), [("running", "ended without notice"), ("interrupted", "was interrupted"), ("odd", "does not say")]
)
def test_a_page_says_how_an_incomplete_run_continues(state: str, line: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "good", tmp_path / "run")
    (tmp_path / "run" / "status.json").write_text(json.dumps({"state": state}))
    assert line in only(tmp_path / "run")["failures"][0]


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    def gradient(x: Array, node: int, rng: np.random.Generator) -> NoReturn:
        raise InputError("The sensor is off.")

    problem = dnasa.problems.Custom(gradient, start=np.zeros(2))
    with pytest.raises(InputError):
        dnasa.solve(problem, dnasa.topology.ring(3), steps=5, folder=tmp_path / "run")
    (line,) = only(tmp_path / "run")["failures"]
    assert line.startswith("The run failed. Failed at step 0: ")
    assert "The sensor is off." in line


def test_sites_have_their_names(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "bad", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    names = ["bonn", "ulm", "köln", "</b>", "zürich"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"sites": names}))
    with open(tmp_path / "run" / "log.txt", "a") as log:
        log.write("2026-01-01 10:00:00 Lost köln, zürich and their data at step 7; 3 continue.\n")
    folder = only(tmp_path / "run")
    assert folder["sites"] == names
    assert "Lost köln, zürich and their data at step 7; 3 continue." in folder["failures"]
    assert any(re.search(rf"diverged at step \d+ at ({'|'.join(names)})\.", line) for line in folder["failures"])


def test_rules_of_a_plugin_keep_title_and_color_without_their_code(tmp_path: Path) -> None:
    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        return x - node

    dnasa.rules.rule("mine", title="Mine!", color="#123456")(dnasa.rules.dsgd)
    problem = dnasa.problems.Custom(gradient, start=np.zeros(2))
    try:
        dnasa.solve(problem, dnasa.topology.ring(3), ["dsgd", "mine"], eta=0.1, steps=5, folder=tmp_path / "run")
    finally:
        del dnasa.rules.RULES["mine"]
    shown = contents(tmp_path / "run")
    assert [line["name"] for line in shown["folders"][0]["lines"]] == [
        "D-SGD (diminishing), eta = 0.1",
        "Mine! (diminishing), eta = 0.1",
    ]
    assert shown["folders"][0]["lines"][1]["color"] == "#123456"
    assert "Mine!" in run("report", tmp_path / "run").stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(config["rules"]) == ["mine"]
    for damage in ([["Mine!", 3, None]], {"mine": ["Mine!"]}, {"mine": [None, "x", "y"]}, {"mine": ["Mine!", "nope", None]}):
        (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"rules": damage}))
        assert re.fullmatch("#[0-9a-f]{6}", only(tmp_path / "run")["lines"][-1]["color"])


def test_several_runs_are_found_in_folders_of_folders(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "studies" / "first")
    shutil.copytree(home / "good", tmp_path / "studies" / "first" / "good" / "extension-1")
    names = [folder["name"] for folder in contents(tmp_path / "studies")["folders"]]
    assert names == ["first/bad", "first/good", "first/good/extension-1"]
    assert len(contents(tmp_path / "studies" / "first" / "good")["folders"]) == 2


@pytest.mark.parametrize("name", ["evaluation.json", "settings.json", "runs.csv", "table.csv"])
@pytest.mark.parametrize("text", ["[1]", "{", '{"timing": 3, "names": 1}'])
def test_a_damaged_file_is_reported_and_the_rest_is_shown(name: str, text: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "bad" if name == "runs.csv" else home / "good", tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    folder = only(tmp_path / "run")
    assert any(name in line for line in folder["failures"])
    assert folder["step"] > 0


HOSTILE = {  # a text of each file, and what takes its place
    "timing": ("settings.json", '"timing": {', f'"timing": {{"x": {HUGE},'),
    "deep": ("config.json", '"options": {', '"options": {"x": ' + '{"a": ' * 480 + "1" + "}" * 480 + ","),
    "digits": ("config.json", '"options": {', f'"options": {{"x": {"1" * 5000},'),
    "nan": ("settings.json", '"timing": {', '"timing": {"x": NaN,'),
    "name": ("evaluation.json", '"names": [\n    "0"', '"names": [\n    "\\ud800"'),
    "count": ("evaluation.json", '"rows": ', f'"rows": {HUGE}'),
    "seed": ("history.csv", "dnasa,diminishing,0,", "dnasa,diminishing,nan,"),
    "run": ("history.csv", "0,dnasa", f"{HUGE},dnasa"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_folder_breaks_the_page_of_the_others(name: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "runs")
    file, before, after = HOSTILE[name]
    path = tmp_path / "runs" / "good" / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    shown = contents(tmp_path / "runs")
    assert "</script>" in pages.render(shown)
    bad, good = shown["folders"]
    assert {**bad, "lines": 0, "failures": 0} == {**only(home / "bad"), "lines": 0, "failures": 0}
    assert good["name"] == "good"
    assert any(str(path) in line or str(path.parent) in line for line in good["failures"]) or name in (
        "deep",
        "seed",
        "count",
        "name",
    )
    for words in (["runs", tmp_path / "runs"], ["report", tmp_path / "runs" / "good"]):
        assert run(*words).returncode in (0, 2)


def test_the_page_is_one_file_that_names_no_other(home: Path, tmp_path: Path) -> None:
    done = succeed("report", home / "good", "--html", "--out", tmp_path / "a.html")
    assert "a.html" in done.stdout
    text = (tmp_path / "a.html").read_text()
    assert not re.search(r"""<(script|img|iframe|link)[^>]*(src|href)=["'](?!data:)""", text)
    assert not re.search(r"@import|url\((?!#)|import\(", text)
    assert not (home / "good" / "report.html").exists()
