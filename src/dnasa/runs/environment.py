"""The software, code and hardware of a run, stored in its config so that others can check its results."""

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[3]


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # 30 ms

    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("dnasa", "numpy", "torch"):
        with suppress(PackageNotFoundError):
            out[name] = version(name)
    return out


def commit() -> str | None:
    """The commit of dnasa in a clone; no program is started."""
    with suppress(OSError, UnicodeDecodeError):
        head = (CLONE / ".git" / "HEAD").read_text().strip()
        return (CLONE / ".git" / head[5:]).read_text().strip() if head.startswith("ref: ") else head
    return None


def hardware() -> dict[str, Any]:
    """The processor, the cores, and the GPU if this process uses one."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_initialized() else None
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "gpu": gpu}
