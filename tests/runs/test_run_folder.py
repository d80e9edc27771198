"""A run on disk: its lock, its files, its pictures, and the table of all runs."""

import os
import threading
from pathlib import Path

import pytest
from command_line import refused, run, succeed
from test_resume import TRAIN, fail_at, history, small

from dnasa.core import InputError
from dnasa.runs import own_files
from dnasa.runs.folder import RunFolder
from dnasa.runs.session import Session


def test_an_existing_run_is_replaced_only_with_force(tmp_path: Path) -> None:
    small(tmp_path / "a", steps=20)
    assert "holds a run already: choose another folder, or replace it with --force." in refused(*TRAIN, "--out", tmp_path / "a")
    assert history(tmp_path / "a").step.tolist() == [0, 15, 20]
    succeed(*TRAIN, "--out", tmp_path / "a", "--force")
    assert history(tmp_path / "a").step.iloc[-1] == 400


def test_a_folder_in_use_is_locked_and_shown_as_running(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a", {"command": "train", "options": {}})
    folder.open()
    folder.begin({}, 10)
    with pytest.raises(InputError, match="in use by another run"):
        RunFolder(tmp_path / "a", resume=True).open()
    assert RunFolder(tmp_path / "a", resume=True).state == "running"
    folder.close()
    assert RunFolder(tmp_path / "a", resume=True).state == "killed"
    with pytest.raises(InputError, match=r"continue it with `dnasa resume .*a`, or replace it"):
        RunFolder(tmp_path / "a").check()


def test_runs_and_report_show_all_runs(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        succeed(*TRAIN, "--seed", seed, "--out", tmp_path / "runs" / name)
    fail_at(33, tmp_path / "runs" / "c")
    (tmp_path / "runs" / "d").mkdir()
    (tmp_path / "runs" / "d" / "config.json").write_text("{")
    table = succeed("runs", cwd=tmp_path)
    for word in ("dnasa", "least_squares", "done", "failed", "damaged", "400 / 400", "33 / -"):
        assert word in table.stdout
    report = succeed("report", "runs/a", cwd=tmp_path)
    assert "grad norm" in report.stdout
    refused("report", "runs/c", cwd=tmp_path)
    refused("runs", "nowhere", cwd=tmp_path)


def test_a_killed_run_shows_the_step_of_its_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "end", lambda *words: None)
    fail_at(33, tmp_path / "a")
    killed = RunFolder(tmp_path / "a", resume=True)
    assert (killed.state, killed.step) == ("killed", 30)
    assert "30 / -" in run("runs", tmp_path).stdout


def test_runs_are_saved_and_resumed_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(own_files, "fcntl", None)
    fail_at(33, tmp_path / "a")
    small(tmp_path / "a", resume=True)
    assert RunFolder(tmp_path / "a", resume=True).state == "done"


def test_readers_never_make_a_start_fail(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a", {"command": "train", "options": {}})
    folder.open()
    folder.begin({}, 10)
    folder.close()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert RunFolder(tmp_path / "a", resume=True).state in ("running", "killed")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(200):
            again = RunFolder(tmp_path / "a", resume=True)
            again.open()
            again.close()
    finally:
        stop.set()
        for reader in readers:
            reader.join()


def test_resume_draws_what_a_run_killed_at_its_end_did_not(tmp_path: Path) -> None:
    succeed(*"train --problem least_squares --nodes 4 --steps 20 --out".split(), tmp_path / "a")
    before, file = history(tmp_path / "a"), tmp_path / "a" / "history.png"
    content = file.read_bytes()
    file.unlink()
    assert file.name in succeed("resume", tmp_path / "a").stdout
    assert file.read_bytes() == content
    assert history(tmp_path / "a").equals(before)
    assert "is done: to train longer, start a new run with more --steps" in refused("resume", tmp_path / "a")


ODD_FOLDERS = {
    "no-object": {"config.json": "[]"},
    "no-options": {"config.json": '{"options": 3}'},
    "odd-options": {"config.json": '{"options": {"rule": [1], "data": {"a": 1}, "nodes": "\\ud800", "shard_dir": 3}}'},
    "deep": {"config.json": "[" * 100_000},
    "long-field": {"config.json": "{}", "history.csv": "step\n" + "1" * 200_000},
    "binary": {"config.json": "{}", "history.csv": "step,test_loss\n\0,\0\n"},
    "long-row": {"config.json": "{}", "history.csv": "step,test_loss\n1,2.0,3,4\n"},
    "huge": {"config.json": "{}", "history.csv": f"step,test_loss\n{'9' * 400},{'9' * 400}\n"},
    "odd-state": {"config.json": "{}", "status.json": '{"state": ["done"]}'},
    "[red]markup": {"config.json": "{}"},
}


def test_odd_folders_do_not_break_the_table_of_runs(tmp_path: Path) -> None:
    small(tmp_path / "good", steps=20)
    for name, files in ODD_FOLDERS.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"\xff"))
    (tmp_path / os.fsdecode(b"\xff") / "config.json").write_text("{}")
    (tmp_path / "folders" / "config.json").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    table = succeed("runs", tmp_path)
    for name in ("good", "folders", "pipe", *ODD_FOLDERS):
        assert f"│ {name} " in table.stdout


def test_a_run_is_locked_until_its_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, bool] = {}
    written = RunFolder.status

    def status(folder: RunFolder, state: str, step: int, steps: int) -> None:
        held[state] = own_files.is_held(folder.path / own_files.RUNNING)
        written(folder, state, step, steps)

    monkeypatch.setattr(RunFolder, "status", status)
    small(tmp_path / "a")
    assert held == {"running": True, "done": True}
