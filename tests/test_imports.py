"""Imports go one way, and `import dnasa` stays light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import networkx as nx
import pytest

import dnasa
from dnasa.rules import registry, schedules

pytestmark = pytest.mark.xdist_group("imports")  # one process parses the files
parse = cache(ast.parse)
PACKAGE = Path(dnasa.__file__).parent
# A module or package of dnasa imports from lower levels only, so there are no circles.
LEVELS = [
    ["core", "compiled"],
    ["checks", "communication"],
    ["arrays", "events", "extras", "files"],
    ["randomness", "rules", "sites", "topology"],
    ["channels", "clock", "data"],
    ["networks", "problems"],
    ["runs"],
    ["engine"],
    ["inference", "optim", "tasks"],
    ["trained"],
    ["comparing"],
    ["pages", "reproduce", "sklearn"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, also those inside functions, except imports for type checkers alone."""
    yield tree
    children: Iterable[ast.AST] = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        children = tree.orelse
    for child in children:
        yield from statements(child)


def imports(source: str) -> Iterator[str]:
    """The modules and packages of dnasa that a file imports; other names of `dnasa` itself as they are."""
    for node in statements(parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "Relative imports are not used here."
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("dnasa."))


MODULES = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"})  # which collects the public names


def test_imports_lead_to_lower_levels() -> None:
    wrong = {}
    for path in MODULES:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        allowed = {name for name, level in LEVEL.items() if level < LEVEL[own]} | {own}
        allowed -= {"sites"} if own == "runs" else set()  # a run on disk is the same with sites and without
        if higher := set(imports(path.read_text())) - allowed:
            wrong[str(path.relative_to(PACKAGE))] = higher
    assert wrong == {}


def test_runs_do_not_import_sites() -> None:
    assert [path.name for path in (PACKAGE / "runs").glob("*.py") if "sites" in imports(path.read_text())] == []


def test_every_module_that_is_imported_exists() -> None:
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}
    wanted = {
        (path.name, node.module)
        for path in MODULES
        for node in ast.walk(parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dnasa.")
    }
    assert {(path, module) for path, module in wanted if module not in files | {"dnasa.compiled"}} == set()


def rule_names(source: str) -> set[str]:
    """The texts of a program that are names of rules, alone, with a schedule or in a list; defaults of arguments may be."""
    tree = parse(source)
    functions = [node.args for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    defaults = {default for args in functions for default in (*args.defaults, *args.kw_defaults)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in defaults]
    words = {word for text in texts if isinstance(text, str) and " " not in text for word in re.split("[,:]", text)}
    return words & set(registry.BUILT_IN - {"dnasa"})  # which is also the program's name


def test_only_rules_and_experiments_know_the_names_of_rules() -> None:
    program = 'def f(rule="d2"):\n    return "help for kgt" if rule == "dsgt" else ("sgp", "dsgd,mt:cosine")'
    assert rule_names(program) == {"dsgt", "sgp", "dsgd", "mt"}
    others = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in ("rules", "reproduce")]
    assert {path.name: rule_names(path.read_text()) for path in others if rule_names(path.read_text())} == {}


def imported_files(source: str, files: Iterable[str]) -> Iterator[str]:
    """The files of dnasa that a file imports, anywhere in it, also for type checkers alone."""
    for node in ast.walk(parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        for name in names:
            own = f"{node.module}.{name}" if isinstance(node, ast.ImportFrom) else name
            found = own if own in files else own.rpartition(".")[0]
            if found in files:
                yield found


def test_no_two_files_import_each_other() -> None:
    """Directly or through others. `dnasa/__init__.py` collects the public names and is left out."""
    files = {".".join(("dnasa", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = nx.DiGraph(
        (name, other) for name, path in files.items() for other in imported_files(path.read_text(), files) if other != name
    )
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


WRONG = """import contextlib, dnasa.cli; sys.argv[1:] = ["study", "none.toml", "--rules", "wat"]
with contextlib.suppress(SystemExit):
    dnasa.cli.main()"""


@pytest.mark.parametrize(
    ("start", "also"),
    [
        ("import dnasa", "importlib.metadata rich typer dnasa.channels dnasa.runs"),
        ("import typer.main, dnasa.cli; typer.main.get_command(dnasa.cli.app)", "importlib.metadata"),
        (WRONG, ""),
    ],
)
def test_a_start_loads_nothing_heavy(start: str, also: str) -> None:
    heavy = "torch scipy networkx pandas matplotlib sklearn statsmodels ssl cryptography numpy.random "
    heavy += f"dnasa.engine dnasa.data {also}"
    code = f"import sys, numpy; before = {{*sys.modules}}\n{start}\nprint({{*{heavy.split()}}} & ({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("module", [dnasa.rules, dnasa.topology, schedules], ids=lambda m: m.__name__)
def test_public_names_are_there(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_built_in_rule_is_a_public_function() -> None:
    assert {name for name in registry.BUILT_IN if getattr(dnasa.rules, name, None) is not registry.RULES[name].make} == set()


@pytest.mark.parametrize("module", [dnasa, dnasa.channels, dnasa.problems, dnasa.trained], ids=lambda m: m.__name__)
def test_dir_shows_the_public_names(module: ModuleType) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
