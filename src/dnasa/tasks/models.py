"""Models by name, as `--model` takes them, and the default for each kind of data."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.data.text import CONTEXT
from dnasa.problems.models import ACTIVATIONS, gpt, lenet, perceptron, resnet
from dnasa.tasks import own_model

Shape = Sequence[int]  # of one row of inputs


def parse(text: str) -> tuple[str, list[str]]:
    """The name, and what follows it; the name of the user's own model is "own"."""
    if own_model.is_own(text):
        return "own", []
    name, _, rest = text.partition(":")
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise InputError(f"Unknown model '{text:.60}'. Choose from: {known}, or give your own as my_file.py:make.")
    if not re.fullmatch(name + MODELS[name].pattern, text):
        raise InputError(f"Cannot read the model '{text:.40}'. Write {MODELS[name].form}.")
    return name, rest.split(",") if rest else []


def check(text: str) -> None:
    """Refuse a name that no model has, or a file without the function."""
    if parse(text)[0] == "own":
        own_model.source(text)


def context(text: str | None) -> int:
    """How many characters of a text the model sees at once."""
    name, words = parse(text) if text else ("gpt", [])
    return int(words[2]) if name == "gpt" and words else CONTEXT


def default(rows: Dataset) -> str:
    """LeNet for 28 x 28 images, a residual net for others, GPT for text, a perceptron for tables."""
    if rows.vocabulary:
        return "gpt"
    if rows.inputs.shape[1:] == (1, 28, 28) and rows.outputs <= 10:
        return "lenet"
    if rows.inputs.ndim == 4:
        return "resnet"
    if rows.inputs.ndim != 2:
        raise InputError(f"There is no default model for inputs of shape {rows.inputs.shape[1:]}: give your own.")
    return "mlp:32" if (rows.name, rows.source) == ("digits", "scikit-learn") else "mlp:64"


def make(text: str, rows: Dataset) -> Callable[[], nn.Module]:
    """The model for this data; an error says why it does not fit."""
    name, _ = parse(text)
    if name != "own" and (name == "gpt") != bool(rows.vocabulary):
        raise InputError(f"gpt is the model for text, and for nothing else: leave --model out for {rows.name}.")
    make_network = network(text, rows.inputs.shape[1:], rows.outputs, rows.name)
    if name == "own":
        _check_outputs(text, make_network, rows)
    return make_network


def _check_outputs(text: str, make_network: Callable[[], nn.Module], rows: Dataset) -> None:
    """Refuse a model with another number of outputs, which might train all the same. Other errors come with the loss."""
    inputs, shape = torch.as_tensor(rows.inputs[:2]), None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = make_network().eval()
        with suppress(RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            shape = module(inputs if inputs.dtype == torch.long else inputs.float()).shape
    if shape is not None and shape[-1:] != (rows.outputs,):
        raise InputError(f"{text} has outputs of shape {tuple(shape[1:])} for a row, not {rows.outputs}.")


def network(text: str, shape: Shape, outputs: int, data: str) -> Callable[[], nn.Module]:
    """The model for inputs of this shape; `data` is their name in an error."""
    name, words = parse(text)
    if name == "own":
        return own_model.maker(text, shape, outputs)
    return MODELS[name].make(shape, outputs, words, data)


def batched(text: str, rows: Dataset) -> bool:
    """Whether there are formulas for all its layers, and the inputs are numbers rather than bytes."""
    known = parse(text)[0] in ("linear", "mlp", "lenet") and "dropout" not in text
    return known and rows.inputs.dtype != np.uint8


def _perceptron(shape: Shape, outputs: int, words: list[str], data: str) -> Callable[[], nn.Module]:
    widths = [int(word) for word in words if word.isdigit()]
    activation = next((word for word in words if word in ACTIVATIONS), "tanh")
    dropout = next((float(word.removeprefix("dropout=")) for word in words if word.startswith("dropout=")), 0.0)
    made = partial(perceptron, prod(shape), *widths, outputs, activation=activation, dropout=dropout)
    return made if len(shape) == 1 else lambda: nn.Sequential(nn.Flatten(), made())


def _lenet(shape: Shape, outputs: int, words: list[str], data: str) -> Callable[[], nn.Module]:
    if tuple(shape) != (1, 28, 28) or outputs > 10:
        raise InputError(f"lenet is for 1 x 28 x 28 pixels in at most 10 classes: use another --model for {data}.")
    return partial(lenet, outputs)


def _resnet(shape: Shape, outputs: int, words: list[str], data: str) -> Callable[[], nn.Module]:
    if len(shape) != 3:
        raise InputError(f"resnet is for images, channels x height x width: store {data} so, or use mlp or linear.")
    width, norm = int(words[0]) if words else 32, words[1] if len(words) > 1 else "batch"
    return partial(resnet, shape[0], outputs, (width, 2 * width, 4 * width), norm)


def _gpt(shape: Shape, outputs: int, words: list[str], data: str) -> Callable[[], nn.Module]:
    depth, width = (int(word) for word in words[:2]) if words else (6, 384)
    return partial(gpt, outputs, depth, width, context=shape[0])


class Named(NamedTuple):
    """A model by name: what may follow the name, how to write it, and what makes it from a row's shape, outputs and words."""

    pattern: str
    form: str
    make: Callable[[Shape, int, list[str], str], Callable[[], nn.Module]]


SIZE = r"[1-9]\d{0,5}"
MODELS = {
    "linear": Named("", "linear", _perceptron),
    "mlp": Named(
        f"(:{SIZE}(,{SIZE})*(,({'|'.join(ACTIVATIONS)}))?(,dropout=0?\\.\\d{{1,6}})?)?",
        f"mlp, mlp:128,64 with hidden widths, or mlp:128,64,relu,dropout=0.1; activations: {', '.join(ACTIVATIONS)}",
        lambda shape, outputs, words, data: _perceptron(shape, outputs, words or ["64"], data),
    ),
    "lenet": Named("", "lenet", _lenet),
    "resnet": Named(
        f"(:{SIZE}(,(batch|group))?)?", "resnet, resnet:16 with the first width, or resnet:16,group", _resnet
    ),
    "gpt": Named(f"(:{SIZE},{SIZE},{SIZE})?", "gpt, or gpt:2,96,64 with its layers, width and context", _gpt),
}
