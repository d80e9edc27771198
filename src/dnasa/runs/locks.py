"""Locks on files, released by the operating system when their process ends, however it ends.

Where there is no `fcntl`, as on Windows, or the file system has no locks, nothing is locked.
"""

from pathlib import Path
from typing import Any, BinaryIO

from dnasa.files import open_regular

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None


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
