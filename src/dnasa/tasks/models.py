"""Models by name, as `--model` takes them: ours, and the user's as `my_file.py:make`; and the default for each kind of data."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.files import execute, failure, read_bytes
from dnasa.networks import launched_rank
from dnasa.problems.models import ACTIVATIONS, gpt, lenet, perceptron, resnet
from dnasa.problems.stored import as_inputs, as_tensor

Shape = Sequence[int]  # of one row of inputs
Maker = Callable[[], nn.Module]
ENOUGH = 20  # training rows of the rarer classes for each input, below which a perceptron depends on chance
USER_FUNCTION = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def parse(text: str) -> tuple[str, list[str]]:
    """The name of a model and the words after it; "file" for a user's model, and then the file and its function."""
    users = USER_FUNCTION.fullmatch(text)
    if users:
        return "file", list(users.groups())
    name, _, rest = text.partition(":")
    if name not in MODELS:
        names = ", ".join(MODELS)
        raise InputError(f"Unknown model '{text:.60}'. Choose from: {names}, or give your own as my_file.py:make.")
    if not re.fullmatch(name + MODELS[name].pattern, text):
        raise InputError(f"Cannot read the model '{text:.40}'. Write {MODELS[name].form}.")
    return name, rest.split(",") if rest else []


def default(rows: Dataset) -> str:
    """LeNet for 28 x 28 images, a residual net for others, GPT for text, a perceptron for tables or, with few rows, linear."""
    if rows.vocabulary:
        return "gpt"
    if rows.inputs.shape[1:] == (1, 28, 28) and rows.outputs <= 10:
        return "lenet"
    if rows.inputs.ndim == 4:
        return "resnet"
    if rows.inputs.ndim != 2:
        raise InputError(f"There is no default model for inputs of shape {rows.inputs.shape[1:]}: give your own.")
    if (rows.name, rows.source) == ("digits", "scikit-learn"):
        return "mlp:32"
    return "linear" if rows.encoding and rows.informative < ENOUGH * rows.inputs.shape[1] else "mlp:64"


def make(text: str, rows: Dataset) -> Maker:
    """What makes the model for this data; an error says why it does not fit."""
    name, _ = parse(text)
    if name != "file" and (name == "gpt") != bool(rows.vocabulary):
        raise InputError(f"gpt is the model for text, and for nothing else: leave --model out for {rows.name}.")
    maker = make_for(text, rows.inputs.shape[1:], rows.outputs, rows.name)
    if name == "file":
        _check_outputs(text, maker, rows)
    return maker


def make_for(text: str, shape: Shape, outputs: int, data: str, code: bytes | None = None) -> Maker:
    """What makes the model for inputs of this shape. Errors name the `data`; `code` is the user's file, if it was read."""
    name, words = parse(text)
    if name == "file":
        return _user_maker(Path(words[0]), words[1], tuple(shape), outputs, code)
    return MODELS[name].make(shape, outputs, words, data)


def has_formulas(text: str, rows: Dataset) -> bool:
    """Whether there are formulas for all its layers, and the inputs are numbers rather than bytes."""
    name, _ = parse(text)
    return name in ("linear", "mlp", "lenet") and "dropout" not in text and rows.inputs.dtype != np.uint8


def _user_maker(path: Path, name: str, shape: tuple[int, ...], outputs: int, code: bytes | None) -> Maker:
    """Calls `make(inputs, outputs)`: the shape of one row of inputs, and the number of outputs."""
    make, _ = load_function(path.resolve(), name, code)

    def maker() -> nn.Module:
        try:
            module = make(shape, outputs)
        except (Exception, SystemExit) as error:
            call = f"{name}(inputs={shape}, outputs={outputs})"
            raise InputError(f"{call} of {path} {failure(path.resolve(), error)}.") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"{name} of {path} returned a {type(module).__name__}: it must return a torch module.")
        return module

    return maker


def check_file(path: Path, name: str) -> None:
    if not path.is_file():
        raise InputError(f"There is no file {path}: give the path of a Python file with a function {name}.")


