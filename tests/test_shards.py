"""Each process reads the data of its own nodes; runs on a user's data are named after it."""

from pathlib import Path

import numpy as np
import pytest
from archives import X, Y, archive, npy, npz

from dnasa import data
from dnasa.core import InputError
from dnasa.studies import tasks


def shards(folder, contents):
    folder.mkdir()
    for name, content in {"test.npz": npz(inputs=X, labels=Y), **contents}.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_users_data_is_named_after_its_file_or_folder(tmp_path, monkeypatch):
    (tmp_path / "own.npz").write_bytes(npz(inputs=X, labels=Y))
    assert data.load(str(tmp_path / "own.npz")).name == "own.npz"
    (tmp_path / "own.csv").write_bytes(b"a,kind\n" + b"1,x\n2,y\n" * 5)
    assert data.load(str(tmp_path / "own.csv"), "kind").name == "own.csv"
    folder = shards(tmp_path / "hospitals", {"node-0.npz": npz(inputs=X, labels=Y)})
    assert data.from_shards(folder, range(1), 1)[0].name == "hospitals"
    monkeypatch.chdir(folder)
    assert data.from_shards(Path("."), range(1), 1)[0].name == "hospitals"


def test_a_process_reads_its_own_shards_and_leaves_the_others_empty(tmp_path):
    folder = shards(tmp_path / "d", {f"node-{i}.npz": npz(inputs=X[i:] + i, labels=Y[i:]) for i in (1, 2)})
    rows, parts = data.from_shards(folder, range(1, 3), 4)
    assert [len(part) for part in parts] == [0, 9, 8, 0]
    np.testing.assert_array_equal(rows.inputs[parts[2]], X[2:] + 2)


@pytest.mark.parametrize("integers", [False, True])
def test_shard_runs_identify_their_data_in_any_number_of_processes(tmp_path, integers):
    kind = np.int64 if integers else np.float64
    contents = {f"node-{i}.npz": npz(inputs=(X[i:] + i).astype(kind), labels=Y[i:]) for i in range(3)}
    folder = shards(tmp_path / "d", contents)
    whole, first, rest = (tasks.on_shards(*data.from_shards(folder, r, 3)) for r in (range(3), range(1), range(1, 3)))
    assert first.fingerprint == rest.fingerprint == whole.fingerprint
    gathered = [first.node_fingerprint(0), rest.node_fingerprint(1), rest.node_fingerprint(2)]
    assert gathered == [whole.node_fingerprint(node) for node in range(3)]
    assert [whole.rows(node) for node in range(3)] == [10, 9, 8]


def test_a_folder_called_digits_gets_the_network_of_a_users_data(tmp_path):
    folder = shards(tmp_path / "digits", {"node-0.npz": npz(inputs=X, labels=Y)})
    assert tasks.on_shards(*data.from_shards(folder, range(1), 1)).layout[0] == ("0.weight", (64, 2))
    assert tasks.classification("digits", 2).layout[0] == ("0.weight", (32, 64))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy(X), "node-0.npz: it is not an archive"),
        (npz(inputs=X, labels=Y * 1.0), "labels of node-0.npz must be whole numbers"),
        (npz(inputs=X, labels=1), "labels of node-0.npz must be whole numbers"),
        (npz(inputs=X, labels=-Y), "labels of node-0.npz must be whole numbers"),
        (npz(inputs=X, labels=np.full(10, 2**64 - 1, np.uint64)), "labels of node-0.npz must be whole numbers"),
        (archive({"inputs.npy": npy(X), "labels": b"text"}), "labels of node-0.npz must be whole numbers"),
        (npz(inputs=X[:0], labels=Y[:0]), "inputs of node-0.npz must be numbers"),
        (npz(inputs=X[:, :1], labels=Y), "node 0 and the test data differ"),
        (npz(inputs=X, labels=Y + 1), "node 0 and the test data differ"),
    ],
)
def test_a_damaged_shard_is_refused(tmp_path, content, words):
    folder = shards(tmp_path / "d", {"node-0.npz": content})
    with pytest.raises(InputError, match=words):
        data.from_shards(folder, range(1), 1)
