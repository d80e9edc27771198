"""Without torch, matplotlib, scikit-learn and Pillow, problems in NumPy work, and everything else says what it needs."""

import os
import subprocess
import sys
from pathlib import Path

from dnasa.extras import EXTRAS
from dnasa.rules.registry import RULES

# As if the packages of all extras were not installed.
BLOCKER = f"""
import sys
from importlib.machinery import PathFinder

class WithoutExtras:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {set(EXTRAS)} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtras
"""
PREPARE = BLOCKER + "import dnasa\n"
COMMANDS = """
from dnasa.cli import app
for command in sys.argv[1:]:
    try:
        app(command.split(), standalone_mode=False)
    except dnasa.InputError as error:
        print("Error:", error)
"""
MISTAKES = """
for expression in sys.argv[1:]:
    try:
        eval(expression)
    except dnasa.InputError as error:
        print(error)
"""


def run_without_extras(code: str, *arguments: str, cwd: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, "-c", PREPARE + code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_for_synthetic_problems_and_tables_need_no_extra_and_others_name_theirs(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(60))
    (tmp_path / "my.csv").write_text("a,b,label\n" + rows)
    compare = "compare --problem least_squares --rules dsgd,dnasa --etas 0.1 --steps 5 --out runs/b"
    works = ["train --problem least_squares --steps 5 --out runs/a", "report runs/a", compare, "runs runs"]
    works += ["topology ring", "report runs --html", "data my.csv --target label"]
    lines = run_without_extras(COMMANDS, *works, "train --data my.csv", "keys init", cwd=tmp_path)
    assert str(RULES["dsgd"].color) in (tmp_path / "runs/report.html").read_text()
    assert lines.count("Figures are left out, since they need matplotlib: pip install 'dnasa[plot]'.") == 2
    assert "Saved runs/a/history.csv, x.safetensors, config.json." in lines
    assert "Saved curves.csv, stepsizes.csv, table.csv and all runs in runs/b." in lines
    assert "Rows of each class" in lines
    assert [line for line in lines.splitlines() if line.startswith("Error")] == [
        "Error: Training on data needs torch: pip install 'dnasa[torch]'.",
        "Error: dnasa keys needs cryptography: pip install 'dnasa[sites]'.",
    ]
    assert not (tmp_path / "keys").exists()


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    needs = {
        "dnasa.optim": "dnasa.optim needs torch: pip install 'dnasa[torch]'.",
        "dnasa.problems.Classification": "dnasa.problems.Classification needs torch: pip install 'dnasa[torch]'.",
        "dnasa.problems.Custom.from_loss(len, 0)": "Custom.from_loss needs torch: pip install 'dnasa[torch]'.",
        "dnasa.on_shards": "dnasa.on_shards needs torch: pip install 'dnasa[torch]'.",
        "dnasa.load('runs/a')": "A trained model needs torch: pip install 'dnasa[torch]'.",
        "dnasa.channels.sign()": "Compression needs torch: pip install 'dnasa[torch]'.",
        "dnasa.connect(compress='sign')": "Compression needs torch: pip install 'dnasa[torch]'.",
        "dnasa.connect(engine='torch')": "The engine torch needs torch: pip install 'dnasa[torch]'.",
        "dnasa.data.load('digits')": "The digits data needs scikit-learn: pip install 'dnasa[data]'.",
        "dnasa.sklearn": "dnasa.sklearn needs scikit-learn: pip install 'dnasa[data]'.",
        "dnasa.comparing.plots.panels(1)": "A figure needs matplotlib: pip install 'dnasa[plot]'.",
        "dnasa.reproduce.figure('fig1')": "The figure fig1 needs torch: pip install 'dnasa[torch]'.",
    }
    assert run_without_extras(MISTAKES, *needs, cwd=tmp_path).splitlines() == list(needs.values())
