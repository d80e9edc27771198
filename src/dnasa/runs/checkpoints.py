"""Checkpoints: everything a run needs to go on, in one safetensors file that is either complete or not there.

A file is written under another name, synced, then renamed; its name holds the checksum of its contents. So whatever happens
while it is written, a file with a checkpoint's name and a matching checksum is whole.
"""

import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import Array, InputError, RunError
from dnasa.metrics import to_numpy

KEPT = 3
NAME = re.compile(r"step-(\d{12})-([0-9a-f]{8})\.safetensors")


class Damaged(InputError):
    """A file that is not what was written."""


class Checkpoint(NamedTuple):
    step: int
    arrays: dict[str, np.ndarray]  # of all nodes
    notes: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write it, then drop all but the newest few."""
    from safetensors.numpy import save as serialised

    arrays = {name: np.ascontiguousarray(a) for name, a in checkpoint.arrays.items()}
    data = serialised(arrays, metadata={"notes": json.dumps(checkpoint.notes)})
    path = folder / f"step-{checkpoint.step:012d}-{zlib.crc32(data):08x}.safetensors"
    try:
        folder.mkdir(exist_ok=True)
        write_durably(path, data)
        for old in found(folder)[KEPT:]:
            old.unlink()
    except OSError as error:
        raise not_written(folder, checkpoint.step, error) from error
    return path


def not_written(folder: Path, step: int, error: OSError) -> RunError:
    good = found(folder)
    kept = f"the last good one is of step {step_of(good[0])}" if good else "there is none yet"
    return RunError(f"Cannot write the checkpoint of step {step}: {error.strerror}; {kept}. Make room, then resume.")


def write_durably(path: Path, data: bytes) -> None:
    """The file appears whole or not at all, and stays after a power cut."""
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
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def found(folder: Path) -> list[Path]:
    """All checkpoints, the newest first."""
    return sorted((p for p in folder.glob("step-*") if NAME.fullmatch(p.name)), reverse=True) if folder.is_dir() else []


def step_of(path: Path) -> int:
    return int(NAME.fullmatch(path.name)[1])  # type: ignore[index]


def load(path: Path) -> Checkpoint:
    """Read it back, or say what is wrong with it."""
    from safetensors.numpy import load as parsed

    try:
        data = path.read_bytes()
    except OSError as error:
        raise Damaged(f"Cannot read {path}: {error.strerror}.") from error
    if zlib.crc32(data) != int(NAME.fullmatch(path.name)[2], 16):  # type: ignore[index]
        raise Damaged(f"{path} is damaged: its checksum does not match.")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return Checkpoint(step_of(path), parsed(data), json.loads(header["__metadata__"]["notes"]))


def newest(
    folder: Path, report: Callable[[str], None], check: Callable[[Checkpoint], None] = lambda checkpoint: None
) -> Path | None:
    """The newest good checkpoint's file; damaged ones are reported and passed over."""
    for path in found(folder):
        try:
            check(load(path))
        except Damaged as error:
            report(f"{error} The checkpoint before is used.")
        else:
            return path
    return None


# ---------------------------------------------------------------- from states to arrays and back


def flatten(state: Any, gather: Callable[[Array], Array], prefix: str = "") -> dict[str, np.ndarray]:
    """All arrays of a rule's state under their names, with the rows of all nodes."""
    names = getattr(state, "_fields", range(len(state)))
    out: dict[str, np.ndarray] = {}
    for name, part in zip(names, state, strict=True):
        key = f"{prefix}{name}"
        out |= flatten(part, gather, f"{key}.") if isinstance(part, tuple) else {key: to_numpy(gather(part))}
    return out


def restore(state: Any, arrays: dict[str, np.ndarray], like: Callable[[np.ndarray], Array], prefix: str = "") -> Any:
    """A state of the same shape with its arrays from a checkpoint; `like` picks this process' rows and converts them."""
    names = getattr(state, "_fields", range(len(state)))
    parts = [
        restore(part, arrays, like, f"{prefix}{name}.") if isinstance(part, tuple) else like(arrays[f"{prefix}{name}"])
        for name, part in zip(names, state, strict=True)
    ]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
