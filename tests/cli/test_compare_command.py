"""`dnasa compare`: what it prints and writes, how it continues, and what it refuses."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run, succeed

import dnasa
from dnasa import Result
from dnasa.comparing import grid
from dnasa.comparing.run_table import experiment
from dnasa.tasks.sources import SourceOptions, plan_comparison

LEAST = "compare --problem least_squares --nodes 4 --steps 20 --rules dsgd:constant,dnasa --etas 0.0001,0.001".split()


def test_compare_says_what_was_chosen_on_what_and_writes_the_numbers_drawn(tmp_path: Path) -> None:
    done = succeed(*LEAST, "--seeds", 2, "--out", tmp_path / "a", "--format", "pdf", "--latex", "--x", "samples,bytes")
    assert "chosen by the training loss of other seeds (2, 3)" in done.stdout
    assert "D-SGD (constant) 0.001 (largest)" in done.stdout
    drawn = pd.read_csv(tmp_path / "a" / "curves.csv")
    assert set(drawn.rule) == {"dsgd", "dnasa"}
    assert drawn.mb_per_node.max() == pytest.approx(0.096)
    assert (tmp_path / "a" / "curves.pdf").read_bytes() == b"pdf"
    assert pd.read_csv(tmp_path / "a" / "stepsizes.csv").shape[0] == 3
    assert pd.read_csv(tmp_path / "a" / "table.csv").difference_low.notna().any()
    table = (tmp_path / "a" / "table.tex").read_text()
    assert r"\toprule" in table
    assert (
        r"\caption{Test loss on least squares: 4 nodes, exact graph (2 graphs in turn whose product is the exact average), "
        r"20 steps, 2 mixing rounds per exchange, batches of 1 per node, mean $\pm$ std over 2 seeds. Bold: the best result "
        r"and any equal to it; with fewer than 5 seeds, differences are not tested. "
        r"Stepsizes $\eta_t$: constant, $\eta$. "
        r"$^\dagger$~The stepsize is at an edge of its grid. --: no "
        r"stepsize needed. MB: megabytes that each node sent. vs.\ best: mean paired difference and its 95\% confidence "
        r"interval ($t$ distribution). Stepsizes were chosen by the training loss of other seeds (2, 3).}" in table
    )
    assert r"\label{tab:a}" in table
    captions = [(tmp_path / "a" / f"{name}.tex").read_text() for name in ("curves", "stepsizes")]
    assert [text.count(r"\caption{Test loss on least squares against") for text in captions] == [1, 1]


def test_other_seeds_that_were_not_run_are_missing_for_another_metric(tmp_path: Path) -> None:
    words = ["compare", *"--nodes 2 --steps 5 --rules dsgd --etas 0.1,1 --out".split(), tmp_path / "a"]
    succeed(*words)
    assert "Choosing stepsizes by consensus needs runs of other seeds" in refused(*words, "--metric", "consensus")


def test_the_title_names_everything_that_defines_the_experiment() -> None:
    usual: dict[str, object] = {"data": "digits", "partition": "iid", "nodes": 8, "steps": 1000, "seeds": 1}
    assert experiment(usual, "ring", 1) == "digits: 8 nodes, ring, 1,000 steps, 1 mixing round per exchange"
    assert experiment(usual | {"nodes": 1}, "ring", 1).startswith("digits: 1 node, ")
    other: dict[str, object] = {"partition": "by_label", "compress": "topk:0.01"}
    other |= {"drop": 0.1, "every": 2}
    assert experiment(usual | other, "ring", 2) == (
        "digits (by_label): 8 nodes, ring, 1,000 steps, 2 mixing rounds per exchange every 2 steps, messages compressed by "
        "topk:0.01, links fail with probability 0.1"
    )


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ("dsgd,kgt", "K-GT needs a fixed graph: all rules use ring."),
        ("dsgd,kgt,extra", "K-GT and EXTRA need a fixed graph: all rules use ring."),
        ("dsgd,d2", "D2 needs lazy weights: all rules use ring with lazy weights."),
        ("dsgd,dnasa", ""),
        ("kgt", ""),
        ("dsgd,kgt --topology ring", ""),
    ],
)
def test_a_rule_that_changes_the_graph_of_the_others_is_named(rules: str, line: str) -> None:
    done = succeed(*f"compare --problem least_squares --nodes 4 --steps 20 --etas 0.001 --rules {rules}".split())
    assert ("all rules use" in done.stdout) == bool(line)
    assert line in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--x steps,miles", "Unknown x 'miles'"),
        ("--x clock", "which a study has (key clock)"),
        ("--x bytes,bytes", "The x bytes is given twice"),
        ("--format pdf,gif", "Unknown format 'gif'"),
        ("--format ,", "--format names no format"),
        ("--style poster", "Unknown style 'poster'"),
        ("--style paper:wide", "paper with a width of 2 to 20 inches: paper:6.75, paper:469pt."),
        ("--latex", "give --out"),
        ("--metric wat", "There is no metric 'wat'"),
        ("--rules dsgd:wat", "Unknown schedule 'wat' for dsgd"),
        ("--rules wat:constant", "Unknown rule 'wat'"),
        ("--rules adanasa --schedule diminishing", "adanasa has linear, averaged"),
        ("--rules dsgd:constant --schedule fixed", "No rule uses the schedule fixed"),
        ("--rules dsgd,dsgd:diminishing", "dsgd:diminishing with eta 0.0001 is given twice, perhaps once without its schedule"),
        ("--etas 0.1 --extend", "give at least two stepsizes"),
        ("--rules dnasa,adanasa", "--etas has no effect, since these rules need no stepsize"),
    ],
)
def test_a_wrong_comparison_gets_one_clear_line_and_no_folder(words: str, message: str, tmp_path: Path) -> None:
    assert message in refused(*LEAST, *words.split(), *([] if words == "--latex" else ["--out", tmp_path / "runs" / "a"]))
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with extensions; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("extended") / "a"
    succeed(*LEAST, "--extend", "--out", folder)
    return folder


def test_the_same_command_draws_runs_in_other_formats(extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*LEAST, "--out", shutil.copytree(extended, tmp_path / "a")]
    before = (tmp_path / "a" / "history.csv").read_bytes()
    monkeypatch.setattr(grid, "solve", None)  # nothing is run
    again = succeed(*words, *"--extend --format pdf,svg --style paper --latex --x bytes".split())
    assert "The runs are read from" in again.stdout
    assert (tmp_path / "a" / "history.csv").read_bytes() == before
    for name in ("curves.pdf", "curves.svg", "stepsizes.pdf", "stepsizes.svg", "table.tex"):
        assert name in again.stdout
        assert (tmp_path / "a" / name).exists()
    assert "holds a run already, with --seeds 1 instead of 2: choose another --out" in refused(*words, "--extend", "--seeds", 2)
    epochs, unknown = (run(*words, *each.split()) for each in ("--x epochs", "--metric wat"))
    assert (epochs.returncode, unknown.returncode) == (2, 2)
    assert "These runs have no epochs: choose another x." in " ".join(epochs.stderr.split())
    assert "There is no metric 'wat' to compare by. This run has: train_loss, test_loss, " in unknown.stderr
    succeed(*words, "--metric", "consensus")
    assert not [name for name in ("curves.pdf", "curves.svg", "stepsizes.pdf", "table.tex") if (tmp_path / "a" / name).exists()]
    (tmp_path / "a" / "curves.pdf").write_text("mine")
    succeed(*words)
    assert (tmp_path / "a" / "curves.pdf").read_text() == "mine"
    etas = run(*words, "--extend", "--etas", "0.0001,0.01").stderr
    assert "holds a run already, with --etas 0.0001,0.001 instead of 0.0001,0.01: " in " ".join(etas.split())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison without extensions; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("plain") / "a"
    succeed(*LEAST, "--out", folder)
    return folder


def extensions(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("extension-*/config.json"))


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What is run from now on: the variants of each part."""
    solved, original = [], dnasa.solve

    def solve(problem: Any, graph: Any, rules: Any, **options: Any) -> Result:
        solved.append([tuple(rule) for rule in rules])
        return original(problem, graph, rules, **options)

    monkeypatch.setattr(grid, "solve", solve)
    return solved


