"""Checkpoints: everything a run needs to continue, in one safetensors file that is either complete or absent.

A file is written under another name, synced, then renamed; its name holds the checksum of its contents. So whatever happens
while it is written, a file with a checkpoint's name and a matching checksum is complete. What it says is checked too:
somebody else may have written it.
"""

import json
import math
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.core import InputError
from dnasa.files import fits, read_bytes
from dnasa.runs.own_files import OwnFiles

FORMAT = 2  # of checkpoints and of run folders
RETAINED = 3
NAME = re.compile(r"step-(\d{12})-([0-9a-f]{8})\.safetensors")
ARRAY_NAME = re.compile(r"average|best|\d{1,4}\.(state\..+|memory\.\d{1,3}\.\d{1,3}\.\d{1,4})")


class Damaged(InputError):
    """A file that is not what was written."""


class Checkpoint(NamedTuple):
    """`arrays` hold rows of all nodes, named `{group}.state.{leaf}` and `{group}.memory.{exchange}.{message}.{array}`."""

    step: int
    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write it, then remove all but the newest few."""
    from safetensors.numpy import save as serialize

    arrays = {name: np.ascontiguousarray(a) for name, a in checkpoint.arrays.items()}
    data = serialize(arrays, metadata={"notes": json.dumps({"format": FORMAT} | checkpoint.notes)})
    files = OwnFiles(folder.parent)
    path = files.write(f"{folder.name}/step-{checkpoint.step:012d}-{zlib.crc32(data):08x}.safetensors", data)
    names = [f"{folder.name}/{each.name}" for each in newest_first(folder)]
    ours = files.names().intersection(names)
    for old in [name for name in names if name in ours][RETAINED:]:
        files.remove(old)
    return path


def newest_first(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted((p for p in folder.glob("step-*") if NAME.fullmatch(p.name)), reverse=True)


def step_of(path: Path) -> int:
    return int(NAME.fullmatch(path.name)[1])  # type: ignore[index]


def load(path: Path) -> Checkpoint:
    """Read a checkpoint back; `Damaged` if it is not what a run writes. `Session.restore` finds what does not fit the run."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as parsed

    try:
        data = read_bytes(path, largest=math.inf)
    except OSError as error:
        raise Damaged(f"Cannot read {path}: {error.strerror}.") from error
    if zlib.crc32(data) != int(NAME.fullmatch(path.name)[2], 16):  # type: ignore[index]
        raise Damaged(f"{path} is damaged: its checksum does not match.")
    try:
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        arrays, notes = parsed(data), json.loads(metadata["notes"])
        number = notes.pop("format", 1)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: it is not a checkpoint ({type(error).__name__}).") from error
    check_format(path, number)
    for name, a in arrays.items():
        if not ARRAY_NAME.fullmatch(name) or a.ndim != 4 or a.dtype.kind not in "fiu":
            raise Damaged(f"{path} is damaged: its array {name!r:.40} is not one of a run.")
    for name, form in NOTES.items():
        if not fits(notes.get(name), form):
            raise Damaged(f"{path} is damaged: its {name} is not as written by a run.")
    return Checkpoint(step_of(path), arrays, notes)


def check_format(path: Path, number: Any) -> None:
    if number != FORMAT:
        raise InputError(f"{path} is of another version (format {number!s:.20}, not {FORMAT}): start again.")


def _integer(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**62


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _number(value: Any) -> bool:
    return _integer(value) or (type(value) is float and math.isfinite(value))


NOTES: dict[str, Any] = {
    **{name: [[_integer]] for name in ("diverged", "diverged_node", "agreed")},  # of each variant and seed
    "seconds": _number,
    "periods": lambda value: value != [] and fits(value, [(_count, _count)]),
    "lost": [{"step": _count, "nodes": [_count]}],
    "settings": {},
    "members": [_count],
    "sent": [(_count, _number)],
    "history": (_count, _count),
    "clock": lambda value: value is None or fits(value, [[_number]]),  # of runs with a clock
}
