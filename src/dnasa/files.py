"""Files: folders that can be written to, writes that are complete or do not happen, JSON, TOML, Python files of the user."""

import errno
import json
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from dnasa.checks import first_line, first_mistake, in_words
from dnasa.core import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")
LARGEST = 2**30  # bytes of a file that is read as a whole


def make_folder(path: str | Path) -> Path:
    """The folder, created if necessary; an error says why nothing can be written there."""
    check_folder(Path(path), make=True)
    return Path(path)


def check_folder(path: Path, make: bool = False) -> None:
    """Check that a folder can be written to, or made; nothing is left behind."""
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=next(folder for folder in (path, *path.parents) if folder.exists())).close()
    except OSError as error:
        raise InputError(f"Cannot write to {path}: {error.strerror}. Choose another folder.") from error


def write_durably(path: Path, data: bytes, draft: Path | None = None, sync: bool = True, mode: int = 0o666) -> None:
    """Write a file completely or not at all: `draft` is written, then renamed. With `sync` it survives a power failure."""
    draft = draft or path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    opener = partial(os.open, mode=mode)
    file = open(draft, "xb", opener=opener)  # noqa: SIM115 (it fails, and nothing is removed, where there is such a file)
    try:
        with file:
            if path.is_file():
                os.chmod(draft, stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if sync and hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user named: an existing file is replaced; a pipe or a device, as /dev/stdout, gets the bytes."""
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                file.write(data)
        else:
            write_durably(Path(os.path.realpath(path)), data)
    except OSError as error:
        reason = error.strerror if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise InputError(f"Cannot write {path}: {reason}. Choose another file.") from error


def to_json(thing: Any) -> bytes:
    return (json.dumps(thing, indent=2, default=lambda number: number.item()) + "\n").encode()


def open_regular(path: Path, append: bool = False, follow: bool = False) -> BinaryIO:
    """An open regular file. Pipes and devices, which could block or never end, are refused; links too unless `follow`."""
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
    for guard in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(() if follow else ("O_NOFOLLOW",))):
        flags |= getattr(os, guard, 0)
    number = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(number, "ab" if append else "rb")


def read_bytes(path: Path, follow: bool = False, largest: float = LARGEST) -> bytes:
    """The contents of a regular file of at most `largest` bytes; links are followed only with `follow`."""
    with open_regular(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read()


def read_json(path: Path, what: str, follow: bool = False) -> dict[str, Any]:
    """The JSON object in a file; an error names the file and what is wrong with it."""
    try:
        thing = json.loads(read_bytes(path, follow).decode())
    except OSError as error:
        raise InputError(f"{what}: cannot read {path} ({error.strerror}).") from error
    except RecursionError as error:
        raise InputError(f"{path} is not JSON: it is nested too deeply.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {first_line(error)}.") from error
    if not isinstance(thing, dict):
        raise InputError(f"{path} must hold one JSON object.")
    return thing


def read_toml(path: Path, what: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of the `what` in a TOML file; errors name the file."""
    import tomllib  # few commands need it

    try:
        given = tomllib.loads(read_bytes(path, follow=True).decode())
    except OSError as error:
        raise InputError(f"Cannot read the {what} in {path}: {error.strerror}. Give a .toml file.") from error
    except (ValueError, RecursionError) as error:
        reason = first_line(error).replace("Cannot overwrite a value", "a name stands there twice")
        raise InputError(f"{path} is not TOML: {reason}.") from error
    try:
        return parse(given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_model(given: Mapping[str, Any] | str | Path, what: str, model: type[M], form: str) -> M:
    """A pydantic model from a TOML file, or from its contents; an error is one line: the first mistake, and the right form."""
    from pydantic import ValidationError  # it is slow to import

    if isinstance(given, str | Path):
        return read_toml(Path(given), what, lambda content: read_model(content, what, model, form))
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = first_mistake(error)
        name = ".".join(part for part in first["loc"] if isinstance(part, str))
        raise InputError(f"{name} {in_words(first)}. {form}.") from error


def fits(value: Any, form: Any) -> bool:
    """Whether a part of a JSON file is as expected.

    A form is a type or a check; `[form]` stands for a list, `(form, form)` for a list of two, `{name: form}` for an object
    with these entries and perhaps others.
    """
    if isinstance(form, dict):
        return isinstance(value, dict) and all(fits(value.get(name), part) for name, part in form.items())
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(entry, form[0]) for entry in value)
    if isinstance(form, tuple):
        return isinstance(value, list) and len(value) == len(form) and all(map(fits, value, form))
    return type(value) is form if isinstance(form, type) else bool(form(value))


@contextmanager
def refusing_damage(what: object, remedy: str = "train the model again") -> Iterator[None]:
    """Wrap code that parses a file of ours: what it raises on other contents becomes an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{what} is damaged ({error}): {remedy}.") from error


class _Source(SourceFileLoader):
    """Runs this code: a `__pycache__` next to the file is neither read nor written."""

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


def failure(path: Path, error: BaseException) -> str:
    """How code in that file failed: the line, the kind of error and its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    reason = " ".join(str(error).split())
    return f"failed{f' at line {lines[-1]}' if lines else ''}: {type(error).__name__}: {reason}"
