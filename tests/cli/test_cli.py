"""The command line, end to end."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run, succeed
from launching import PATIENCE
from safetensors.numpy import load_file
from typer.testing import CliRunner

from dnasa import cli, pages, topology
from dnasa.channels.compressed import COMPRESSIONS
from dnasa.cli import options
from dnasa.data import DATASETS
from dnasa.reproduce import FIGURES
from dnasa.rules.registry import BUILT_IN
from dnasa.tasks import models
from dnasa.tasks.sources import PROBLEMS


def start(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dnasa", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE, cwd=cwd
    )


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_warning_of_a_run_is_one_line_on_standard_error_and_in_its_folder(quiet: list[str], tmp_path: Path) -> None:
    words = "train --problem least_squares --nodes 4 --topology ring --steps 3 --compress moniqua:8/100 --out"
    done = run(*words.split(), tmp_path / "run", *quiet)
    line = "Rule 'dnasa' sent no message in 3 steps: the nodes trained alone."
    assert done.stderr == f"Warning: {line}\n"
    assert bool(done.stdout) == (not quiet)
    assert f" Warning: {line}\n" in (tmp_path / "run" / "log.txt").read_text()
    (folder,) = pages.read(tmp_path / "run")["folders"]
    assert folder["warnings"] == [line]
    assert f"Warning: {line}\n" in run("report", tmp_path / "run").stdout


@pytest.mark.parametrize("saving", ["--compress moniqua:8", "--compress bfloat16", "--every 2", ""])
def test_who_saves_bytes_sees_how_many_were_sent(saving: str, tmp_path: Path) -> None:
    words = f"train --problem least_squares --nodes 4 --topology ring --steps 6 --seeds 2 {saving} --out"
    done = run(*words.split(), tmp_path / "run")
    last = pd.read_csv(tmp_path / "run" / "history.csv").iloc[-1]
    line = f"Sent by all nodes: {last.messages:,.0f} messages, {last.bytes:,.0f} bytes.\n"
    assert last.bytes > 0
    assert (line in done.stdout) == bool(saving), done.stderr


def test_nodes_need_not_wait_for_each_other(tmp_path: Path) -> None:
    links, out = tmp_path / "links.toml", tmp_path / "run"
    links.write_text("compute = [0.1, 0.1, 0.5, 0.1]\nbandwidth = 1000\nlatency = 50\n")
    words = ["train", *"--problem least_squares --nodes 4 --steps 40 --late 8 --clock".split(), links, "--out", out]
    done = run(*words)
    assert "exponential" in done.stdout, done.stderr
    assert pd.read_csv(out / "history.csv").clock_seconds.iloc[-1] < 40 * 0.5
    words[-1] = tmp_path / "other"
    assert "compression and checkpoints" in refused(*words, "--checkpoint-every", 10)


def test_train_trains_and_writes_its_files(tmp_path: Path) -> None:
    done = succeed("train", "--steps", 120, "--out", tmp_path / "a")
    assert "D-NASA on digits: 8 nodes" in done.stdout
    history = pd.read_csv(tmp_path / "a" / "history.csv")
    assert {"step", "test_loss", "test_accuracy", "grad_norm", "consensus"} <= {*history}
    assert history.test_accuracy.iloc[-1] > 0.8
    assert load_file(tmp_path / "a" / "x.safetensors")["x"].shape[0] == 8
    assert (tmp_path / "a" / "history.png").read_bytes() == b"png"
    assert done.stderr == ""


@pytest.mark.pictures
def test_topology_prints_and_draws(tmp_path: Path) -> None:
    done = succeed("topology", "ring", "--nodes", 8, "--plot", tmp_path / "ring.svg")
    assert "0.804738" in done.stdout
    assert "0.333" in done.stdout
    assert "<svg" in (tmp_path / "ring.svg").read_text()
    listed = succeed("topology").stdout
    assert all(name in listed for name in (*topology.TOPOLOGIES, *topology.WEIGHTS))
    assert "name it" in refused("topology", "--plot", tmp_path / "a.png")


def test_every_option_has_help() -> None:
    from typer.main import get_command

    root: Any = get_command(cli.app)
    groups = [root, *(command for command in root.commands.values() if hasattr(command, "commands"))]
    for name, command in [item for group in groups for item in group.commands.items()]:
        assert all("\n" not in part for part in command.help.split("\n\n")), f"{name} would show a stray line break"
        for param in command.params:
            assert param.help, f"{name} {param.name}"


def test_the_help_names_the_models_and_data_that_there_are() -> None:
    assert {models.parse(text)[0] for text in options.MODELS.split(", ")} == {*models.MODELS}
    assert options.DATA.split(", ") == [*DATASETS]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("train", {*topology.TOPOLOGIES, *COMPRESSIONS, *BUILT_IN, *PROBLEMS}),
        ("topology", {*topology.TOPOLOGIES}),
        ("reproduce", {*FIGURES}),
    ],
)
def test_the_help_of_a_command_has_all_names_of_the_registries(command: str, names: set[str]) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"], terminal_width=10_000).stdout
    assert names <= set(re.findall(r"[\w-]+", shown))


def test_train_has_few_options_with_the_basic_ones_first() -> None:
    from typer.main import get_command

    root: Any = get_command(cli.app)
    panels = [option.rich_help_panel for option in root.commands["train"].params]
    assert len(panels) <= 51
    assert panels[0] == "Options"
    assert len([1 for one, two in pairwise(panels) if one != two]) + 1 == len({*panels})


@pytest.mark.parametrize("command", ["train", "compare"])
def test_shards_are_labelled_by_their_folder(command: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shards = tmp_path / "clinics"
    shards.mkdir()
    for name in ("node-0", "node-1", "node-2", "test"):
        np.savez(shards / f"{name}.npz", inputs=rng.standard_normal((12, 3)), labels=np.arange(12) % 2)
    done = succeed(command, "--steps", 4, "--shard-dir", shards, "--out", tmp_path / "runs" / "a")
    assert "clinics: 3 nodes" in done.stdout, "as many as there are shards"
    assert json.loads((tmp_path / "runs" / "a" / "config.json").read_text())["options"]["nodes"] == 3
    for shown in (run("runs", tmp_path / "runs"), run("report", tmp_path / "runs" / "a")):
        assert shown.returncode == 0, shown.stderr
        assert "clinics" in shown.stdout
        assert "digits" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --topology directed_ring", "Rule 'dnasa' needs an undirected graph, and directed_ring is directed."),
        ("train --weights-by size", "Unknown value of --weights-by 'size'. Choose from: rows, nodes."),
        ("train --problem least_squares --weights-by rows", "--weights-by belongs to --data"),
        ("train --topology rng", "Unknown topology 'rng'. Choose from: ring"),
        ("train --nodes 0", "at least one node"),
        ("train --rule dsgd --data nowhere.csv", "needs a stepsize: give eta, or use 'dnasa' or 'adanasa'"),
        ("train --rule dsgd --eta 0 --data nowhere.csv", "eta must be a positive"),
        ("train --eta 1 --data nowhere.csv", "takes no stepsize: leave eta out"),
        ("train --schedule wat --data nowhere.csv", "Unknown schedule 'wat' for dnasa"),
        ("train --weight-decay -1", "weight_decay, unless it is 0, must be a positive number, not -1.0"),
        ("train --rule d2 --eta 0.1 --weights lazy --weight-decay 0.1", "Rule 'd2' has no weight decay"),
        ("train --rule wat", "Error: --rule: Unknown rule 'wat'"),
        ("train --steps -5 --data nowhere.csv", "--steps must be a positive whole"),
        ("resume nowhere", "holds no run to continue"),
        ("train --checkpoint-every 5 --steps 5", "Checkpoints need a folder"),
        ("train --checkpoint-every 0 --out z", "checkpoint_every must be a positive whole number"),
        ("train --config none.json", "cannot read"),
        ("report nowhere", "There is no folder nowhere"),
        ("report nowhere --html", "There is no folder nowhere"),
        ("report . --html", "There is no run in ."),
        ("report . --out x.html", "--out is the file of a page: give --html too."),
        ("train --data mnits", "Unknown data 'mnits'"),
        ("train --problem wat", "Unknown problem 'wat'"),
        ("train --dtype int8", "Unknown dtype"),
        ("train --device tpu", "Unknown device"),
        ("train --partition wat --data nowhere.csv", "Unknown partition 'wat'"),
        ("train --partition dirichlet(-1) --data nowhere.csv", "'dirichlet(-1)' needs a positive number. Choose from: iid"),
        ("train --class-weight wat --data nowhere.csv", "Unknown class weight 'wat'"),
        ("train --data nowhere.csv --target y", "no file"),
        ("data wat", "Unknown data 'wat'"),
        ("train --problem spike --data digits", "--data and --problem cannot be combined"),
        ("train --shard-dir . --data digits", "--data and --shard-dir cannot be combined"),
        ("compare --problem spike --etas 0.1,1,0.1", "The eta 0.1 is given twice"),
        ("compare --rules dsgd,wat", "Error: --rules: Unknown rule 'wat'"),
        ("compare --problem spike --rules dnasa,dsgd,dnasa", "The rule dnasa is given twice"),
        ("train --drop 0.1 --rounds 2", "one round per exchange"),
        ("train --drop 0.1 --clock links.toml", "--clock cannot be combined with --drop"),
        ("train --drop 0.1 --compress sign", "--compress cannot be combined with --drop"),
        ("train --drop 1.5", "drop must be a probability"),
        ("train --problem spike --partition by_label", "--partition belongs to --data"),
        ("train --problem spike --early-stopping", "belongs to --data"),
        ("train --seed 99999999999999999999", "A seed must be"),
        ("topology complete --nodes 100000", "too many links"),
        ("topology ring --plot /proc/x.png", "Cannot write"),
        ("topology ring --plot nowhere/x.png", "Cannot write nowhere/x.png: there is no folder nowhere."),
        ("reproduce fig1 --device cuda", "runs on the CPU"),
        ("train --batch 0", "batch must be at least 1"),
        ("train --nodes 5000", "cannot be shared"),
        ("train --out /proc/no", "Cannot write"),
        ("compare --etas 1,x", "numbers separated by commas"),
        ("compare --rules dsgd --etas 1,dadam=2", "names the rule 'dadam', which is not compared"),
        ("compare --seeds 0", "--seeds must be a positive"),
        ("compare --rules d2,dnasa --topology ring --steps 5", "lazy"),
        ("train --shard-dir .", "has no data: add node-0.csv"),
        ("train --shard-dir nowhere", "There is no folder nowhere"),
        ("reproduce fig99", "Unknown figure 'fig99'"),
        ("topology ring --plot x.wat", "Cannot draw"),
        ("topology ring --nodes two", "--nodes"),
        ("wat", "wat"),
    ],
)
def test_mistakes_get_a_line_and_exit_code_2(words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(*words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --evaluate 0", "evaluate must be a positive whole number"),
        ("train --weight-decay -1", "weight_decay, unless it is 0, must be a positive number"),
        ("train --checkpoint-every 5", "Checkpoints need a folder"),
        ("train --rule adanasa --schedule diminishing", "Unknown schedule 'diminishing' for adanasa"),
        ("compare --rules adanasa --schedule diminishing", "No rule uses the schedule diminishing"),
    ],
)
def test_mistakes_are_found_before_data_is_read(words: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnasa.data.load", lambda *args, **options: pytest.fail("data was read"))
    assert message in refused(*words.split())


def test_a_run_that_diverged_and_a_comparison_in_which_everything_did_fail_with_exit_code_1() -> None:
    words = "compare --problem least_squares --nodes 4 --rules dsgd --etas 1e150,1e160 --steps 300"
    done = run(*words.split())
    assert done.returncode == 1
    assert "Every run diverged" in done.stderr
    done = run(*"train --problem least_squares --nodes 4 --rule dsgd:fixed --eta 1e160 --steps 20 --evaluate 20".split())
    assert done.returncode == 1
    assert re.search(r"The run diverged at step \d+ at node \d: try a smaller --eta", done.stderr)
