"""Bad input of every kind: one clear line and exit code 2, never a traceback, a hang, or a run on silently wrong data."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import npz
from command_line import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_checkpoints import ARRAYS, NOTES
from test_data import JPEGS
from test_resume import fail_at, small

from dnasa.core import InputError
from dnasa.data import from_text
from dnasa.data.datasets import KNOWN
from dnasa.data.loading import load
from dnasa.runs import checkpoints
from dnasa.runs.checkpoints import Checkpoint, Damaged
from dnasa.runs.folder import RunFolder
from dnasa.runs.result import Result

quick = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


GOOD = {
    "csv": b"a,b,label\n" + b"1,2,x\n3,red,y\n5,6,x\n" * 3,
    "npz": npz(inputs=np.arange(12.0).reshape(6, 2), labels=np.array([0, 1, 2, 0, 1, 2])),
    "tokens": npz(train=np.arange(12).reshape(2, 6), test=np.arange(10).reshape(2, 5)),
    "text": "Now is the winter, déjà vu. ".encode() * 10,
    "a9a": b"+1 1:1 3:1\n-1 2:0.5\n+1 1:2\n",
    "miniboone": b"1 2\n" + b"\n".join([b"1.0 2.0 3.0"] * 3),
    "cifar10": npz(**JPEGS),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "csv": lambda path: load(path, "label")[1:3],
    "npz": lambda path: load(path)[1:3],
    "tokens": lambda path: load(path.rename(path.with_suffix(".npz")), context=4)[1:3],
    "text": lambda path: from_text(path, context=4)[1:3],
}


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Truncated, changed, with bytes inserted, or replaced; sometimes gzipped."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["cut", "change", "insert", "replace"]))
        if how == "cut":
            del data[at:]
        elif how == "change" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif how == "insert":
            data[at:at] = draw(st.sampled_from([b"nan", b"1e999", b"\n", b",", b"\x00", b"\xff\xfe", b"-", b"9" * 20]))
        else:
            data = bytearray(draw(st.binary(max_size=60)))
    return gzip.compress(bytes(data))[: draw(st.integers(5, 200))] if draw(st.integers(0, 9)) == 0 else bytes(data)


def read_or_refused(read: Callable[[], Any]) -> Any:
    """What is read, or None if it is refused with one line."""
    try:
        return read()
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


@pytest.mark.parametrize("kind", GOOD)
@quick
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_as_valid_data(
    kind: str, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNASA_DATA", str(tmp_path))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    content = data.draw(damaged(GOOD[kind]))
    files = KNOWN[kind].files[-1] if kind in KNOWN else [f"file.{kind}"]
    paths = [tmp_path / kind / name for name in files]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    read = read_or_refused(lambda: READERS[kind](paths[0]) if kind in READERS else load(kind)[1:3])
    if read is None:
        return
    inputs, labels = read[:2]
    assert np.isfinite(inputs).all()
    assert len(inputs) == len(labels)


WORDS = st.sampled_from(
    ["0", "-1", "1", "3", "2.5", "nan", "inf", "1e9", "", "ring", "x", "--", "0.1,1", "topk:0.1", "d2", "None", "é"]
)
OPTIONS = st.sampled_from(
    "nodes topology weights rule eta schedule batch seed seeds evaluate rounds dtype timeout drop problem device engine "
    "partition checkpoint-every config shard-dir target nonsense plugin data model compress task".split()
)


def check_end(*words: object) -> None:
    """A command succeeds, or says in one line why not."""
    done = run(*words)
    assert done.returncode in (0, 1, 2), done.stderr
    if done.returncode:
        assert done.stderr.startswith("Error: ")
        assert len(done.stderr.strip().splitlines()) == 1
        assert "Traceback" not in done.stderr


@quick
@given(pairs=st.lists(st.tuples(OPTIONS, WORDS), min_size=1, max_size=4))
def test_any_command_line_ends_with_success_or_one_clear_line(pairs: list[tuple[str, str]]) -> None:
    words = [f"--{name}={value}" for name, value in pairs if not (name in ("nodes", "batch", "seeds") and value == "1e9")]
    check_end(*"train --problem least_squares --nodes 4 --steps 3".split(), *words)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
OPTION_VALUES = st.dictionaries(OPTIONS.map(lambda name: name.replace("-", "_")), JSON, max_size=4)


@quick
@given(config=JSON | st.fixed_dictionaries({"command": st.sampled_from(["train", "x", 3]), "options": OPTION_VALUES}))
def test_any_config_ends_with_success_or_one_clear_line(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    check_end("train", "--config", path, *"--problem least_squares --nodes 4 --steps 3".split())


@quick
@given(data=st.data())
def test_a_damaged_checkpoint_is_never_taken_for_a_good_one(data: st.DataObject, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    path = checkpoints.save(folder, Checkpoint(7, ARRAYS, NOTES))
    good = path.read_bytes()
    path.write_bytes(data.draw(damaged(good)))
    if path.read_bytes() == good:
        np.testing.assert_array_equal(checkpoints.load(path).arrays["0.state.x"], ARRAYS["0.state.x"])
    else:
        with pytest.raises(Damaged):
            checkpoints.load(path)
        assert RunFolder(tmp_path).newest() is None


@quick
@given(notes=st.dictionaries(st.sampled_from([*NOTES]), JSON))
def test_any_notes_of_a_checkpoint_are_refused_or_used(notes: dict[str, Any], tmp_path: Path) -> None:
    """A resumed run refuses them with one line, or ends."""
    folder = tmp_path / "run"
    if not (tmp_path / "begun").exists():
        fail_at(25, tmp_path / "begun")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tmp_path / "begun", folder)
    newest, *others = checkpoints.newest_first(folder / "checkpoints")
    found = checkpoints.load(newest)
    for path in (newest, *others):
        path.unlink()
    checkpoints.save(folder / "checkpoints", found._replace(notes=found.notes | notes))
    read_or_refused(lambda: small(folder, resume=True))


@quick
@given(data=st.data(), name=st.sampled_from(["history.csv", "runs.csv", "x.safetensors", "settings.json"]))
def test_a_damaged_result_is_refused_or_read(data: st.DataObject, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if not folder.exists():
        small(folder, steps=5)
        shutil.copytree(folder, tmp_path / "good")
    shutil.copytree(tmp_path / "good", folder, dirs_exist_ok=True)
    (folder / name).write_bytes(data.draw(damaged((folder / name).read_bytes())))
    read_or_refused(lambda: Result.load(folder))
