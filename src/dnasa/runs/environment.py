"""What a run is made with: software, code and hardware, stored in its config so that others can check its results."""

import hashlib
import json
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
# Linux knows a processor of Arm by its number alone; no other program is started to name it
ARM = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}


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
def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the processor, else the architecture."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        fields = dict(re.findall(r"(?m)^(\w.*?)\s*:[ \t]*(.*?)\s*$", info.read_text(errors="replace")))
    maker, part = fields.get("CPU implementer"), fields.get("CPU part")
    numbers = f"implementer {maker}, part {part}" if part else ""
    named = fields.get("model name") or (ARM.get(str(part)) if maker == "0x41" else None)
    return named or numbers or platform.processor() or platform.machine()