def contents(folder: Path) -> dict[str, bytes]:
    """The runs of a folder, without its config, figures and tables."""
    files = [folder / name for name in ("history.csv", "runs.csv", "x.safetensors", "settings.json", "log.txt")]
    return {str(path): path.read_bytes() for path in files}


def test_a_finished_comparison_is_extended_as_if_it_had_been_from_the_start(
    plain: Path, extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "a"))
    before, solved = contents(folder), recorded(monkeypatch)
    succeed(*LEAST, "--extend", "--out", folder)
    assert [len(part) for part in solved] == [1] * len([*extended.glob("extension-*")])
    assert contents(folder) == before
    for name in ("stepsizes.csv", "table.csv", "curves.csv"):
        assert (folder / name).read_bytes() == (extended / name).read_bytes()
    solved.clear()
    succeed(*LEAST, "--extend", "--out", folder)
    succeed(*LEAST, "--out", folder)
    assert solved == []


def test_an_extension_must_be_of_the_same_problem(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def write(shift: float) -> None:
        np.savez(tmp_path / "own.npz", inputs=rng.standard_normal((400, 3)) + shift, labels=np.arange(400) % 2)

    write(0)
    out = ["--out", tmp_path / "a"]
    words = ["compare", "--data", tmp_path / "own.npz", *"--nodes 4 --steps 5 --etas 0.1,1".split(), *out]
    words += ["--rules", "dsgd"]
    succeed(*words)
    write(1)
    assert "This is not the run that was saved: data was" in refused(*words, "--extend")
    assert not [*(tmp_path / "a").glob("extension-*/history.csv")]


def test_nothing_is_added_where_a_file_of_the_user_is_in_the_way(plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "a"))
    (folder / "curves.pdf").write_text("mine")
    assert "curves.pdf was not written by dnasa" in refused(*LEAST, "--extend", "--format", "pdf", "--out", folder)
    assert (folder / "curves.pdf").read_text() == "mine"
    assert not [*folder.glob("extension-*")]


