"""Tokens: each node trains on its own, tests are an equal mix, and nothing is copied into windows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archives import npz
from command_line import refused
from test_data import write
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import gelu, layer_norm

from dnasa import data
from dnasa.cli import app
from dnasa.core import InputError
from dnasa.data.partitions import hold_out_of_each
from dnasa.problems import models as networks
from dnasa.tasks import models as named_models
from dnasa.tasks.sources import SourceOptions, make_source

TRAIN, TEST = np.arange(150).reshape(3, 50), np.arange(60).reshape(3, 20) + 140


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my.npz").write_bytes(npz(train=TRAIN.astype(np.uint16), test=TEST, names=np.array(["c", "go", "js"])))
    return tmp_path / "my.npz"


def test_each_row_of_a_token_file_is_a_node(file: Path) -> None:
    rows = data.load(file, context=8)
    assert (rows.classes, rows.inputs.shape, rows.inputs.dtype.name) == (200, (150 - 8, 8), "uint16")
    assert np.shares_memory(rows.inputs, rows.labels)
    assert [(site.name, site.rows) for site in rows.sites] == [("c", 42), ("go", 42), ("js", 42)]
    for node, shard in enumerate(rows.shards):
        assert {*rows.inputs[shard].ravel(), *rows.labels[shard].ravel()} == {*TRAIN[node]}
        np.testing.assert_array_equal(rows.labels[shard], rows.inputs[shard] + 1)
    np.testing.assert_array_equal(rows.test_inputs, np.concatenate([TEST[:, :8], TEST[:, 8:16]], 1).reshape(6, 8))
    np.testing.assert_array_equal(rows.test_labels, rows.test_inputs + 1)
    for kept, held_out in zip(*hold_out_of_each(rows.shards, 8), strict=True):
        assert not {*rows.labels[kept].ravel()} & {*rows.inputs[held_out].ravel()}
    file.write_bytes(npz(train=np.full((2, 3000), 65_535, np.uint16), test=np.ones((2, 900), int)))
    rows = data.load(file, context=4)  # more windows than a test and a validation have
    assert rows.classes == 65_536
    assert [len(rows.test_inputs), *map(len, hold_out_of_each(rows.shards, 4)[1])] == [128, 64, 64]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two nodes with different texts of two words; hidden files are no texts."""
    words = {"node-10/a": "yes " * 60, "node-9/b": "no\n" * 50, "node-9/a/1": "yes " * 10, "node-9/.x": "maybe"}
    for name, text in words.items():
        write(tmp_path / "texts" / f"{name}.txt", text, False)
    return tmp_path / "texts"


def test_a_folder_of_texts_is_read_with_its_tokenizer_or_by_characters(texts: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"yes": 0, "no": 2}, unk_token="no"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(5)  # of what a model sees at once, not of the texts
    tokenizer.save(str(texts / "tokenizer.json"))
    rows = data.load(texts, context=2)
    assert [(site.name, site.rows) for site in rows.sites] == [("node-9", 54 - 2), ("node-10", 54 - 2)]
    assert list(rows.vocabulary) == ["yes", "unused 1", "no"]
    assert rows.inputs[:12, 0].tolist() == [0] * 10 + [2] * 2
    assert rows.test_labels.tolist() == [[2, 2]] * 2 + [[0, 0]] * 2  # of 6 tokens each
    (texts / "tokenizer.json").unlink()
    rows = data.load(texts, context=8, text=True)
    assert "".join(rows.vocabulary) == "\n enosy"
    assert "".join(rows.vocabulary[token] for token in rows.inputs[rows.shards[0][0]]) == "yes yes "


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"train": TRAIN / 2, "test": TEST}, r"'train' of my.npz is float64 of shape \(3, 50\): give whole numbers"),
        ({"train": TRAIN[0], "test": TEST}, r"is int64 of shape \(50,\): give whole numbers, nodes x"),
        ({"train": TRAIN}, "my.npz has no array 'test'; it has: train"),
        ({"train": TRAIN - 7, "test": TEST}, "has the token -7: give numbers from 0 to 1,048,575"),
        ({"train": TRAIN, "test": TEST + (1 << 31)}, "'test' of my.npz has the token 2,147,483,847"),
        ({"train": TRAIN, "test": TEST[:2]}, "3 rows in train, 2 in test and 3 names: give as many of each"),
        ({"train": TRAIN, "test": TEST[:, :8]}, "node 0 has 50 tokens .* and 8 for testing, and a context of 8 needs"),
        ({"X": TRAIN}, "my.npz has no array 'train'; it has: X"),
    ],
)
def test_a_wrong_token_file_gets_one_line(arrays: dict[str, Any], words: str, file: Path) -> None:
    file.write_bytes(npz(**arrays))
    with pytest.raises(InputError, match=words):
        data.load(file, context=8, text=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is no tokenizer of the package tokenizers"),
        (lambda folder: (folder / "empty").mkdir(), "empty has no text: add a file, or remove the folder"),
        (lambda folder: (folder / "node-9" / "b.txt").write_bytes(b"\xff"), r"b.txt is not UTF-8 text \(byte 0\): convert or"),
        (lambda folder: [path.rename(folder.parent / path.name) for path in folder.iterdir()], "has no texts: put those of"),
    ],
)
def test_a_wrong_folder_of_texts_gets_one_line(change: Callable[[Path], object], words: str, texts: Path) -> None:
    change(texts)
    with pytest.raises(InputError, match=words):
        data.load(texts, context=8, text=True)


