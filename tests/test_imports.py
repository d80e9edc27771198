"""Imports go one way, and `import dnasa` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dnasa

HOUSE = Path(dnasa.__file__).parent
# room -> rooms it may import; a room may always import from itself
ALLOWED = {
    "core": {"compiled"},
    "randomness": {"core"},
    "schedules": {"core"},
    "rules": {"core", "schedules"},
    "topology": {"core"},
    "metrics": {"core"},
    "timing": {"core"},
    "replay": {"core"},
    "problems": {"core", "randomness", "replay"},
    "data": {"core"},
    "networks": {"core", "randomness", "topology"},
    "checkpoints": {"core", "metrics"},
    "records": {"checkpoints", "core", "plots"},
    "plots": {"core", "records", "rules", "topology"},
    "fused": {"core", "replay"},
    "stepping": {"core", "fused", "timing"},
    "progress": set(),
    "recording": {"core", "metrics", "problems", "records", "rules", "topology"},
    "keeping": {"checkpoints", "core", "metrics", "recording", "records"},
    "solve": {
        *("core", "rules", "topology", "metrics", "problems", "networks", "records", "stepping", "timing"),
        *("keeping", "progress", "recording"),
    },
    "optim": {"core", "rules", "metrics", "schedules", "networks", "stepping", "timing", "topology"},
    "experiments": {"core", "data", "networks", "plots", "problems", "records", "rules", "solve", "topology"},
    "cli": {"core", "data", "networks", "experiments", "plots", "problems", "records", "rules", "solve", "topology"},
    "__main__": {"cli"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dnasa":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dnasa."))


@pytest.mark.parametrize("path", sorted(HOUSE.rglob("*.py")), ids=lambda p: str(p.relative_to(HOUSE)))
def test_imports_go_one_way(path):
    room = path.relative_to(HOUSE).parts[0].removesuffix(".py")
    if room != "__init__":
        assert set(imports(path)) <= ALLOWED[room] | {room}


def test_import_loads_nothing_heavy():
    heavy = "torch scipy networkx pandas matplotlib sklearn rich typer".split()
    code = f"import sys, dnasa; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there():
    for name in "ring ladder complete random star path grid torus hypercube exponential paper_random".split():
        assert callable(getattr(dnasa.topology, name))
    for name in "dsgd d2 dsgt dasagt dnasa".split():
        assert callable(getattr(dnasa.rules, name))
    assert callable(dnasa.solve)
    assert callable(dnasa.topology.from_networkx)
    assert callable(dnasa.topology.from_matrix)
