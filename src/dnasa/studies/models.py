"""Networks by name, as `--model` takes them, and the default for each kind of data."""

import re
from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np
from torch import nn

from dnasa.core import InputError, choose
from dnasa.data import CONTEXT, Dataset
from dnasa.problems.models import gpt, lenet, perceptron, resnet

SIZE = r"[1-9]\d{0,5}"
FORMS = {  # what may follow a name, and how to write it
    "linear": ("", "linear"),
    "mlp": (f"(:{SIZE}(,{SIZE})*)?", "mlp, or mlp:128,64 with the widths of the hidden layers"),
    "lenet": ("", "lenet"),
    "resnet": (f"(:{SIZE}(,(batch|group))?)?", "resnet, resnet:16 with the first width, or resnet:16,group"),
    "gpt": (f"(:{SIZE},{SIZE},{SIZE})?", "gpt, or gpt:2,96,64 with its layers, width and context"),
}


def parse(text: str) -> tuple[str, list[str]]:
    """The name, and what follows it."""
    name, _, rest = text.partition(":")
    pattern, forms = choose("model", name, FORMS)
    if not re.fullmatch(name + pattern, text):
        raise InputError(f"Cannot read the model '{text:.40}'. Write {forms}.")
    return name, rest.split(",") if rest else []


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
        raise InputError(
            f"There is no default network for inputs of shape {rows.inputs.shape[1:]}: use Supervised with your own."
        )
    return "mlp:32" if (rows.name, rows.source) == ("digits", "scikit-learn") else "mlp:64"


def make(text: str, rows: Dataset) -> Callable[[], nn.Module]:
    """The network for this data; an error says why it does not fit."""
    name, words = parse(text)
    if (name == "gpt") != bool(rows.vocabulary):
        raise InputError(f"gpt is the model for text, and for nothing else: leave --model out for {rows.name}.")
    return MAKERS[name](rows, words)


def batched(text: str, rows: Dataset) -> bool:
    """Whether `Classification` has formulas for all its layers, and the inputs are numbers rather than bytes."""
    return parse(text)[0] in ("linear", "mlp", "lenet") and rows.inputs.dtype != np.uint8


def _perceptron(rows: Dataset, widths: list[str]) -> Callable[[], nn.Module]:
    sizes = [prod(rows.inputs.shape[1:]), *map(int, widths), rows.outputs]
    if rows.inputs.ndim == 2:
        return partial(perceptron, *sizes)
    return lambda: nn.Sequential(nn.Flatten(), perceptron(*sizes))


def _lenet(rows: Dataset, words: list[str]) -> Callable[[], nn.Module]:
    if rows.inputs.shape[1:] != (1, 28, 28) or rows.outputs > 10:
        raise InputError(
            f"lenet is for images of 1 x 28 x 28 pixels in at most 10 classes: use another --model for {rows.name}."
        )
    return lenet


def _resnet(rows: Dataset, words: list[str]) -> Callable[[], nn.Module]:
    if rows.inputs.ndim != 4:
        raise InputError(f"resnet is for images, channels x height x width: use mlp or linear for {rows.name}.")
    width, norm = int(words[0]) if words else 32, words[1] if len(words) > 1 else "batch"
    if norm == "group" and width % 8:
        raise InputError(f"Group norm has 8 groups: the width of resnet:{width},group must be a multiple of 8.")
    return partial(resnet, rows.inputs.shape[1], rows.outputs, (width, 2 * width, 4 * width), norm)


def _gpt(rows: Dataset, words: list[str]) -> Callable[[], nn.Module]:
    layers, width = (int(word) for word in words[:2]) if words else (6, 384)
    return partial(gpt, rows.classes, layers, width, context=rows.inputs.shape[1])


MAKERS: dict[str, Callable[[Dataset, list[str]], Callable[[], nn.Module]]] = {
    "linear": _perceptron,
    "mlp": lambda rows, widths: _perceptron(rows, widths or ["64"]),
    "lenet": _lenet,
    "resnet": _resnet,
    "gpt": _gpt,
}
