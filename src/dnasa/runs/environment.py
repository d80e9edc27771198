"""What a run is made with: software, code and hardware, stored in its config so that others can check its results."""

import json
import os
import platform
import subprocess
import sys
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
def code() -> dict[str, Any]:
    """The commit that dnasa was installed from and whether its files have changed since; None where it is not known."""
    if not (PACKAGE.parents[1] / ".git").exists():
        return {"commit": _installed_commit(), "modified": None}
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", str(PACKAGE))
    return {"commit": commit and commit.strip(), "modified": None if changes is None else bool(changes)}


def _git(*words: str) -> str | None:
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(PACKAGE), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
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
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
