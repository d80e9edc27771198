"""Networks by name: the right one for the data, the same after a resume, on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused, succeed
from numpy.typing import DTypeLike

from dnasa.cli import app
from dnasa.core import InputError
from dnasa.data import Dataset, Encoding
from dnasa.problems.executors import OneByOne, Stacked
from dnasa.tasks import models, tasks

TEXT = "Now is the winter of our discontent made glorious summer by this sun of York. " * 12


def rows(*shape: int, classes: int = 3, kind: DTypeLike = np.float32) -> Dataset:
    x = np.random.default_rng(0).integers(0, 255, (12, *shape)).astype(kind)
    labels = np.arange(12) % classes
    return Dataset("own", x, labels, x, labels)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "my.txt").write_text(TEXT)
    return tmp_path / "my.txt"


def layers(model: str, data: Dataset) -> list[str]:
    return [type(layer).__name__ for layer in models.make(model, data)().modules() if not len(list(layer.children()))]


def test_a_name_with_sizes_is_a_network() -> None:
    table, image = rows(7), rows(1, 28, 28)
    assert layers("linear", table) == ["Linear"]
    assert layers("linear", image) == ["Flatten", "Linear"]
    assert layers("mlp:9,8", table) == ["Linear", "Tanh", "Linear", "Tanh", "Linear"]
    shapes = [tuple(part.shape) for part in models.make("mlp:9,8", table)().parameters() if part.ndim == 2]
    assert shapes == [(9, 7), (8, 9), (3, 8)]
    assert {"BatchNorm2d"} == {name for name in layers("resnet:8", image) if "Norm" in name}
    assert {"GroupNorm"} == {name for name in layers("resnet:8,group", image) if "Norm" in name}
    narrow, wide = (sum(p.numel() for p in models.make(f"resnet:{width}", image)().parameters()) for width in (8, 16))
    assert 3 * narrow < wide < 5 * narrow


def test_a_perceptron_has_the_activation_and_the_dropout_of_its_name() -> None:
    table = rows(7)
    assert layers("mlp:9,8,relu", table) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert layers("mlp:9,gelu,dropout=0.1", table) == ["Linear", "GELU", "Dropout", "Linear"]
    assert "Dropout(p=0.25" in repr(models.make("mlp:9,dropout=.25", table)())
    shards = [np.arange(6), np.arange(6, 12)]
    assert type(tasks.on_shards(table, shards, model="mlp:9,silu").executor) is Stacked
    assert type(tasks.on_shards(table, shards, model="mlp:9,dropout=0.1").executor) is OneByOne
    assert type(tasks.on_shards(rows(3, 8, 8), shards, model="resnet:8").executor) is OneByOne


OWN = """
from torch import nn
def make(inputs, outputs):
    return nn.Linear(*inputs, outputs)
def none(inputs, outputs):
    return 3
def narrow():
    return nn.Linear(1, 1)
def wrong(inputs, outputs):
    return nn.Linear(
        *inputs, missing)
def wide(inputs, outputs):
    return nn.Linear(*inputs, outputs + 1)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_a_function_of_the_users_own_makes_the_network(own: Path) -> None:
    net: Any = models.make(f"{own}:make", rows(7))()
    assert (net.in_features, net.out_features) == (7, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own.py:none", "none of .*own.py returned a int: it must return a torch module"),
        ("own.py:other", "has no function other: define other"),
        ("own.py:nn.Linear", "Unknown model"),
        ("own.py:narrow", "failed: TypeError: narrow"),
        ("own.py:wrong", r"wrong\(inputs=\(7,\), outputs=3\) of .*own.py failed at line 11: NameError"),
        ("own.py:wide", r"own.py:wide has outputs of shape \(4,\) for a row, not 3"),
        ("absent.py:make", "There is no file .*absent.py"),
        ("broken.py:make", "broken.py failed: SyntaxError"),
    ],
)
def test_a_file_without_a_network_is_refused(name: str, words: str, own: Path) -> None:
    (own.parent / "broken.py").write_text("def")
    with pytest.raises(InputError, match=words):
        models.make(str(own.parent / name), rows(7))()


def test_the_file_of_a_network_is_stored_as_an_absolute_path_and_announced(own: Path) -> None:
    done = succeed(*"train --model own.py:make --nodes 2 --steps 4 --out a".split(), cwd=own.parent)
    assert done.stderr == f"Executing {own} for its model.\n"
    assert json.loads((own.parent / "a" / "config.json").read_text())["options"]["model"] == f"{own}:make"


@pytest.mark.parametrize(
    ("given", "expected"),
    [(rows(7), "mlp:64"), (rows(1, 28, 28), "lenet"), (rows(1, 28, 28, classes=12), "resnet"), (rows(3, 8, 8), "resnet")],
)
def test_data_has_a_default_network(given: Dataset, expected: str) -> None:
    assert models.default(given) == expected
    if given.inputs.ndim == 2:
        labels = np.repeat([0, 1, 2], [900, 70, 70])  # 140 rows of the rarer classes for 7 inputs are 20 for each
        named = given._replace(
            inputs=np.zeros((1040, 7), np.float32), labels=labels, encoding=Encoding("classification", (), (7,), "y")
        )
        assert models.default(named) == "mlp:64"
        assert models.default(named._replace(labels=np.minimum(labels, 1), inputs=np.zeros((1040, 8)))) == "linear"
    net = models.make(expected, given)()
    assert net(torch.from_numpy(given.inputs)).shape == (12, given.classes)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        ("vgg", rows(7), "Unknown model 'vgg'. Choose from: linear, mlp, lenet, resnet, gpt, or give your own"),
        ("mlp:", rows(7), "Cannot read the model 'mlp:'. Write mlp, mlp:128,64 with"),
        ("mlp:8,dropout=1", rows(7), "Cannot read the model"),
        ("mlp:8,sine", rows(7), "activations: tanh, relu, gelu, silu"),
        ("mlp:9999999", rows(7), "Cannot read the model"),
        ("lenet:3", rows(1, 28, 28), "Cannot read the model 'lenet:3'. Write lenet."),
        ("resnet:16,layer", rows(3, 8, 8), "Write resnet, resnet:16 with the first width, or resnet:16,group"),
        ("gpt:2,96", rows(7), "Write gpt, or gpt:2,96,64 with its layers, width and context"),
        ("gpt", rows(7), "gpt is the model for text"),
        ("mlp:8", rows(7)._replace(vocabulary="ab"), "gpt is the model for text, .* leave --model out for own"),
        ("lenet", rows(3, 8, 8), "lenet is for 1 x 28 x 28"),
        ("resnet", rows(7), "resnet is for images"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model: str, given: Dataset, words: str) -> None:
    with pytest.raises(InputError, match=words):
        models.make(model, given)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --model vgg", "Unknown model 'vgg'"),
        ("train --data FILE", "a context of 256 needs more"),
        ("train --data FILE --model gpt:1,200,16", "multiple of 3"),
        ("train --data FILE --model gpt:1,12,16 --partition by_label", "use the partition iid or contiguous"),
    ],
)
def test_wrong_models_get_one_clear_line(words: str, message: str, text: Path) -> None:
    assert message in refused(*[text if word == "FILE" else word for word in words.split()])


def test_the_division_of_a_text_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.txt").write_text(TEXT * 5)
    app(["data", str(tmp_path / "long.txt"), "--partition", "contiguous", "--nodes", "2"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Windows at each of 2 nodes, contiguous" in " ".join(shown.split())
    assert "1,721" in shown
