"""Texts as windows of characters."""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnasa.core import InputError
from dnasa.data import formats
from dnasa.data.dataset import Dataset

CONTEXT = 256
"""Characters that a model of a text sees at once."""


def from_text(path: str | Path, context: int = CONTEXT) -> Dataset:
    """Windows of a text, each the label of the one that begins a character earlier; the last tenth of the text is for testing.

    Training windows begin at every character and share the text's memory; test windows do not overlap.

    Args:
        path: The text file.
        context: The length of a window, in characters.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    codes = np.frombuffer(formats.read_text(path).encode("utf-32-le"), np.uint32)
    characters, tokens = np.unique(codes, return_inverse=True)
    train, test = np.split(tokens.astype(np.int64), [len(tokens) * 9 // 10])
    if len(test) <= context:
        raise InputError(
            f"{path} has {len(tokens):,} characters: a context of {context:,} needs more than {10 * context:,}. Give a longer "
            "text or a shorter context, such as --model gpt:2,96,64."
        )
    if len(characters) < 2:
        raise InputError(f"All characters of {path} are the same: there is nothing to learn.")
    rows, tests = (sliding_window_view(part, context + 1, writeable=True) for part in (train, test))
    tests = tests[::context]
    vocabulary = "".join(map(chr, characters))
    return Dataset(path.name, rows[:, :-1], rows[:, 1:], tests[:, :-1], tests[:, 1:], str(path), vocabulary)
