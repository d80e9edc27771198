"""`dnasa data` shows what was understood of a user's file, completely; `train` and `compare` work on every task."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from command_line import refused, succeed
from test_own_data import mixed
from test_shards import frames, patients, sites, write

from dnasa import networks


@pytest.fixture
def table(tmp_path: Path) -> Path:
    mixed().assign(number=range(60), same=1, street=["a", "b"] * 30).to_csv(tmp_path / "houses.csv", index=False, sep=";")
    return tmp_path / "houses.csv"


def folded(done: SimpleNamespace) -> str:
    """Without line breaks and frames of tables."""
    return re.sub(r"[\s│┃]+", " ", done.stdout)


def test_what_was_understood_is_shown(table: Path) -> None:
    out = folded(succeed("data", table, "--target", "price"))
    for words in (
        "60: 48 for training, 12 for testing",
        "3 of numbers, 2 of text, and the target",
        "target price task regression",
        "9 inputs standardized with the mean and standard deviation of the training rows",
        "Missing text became a category of its own: colour.",
        "mean target deviation total",
    ):
        assert words in out, words


def test_tables_are_never_cut_off(tmp_path: Path) -> None:
    """Long names and many classes, at the 80 columns of a pipe: all of them are there, and no text ends in dots."""
    names = [f"a_rather_long_name_of_a_class_{i}" for i in range(30)]
    frame = pd.DataFrame({"a": range(300), "kind": names * 10})
    frame.to_csv(tmp_path / "x.csv", index=False)
    out = folded(succeed("data", tmp_path / "x.csv", "--target", "kind"))
    assert "…" not in out
    joined = out.replace(" ", "")
    assert all(name in joined for name in names)


def test_the_nodes_files_are_compared(tmp_path: Path) -> None:
    folder = write(tmp_path / "clinics", frames())
    out = folded(succeed("data", "--shard-dir", folder, "--target", "kind"))
    assert "76 for training, 19 for testing, of all nodes" in out
    assert "Rows of each class" not in out, "the rows of all sites have them"
    assert "kind: k0" in out
    refused("data", "digits", "--shard-dir", folder)


def test_one_of_several_processes_does_not_count_nodes_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may have no others."""
    words = ("data", "--shard-dir", write(tmp_path / "clinics", frames()[:1]), "--target", "kind")
    succeed(*words)
    monkeypatch.setattr(networks, "detect", lambda: "mpi")
    assert "has 1 sites (node-0.csv), not 8" in refused(*words)


def test_sites_in_other_units_are_named(tmp_path: Path) -> None:
    frame = patients(np.random.default_rng(0), 700)
    made = {"bonn": frame[:25], "oslo": frame[25:225].assign(age=frame.age * 88), "rome": frame[225:]}
    options = ["--shard-dir", sites(tmp_path / "d", made), "--nodes", 3, "--target", "kind"]
    for command in (
        ["data"],
        ["train", "--steps", 2, "--quiet", "--out", tmp_path / "run"],
        ["compare", "--rules", "dnasa,dsgd", "--etas", "1", "--steps", 2],
    ):
        done = succeed(*command, *options)
        said = folded(done) if command == ["data"] else done.stderr
        assert "Warning: Column 'age' of oslo has mean" in said
        assert said.count("Warning: Column") == 1
    assert (tmp_path / "run" / "log.txt").read_text().count(" Warning: Column") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("train --data x.csv --model gpt --target price", "--target is for tables of your own, and gpt is a model of text"),
        ("train --data digits --task regression", "--task is for tables of your own, and digits is known"),
        ("train --problem spike --target y", "--target belongs to --data"),
        ("train --data FILE --target price --task wat", "Unknown task 'wat'"),
        ("train --data FILE --target street --task regression", "holds text or has --labels: a regression needs numbers"),
        ("train --data FILE --target price --partition by_label", "no class to divide them by"),
    ],
)
def test_wrong_options_get_one_line(table: Path, words: str, line: str) -> None:
    assert re.search(line, refused(*(table if word == "FILE" else word for word in words.split())))
