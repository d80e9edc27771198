"""Files: folders that can be written to, writes that are complete or do not happen, JSON, Python files of the user."""

import errno
import json
import os
import stat
import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dnasa.core import InputError


def make_folder(path: str | Path) -> Path:
    """The folder, created if necessary; an error says why nothing can be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}. Choose another folder.") from error
    return folder


def write_durably(path: Path, data: bytes) -> None:
    """The file is written completely or not at all, and survives a power failure."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def to_json(thing: Any) -> bytes:
    return (json.dumps(thing, indent=2, default=lambda number: number.item()) + "\n").encode()


def read_bytes(path: Path) -> bytes:
    """The contents of a regular file; reading a pipe or a device could block."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes()


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file; an error names the file and what is wrong with it."""
    try:
        thing = json.loads(read_bytes(path).decode())
    except OSError as error:
        raise InputError(f"{what}: cannot read {path} ({error.strerror}).") from error
    except RecursionError as error:
        raise InputError(f"{path} is not JSON: it is nested too deeply.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {str(error).splitlines()[0]}.") from error
    if not isinstance(thing, dict):
        raise InputError(f"{path} must hold one JSON object.")
    return thing


class _Source(SourceFileLoader):
    """Runs this code: a `__pycache__` beside the file is neither read nor written."""

    def __init__(self, name: str, path: Path, code: bytes):
        super().__init__(name, str(path))
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.code, self.path)


def execute(path: Path, name: str, code: bytes) -> ModuleType:
    """The code of a Python file as a module of that name."""
    spec = spec_from_loader(name, _Source(name, path, code))
    module = module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def failure(path: str | Path, error: BaseException) -> str:
    """How code in that file failed: the line, the kind of error and its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    reason = " ".join(str(error).split())
    return f"failed{f' at line {lines[-1]}' if lines else ''}: {type(error).__name__}: {reason}"
