"""What the documentation shows works as shown."""

import inspect
import re
import runpy
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from importlib import import_module
from math import sqrt
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import griffe
import nbformat
import numpy as np
import pytest
from launching import PATIENCE, run_script, stdout_of
from nbclient import NotebookClient

from dnasa import schedules, simulate, solve, topology
from dnasa.cli import graphs
from dnasa.problems import LeastSquares
from dnasa.rules import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also names what is gone


PROGRAM_PAGES = "comparing extending how-it-works interfaces methods own-model reports your-data your-gradients"


def blocks(page: str | Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
    return [code for kind, code in found if kind == language]


@pytest.mark.docs
@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in PROGRAM_PAGES.split())])
def test_the_python_blocks_of_a_page_form_a_program(page: str, tmp_path: Path) -> None:
    """A block that names its file is that file: the others import what they need of it."""
    program = []
    for code in blocks(page, "python"):
        if named := re.match(r"# (my_\w+)\.py$", code, re.M):
            (tmp_path / f"{named[1]}.py").write_text(code)
        program.append(f"import {named[1]} as _" if named else code)
    (tmp_path / "page.py").write_text("\n\n".join(program))
    check_output(page, stdout_of(run_script("page.py", cwd=tmp_path)))


NUMBER = r"-?\d+\.?\d*(?:e[+-]\d+)?"


