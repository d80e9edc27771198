"""`dnasa bench-card`: the numbers are those of the run, the command repeats it, and the folder is not touched."""

import json
import platform
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_cli import refused
from test_resume import run

from dnasa.cli import main
from dnasa.runs import environment
from dnasa.statistics import over_seeds, with_interval

pytestmark = pytest.mark.xdist_group("cards")  # one worker makes the runs that most of them read
COMPARE = "compare --data digits --rules dsgd,dnasa --etas 0.1,1 --nodes 4 --steps 20 --seeds 3 --extend --quiet --out"
TRAIN = "train --problem least_squares --nodes 4 --steps 20 --seeds 2 --quiet --out"
STUDY = """# A study of ``` two graphs
problems = ["least_squares"]
graphs = ["ring", "complete"]
rules = ["dsgd", "dnasa"]
steps = 20
nodes = 4
seeds = 2
[etas]
default = [0.001, 0.01]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a comparison and a study."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "two_graphs.toml").write_text(STUDY)
    for words in (TRAIN + " run", COMPARE + " compared", "study two_graphs.toml --quiet --out study"):
        done = run(*words.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def card(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
    monkeypatch.setattr("sys.argv", ["dnasa", "bench-card", str(folder), *more])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out
    assert not ended.value.code
    return out


def as_json(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return json.loads(card(folder, capsys, monkeypatch, "--json"))


def test_the_results_are_those_of_the_comparison(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pd.DataFrame(as_json(made / "compared", capsys, monkeypatch)["results"])
    table = pd.read_csv(made / "compared" / "table.csv")
    same = ["eta", "mean", "spread", "difference", "difference_low", "difference_high"]
    np.testing.assert_allclose(found[same].astype(float), table[same], rtol=1e-12)
    assert (found.mean_low < found["mean"]).all()


def test_a_card_says_how_the_result_was_made(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = as_json(made / "compared", capsys, monkeypatch)
    assert found["code"]["commit"] == environment.code()["commit"]
    assert found["code"]["checksum of dnasa's source"] == environment.code()["source"]
    assert {"python", "numpy", "torch", "dnasa"} <= found["code"].keys()
    assert found["hardware"]["cores"] >= 1
    assert found["data"]["training rows"] == 1295
    assert "checksum" in found["data"]["problem"]
    protocol = found["protocol"]
    assert protocol["methods"] == ["D-SGD", "D-NASA"]
    assert "validation" in protocol["stepsizes chosen by"]
    assert (protocol["seeds"], protocol["number format"], protocol["device"]) == ([0, 1, 2], "float32", "cpu")
    assert protocol["model"].startswith("mlp:32 (perceptron")
    page = card(made / "compared", capsys, monkeypatch)
    for section in ("Code", "Hardware", "Data", "Protocol", "Repeat", "Results"):
        assert f"\n## {section}\n" in page


def test_each_line_of_a_card_is_in_words(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = card(made / "compared", capsys, monkeypatch)
    assert re.search(r"\n- graph: exact, 4 nodes, 2 mixing rounds per exchange \(checksum [0-9a-f]{8}\)\n", page)
    assert re.search(r"\n- checksum of the starting points: [0-9a-f]{8}\n", page)
    for line in (
        "evaluations: 21, up to step 20",
        "partition: at random (each seed draws its own)",
        "nodes: simulated, all in one process",
        "samples per node and step: 32",
    ):
        assert f"\n- {line}\n" in page
    assert "\n- partition" not in card(made / "run", capsys, monkeypatch)


def test_one_partition_for_all_seeds_is_said() -> None:
    from dnasa.comparing.card import _partition

    assert (
        _partition({"partition": "by_label", "partition_seed": 3}) == "by label (one for all seeds, drawn with seed 3)"
    )
    assert _partition({"partition": "contiguous", "partition_seed": None}) == "in the order of the rows"
    assert _partition({"partition": "iid", "shard_dir": "shards"}) is None


def test_a_card_names_the_files_of_known_data_and_the_seeds_of_the_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    (tmp_path / "covertype").mkdir()
    table = pd.DataFrame(rows).assign(label=np.arange(60) % 2 + 1)
    table.to_csv(tmp_path / "covertype" / "covertype-sample.csv", index=False)
    monkeypatch.setenv("DNASA_DATA", str(tmp_path))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    (tmp_path / "cover.toml").write_text(STUDY.replace("least_squares", "covertype").replace(', "complete"', ""))
    for words in (
        "train --data covertype --nodes 4 --steps 5 --quiet --out own",
        "train --data covertype --nodes 4 --steps 5 --partition-seed 1 --quiet --out one",
        "study cover.toml --quiet --out study",
    ):
        assert run(*words.split(), cwd=tmp_path).returncode == 0
    own, one, study = (as_json(tmp_path / name, capsys, monkeypatch)["data"] for name in ("own", "one", "study"))
    assert own["files"] == one["files"] == study["files"] == ["covertype-sample.csv"]
    assert own["rows of a node"] == "12 to 12 in the partition of seed 0"
    assert re.fullmatch("[0-9a-f]{8} over the partitions of all seeds", own["checksum of the nodes' rows"])
    assert one["rows of a node"] == "12 to 12"
    assert re.fullmatch("[0-9a-f]{8}", one["checksum of the nodes' rows"])
    assert "\n- files: covertype-sample.csv\n" in card(tmp_path / "own", capsys, monkeypatch)


def test_a_card_says_of_no_choice_that_was_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = COMPARE.replace("0.1,1", "0.1").replace("--extend", "")
    assert run(*words.split(), "one", cwd=tmp_path).returncode == 0
    found = as_json(tmp_path / "one", capsys, monkeypatch)
    assert found["protocol"]["stepsizes chosen by"] is None
    assert [row["chosen_value"] for row in found["results"]] == [None, None]


def test_a_folder_of_runs_names_the_runs_inside(
    made: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(["bench-card", made], monkeypatch, capfd)
    assert (
        f"{made} contains runs, and a card is of one of them: give {made / 'compared'}, {made / 'run'}, {made / 'study'}."
        in message
    )


def test_the_results_have_the_seeds_the_choice_and_the_bytes(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, page = as_json(made / "compared", capsys, monkeypatch), card(made / "compared", capsys, monkeypatch)
    histories = [pd.read_csv(path) for path in sorted((made / "compared").glob("**/history.csv"))]
    history = pd.concat(histories)
    tuned, untuned = found["results"]
    assert {0.1, 1} <= set(tuned["tried"])
    assert untuned["tried"] == []
    assert untuned["chosen_value"] is None
    for row in (tuned, untuned):
        same = history[
            (history.rule == row["rule"]) & (history.eta.isna() if row["eta"] is None else history.eta == row["eta"])
        ]
        last = same[same.step == 20].sort_values("seed")
        assert row["values"] == pytest.approx(list(last.test_accuracy))
        assert row["sent_mb"] == pytest.approx(last.bytes.iloc[0] / 4 / 1e6)
        assert f"| {', '.join(f'{100 * value:.2f} %' for value in row['values'])} |" in page
    chosen = history[(history.eta == tuned["eta"]) & (history.step == 20)]
    assert tuned["chosen_value"] == pytest.approx(chosen.validation_accuracy.mean())
    assert f"| validation accuracy {100 * tuned['chosen_value']:.2f} % |" in page
    seconds = found["hardware"]["seconds of all runs together, without evaluations"]
    assert seconds == pytest.approx(sum(each.seconds.max() for each in histories))


def test_the_page_has_the_results_and_the_bold_of_the_table(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = card(made / "compared", capsys, monkeypatch)
    for row in as_json(made / "compared", capsys, monkeypatch)["results"]:
        shown = f"{100 * row['mean']:.2f} ± {100 * row['spread']:.2f} %"
        assert row["with_the_best"] == (row["best"] or row["difference_low"] <= 0 <= row["difference_high"])
        assert f" {f'**{shown}**' if row['with_the_best'] else shown} | " in page
    assert "does not contain 0" in page
    assert "contain 0" not in card(made / "run", capsys, monkeypatch)


def test_the_command_of_a_card_repeats_the_run(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = as_json(made / "run", capsys, monkeypatch)
    _, *words = shlex.split(first["repeat"])
    assert run(*words, "--quiet", cwd=tmp_path).returncode == 0
    again = as_json(tmp_path / "repeated", capsys, monkeypatch)
    assert {name: again[name] for name in ("data", "protocol", "results")} == {
        name: first[name] for name in ("data", "protocol", "results")
    }


def test_a_study_says_once_what_its_cells_share(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, page = as_json(made / "study", capsys, monkeypatch), card(made / "study", capsys, monkeypatch)
    assert found["protocol"]["device"] == "cpu"
    assert found["protocol"]["steps"] == 20
    assert found["data"]["data"] == "least_squares"
    assert [*found["cells"]] == ["least_squares-complete", "least_squares-ring"]
    for cell in found["cells"].values():
        assert cell["code"] == {}
        assert cell["protocol"].keys() == {"graph"}
        assert {row["rule"] for row in cell["results"]} == {"dsgd", "dnasa"}
    assert page.count("\n- steps: 20\n") == 1
    assert page.count("Bold marks ") == 1
    assert re.search(r"\n### least_squares-ring\n\nseconds [^\n]*; graph: ring, 4 nodes, [^\n]*\n\n\| method", page)


def test_the_card_of_a_study_has_its_file_and_one_command(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, page = as_json(made / "study", capsys, monkeypatch), card(made / "study", capsys, monkeypatch)
    assert (found["repeat"], found["study file"]) == ("dnasa study two_graphs.toml --out repeated", STUDY)
    assert page.count("dnasa study") == 1
    assert f"\n````toml\n{STUDY.strip()}\n````\n" in page
    assert "\nSave the study file below as `two_graphs.toml`, and run:\n\n```\ndnasa study" in page
    assert "ave the study file" not in card(made / "compared", capsys, monkeypatch)
    cell = as_json(made / "study" / "least_squares-ring", capsys, monkeypatch)
    assert (cell["repeat"], cell["study file"]) == (found["repeat"], STUDY)


def test_the_card_of_a_small_study_says_why_it_has_no_ranks(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\n## Ranks\n\n- note: Ranks and profiles are left out: they need" in card(
        made / "study", capsys, monkeypatch
    )
    assert "## Ranks" not in card(made / "study" / "least_squares-ring", capsys, monkeypatch)


def test_a_card_says_how_to_compare(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "compared", "study"):
        assert "\n```\n\nThen compare the card of the folder `repeated` with this one" in card(
            made / name, capsys, monkeypatch
        )


def test_the_command_of_a_study_names_what_was_run(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made / "study", tmp_path / "copy")
    (folder / "study.toml").write_text(STUDY.replace('["least_squares"]', '["least_squares", "digits"]'))
    for path in folder.glob("*/config.json"):
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"quick": True, "study": "two-quick", "device": "cuda"})
        )
    found = as_json(folder, capsys, monkeypatch)
    assert found["repeat"] == "dnasa study two.toml --only least_squares --device cuda --quick --out repeated"


def test_studies_of_earlier_versions_have_a_card(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made / "study", tmp_path / "copy")
    (folder / "study.toml").unlink()
    for path in folder.glob("*/config.json"):
        config = json.loads(path.read_text())
        del config["device"]
        path.write_text(json.dumps(config))
    found = as_json(folder, capsys, monkeypatch)
    assert (found["study file"], found["protocol"]["device"]) == ("not stored", "not stored")


@pytest.mark.parametrize("content", ["problems = [", "steps = 3", "problems = [[1]]"])
def test_a_damaged_study_file_gets_one_line(
    content: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(made / "study", tmp_path / "copy")
    (folder / "study.toml").write_text(content)
    assert "is damaged" in refused(["bench-card", folder], monkeypatch, capfd)


def test_a_card_writes_nothing_into_the_folder(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    for name in ("run", "compared", "study"):
        card(made / name, capsys, monkeypatch)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (None, "", "There is no run in"),
        ("config.json", "[]", "must hold one JSON object"),
        ("config.json", '{"command": "train", "run": {"seed": 3}}', "is damaged"),
        ("config.json", '{"command": "study", "run": {"seed": 3}}', "is damaged"),
        ("history.csv", "run,seed\n", "is damaged"),
        ("status.json", '{"state": "interrupted"}', "is interrupted"),
    ],
)
def test_what_is_not_a_finished_run_gets_one_line(
    file: str | None,
    content: str,
    message: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "copy"
    if file is None:
        folder.mkdir()
    else:
        shutil.copytree(made / "run", folder)
        (folder / file).write_text(content)
    assert message in refused(["bench-card", folder], monkeypatch, capfd)


def test_a_card_names_every_source_that_made_the_runs(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made / "compared", tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    now = config["code"]["source"]
    (folder / "config.json").write_text(json.dumps(config | {"code": {"source": "earlier"}}))
    done = run(*COMPARE.replace(",dnasa", ",dsgt,dnasa").split(), folder)
    assert done.returncode == 0, done.stderr
    assert as_json(folder, capsys, monkeypatch)["code"]["checksum of dnasa's source"] == f"earlier, {now}"


def test_a_card_needs_all_parts_of_an_extended_grid(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made / "compared", tmp_path / "copy")
    part = folder / "extension-1"
    (part / "status.json").write_text('{"state": "interrupted"}')
    done = run("bench-card", folder)
    assert done.returncode == 2
    assert f"{part} has not ended, and a card needs all its runs: repeat the command" in " ".join(done.stderr.split())
    (part / "status.json").write_text('{"state": "done"}')
    (part / "history.csv").unlink()
    assert run("bench-card", folder).stderr.strip() == f"Error: {part} holds no saved result: history.csv is missing."


def test_old_runs_without_code_and_hardware_have_a_card(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(made / "run", tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    for name in ("code", "hardware", "rows", "engine"):
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    assert as_json(folder, capsys, monkeypatch)["protocol"]["nodes"] == "not stored"


def test_files_of_the_user_appear_by_name_alone() -> None:
    from dnasa.cli.card import command_line

    line = command_line({"command": "train", "options": {"data": "/home/me/my rows.csv", "steps": 7, "plugin": []}})
    assert line == "dnasa train '--data=my rows.csv' --steps=7 --out repeated"


def test_intervals_of_means_are_those_of_the_t_distribution() -> None:
    runs = pd.DataFrame({"rule": "a", "schedule": "", "eta": 1.0, "diverged": False, "value": [1.0, 2.0, 3.0]})
    row = with_interval(over_seeds(runs, "value")).iloc[0]
    assert row.mean_high - row["mean"] == pytest.approx(4.302652729749464 / np.sqrt(3))
    assert np.isnan(with_interval(over_seeds(runs[:1], "value")).iloc[0].mean_low)


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n", "AMD EPYC 7B13"),
        ("BogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse-N1"),
        ("CPU implementer\t: 0x61\nCPU part\t: 0x022\n\nprocessor\t: 1\n", "implementer 0x61, part 0x022"),
        (None, platform.processor() or platform.machine()),
    ],
)
def test_the_processor_is_named_by_its_model(info: str | None, name: str, tmp_path: Path) -> None:
    if info is not None:
        (tmp_path / "cpuinfo").write_text(info)
    assert environment._cpu(tmp_path / "cpuinfo") == name


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("files", [{"HEAD": COMMIT}, {"HEAD": "ref: refs/heads/a/b", "refs/heads/a/b": COMMIT}])
def test_the_commit_of_a_clone_is_read(files: dict[str, str], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".git" / name).write_text(content + "\n")
    assert environment._checked_out_commit(tmp_path) == COMMIT


def test_the_commit_of_a_worktree_is_read(tmp_path: Path) -> None:
    own = tmp_path / "clone" / ".git" / "worktrees" / "b"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/b\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "clone" / ".git" / "packed-refs").write_text(
        f"# pack-refs\n{'f' * 40} refs/heads/a\n{COMMIT} refs/heads/b\n"
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".git").write_text(f"gitdir: {own}\n")
    assert environment._checked_out_commit(tmp_path / "b") == COMMIT
    assert environment._checked_out_commit(tmp_path) is None
