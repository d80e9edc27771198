"""Rules of the user's own on the command line: files given with --plugin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, succeed

from dnasa.cli import plugins
from dnasa.rules import RULES
from dnasa.topology import TOPOLOGIES

PLUGIN = """
from dnasa.rules import dsgd, rule
@rule("doubled", title="Doubled D-SGD")
def doubled(eta):
    return dsgd(lambda t: 2 * eta(t))
"""
TRAIN = "train --problem least_squares --nodes 4 --steps 30 --evaluate 10 --rule doubled --eta 0.01".split()


GRAPH = """
import networkx as nx
from dnasa import topology
topology.TOPOLOGIES["wheel"] = lambda n, weights: topology.from_networkx(nx.wheel_graph(n), weights, "wheel")
"""


@pytest.fixture(autouse=True)
def only_built_in_rules() -> Iterator[None]:
    """Plugins loaded in this process are forgotten."""
    registries: list[dict[str, Any]] = [RULES, TOPOLOGIES]
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    plugins.load_file.cache_clear()


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(PLUGIN)
    return path


def test_a_rule_of_a_plugin_is_used_by_name(plugin: Path, tmp_path: Path) -> None:
    done = succeed(*TRAIN, "--plugin", "my_rules.py", "--out", "a", cwd=tmp_path)
    assert "Doubled D-SGD on least_squares" in done.stdout
    words = "compare --problem least_squares --nodes 4 --steps 30 --rules dsgd,doubled --etas 0.01,0.02 --out b".split()
    compared = succeed(*words, "--plugin", plugin, cwd=tmp_path)
    assert "Doubled D-SGD" in compared.stdout


def test_graphs_and_compressors_of_a_plugin_are_used_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GRAPH)
    (tmp_path / "study.toml").write_text("problems = ['least_squares']\ngraphs = ['wheel']\nrules = ['dnasa']\nsteps = 5\n")
    shown = succeed("topology", "wheel", "--nodes", 5, "--weights", "lazy", "--plugin", "mine.py", cwd=tmp_path)
    assert "wheel" in shown.stdout
    options = "--problem least_squares --nodes 5 --topology wheel --steps 5 --plugin mine.py".split()
    for words in (["train", *options], ["compare", *options, "--rules", "dnasa"], ["study", "study.toml", *options[-2:]]):
        done = succeed(*words, cwd=tmp_path)
        assert "wheel" in done.stdout
        assert words[0] == "study" or "wheel (rho = 0.4)" in done.stdout


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "There is no plugin file"),
        ("x = 1", "adds nothing: it must use @dnasa.rules.rule, or add to dnasa.topology.TOPOLOGIES"),
        ("\n1 / 0", "failed at line 2: ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("raise SystemExit(0)", "failed at line 1: SystemExit"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import dnasa\ndnasa.rules.rule('dnasa')(print)", "failed at line 2: InputError: 'dnasa' is a built-in rule"),
        ("\0", "failed"),
    ],
)
def test_a_plugin_that_cannot_be_used_gets_one_clear_line(code: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    if code is not None:
        path.write_text(code)
    errors = refused("train", "--problem", "spike", "--plugin", path)
    assert message in errors
    assert "bad.py" in errors
    assert not errors.rstrip().endswith("..")


def test_a_plugin_uses_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_rules.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("import their_rules")
    plugins.load([tmp_path / "mine.py"])
    assert RULES["doubled"].title == "Doubled D-SGD"