def without_seconds(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "history.csv")
    return table.drop(columns="seconds")


@pytest.mark.parametrize("lost", ["everything after the grid", "the second extension"])
def test_a_comparison_resumes_wherever_it_was_stopped(lost: str, extended: Path, tmp_path: Path) -> None:
    whole, part = extended, shutil.copytree(extended, tmp_path / "part")
    names = [path.name for path in extensions(whole)]
    assert len(names) > 1
    for name in ("curves.csv", "curves.png", "stepsizes.csv", "stepsizes.png", "table.csv"):
        (part / name).unlink()
    if lost == "everything after the grid":
        for name in names:
            shutil.rmtree(part / name)
    if lost == "the second extension":  # killed before its first checkpoint
        for name in names[2:]:
            shutil.rmtree(part / name)
        (part / names[1] / "status.json").write_text(json.dumps({"state": "running", "step": 3, "steps": 20}))
    grid = (part / "history.csv").read_bytes()
    resumed = succeed("resume", part)
    assert (part / "history.csv").read_bytes() == grid
    for name in names:
        assert without_seconds(part / name).equals(without_seconds(whole / name))
    for name in ("curves.csv", "curves.png", "stepsizes.csv", "stepsizes.png", "table.csv"):
        assert name in resumed.stdout
        assert (part / name).read_bytes() == (whole / name).read_bytes()
    assert "to train longer, start a new run" in refused("resume", part)


def test_a_comparison_that_is_replaced_leaves_no_extension_behind(extended: Path, tmp_path: Path) -> None:
    shutil.copytree(extended, tmp_path / "a")
    succeed(*LEAST, "--out", tmp_path / "a", "--force")
    assert not [*(tmp_path / "a").glob("extension-*")]


@pytest.mark.parametrize(
    ("model", "options", "points"),
    [
        ("linear", {"metric": "test_accuracy"}, 20),
        ("mlp:32", {"metric": "train_loss"}, 20),
        ("lenet", {}, 5),
        ("lenet", {"batch": 64}, 30),
    ],
)
def test_short_comparisons_of_small_models_have_enough_points_for_a_curve(
    model: str, options: dict[str, Any], points: int
) -> None:
    rows: Any = SimpleNamespace(labels=range(40_000), test_labels=range(10_000))
    _, evaluate = plan_comparison(SourceOptions(**{"steps": 200, "batch": 1} | options), rows, model)
    assert evaluate is not None
    assert len(evaluate) == points + 1


def test_a_batch_with_more_rows_than_a_node_has_is_named() -> None:
    done = succeed(*"compare --rules dnasa --nodes 4 --steps 2 --model linear --batch 1000".split())
    assert "Warning: Rows repeat in a batch of 1,000: the smallest node has 323 rows." in done.stderr
