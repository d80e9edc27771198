"""What a run is made with: software, code and hardware, stored in its config so that others can check its results."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """The software this run uses."""
    from importlib.metadata import PackageNotFoundError, version  # 30 ms

    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("dnasa", "numpy", "torch"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


@cache
def code() -> dict[str, str | None]:
    """The commit of dnasa, if it is known, and a checksum of its source: the same commit with another one was modified."""
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("py", "c", "h") for path in PACKAGE.rglob(f"*.{kind}")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"commit": _checked_out_commit(PACKAGE.parents[1]) or _installed_commit(), "source": digest.hexdigest()[:16]}


def _checked_out_commit(folder: Path) -> str | None:
    """The commit of a clone or worktree, from git's files: no other program is started."""
    with suppress(OSError, UnicodeDecodeError):
        git = folder / ".git"
        if git.is_file():
            git = folder / git.read_text().removeprefix("gitdir:").strip()
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (shared / branch).is_file():
            return (shared / branch).read_text().strip()
        words = (shared / "packed-refs").read_text().split()
        return words[words.index(branch) - 1] if branch in words else None
    return None


def _installed_commit() -> str | None:
    """What pip recorded for `pip install git+https://...`."""
    from importlib.metadata import PackageNotFoundError, distribution

    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        return str(json.loads(distribution("dnasa").read_text("direct_url.json") or "{}")["vcs_info"]["commit_id"])
    return None


def hardware() -> dict[str, Any]:
    """The processor, the cores that this process may use, and the GPU if it uses one."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_initialized() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu(), "cores": cores, "gpu": gpu}


@cache
def _cpu() -> str:
    """The model of the processor, else the architecture."""
    for text in _descriptions():
        if found := re.search(r"(?im)^model name\s*:\s*(\w.*?)\s*$", text):
            return found[1]
    return platform.processor() or platform.machine()


def _descriptions() -> Iterator[str]:
    """What Linux says about the processor: on ARM only lscpu names the model."""
    with suppress(OSError):
        yield Path("/proc/cpuinfo").read_text(errors="replace")
    with suppress(OSError, subprocess.SubprocessError):
        yield subprocess.run(
            ["lscpu"], capture_output=True, text=True, timeout=5, env=os.environ | {"LC_ALL": "C"}
        ).stdout
