"""The user's models: `--model my_file.py:make`, where `make(inputs, outputs)` returns a torch module."""

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from dnasa.core import InputError
from dnasa.files import execute, failure, read_bytes
from dnasa.networks import launched_rank

FORM = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def is_own(text: str) -> bool:
    return FORM.fullmatch(text) is not None


def parts(text: str) -> tuple[Path, str]:
    """The file and the name of the function in it."""
    path, name = FORM.fullmatch(text).groups()  # type: ignore[union-attr]
    return Path(path), name


def maker(text: str, shape: Sequence[int], outputs: int, code: bytes | None = None) -> Callable[[], nn.Module]:
    """Calls `make(inputs, outputs)`: the shape of one row of inputs, and the number of outputs.

    `code` is that of the file, if it has been read already.
    """
    path, name = parts(text)
    make, _ = _function(path.resolve(), name, code)

    def made() -> nn.Module:
        try:
            module = make(tuple(shape), outputs)
        except (Exception, SystemExit) as error:
            call = f"{name}(inputs={tuple(shape)}, outputs={outputs})"
            raise InputError(f"{call} of {path} {failure(path.resolve(), error)}.") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"{name} of {path} returned a {type(module).__name__}: it must return a torch module.")
        return module

    return made


def source(text: str) -> bytes:
    """The file as it was executed."""
    path, name = parts(text)
    return _function(path.resolve(), name, None)[1]


@cache
def _function(path: Path, name: str, code: bytes | None) -> tuple[Callable[..., Any], bytes]:
    if code is None and not path.is_file():
        raise InputError(f"There is no file {path}: give the path of a Python file with a function {name}.")
    if launched_rank() == 0:
        print(f"Executing {path} for its model.", file=sys.stderr, flush=True)
    try:
        code = read_bytes(path) if code is None else code
        module = execute(path, f"dnasa_model_{path.stem}", code)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} {failure(path, error)}.") from error
    make = getattr(module, name, None)
    if not callable(make):
        raise InputError(f"{path} has no function {name}: define {name}(inputs, outputs).")
    return make, code
