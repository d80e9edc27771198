"""What the documentation shows works as shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", ["README.md", "docs/distributed.md", "docs/own-model.md"])
def test_python_examples_run_as_shown(page, tmp_path):
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_commands_shown_exist():
    from typer.main import get_command

    from dnasa.cli import app

    known = set(get_command(app).commands)
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            shown = set(
                re.findall(
                    r"(?:^|`|\s|-m )dnasa (train|compare|reproduce|topology|data|resume|report|runs)\b",
                    page.read_text(),
                )
            )
            assert shown <= known, page.name
