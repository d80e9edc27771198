"""A folder's own files: whatever dnasa did not write is never changed, no link is followed, nothing blocks."""

import json
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run, succeed
from launching import PATIENCE
from test_resume import fail_at, small

import dnasa
from dnasa import topology
from dnasa.cli import pictures
from dnasa.core import InputError, RunError
from dnasa.engine.loop import solve
from dnasa.files import read_bytes, write_output
from dnasa.pages import read, render
from dnasa.problems import LeastSquares
from dnasa.runs.folder import RunFolder
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result

TRAIN = "train --problem least_squares --nodes 2 --steps 3 --evaluate 1 --checkpoint-every 1".split()
MODEL = "train --data digits --model linear --nodes 2 --steps 2".split()
COMPARE = "compare --problem least_squares --nodes 2 --steps 2 --evaluate 1 --rules dsgd --etas 1e-3,1e-2 --extend".split()
STUDY = """
problems = ["least_squares"]
graphs = ["ring"]
rules = ["dnasa"]
nodes = 2
steps = 2
seeds = 1
"""
pytestmark = pytest.mark.xdist_group("own files")  # they share the folders that `made` makes


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_draw", lambda: False)


Snapshot = dict[str, tuple[int, bytes | str]]


def snapshot(root: Path) -> Snapshot:
    """The kind and contents of everything below a folder; links are not followed."""
    found: Snapshot = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(mode) else ""
        found[path.relative_to(root).as_posix()] = stat.S_IFMT(mode), content
    return found