@cache
def load_function(path: Path, name: str, code: bytes | None) -> tuple[Callable[..., Any], bytes]:
    """A function of the user's file, and the file as it was executed."""
    if code is None:
        check_file(path, name)
    if launched_rank() == 0:
        print(f"Executing {path} for its model.", file=sys.stderr, flush=True)
    try:
        code = read_bytes(path) if code is None else code
        module = execute(path, f"dnasa_model_{path.stem}", code)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} {failure(path, error)}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{path} has no function {name}: define {name}(inputs, outputs).")
    return function, code


def _check_outputs(text: str, maker: Maker, rows: Dataset) -> None:
    """Refuse a model with another number of outputs, which might train all the same. Other errors come with the loss."""
    shape, inputs = None, as_inputs(as_tensor(np.asarray(rows.inputs[:2])), torch.float32)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = maker().eval()
        with suppress(RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            shape = module(inputs).shape
    if shape is not None and shape[-1:] != (rows.outputs,):
        raise InputError(f"{text} has outputs of shape {tuple(shape[1:])} for a row, not {rows.outputs}.")


def _perceptron(shape: Shape, outputs: int, words: list[str], data: str) -> Maker:
    widths = [int(word) for word in words if word.isdigit()]
    activation = next((word for word in words if word in ACTIVATIONS), "tanh")
    maker = partial(perceptron, prod(shape), *widths, outputs, activation=activation, dropout=_dropout(words, 0.0))
    return maker if len(shape) == 1 else lambda: nn.Sequential(nn.Flatten(), maker())


def _dropout(words: list[str], default: float) -> float:
    return next((float(word.removeprefix("dropout=")) for word in words if word.startswith("dropout=")), default)


def _lenet(shape: Shape, outputs: int, words: list[str], data: str) -> Maker:
    if tuple(shape) != (1, 28, 28) or outputs > 10:
        raise InputError(f"lenet is for 1 x 28 x 28 pixels in at most 10 classes: use another --model for {data}.")
    return partial(lenet, outputs)


def _resnet(shape: Shape, outputs: int, words: list[str], data: str) -> Maker:
    if len(shape) != 3:
        raise InputError(f"resnet is for images, channels x height x width: store {data} so, or use mlp or linear.")
    width = int(words[0]) if words else 32
    norm = words[1] if len(words) > 1 else "batch"
    return partial(resnet, shape[0], outputs, (width, 2 * width, 4 * width), norm)


def _gpt(shape: Shape, outputs: int, words: list[str], data: str) -> Maker:
    """As GPT-2, with heads of 64; up to a width of 384 with dropout and, where that divides the width, six heads."""
    depth, width = [int(word) for word in words[:2]] if words else (6, 384)
    small = width <= 384
    heads = 6 if small and width % 6 == 0 else max(1, width // 64)
    return partial(gpt, outputs, depth, width, heads, context=shape[0], dropout=_dropout(words, 0.2 if small else 0.0))


class Named(NamedTuple):
    """A model by name: what may follow the name, how to write it, and what makes it from a row's shape, outputs and words."""

    pattern: str
    form: str
    make: Callable[[Shape, int, list[str], str], Maker]


SIZE = r"[1-9]\d{0,5}"
DROPOUT = r"(,dropout=0?\.\d{1,6})?"
MODELS = {
    "linear": Named("", "linear", _perceptron),
    "mlp": Named(
        f"(:{SIZE}(,{SIZE})*(,({'|'.join(ACTIVATIONS)}))?{DROPOUT})?",
        f"mlp, mlp:128,64 with hidden widths, or mlp:128,64,relu,dropout=0.1; activations: {', '.join(ACTIVATIONS)}",
        lambda shape, outputs, words, data: _perceptron(shape, outputs, words or ["64"], data),
    ),
    "lenet": Named("", "lenet", _lenet),
    "resnet": Named(f"(:{SIZE}(,(batch|group))?)?", "resnet, resnet:16 with the first width, or resnet:16,group", _resnet),
    "gpt": Named(
        f"(:{SIZE},{SIZE},{SIZE}{DROPOUT})?",
        "gpt, or gpt:2,96,64 with its layers, width and context, or gpt:2,96,64,dropout=0.1",
        _gpt,
    ),
}
