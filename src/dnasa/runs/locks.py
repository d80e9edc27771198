"""Locks on files, released by the operating system when their process ends, however it ends.

`fcntl` where it exists, `msvcrt` on Windows. Where there is neither, or the file system has no locks, nothing is locked.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from dnasa.files import open_regular


def _optional(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


fcntl, msvcrt = _optional("fcntl"), _optional("msvcrt")


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
        file = open_regular(path)
    except OSError:
        return False
    with file:
        return not _lock(file, shared=True, wait=False)


def _lock(file: BinaryIO, shared: bool, wait: bool) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        elif msvcrt is not None:  # has no shared locks
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass  # a file system without locks
    return True