def own_names(root: Path) -> set[str]:
    """What the lists in a folder and below name, and the folders on the way: all that a run may change."""
    names: set[str] = set()
    for path in root.rglob("files.json"):
        place = path.parent.relative_to(root)
        try:
            names |= {(place / name).as_posix() for name in json.loads(read_bytes(path))["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return names | {name.rpartition("/")[0] for name in names}


def put_file(path: Path, outside: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(20))


def put_json(path: Path, outside: Path, rng: random.Random) -> None:
    path.write_text(rng.choice(["", "{", "[]", '{"files": ["notes.txt"]}', '{"format": 2}', "run,step\n0,1\n"]))


def put_link(path: Path, outside: Path, rng: random.Random) -> None:
    path.symlink_to(rng.choice([outside, outside / ".profile", outside / "missing", Path("/dev/zero")]))


def put_hard_link(path: Path, outside: Path, rng: random.Random) -> None:
    os.link(outside / ".profile", path)


def put_pipe(path: Path, outside: Path, rng: random.Random) -> None:
    os.mkfifo(path)


def put_folder(path: Path, outside: Path, rng: random.Random) -> None:
    path.mkdir()
    (path / "best.pt").write_bytes(b"mine")


PUT = [put_file, put_json, put_link, put_hard_link, put_pipe, put_folder]
NAMES = [
    *("config.json", "history.csv", "log.txt", "status.json", "files.json", "settings.json", "runs.csv"),
    *("x.safetensors", "model.json", "model.py", "model.safetensors", "table.csv", "curves.csv", "report.html"),
    *("checkpoints", "extension-1", ".lock", ".running", ".draft", ".files.lock"),
    *("notes.txt", ".hidden", "checkpoints/.step-1", "checkpoints/best.pt", "extension-1/history.csv"),
    *("least_squares-ring", "evaluation.json", "stepsizes.csv"),
]


def disturb(folder: Path, outside: Path, rng: random.Random) -> None:
    """Put something of the user's into the folder, or in the place of one of its files."""
    present = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    for _ in range(rng.randint(1, 4)):
        path = folder / rng.choice(NAMES + present)
        if any(part.is_symlink() or not part.is_dir() for part in path.parents if part.is_relative_to(folder)):
            continue
        if os.path.lexists(path):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if rng.random() < 0.9:
            rng.choice(PUT)(path, outside, rng)


def call(work: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Python's own functions raise one of two errors."""

    def attempt(folder: Path) -> None:
        try:
            work(folder)
        except (InputError, RunError) as error:
            assert "\n" not in str(error)  # noqa: PT017

    return attempt


def command(*words: str) -> Callable[[Path], None]:
    """A command line ends with success or one line; {F} is the folder."""

    def attempt(folder: Path) -> None:
        done = run(*(word.format(F=folder) for word in words), cwd=folder.parent)
        assert done.returncode in (0, 1, 2), done.stderr
        if done.returncode:
            assert done.stderr.splitlines()[-1].startswith("Error: "), done.stderr
        assert "Traceback" not in done.stderr

    return attempt


COMMANDS: dict[str, Callable[[Path], None]] = {
    "train": command(*TRAIN, "--out", "{F}"),
    "train --force": command(*TRAIN, "--out", "{F}", "--force"),
    "compare": command(*COMPARE, "--out", "{F}"),
    "compare --force": command(*COMPARE, "--out", "{F}", "--force"),
    "study": command("study", "study.toml", "--out", "{F}"),
    "resume": command("resume", "{F}"),
    "runs": command("runs", "."),
    "report": command("report", "{F}"),
    "report --html": command("report", "{F}", "--html"),
    "report --html of several": command("report", ".", "--html"),
    "predict": command("predict", "{F}", "rows.csv"),
    "export": command("export", "{F}", "--onnx", "{F}/x.onnx"),
    "solve": call(lambda folder: small(folder, steps=3, progress=False)),
    "solve, resumed": call(lambda folder: small(folder, resume=True)),
    "load": call(dnasa.load),
    "Result.load": call(Result.load),
    "Result.save": call(lambda folder: solve(LeastSquares(dim=2), topology.ring(2), steps=1).save(folder)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders to begin with: none, an empty one, and runs of every kind."""
    home = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "can_draw", lambda: False)
        (home / "empty").mkdir()
        fail_at(35, home / "begun")
        (home / "rows.csv").write_text("a,b,label\n" + "0,1,x\n1,0,y\n" * 20)
        trained = ["train", "--data", home / "rows.csv", "--target", "label", *MODEL[3:]]
        for name, words in (("done", TRAIN), ("trained", trained), ("compared", COMPARE)):
            succeed(*words, "--out", home / name)
        (home / "study.toml").write_text(STUDY)
        succeed("study", home / "study.toml", "--out", home / "studied")
    assert [*(home / "compared").glob("extension-*/files.json")]
    return home


def too_long(number: int, frame: Any) -> None:
    raise TimeoutError("it waits for a file that never ends")


def try_on_a_random_tree(name: str, seed: int, made: Path, home: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    folder, outside = home / "run", home / "outside"
    outside.mkdir(parents=True)
    for file in (".profile", ".bashrc", "history.csv", "config.json"):
        (outside / file).write_text("mine\n")
    shutil.copytree(made / rng.choice(["empty", "begun", "done", "trained", "compared", "studied"]), folder)
    for file in ("study.toml", "rows.csv"):
        shutil.copy(made / file, home)
    disturb(folder, outside, rng)
    own, before, rest = own_names(folder), snapshot(folder), snapshot(outside)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        COMMANDS[name](folder)
    finally:
        signal.alarm(0)
    after = snapshot(folder)
    users = {path: entry for path, entry in before.items() if path not in own}
    assert {path: after.get(path) for path in users} == users
    assert snapshot(outside) == rest


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_changes_what_it_did_not_write(name: str, made: Path, tmp_path: Path) -> None:
    for seed in range(4):
        try_on_a_random_tree(name, seed, made, tmp_path / str(seed))


@pytest.fixture
def begun(made: Path, tmp_path: Path) -> Path:
    """A run that failed after a few checkpoints."""
    return shutil.copytree(made / "begun", tmp_path / "begun")


@pytest.fixture
def done(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "done", tmp_path / "done")


USERS = [
    *("model.py", "table.csv", "checkpoints/best.pt", "extension-mine/x", "alone-1/x", "report.html"),
    *("log.txt", "settings.json", "history.csv", ".probe-1", "notes.txt"),
]


@pytest.mark.parametrize("name", ["train", "train --force", "compare", "compare --force", "study", "solve"])
def test_a_folder_with_files_of_the_users_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "study.toml", tmp_path)
    for file in USERS:
        folder = tmp_path / file.replace("/", "-")
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("mine")
        before = snapshot(folder)
        if name == "solve":
            with pytest.raises(InputError, match="that are not of a run: choose"):
                small(folder)
        else:
            COMMANDS[name](folder)
        assert snapshot(folder) == before


def test_force_replaces_the_run_and_leaves_what_the_user_added(begun: Path) -> None:
    for name in ("notes.txt", "checkpoints/best.pt", "checkpoints/.hidden"):
        (begun / name).write_text("mine")
    succeed(*TRAIN, "--out", begun, "--force")
    for name in ("notes.txt", "checkpoints/best.pt", "checkpoints/.hidden"):
        assert (begun / name).read_text() == "mine"
    steps = sorted(path.name[:17] for path in (begun / "checkpoints").glob("step-*"))
    assert steps == ["step-000000000001", "step-000000000002"]


@pytest.mark.parametrize("name", ["table.csv", "model.py", "checkpoints", "extension-2"])
def test_a_file_of_the_users_with_the_name_of_one_of_ours_is_refused_before_anything_is_removed(name: str, done: Path) -> None:
    if name == "checkpoints":
        shutil.rmtree(done / name)
        OwnFiles(done).clear((".lock", ".running", "config.json", "history.csv"))
    (done / name).write_text("mine")
    before = snapshot(done)
    assert f"{done / name} was not written by dnasa: move it" in refused(*TRAIN, "--out", done, "--force")
    assert snapshot(done) == before


def test_a_run_leaves_nothing_behind_that_is_not_on_its_list(made: Path, tmp_path: Path) -> None:
    for name in ("begun", "trained", "compared"):
        folder = shutil.copytree(made / name, tmp_path / name)
        files = {path for path, (kind, _) in snapshot(folder).items() if kind == stat.S_IFREG}
        assert files <= own_names(folder)
        OwnFiles(folder).clear()
        assert set(os.listdir(folder)) <= {"files.json", ".files.lock", ".lock", ".running"}


@pytest.mark.parametrize("name", ["resume", "train --force"])
def test_nothing_is_written_or_removed_behind_a_link_in_place_of_checkpoints(name: str, begun: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (begun / "checkpoints").rename(home)
    for file in (".bashrc", ".profile"):
        (home / file).write_text("mine")
    (begun / "checkpoints").symlink_to(home)
    before = snapshot(home)
    if name == "resume":
        with pytest.raises(InputError, match="checkpoints is a symbolic link: replace it with the folder"):
            small(begun, resume=True)
    COMMANDS[name](begun)
    assert snapshot(home) == before


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_history_that_never_ends_is_damaged(kind: str, begun: Path) -> None:
    (begun / "history.csv").unlink()
    os.mkfifo(begun / "history.csv") if kind == "pipe" else (begun / "history.csv").symlink_to("/dev/zero")
    refused("report", begun)
    refused("resume", begun)
    with pytest.raises(InputError, match=r"history\.csv is (a symbolic link|not a regular file)"):
        small(begun, resume=True)
    assert any("history.csv" in line for line in read(begun)["folders"][0]["failures"])
    table = run("runs", begun.parent)
    assert "damaged" in table.stdout


def test_a_page_shows_no_file_from_elsewhere(done: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "log.txt").write_text("2024-01-01 00:00:00 password\n")
    (tmp_path / "secret" / "config.json").write_text('{"options": {"rule": "password"}}')
    (done / "log.txt").unlink()
    (done / "log.txt").symlink_to(tmp_path / "secret" / "log.txt")
    (done / "extension-1").symlink_to(tmp_path / "secret")
    succeed("report", done, "--html")
    assert "password" not in (done / "report.html").read_text()
    (tmp_path / "all").mkdir()
    done.rename(tmp_path / "all" / "done")
    (tmp_path / "all" / "linked").symlink_to(tmp_path / "secret")
    assert "password" not in render(read(tmp_path / "all"))
    assert "linked" not in run("runs", tmp_path / "all").stdout


def test_a_file_is_listed_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnFiles(tmp_path)
    own.write("a", b"1")
    replace = os.replace

    def killed(old: Path, new: Path) -> None:
        if new.name == "b":
            raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        own.write("b", b"2")
    assert own.names() >= {"a", "b", ".draft"}
    assert not (tmp_path / "b").exists()
    monkeypatch.undo()
    (tmp_path / ".draft").write_bytes(b"of a killed process")
    own.write("b", b"2")
    assert (tmp_path / "b").read_bytes() == b"2"
    assert not (tmp_path / ".draft").exists()


def test_two_writers_list_the_files_of_both(tmp_path: Path) -> None:
    first, second = OwnFiles(tmp_path), OwnFiles(tmp_path)
    first.write("a", b"1")
    second.write("b", b"2")
    first.write("c", b"3")
    first.remove("a")
    first.write("d", b"4")
    assert OwnFiles(tmp_path).names() - {"files.json", ".draft", ".files.lock", ".lock", ".running"} == {"b", "c", "d"}


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/outside", "a/../../outside", "", ".", "a//b", "a\\b", "a\0", "\ud800", 3, ["a"]], ids=repr
)
def test_a_list_that_names_anything_else_than_files_in_its_folder_is_refused(name: Any, done: Path) -> None:
    stored = json.loads((done / "files.json").read_text())
    (done / "files.json").write_text(json.dumps(stored | {"files": [*stored["files"], name]}))
    before = snapshot(done.parent)
    assert "files.json is not a list of files that dnasa wrote" in refused(*TRAIN, "--out", done, "--force")
    assert snapshot(done.parent) == before


def test_a_run_without_a_list_is_read_and_neither_continued_nor_replaced(begun: Path, done: Path) -> None:
    for path in (begun / "files.json", done / "files.json", begun / ".files.lock", done / ".files.lock"):
        path.unlink()
    assert run("report", done).returncode == run("report", done, "--html").returncode == 0
    before = snapshot(begun)
    with pytest.raises(InputError, match=r"has no list of the run's files \(files.json\)"):
        small(begun, resume=True)
    refused = run(*TRAIN, "--out", begun, "--force")
    assert "that are not of a run" in refused.stderr
    assert snapshot(begun) == before


def test_a_page_replaces_its_own_file_alone(done: Path, tmp_path: Path) -> None:
    for _ in range(2):
        succeed("report", done, "--html")
    (tmp_path / "report.html").write_text("mine")
    assert "report.html was not written by dnasa: move it" in refused("report", tmp_path, "--html")
    assert (tmp_path / "report.html").read_text() == "mine"
    succeed("report", tmp_path, "--html", "--out", tmp_path / "report.html")  # the user names it


def test_a_named_output_replaces_a_file_and_writes_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_output(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_predictions_do_not_replace_the_rows(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "rows.csv", tmp_path)
    line = refused("predict", made / "trained", tmp_path / "rows.csv", "--out", tmp_path / "rows.csv")
    assert "--out would replace the rows" in line
    assert (tmp_path / "rows.csv").read_bytes() == (made / "rows.csv").read_bytes()


def test_files_added_to_a_folder_whose_run_ended_before_it_wrote_any_are_the_users(tmp_path: Path) -> None:
    RunFolder(tmp_path).open()  # killed here: it has a list, and nothing else
    (tmp_path / "log.txt").write_text("mine")
    for words in ([], ["--force"]):
        refused(*TRAIN, "--out", tmp_path, *words)
        assert (tmp_path / "log.txt").read_text() == "mine"
    (tmp_path / "log.txt").unlink()
    succeed(*TRAIN, "--out", tmp_path)


def test_force_removes_nothing_where_the_run_cannot_be_replaced(done: Path) -> None:
    (done / ".draft").mkdir()
    before = snapshot(done)
    refused(*TRAIN, "--out", done, "--force")
    assert snapshot(done) == before
