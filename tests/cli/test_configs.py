"""config.json repeats and resumes a run, and can do no more than that."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, succeed
from test_resume import TRAIN, history


@pytest.mark.parametrize(
    ("words", "graph", "weights"),
    [
        ("train --rule dsgt --eta 0.01", "exact", None),
        ("train --rule d2 --eta 0.01", "ring", "lazy"),
        ("train --compress sign", "ring", None),
        ("train --weights lazy", "ring", "lazy"),
        ("compare --rules dsgd,dnasa --etas 0.01", "exact", None),
        ("compare --rules d2,dnasa --etas 0.01", "ring", "lazy"),
    ],
)
def test_the_graph_by_default_is_shown_and_stored(words: str, graph: str, weights: str | None, tmp_path: Path) -> None:
    done = succeed(*words.split(), *"--problem least_squares --nodes 6 --steps 3 --out a".split(), cwd=tmp_path)
    assert graph in done.stdout
    assert ("lazy weights" in " ".join(done.stdout.split())) == (weights == "lazy")
    options = json.loads((tmp_path / "a" / "config.json").read_text())["options"]
    assert (options["topology"], options["weights"]) == (graph, weights)


def test_options_on_the_command_line_take_precedence_over_a_config(tmp_path: Path) -> None:
    words = "train --problem least_squares --nodes 4 --rule dsgd --eta 0.01 --steps 20 --checkpoint-every 5".split()
    succeed(*words, "--out", tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    for more in (["--rule", "dnasa"], ["--data", "digits", "--rule", "dnasa"]):
        done = succeed("train", "--config", config, *more)
        assert ("digits" if "--data" in more else "least_squares") in done.stdout


def test_a_config_repeats_its_run(tmp_path: Path) -> None:
    succeed(*TRAIN, "--out", tmp_path / "a", "--seed", "3")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["options"]["seed"] == 3
    assert config["options"]["topology"] == "exact"
    assert set(config["versions"]) >= {"dnasa", "python", "numpy", "torch"}
    assert "data" in config["run"]
    succeed("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b")
    assert history(tmp_path / "a").equals(history(tmp_path / "b"))
    succeed("train", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "c", "--steps", "50")
    assert history(tmp_path / "c").step.tolist() == [0, 50]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can be resumed; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("stored") / "a"
    succeed(*TRAIN, "--out", folder)
    (folder / "status.json").write_text('{"state": "interrupted"}')
    return folder


@pytest.fixture
def interrupted(stored: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that changes the options of a copy of the stored run."""
    shutil.copytree(stored, tmp_path / "a")

    def change(**options: Any) -> Path:
        path = tmp_path / "a" / "config.json"
        config = json.loads(path.read_text())
        config["options"] |= options
        path.write_text(json.dumps(config))
        return tmp_path / "a"

    return change


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", "{elsewhere}"),
        ("out={elsewhere}", True),
        ("config={config}", True),
        ("config", "{config}"),
        ("force", True),
        ("stepps", 5),
        ("steps", True),
        ("steps", 2.5),
        ("steps", "400"),
        ("seed", [1, 2]),
        ("target", True),
        ("quiet", "yes"),
        ("timeout", "30"),
        ("plugin", "rules.py"),
        ("plugin", [3]),
        ("topology", {"name": "ring"}),
    ],
)
def test_a_config_holds_stored_options_alone(name: str, value: Any, interrupted: Callable[..., Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    places = {"elsewhere": elsewhere, "config": tmp_path / "a" / "config.json"}
    value = value.format(**places) if isinstance(value, str) else value
    folder = interrupted(**{name.format(**places): value})
    for words in (["resume", folder], ["train", "--config", folder / "config.json"]):
        assert "config.json: " in refused(*words)
        assert elsewhere.read_text() == "untouched"
