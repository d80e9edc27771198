"""What the documentation shows works as shown."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import PATIENCE

from dnasa.core import Needs, leaves
from dnasa.rules import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also names what is gone


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
    return [code for kind, code in found if kind == language]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{name}.md"
            for name in "comparing distributed extending models own-model reports schedules your-data your-gradients".split()
        ),
    ],
)
def test_the_python_blocks_of_a_page_form_a_program(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_blocks_of_the_page_on_predicting_form_a_program(tmp_path):
    found = re.findall(r"^```(python)?\n(.*?)^```$", (ROOT / "docs/predicting.md").read_text(), re.S | re.M)
    program = ["from dnasa.cli import app"]
    for language, code in found:
        if code.startswith("# my_net.py"):
            (tmp_path / "my_net.py").write_text(code)
        commands = [f"app({line.split()[1:]}, standalone_mode=False)" for line in code.splitlines()]
        program += [code] if language else commands
    (tmp_path / "page.py").write_text("\n".join(program))
    words = [sys.executable, "page.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 21
    assert (tmp_path / "flowers.onnx").stat().st_size > 1000


@pytest.mark.long
def test_the_plugin_of_the_page_on_extending_works_on_the_command_line(tmp_path):
    parts = [code for code in blocks("docs/extending.md", "python") if code.startswith("# my_rules.py\n")]
    (tmp_path / "my_rules.py").write_text("\n\n".join(parts))
    lines = [line for block in blocks("docs/extending.md", "") for line in block.splitlines()]
    commands = [line.split() for line in lines if line.startswith(("dnasa train", "dnasa compare"))]
    assert len(commands) == 2
    for words in commands:
        program = [sys.executable, "-m", *words]
        done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "D-STORM" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_and_headings_resolve(page):
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not heading or heading in headings(file), heading


def headings(page):
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines]


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_files_named_in_the_documentation_exist(page):
    text = page.read_text()
    for path in re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"-m benchmarks\.(\w+)", text):
        assert (ROOT / "benchmarks" / f"{module}.py").exists(), module
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"`make ([\w-]+)", text):
        assert target in targets, target


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_commands_and_options_shown_exist(page):
    from typer.main import get_command

    from dnasa.cli import app

    program: Any = get_command(app)
    shown = re.findall(r"(?:^|[`\s])dnasa ([a-z]+)((?:[^\n`#]|\\\n)*)", page.read_text(), re.M)
    for name, rest in [(name, rest) for name, rest in shown if name in program.commands or "--" in rest]:
        known = {option for parameter in program.commands[name].params for option in parameter.opts} | {"--help"}
        given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
        assert given <= known, f"dnasa {name}: {given - known}"


# ---------------------------------------------------------------- the table of methods

COMPUTED = ("stepsize", "sent", "exchanges", "gradients", "state", "W", "hidden")


def methods_table():
    lines = re.findall(r"^\|(.*)\|$", (ROOT / "docs" / "methods.md").read_text(), re.M)
    header, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    named = [dict(zip(header, row, strict=True)) for row in rows]
    return {row["rule"].strip("`"): row for row in named}


def needs_of_w(needs: Needs) -> str:
    if needs.directed:
        return "directed"
    eigenvalues = f", eigenvalues above {needs.smallest_eigenvalue:.3f}" if needs.smallest_eigenvalue > -1 else ""
    return "symmetric" + eigenvalues + (", no push-sum" if needs.doubly_stochastic else "")


def facts(name, period=20, d=40_000):
    """The computed columns of a rule, from what it does in so many steps on d parameters."""
    method = registry.RULES[name]
    etas = next(iter(method.schedules.values()))(2, period, 0.1)
    rule = registry.make(method, etas, (("x", (d,)),))
    state, sent = rule.init(np.ones((2, d))), []
    for t in range(period):
        points = rule.points(state, t)
        exchanged = [rule.early(state, t)]
        messages, state = rule.send(state, tuple(points), t)
        exchanged[0] += messages
        state = rule.receive(state, exchanged[0])
        for send, receive in rule.then:
            messages, state = send(state, t)
            state = receive(state, messages)
            exchanged.append(messages)
        sent.append([sum(a.shape[-1] == d for a in messages) for messages in exchanged if messages])
    steps = [exchanges for exchanges in sent if exchanges]
    every = "" if len(steps) == period else f" every {period // len(steps)}th step"
    arrays = sum(a.shape[-1] == d for a in leaves(state).values())
    values = (sum(steps[0]), len(steps[0]), len(points), arrays)
    marks = ("yes" if method.needs_eta else "none", needs_of_w(rule.needs), "yes" if rule.hides else "no")
    numbers = [f"{values[0]}{every}", f"{values[1]}{every}", str(values[2]), str(values[3])]
    return dict(zip(COMPUTED, [marks[0], *numbers, *marks[1:]], strict=True))


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_the_table_of_methods_says_what_the_rules_do(name):
    row = methods_table()[name]
    assert {column: row[column] for column in COMPUTED} == facts(name)
    assert row["method"].startswith(registry.RULES[name].title)
