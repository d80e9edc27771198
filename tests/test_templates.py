"""The folder to copy in `templates/`: a rule as a package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(*words: object, path: Path, cwd: Path) -> str:
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(path), str(ROOT / "src"))), "PATH": programs}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.docs
def test_the_rule_of_an_installed_template_works_by_name(tmp_path: Path) -> None:
    copy, site = shutil.copytree(ROOT / "templates" / "plugin", tmp_path / "copy"), tmp_path / "site"
    quick = ("--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--disable-pip-version-check")
    python("-m", "pip", "install", *quick, "--target", site, copy, path=site, cwd=tmp_path)
    assert (site / "dnasa_my_rule.py").is_file()
    words = "train --problem spike --nodes 4 --steps 20 --rule my_rule --eta 0.1".split()
    assert "My rule on spike" in python("-m", "dnasa", *words, path=site, cwd=tmp_path)
    untouched = "import sys, dnasa.cli; assert 'dnasa_my_rule' not in sys.modules"
    python("-c", untouched, path=site, cwd=tmp_path)
    assert "1 passed" in python("-m", "pytest", "-c", os.devnull, copy / "tests", path=site, cwd=tmp_path)
