"""All runs of a folder in one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.core import InputError
from dnasa.records import RunFolder, parse_rows

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("test_loss", "test_accuracy")


def table(folder: Path) -> "pd.DataFrame":
    """One row per run: what, in which state, how far, and its last metrics."""
    import pandas as pd

    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: give the folder that holds your runs.")
    rows = [_row(path.parent) for path in sorted(folder.glob("*/config.json"))]
    if not rows:
        raise InputError(f"There is no run in {folder}: `dnasa train --out {folder}/first` makes one.")
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def _row(path: Path) -> dict[str, Any]:
    try:
        run = RunFolder(path, resume=True)
        options = run.config.get("options") or {}
        if not isinstance(options, dict):
            return {"run": path.name, "state": "damaged"}
        last = parse_rows((path / "history.csv").read_text())[-1:] if (path / "history.csv").exists() else []
    except (InputError, OSError, ValueError):
        return {"run": path.name, "state": "damaged"}
    metrics = last[0] if last else {}
    return {
        "run": path.name,
        "rule": options.get("rule", options.get("rules")),
        "data": options.get("problem") or options.get("data"),
        "nodes": options.get("nodes"),
        "topology": options.get("topology"),
        "state": run.state,
        "step": f"{metrics.get('step', 0)} / {options.get('steps')}",
        **{name.replace("_", " "): metrics.get(name) for name in SHOWN},
    }
