"""The files of a folder that dnasa wrote, which it alone changes and removes.

`files.json` lists them, each before it is created; whatever is not on the list is the user's. Nothing in the folder is
followed through a symbolic link. Several processes may write at the same time, so the list is changed under a lock, which the
operating system releases when a process ends. Where there is no `fcntl`, as on Windows, nothing is locked.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from dnasa.core import InputError, RunError
from dnasa.files import open_regular, read_bytes, read_json, to_json, write_durably

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None

LIST, DRAFT, LIST_LOCK = "files.json", ".draft", ".files.lock"
LOCK, RUNNING = ".lock", ".running"  # of a run
ALWAYS = frozenset({LIST, DRAFT, LIST_LOCK})
IN_USE = ALWAYS | {LOCK, RUNNING}
ABOUT = "The files that dnasa wrote into this folder. It never changes or removes any other."


class OwnFiles:
    """Reads and writes in a folder; files are named by their path in it, such as `checkpoints/x`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.known: set[str] = set()  # names that are on the list

    @property
    def begun(self) -> bool:
        return os.path.lexists(self.path / LIST)

    def names(self) -> set[str]:
        """The names on the list; none in a folder without one."""
        if not self.begun:
            return set()
        path = self.path / LIST
        listed = read_json(path, "There is no list of the run's files").get("files")
        if not isinstance(listed, list) or not all(map(_is_inside, listed)) or not set(listed) >= ALWAYS:
            raise InputError(f"{path} is not a list of files that dnasa wrote: choose another folder.")
        return set(listed)

    def inside(self, name: str) -> Path:
        """The path of a file; an error if a folder on the way is a symbolic link."""
        path = self.path
        for part in PurePosixPath(name).parts[:-1]:
            path /= part
            if path.is_symlink():
                raise InputError(f"{path} is a symbolic link: replace it with the folder, or choose another folder.")
        return self.path / name

    def check(self, names: Iterable[str]) -> None:
        """Check that each of these is a regular file or missing."""
        for name in names:
            path = self.inside(name)
            if path.is_symlink() or (path.exists() and not path.is_file()):
                kind = "a symbolic link" if path.is_symlink() else "not a regular file"
                raise InputError(f"{path} is {kind}: replace it with the file of the run, or choose another folder.")

    def claim(self, names: Collection[str]) -> None:
        """Put names on the list; an error if there is such a file already."""
        if not self.known.issuperset(names):
            with self._locked():
                self._claim(names)

    def _claim(self, names: Collection[str]) -> None:
        self.check_free(names)
        self._store(self.names() | set(names))

    def check_free(self, names: Iterable[str]) -> None:
        """Check that none of these is a user's file."""
        for name in set(names) - self.names():
            if os.path.lexists(self.inside(name)):
                raise self._not_ours(name)

    def _not_ours(self, name: str) -> InputError:
        return InputError(f"{self.path / name} was not written by dnasa: move it, or choose another folder.")

    def _store(self, names: set[str]) -> None:
        if names != self.names():
            self._write(self.path / LIST, _listing(names), sync=False)  # a checkpoint syncs it
        self.known = names

    def _write(self, path: Path, data: bytes, sync: bool = True) -> None:
        (self.path / DRAFT).unlink(missing_ok=True)  # of a killed process
        write_durably(path, data, self.path / DRAFT, sync)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the list, which is made if there is none."""
        with acquire(self.path / LIST_LOCK, wait=True) or nullcontext():
            if not self.begun:
                if os.path.lexists(self.path / DRAFT):
                    raise self._not_ours(DRAFT)
                write_durably(self.path / LIST, _listing(()), self.path / DRAFT, sync=False)
            yield

    @contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        try:
            yield self.inside(name)
        except OSError as error:
            raise RunError(f"Cannot write {self.path / name}: {error.strerror}. Free some space, then resume.") from error

    def write(self, name: str, data: bytes) -> Path:
        """Write a file, completely or not at all."""
        with self._writing(name) as path, self._locked():
            self._claim([name])
            path.parent.mkdir(exist_ok=True)
            self._write(path, data)
        return path

    def save(self, files: Mapping[str, bytes]) -> Path:
        """Write several files; returns the folder."""
        for name, data in files.items():
            self.write(name, data)
        return self.path

    def append(self, name: str, data: bytes) -> None:
        with self._writing(name) as path:
            self.claim([name])
            with open_regular(path, append=True) as file:
                if os.fstat(file.fileno()).st_nlink == 1:
                    file.write(data)
                    return
            self.write(name, read_bytes(path) + data)  # a hard link: the file has another name elsewhere

    def sync(self, name: str) -> None:
        """Sync what was appended and the list, so that they survive a power failure."""
        with self._writing(name):
            self.claim([name])
            for each in (name, LIST):
                with open_regular(self.inside(each), append=True) as file:
                    os.fsync(file.fileno())

    def rename(self, name: str, new: str) -> None:
        self.claim([new])
        os.replace(self.inside(name), self.inside(new))
        self.forget(name)

    def remove(self, name: str) -> None:
        self.inside(name).unlink(missing_ok=True)
        self.forget(name)

    def forget(self, name: str) -> None:
        with self._locked():
            self._store(self.names() - {name})

    def clear(self, names: Collection[str] = ()) -> None:
        """Remove all files on the list but those in use and `names`, and folders that are empty then; list `names` alone."""
        with self._locked():
            for name in sorted(self.names() - IN_USE - set(names)):
                self._clear(name)
            self._store({*ALWAYS, *names})

    def _clear(self, name: str) -> None:
        """A folder that was replaced by a symbolic link is not entered: the link goes."""
        *folders, _ = PurePosixPath(name).parents
        for folder in reversed(folders):
            if (self.path / folder).is_symlink():
                return (self.path / folder).unlink()
        path = self.path / name
        if path.name == LIST and path.is_file() and not path.is_symlink():  # of a run within this one
            part = OwnFiles(path.parent)
            left = part.names() & IN_USE
            part.clear(left)
            if left.issuperset(os.listdir(part.path)):
                for own in left:
                    (part.path / own).unlink(missing_ok=True)
        else:
            with suppress(NotADirectoryError, IsADirectoryError):  # the user's
                path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError):  # it is not empty
                (self.path / folder).rmdir()


def _listing(names: Collection[str]) -> bytes:
    return to_json({"about": ABOUT, "files": sorted(ALWAYS.union(names))})


def _is_inside(name: object) -> bool:
    if not isinstance(name, str) or set(name) & set("\\:\0") or not name.isprintable():
        return False
    parts = PurePosixPath(name).parts
    return "/".join(parts) == name != "" and ".." not in parts and all(len(os.fsencode(part)) < 256 for part in parts)


def acquire(path: Path, wait: bool = False) -> BinaryIO | None:
    """An open file that holds the lock until it is closed; None if another process holds it and `wait` is not set."""
    file = open_regular(path, append=True)
    if not _lock(file, shared=False, wait=wait):
        file.close()
        return None
    return file


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. Holds a shared lock for a moment, so `acquire` must wait on such a file."""
    try:
        with open_regular(path) as file:
            return not _lock(file, shared=True, wait=False)
    except OSError:
        return False


def _lock(file: BinaryIO, shared: bool, wait: bool) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
