"""Texts as windows of characters."""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnasa.core import InputError
from dnasa.data.dataset import Dataset
from dnasa.data.reading import BOM, read_bytes

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
    try:
        text = read_bytes(path).removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 text (byte {error.start:,}): convert it.") from error
    characters, tokens = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    train, test = np.split(tokens.astype(np.int64), [len(tokens) * 9 // 10])
    if len(test) <= context or len(characters) < 2:
        raise InputError(
            f"{path} has {len(tokens):,} characters, {len(characters)} different ones: a context of {context:,} needs more "
            f"than {10 * context:,}. Give a longer text or a shorter context, such as --model gpt:2,96,64."
        )
    rows, tests = (sliding_window_view(part, context + 1, writeable=True) for part in (train, test))
    tests = tests[::context]
    vocabulary = "".join(map(chr, characters))
    return Dataset(path.name, rows[:, :-1], rows[:, 1:], tests[:, :-1], tests[:, 1:], str(path), vocabulary)
