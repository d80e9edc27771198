"""Checksums of data and code that are the same in every process, to recognise the problem of a resumed run."""

import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dnasa.arrays import crc32

SCALARS = (str, bytes, bool, int, float, complex, type(None), type(...))
IMMUTABLE = (tuple, frozenset, CodeType)  # equal ones may or may not be one object, so identity is not used for them


def checksum(*values: Any) -> str:
    """CRC-32 of arrays, numbers, text, containers and functions, with the data that functions refer to."""
    visitor = _Visitor()
    for value in values:
        visitor.add(value)
    return f"{visitor.crc:08x}"


class _Visitor:
    def __init__(self) -> None:
        self.crc = 0
        self.visited: dict[int, Any] = {}  # holds the objects too, so that their ids stay theirs

    def add(self, value: Any) -> None:
        array = _as_array(value)
        if array is not None:
            self._text(f"{array.dtype} {array.shape}")
            self.crc = crc32(array, start=self.crc)
        elif isinstance(value, SCALARS):
            self._text(repr(value))
        elif id(value) not in self.visited:
            if not isinstance(value, IMMUTABLE):
                self.visited[id(value)] = value
            self._text(type(value).__qualname__)
            for part in _parts(value):
                self.add(part)

    def _text(self, text: str) -> None:
        self.crc = crc32(text.encode(errors="replace") + b"\n", start=self.crc)


def _as_array(value: Any) -> np.ndarray | None:
    """NumPy and torch arrays and what converts to them, except arrays of Python objects."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dense = value.detach().to_dense().cpu()
        return (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
    if isinstance(value, type) or not hasattr(value, "__array__"):
        return None
    array = np.asarray(value)
    return None if array.dtype.hasobject else array


def _parts(value: Any) -> Iterator[Any]:
    """What the checksum of a value is made of, in addition to its type."""
    if isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from pair
    elif isinstance(value, (set, frozenset)):
        yield from sorted(map(repr, value))
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_names, *value.co_consts)
    elif isinstance(value, FunctionType):
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        yield from _closure(value)
        yield from _globals(value)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (type, ModuleType)):
        yield value.__name__
    else:
        yield from _instance(value)


def _closure(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None


def _globals(function: FunctionType) -> Iterator[Any]:
    """The globals that a function mentions; functions of other modules by name only."""
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        imported = isinstance(value, FunctionType) and value.__globals__ is not function.__globals__
        yield value.__qualname__ if imported else value


def _names(code: CodeType) -> set[str]:
    nested = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*nested)


def _instance(value: Any) -> Iterator[Any]:
    """An object's arrays and, if its class defines it, the code that calls it; counters and the like may change."""
    yield getattr(value, "__name__", None)
    yield vars(type(value)).get("__call__")
    for name, part in sorted(getattr(value, "__dict__", {}).items()):
        if _holds_arrays(part):
            yield from (name, part)


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_arrays, value))
    if isinstance(value, dict):
        return any(map(_holds_arrays, value.values()))
    return _as_array(value) is not None