def check_output(page: str, stdout: str) -> None:
    """The text below a Python block is what the program prints, up to the last digits of numbers."""
    assert stdout
    printed = [float(word) if re.fullmatch(NUMBER, word) else word for word in words(stdout)]
    for text in re.findall(r"^```\n\n```text\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M):
        shown = [pytest.approx(float(w), rel=0.02) if re.fullmatch(NUMBER, w) else w for w in words(text)]
        assert any(printed[i : i + len(shown)] == shown for i in range(len(printed))), text


def words(text: str) -> list[str]:
    return re.findall(rf"{NUMBER}|[^\s\d]+", text)


# What a page leaves behind when its Python and its commands are executed in order.
PROGRAMS = {
    "predicting": {"predictions.csv": 50, "flowers.onnx": 1000},
    "tutorial-compare": {"runs/compared/curves.pdf": 1000, "runs/compared/table.tex": 100, "curves.png": 1000},
    "tutorial-hospitals": {"predictions.csv": 50},
    "tutorial-train": {"predictions.csv": 50},
}
LONG = pytest.mark.long


@pytest.mark.docs
@pytest.mark.parametrize("page", [pytest.param(p, marks=LONG if p == "tutorial-compare" else ()) for p in PROGRAMS])
def test_the_python_and_the_commands_of_a_page_form_a_program(page: str, tmp_path: Path) -> None:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / f"docs/{page}.md").read_text(), re.S | re.M)
    program = ["import subprocess, sys\nfrom dnasa.cli import app"]
    for language, code in found:
        if named := re.match(r"# (my_net.py|recode.toml)$", code, re.M):
            (tmp_path / named[1]).write_text(code)
        whole = code.replace("\\\n", " ").splitlines()
        lines = [line.split("#")[0].split() for line in whole if line.startswith(("dnasa ", "python examples/"))]
        calls = {"dnasa": "app({}, standalone_mode=False)", "python": "subprocess.run([sys.executable, *{}], check=True)"}
        commands = [
            calls[word].format([part.replace("examples", str(ROOT / "examples")) for part in rest]) for word, *rest in lines
        ]
        program += {"python": [code], "": commands}.get(language, [])
    (tmp_path / "page.py").write_text("\n".join(program))
    check_output(f"docs/{page}.md", stdout_of(run_script("page.py", cwd=tmp_path)))
    for name, size in PROGRAMS[page].items():
        assert (tmp_path / name).stat().st_size > size


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_are_stored_as_they_ran(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    stored = [[output.output_type for output in cell.outputs] for cell in code]
    NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [[output.output_type for output in cell.outputs] for cell in code] == stored


def recipes() -> list[str]:
    """The programs in CONTRIBUTING.md: a rule, its twin and a graph."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return [textwrap.dedent(code) for code in re.findall(r"^    ```\n(.*?)^    ```$", text, re.S | re.M)]


def test_the_rule_of_the_recipe_equals_its_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.RULES, "dgd", None)  # removed again after the test
    monkeypatch.setattr(registry, "BUILT_IN", frozenset())
    recipe: dict[str, Any] = {}
    twin = dict(vars(import_module("twins")))
    exec(recipes()[0], recipe)
    exec(recipes()[1], twin)
    W, start, eta = topology.ring(5).weights, np.ones(2), schedules.cosine(0.1, 20)
    ours = simulate(recipe["dgd"](eta), W, lambda x, node, t: x - node, start, 20)
    theirs = twin["trace"](twin["dgd"], lambda X, t: X - np.arange(5)[:, None], W, start, 20, eta)
    np.testing.assert_allclose(ours[1:], theirs, atol=1e-12)
    assert registry.RULES["dgd"].title == "DGD"


def test_the_graph_of_the_recipe_fits_the_module_it_is_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology.graphs, "TOPOLOGIES", dict(topology.TOPOLOGIES))
    scope = dict(vars(topology.graphs))
    exec(recipes()[2], scope)
    assert isinstance(scope["tree"](7), topology.Topology)


def test_links_to_files_and_headings_resolve() -> None:
    for page in [*CURRENT, ROOT / "experiments/README.md"]:
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), (page.name, target)
            assert not heading or heading in headings(file), (page.name, heading)


def headings(page: Path) -> list[str]:
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    made = [registry.RULES[name].title for name in registry.BUILT_IN] if page.name == "methods.md" else []
    return [*map(anchor, lines + made)]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_files_named_in_the_documentation_exist() -> None:
    text = "\n".join(page.read_text() for page in CURRENT)
    for path in re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"-m benchmarks\.(\w+)", text):
        assert (ROOT / "benchmarks" / f"{module}.py").exists(), module
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"`make ([\w-]+)", text):
        assert target in targets, target


def test_commands_and_options_shown_exist() -> None:
    from typer.main import get_command

    from dnasa.cli import app

    program: Any = get_command(app)
    text = "\n".join(page.read_text() for page in CURRENT)
    shown = re.findall(r"(?:^|[`\s])dnasa ([a-z]+)((?:[^\n`#]|\\\n)*)", text, re.M)
    for name, rest in [(name, rest) for name, rest in shown if name in program.commands or "--" in rest]:
        command = program.commands[name]
        if hasattr(command, "commands"):  # a group: the next word is its command
            command = command.commands[rest.split()[0]]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
        assert given <= known, f"dnasa {name}: {given - known}"


def test_the_page_on_installing_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/install.md").read_text(), re.M)) == set(extras)


REFERENCE = [path for page in ROOT.glob("docs/api/*.md") for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
REFERENCE += [f"dnasa.rules.{name}.{name}" for name in registry.BUILT_IN]  # docs/hooks.py adds them


def public_modules(name: str = "dnasa") -> Iterator[str]:
    """The modules that a user can reach by public names, and those of the reference."""
    module = import_module(name)
    parts = [getattr(module, part) for part in module.__all__]
    yield name
    for part in parts:
        if isinstance(part, ModuleType):
            yield from public_modules(part.__name__)


MODULES = sorted({*public_modules(), *(path for path in REFERENCE if hasattr(sys.modules.get(path), "__all__"))})


@pytest.fixture(scope="module")
def source() -> Any:
    return griffe.load("dnasa", search_paths=[ROOT / "src"])


def described(source: Any, path: str) -> dict[str, Any]:
    """What the reference shows for a path: an object, or what a module exports; a submodule hides an export of its name."""
    found = source[path.removeprefix("dnasa.")]
    if found.kind is not griffe.Kind.MODULE:
        return {found.canonical_path: found}
    members = [found[name] for name in found.exports]
    return {part.canonical_path: part for part in members if part.kind is not griffe.Kind.MODULE}


def test_the_reference_has_every_public_name(source: Any) -> None:
    shown = {name for path in REFERENCE for name in described(source, path)}
    for module in MODULES:
        for name in import_module(module).__all__:
            part = getattr(import_module(module), name)
            if inspect.isclass(part) or inspect.isroutine(part):
                assert {f"{module}.{name}", f"{part.__module__}.{part.__qualname__}"} & shown, f"{module}.{name}"
            elif not isinstance(part, ModuleType):
                assert source[f"{module}.{name}".removeprefix("dnasa.")].canonical_path in shown, f"{module}.{name}"


# Packages whose public functions and methods document every parameter.
PACKAGES = (
    "channels comparing comparing.plots core data inference networks optim problems problems.prox reproduce rules sklearn "
    "topology trained"
)


def public_functions(package: str) -> Iterator[tuple[str, Any]]:
    """What a package exports that takes arguments: functions, and the public methods of classes."""
    module = import_module(package)
    for name in module.__all__:
        part = getattr(module, name)
        if inspect.isclass(part) and (hasattr(part, "_fields") or hasattr(part, "__dataclass_fields__")):
            continue  # a record: its attributes are described
        if inspect.isclass(part):
            members = inspect.getmembers(part, lambda m: inspect.isfunction(m) or inspect.ismethod(m))
            fields = getattr(part, "__annotations__", {})  # a function may be the default of a field
            own = vars(part).keys() - fields.keys()
            made_by_sklearn = {"set_fit_request", "set_score_request"}
            shown = [(key, m) for key, m in members if key in own - made_by_sklearn and not key.startswith("_")]
            yield from ((f"{name}.{key}", m) for key, m in shown)
        elif inspect.isfunction(part):
            yield name, part


def documented(docstring: str) -> set[str]:
    """The parameters in the Args section."""
    sections = griffe.parse_google(griffe.Docstring(docstring), warnings=False)
    found = [section.value for section in sections if section.kind is griffe.DocstringSectionKind.parameters]
    return {parameter.name for section in found for parameter in section}


@pytest.mark.parametrize("package", ["dnasa", *(f"dnasa.{name}" for name in PACKAGES.split())])
def test_every_public_function_documents_its_arguments(package: str) -> None:
    wrong = {}
    for name, function in public_functions(package):
        parameters = inspect.signature(function).parameters.values()
        named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} - {"self", "cls"}
        found = {parameter for parameter in documented(inspect.getdoc(function) or "") if not parameter.startswith("*")}
        if named != found:
            wrong[name] = sorted(named ^ found)
    assert wrong == {}


@pytest.mark.docs
def test_the_leaderboard_has_every_rule_for_undirected_graphs_and_noise() -> None:
    hooks: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/hooks.py")))
    header, _, *rows = hooks.leaderboard().splitlines()
    assert header == "| method | bytes | cluster | internet | all | best of 54 | points from the best |"
    shown = {row.split(" | ")[0].removeprefix("| ").partition(" (")[0] for row in rows}
    assert shown == {registry.RULES[name].title for name in registry.BUILT_IN - {"sgp", "push_dsgt", "adgt"}}
    assert (ROOT / "docs/leaderboard.md").read_text().count("<!-- the leaderboard is made from results/leaderboard -->") == 1


@pytest.mark.parametrize("name", ["complete", "ring", "star"])
def test_the_page_of_graphs_counts_the_messages_of_a_run(name: str) -> None:
    table = graphs.graph_table().set_index("graph")
    assert "probability p, 0.8 by default" in table.edges["random"]
    run = solve(LeastSquares(dim=2), topology.make(name, 8), "dsgd", eta=0.1, steps=1)
    assert float(table.loc[name, "messages of a node"]) == run.history.messages.iloc[-1] / 8


def test_the_page_of_methods_has_every_rule() -> None:
    hooks: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/hooks.py")))
    table, equations = hooks.methods_table(), hooks.equations()
    assert "| `dnasa` | [D-NASA](#d-nasa) | none | 3 | 1 | 1 | 4 | symmetric | yes |" in table
    assert (
        "| `kgt` | [K-GT](#k-gt) | yes | 2 every 10th step | 1 every 10th step | 1 | 3 | symmetric, fixed graph | no |" in table
    )
    for name in registry.BUILT_IN:
        method = registry.RULES[name]
        assert f"| `{name}` | [{method.title}](#{anchor(method.title)}) |" in table
        assert f"### {method.title}\n\n`{name}`; " in equations
    page = (ROOT / "docs/methods.md").read_text()
    for place in ("the table of methods is", "the equations are"):
        assert page.count(f"<!-- {place} made from the rules -->") == 1


def test_the_page_of_methods_has_the_weights_of_moving_averages() -> None:
    page = (ROOT / "docs/methods.md").read_text()
    words = r"D-NASA (min\(.+?\)\)), 0 at t = 0, with `fixed` (min\(.+?\)\)); D-ASAGT (min\(.+?\)\)\)) \|"
    (formulas,) = re.findall(words, page)
    known = schedules.diminishing(8)[1], schedules.fixed(8, 100)[1], schedules.averaging(8)
    for formula, schedule in zip(formulas, known, strict=True):
        for t in (1, 5, 8, 20, 90):
            assert eval(formula, {"min": min, "sqrt": sqrt}, {"n": 8, "t": t, "T": 100}) == pytest.approx(schedule(t))
    assert known[0](0) == 0