def test_runs_have_the_nodes_of_tokens(file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", "--data", str(file), "--model", "gpt:1,64,8", "--steps", "2", "--batch", "2"]
    app([*words, "--out", str(file.parent / "run")], standalone_mode=False)
    assert "my.npz (by_node): 3 nodes" in " ".join(capfd.readouterr().out.split())
    app(["train", "--config", str(file.parent / "run" / "config.json"), "--quiet"], standalone_mode=False)
    assert "my.npz has 3 nodes (c, go, js): give --nodes, or --partition iid" in refused(*words, "--nodes", 4)
    assert "does not say which rows are whose" in refused("train", "--partition", "by_node")


@pytest.mark.parametrize(("partition", "nodes"), [("by_node", 3), ("iid", 2)])
def test_a_comparison_validates_on_tokens(partition: str, nodes: int, file: Path) -> None:
    options = SourceOptions(data=str(file), model="gpt:1,64,4", partition=partition, nodes=nodes)
    problem: Any = make_source(options, range(nodes), validate=True).problem
    assert (problem.nodes, problem.inputs.shape, min(map(len, problem.validation)) > 0) == (nodes, (4,), True)


def twin(model: networks.GPT, heads: int, tokens: torch.Tensor) -> torch.Tensor:
    """GPT-2's equations, with the parameters by name."""
    p = {name: part.detach() for name, part in model.named_parameters()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    x = p["embedding.weight"][tokens] + p["positions"]
    future = torch.full((len(p["positions"]),) * 2, -torch.inf).triu(1)
    for at in (f"layers.{i}" for i in range(len(model.layers))):
        attention = f"{at}.self_attn"
        qkv = norm(x, f"{at}.norm1") @ p[f"{attention}.in_proj_weight"].T + p[f"{attention}.in_proj_bias"]
        each = zip(*(part.chunk(heads, -1) for part in qkv.chunk(3, -1)), strict=True)
        seen = [(q @ k.mT / q.shape[-1] ** 0.5 + future).softmax(-1) @ v for q, k, v in each]
        x = x + torch.cat(seen, -1) @ p[f"{attention}.out_proj.weight"].T + p[f"{attention}.out_proj.bias"]
        inner = gelu(norm(x, f"{at}.norm2") @ p[f"{at}.linear1.weight"].T + p[f"{at}.linear1.bias"])
        x = x + inner @ p[f"{at}.linear2.weight"].T + p[f"{at}.linear2.bias"]
    return norm(x, "norm") @ p["embedding.weight"].T


def test_gpt_is_that_of_gpt_2() -> None:
    maker: Any = named_models.make_for("gpt:12,768,512", (512,), 8192, "x")
    assert (maker.args, maker.keywords) == ((8192, 12, 768, 12), {"context": 512, "dropout": 0.0})
    model: Any = named_models.make_for("gpt:8,128,8,dropout=.0", (8,), 11, "x")()
    first = [part.std().item() for part in (model.positions, model.layers[0].linear1.weight, model.layers[1].linear2.weight)]
    assert first == pytest.approx([0.02, 0.02, 0.02 / 4], rel=0.1)
    for part in model.parameters():
        torch.nn.init.normal_(part, std=0.1)
    tokens = torch.randint(11, (3, 8))
    assert (model(tokens) - twin(model, 2, tokens)).abs().max() < 1e-4
