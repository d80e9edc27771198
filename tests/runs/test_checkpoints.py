"""Checkpoints and results are checked when they are read, since anyone may have written them."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import refused, succeed
from safetensors.numpy import save as serialised
from test_resume import TRAIN, fail_at, history, small

from dnasa.core import Array, InputError
from dnasa.runs import checkpoints
from dnasa.runs.checkpoints import Checkpoint, Damaged
from dnasa.runs.folder import RunFolder
from dnasa.runs.result import Result

NOTES = {
    **{name: [[-1, 3]] for name in ("diverged", "diverged_node", "agreed")},
    **{"seconds": 1.5, "periods": [[0, 4]], "lost": [{"step": 3, "nodes": [1]}], "settings": {}},
    **{"members": [0, 2, 3], "sent": [[12, 96.0]], "history": [0, 0]},
}
ARRAYS = {"0.state.x": np.ones((1, 2, 3, 4)), "0.memory.0.2.1": np.ones((1, 2, 3, 1))}


def write(folder: Path, arrays: dict[str, Array], metadata: dict[str, str] | None) -> Path:
    data = serialised(arrays, metadata=metadata)
    folder.mkdir()
    path = folder / f"step-{7:012d}-{zlib.crc32(data):08x}.safetensors"
    path.write_bytes(data)
    return path


def test_a_checkpoint_is_read_as_written(tmp_path: Path) -> None:
    loaded = checkpoints.load(checkpoints.save(tmp_path / "c", Checkpoint(7, ARRAYS, NOTES)))
    assert loaded.step == 7
    assert loaded.notes == NOTES
    assert {name: a.shape for name, a in loaded.arrays.items()} == {name: a.shape for name, a in ARRAYS.items()}


ODD: list[Any] = [None, "x", True, [[1], [1.5]], [10**30], [{}]]
ODD_NOTES: dict[str, list[Any]] = {
    "seconds": [float("nan"), float("inf"), 10**400],
    "periods": [[], [[1.5]], [[0]]],
    "lost": [[3], [{"step": 1}], [{"step": "1", "nodes": [1]}]],
    "sent": [[[1.5]]],
    "history": [[-1, 0], [0], [0, 0, 0], [0.0, 0]],
}


@pytest.mark.parametrize("name", NOTES)
def test_a_checkpoint_with_odd_notes_is_damaged(name: str, tmp_path: Path) -> None:
    missing = {other: value for other, value in NOTES.items() if other != name}
    odd = [NOTES | {name: value} for value in (*ODD, *ODD_NOTES.get(name, []))]
    for number, notes in enumerate([missing, *odd]):
        path = write(tmp_path / str(number), ARRAYS, {"notes": json.dumps({"format": 2} | notes)})
        with pytest.raises(Damaged, match="is damaged"):
            checkpoints.load(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.ones((1, 2, 3, 4))},
        {"0.memory.0.-1.0": np.ones((1, 2, 3, 4))},
        {"0.memory.0.0": np.ones((1, 2, 3, 4))},
        {"0.state.x": np.ones(3)},
        {"0.state.x": np.array(1.0)},
        {"0.state.x": np.ones((1, 2, 3, 4), dtype=bool)},
    ],
    ids=lambda arrays: str(next(iter(arrays))),
)
def test_a_checkpoint_with_odd_arrays_is_damaged(arrays: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "c", arrays, {"notes": json.dumps({"format": 2} | NOTES)})
    with pytest.raises(Damaged, match="is damaged"):
        checkpoints.load(path)


def test_other_formats_are_refused_with_a_clear_line(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", ARRAYS, {"notes": json.dumps(NOTES)})
    with pytest.raises(InputError, match="of another version \\(format 1, not 2\\)"):
        RunFolder(tmp_path).newest()
    succeed(*TRAIN, "--out", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    del config["format"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a" / "status.json").write_text('{"state": "interrupted"}')
    assert "of another version" in refused("resume", tmp_path / "a")


def test_a_checkpoint_beyond_the_end_of_the_run_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fail_at(45, tmp_path / "a")
    newest = checkpoints.newest_first(tmp_path / "a" / "checkpoints")[0]
    newest.rename(newest.with_name(newest.name.replace(f"{40:012d}", f"{99_999:012d}")))
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)
    assert "beyond the end of the run" in capsys.readouterr().err


def test_a_history_that_cannot_be_parsed_is_not_continued(tmp_path: Path) -> None:
    """The checkpoint's checksum of the history fits, as if the same person had written both."""
    fail_at(45, tmp_path / "a")
    data = b"run,step\n0,\xff\n"
    (tmp_path / "a" / "history.csv").write_bytes(data)
    for path in checkpoints.newest_first(tmp_path / "a" / "checkpoints"):
        found = checkpoints.load(path)
        path.unlink()
        notes = found.notes | {"history": [len(data), zlib.crc32(data)]}
        checkpoints.save(path.parent, found._replace(notes=notes))
    np.testing.assert_array_equal(small(tmp_path / "a", resume=True).x, small().x)
    assert history(tmp_path / "a").step.tolist() == [0, 15, 30, 45, 60]


@pytest.mark.parametrize("notes", [{"diverged": [[1, 2]]}, {"agreed": []}, {"sent": []}, {"members": [0, 1]}], ids=str)
def test_a_checkpoint_of_another_run_is_refused(notes: dict[str, Any], tmp_path: Path) -> None:
    fail_at(15, tmp_path / "a")
    (path,) = checkpoints.newest_first(tmp_path / "a" / "checkpoints")
    saved = checkpoints.load(path)
    path.unlink()
    checkpoints.save(path.parent, saved._replace(notes=saved.notes | notes))
    with pytest.raises(InputError, match="The checkpoint of step 10 does not fit this run"):
        small(tmp_path / "a", resume=True)


def test_the_node_of_a_divergence_is_saved(tmp_path: Path) -> None:
    result = small(tmp_path / "a", steps=20)
    result.runs["diverged"], result.runs["diverged_node"] = pd.array([3], "Int64"), pd.array([2], "Int64")
    result.save(tmp_path / "b")
    assert Result.load(tmp_path / "b").runs.diverged_node.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("settings.json", b"[]"),
        ("settings.json", b"{}"),
        ("settings.json", b'{"timing": {"rule_seconds": "x"}}'),
        ("settings.json", b'{"timing": {}, "lost": [3]}'),
        ("settings.json", b'{"timing": {}, "lost": [{"nodes": [1]}]}'),
        ("history.csv", b""),
        ("history.csv", b"run,rule,seed,step\n0,dnasa,0,x\n"),
        ("history.csv", b"run,rule,seed,step\n0,dnasa,0,1,2\n"),
        ("history.csv", b"run,rule,seed\n0,dnasa,0\n"),
        ("history.csv", b"run\n" + b"1" * 200_000),
        ("runs.csv", b"run,diverged\n0,x\n"),
        ("runs.csv", b"run,diverged\n0,1e300\n"),
        ("x.safetensors", serialised({"y": np.ones((2, 2))})),
        ("x.safetensors", serialised({"x": np.ones(2)})),
        ("x.safetensors", serialised({"x": np.ones((2, 2), dtype=bool)})),
    ],
)
def test_an_odd_result_is_refused_with_one_line(name: str, data: bytes, tmp_path: Path) -> None:
    small(tmp_path / "a", steps=20)
    (tmp_path / "a" / name).write_bytes(data)
    assert "is damaged" in refused("report", tmp_path / "a")
