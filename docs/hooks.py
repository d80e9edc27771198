"""What the site has besides the pages in docs/: the repository's own pages, the examples, the notebooks, the commands, math.

Links in pages lead to files of the repository, so that they work there. On the site they lead to the pages of these files.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

import nbformat
import numpy as np
import pandas as pd
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from dnasa.cli import graphs
from dnasa.comparing import budgets, study_file
from dnasa.comparing.study_report import StudyReport
from dnasa.core import Messages, Needs, leaves
from dnasa.engine import simulate
from dnasa.rules import RULES, registry

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/privacy-assessment.md": "privacy-assessment.md",
    "experiments/README.md": "experiments.md",
}
PLAIN = ("CITATION.cff", "LICENSE")
PICTURES = sorted(ROOT.glob("experiments/figures/*.png"))
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
LINK = re.compile(r"(?<=\]\()[^)#:\s]+")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
EXTERNAL = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|stylesheet)[^>]*=["'](?:https?:)?//[^>]*>""")
BAR = re.compile(r"<mo[^>]*>(&#x02016;|&#x0007C;)</mo>")  # of a norm: as an operator it would be wide and tall
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")  # as a superscript it would be raised twice


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made: dict[str, str | bytes] = {target: (ROOT / source).read_text() for source, target in PAGES.items()}
    made |= {name: (ROOT / name).read_bytes() for name in PLAIN}
    made |= {f"experiments/figures/{path.name}": path.read_bytes() for path in PICTURES}
    made |= {f"examples/{path.stem}.md": example(path) for path in EXAMPLES} | {"examples.md": examples()}
    made["api/cli.md"] = commands()
    for path in NOTEBOOKS:
        files.remove(files.get_file_from_path(f"notebooks/{path.name}"))  # type: ignore[arg-type]
        made |= notebook(path)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Links to files of the repository lead to their pages; the reference lists its pages and all rules."""
    here = page.file.src_uri
    if here == "api/index.md":
        markdown += reference(config)
    if here == "api/rules.md":
        markdown += rules()
    if here == "methods.md":
        for place, made in (("the table of methods is", methods_table()), ("the equations are", equations())):
            markdown = markdown.replace(f"<!-- {place} made from the rules -->", made)
    if here == "graphs.md":
        for place, made in (("weights", graphs.weight_table()), ("graphs", graphs.graph_table())):
            markdown = markdown.replace(f"<!-- the table of {place} is made from the code -->", in_markdown(made))
    if here == "leaderboard.md":
        markdown = markdown.replace("<!-- the leaderboard is made from results/leaderboard -->", leaderboard())
    if here == "how-it-works.md":
        code = "\n\n".join(inspect.getsource(part) for part in (simulate.simulate, simulate.next_state))
        markdown = markdown.replace("<!-- the reference is shown here -->", f"```python\n{code}```")
    source = {target: name for name, target in PAGES.items()}.get(here, f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        return relpath(site_path(normpath(join(dirname(source), found[0]))), dirname(here) or ".")

    return LINK.sub(link, markdown)


def reference(config: MkDocsConfig) -> str:
    """The pages of the reference in the order of the navigation, with what they describe."""
    (pages,) = [part["Look up"] for part in config.nav or [] if "Look up" in part]
    (python,) = [part["Python"] for part in pages if "Python" in part]
    titles = [(title, path) for part in python if isinstance(part, dict) for title, path in part.items()]
    rows = [f"| [{title}]({path.removeprefix('api/')}) | {described(path)} |" for title, path in titles]
    return "\n".join(["\n| page | names |", "|---|---|", *rows, ""])


def described(page: str) -> str:
    """The names whose docstrings a page shows; the page of commands is made here."""
    path = ROOT / "docs" / page
    names = re.findall(r"^::: (\S+)$", path.read_text(), re.M) if path.exists() else ["dnasa --help"]
    return ", ".join(f"`{name}`" for name in names)


def rules() -> str:
    """Each built-in rule by its file: in `dnasa.rules` the file hides the function of the same name."""
    return "".join(f"\n::: dnasa.rules.{name}.{name}\n" for name in RULES)


def methods_table() -> str:
    """What each rule sends and holds, as counted in its steps."""
    header = ("rule", "method", "stepsize", "sent", "exchanges", "gradients", "state", "W", "hidden")
    rows: list[Any] = []
    for name, method in RULES.items():
        anchor = re.sub(r"[^\w\- ]", "", method.title.lower()).replace(" ", "-")
        rows.append((name, f"[{method.title}](#{anchor})", "yes" if method.needs_eta else "none", *facts(name)))
    return in_markdown(pd.DataFrame(rows, columns=header))


def in_markdown(table: pd.DataFrame) -> str:
    """A table whose first column has names."""
    names, *others = ([str(cell) for cell in table[name]] for name in table)
    rows = zip([f"`{name}`" for name in names], *others, strict=True)
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*table], ["---"] * len([*table]), *rows))


def leaderboard() -> str:
    """Average ranks at equal bytes and equal seconds, of all results that are stored."""
    rows = budgets.read(ROOT / "results/leaderboard")
    study = study_file.read(ROOT / "experiments/leaderboard.toml", more_rules=rows.rule)
    board = StudyReport(study, budgets.by_place(rows, study.cells), []).board()
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in board.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*board], ["---"] * len([*board]), *cells))


def facts(name: str, period: int = 20, d: int = 40_000) -> tuple[str, ...]:
    """The columns of a rule that follow from what it does in a few steps on d parameters."""
    schedules = next(iter(RULES[name].schedules.values()))(2, period, 0.1)
    rule = registry.make(RULES[name], schedules, (("x", (d,)),))
    state = rule.init(np.ones((2, d)))
    sent: list[tuple[int, int]] = []  # the step and the number of arrays of each exchange

    def unmixed(messages: Messages, number: int) -> Messages:
        sent.extend([(t, sum(a.shape[-1] == d for a in messages))] if messages else [])
        return messages

    for t in range(period):
        points = rule.gradient_points(state, t)
        state = simulate.next_state(rule, state, points, t, unmixed)
    steps = [[arrays for step, arrays in sent if step == t] for t in sorted({step for step, _ in sent})]
    every = "" if len(steps) == period else f" every {period // len(steps)}th step"
    held = sum(a.shape[-1] == d for a in leaves(state).values())
    counts = (f"{sum(steps[0])}{every}", f"{len(steps[0])}{every}", str(len(points)), str(held))
    return *counts, needs_of_w(rule.needs), "yes" if rule.can_overlap else "no"


def needs_of_w(needs: Needs) -> str:
    if needs.directed:
        return "directed"
    eigenvalues = f", eigenvalues above {needs.smallest_eigenvalue:.3f}" if needs.smallest_eigenvalue > -1 else ""
    fixed = ", fixed graph" if needs.fixed_graph else ""
    return "symmetric" + eigenvalues + (", no push-sum" if needs.doubly_stochastic else "") + fixed


def equations() -> str:
    """A section for each rule: paper, equation, notes, and what it was compared with."""
    sections = []
    for name, method in RULES.items():
        paper = re.sub(r"arXiv ([\d.]+\d)", r"[arXiv \1](https://arxiv.org/abs/\1)", method.paper) or "ours"
        body = inspect.cleandoc(method.equation)
        aligned = f"\\begin{{align*}}\n{body}\n\\end{{align*}}" if "&" in body else body
        _, _, notes = (inspect.getdoc(method.make) or "").partition("Args:")[0].partition("\n")
        checked = f"Compared with {method.checked or 'a second implementation of ours only: experimental'}."
        parts = (f"### {method.title}", f"`{name}`; {paper}.", f"$$\n{aligned}\n$$", notes.strip(), checked)
        sections.append("\n\n".join(part for part in parts if part))
    return "\n\n".join(sections)


def site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "examples":
        return "examples.md"
    if path.startswith("examples/") and path.endswith(".py"):
        return path.replace(".py", ".md")
    return PAGES.get(path, path.removeprefix("docs/").replace(".ipynb", ".md"))


def on_page_content(html: str, **_: Any) -> str:
    """TeX becomes MathML, which browsers show without scripts."""

    def mathml(found: re.Match[str]) -> str:
        block = found[1] == "div"
        math = convert(unescape(found[2]), display="block" if block else "inline")
        if "&</mi>" in math or "\\" in math:  # what the converter does not know stays as it is
            raise PluginError(f"This equation cannot be converted to MathML: {found[2]}")
        math = BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', math)
        math = PRIME.sub(r'\1<mo lspace="0" rspace="0">&#x02032;</mo>', math)
        return f'<div class="equation">{math}</div>' if block else math

    return MATH.sub(mathml, html)


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Pages must work without a network."""
    for element in EXTERNAL.findall(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {element}")


# ---------------------------------------------------------------- examples and notebooks


def example(path: Path) -> str:
    """The page of a program: its docstring, then the code."""
    code = path.read_text()
    return f"# {path.name}\n\n{docstring(path)}\n\n```python\n{code}```\n"


def examples() -> str:
    rows = [f"| [{path.name}](examples/{path.stem}.md) | {docstring(path).splitlines()[0]} |" for path in EXAMPLES]
    needs = "They need `pip install '.[torch,data,plot]'` ([install](install.md)); some name further packages."
    return "\n".join(["# Example programs", "", needs, "", "| program | |", "|---|---|", *rows])


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def notebook(path: Path) -> dict[str, str | bytes]:
    """The page of a notebook with its outputs, and its pictures."""
    body, resources = MarkdownExporter().from_notebook_node(
        nbformat.read(path, as_version=4), {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    body = re.sub(r"<style scoped>.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<(table|tr|th|td)\b[^>]*>", r"<\1>", body)  # the site's own look of tables
    pictures = {f"notebooks/{name}": picture for name, picture in resources["outputs"].items()}
    return {f"notebooks/{path.stem}.md": body} | pictures


# ---------------------------------------------------------------- the command line


def commands() -> str:
    """Every command with its options, from the program itself."""
    from typer.main import get_command

    from dnasa.cli import app

    return "# Command line\n\n" + "\n\n".join(command(name, each) for name, each in single(get_command(app)))


def single(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The commands with their names, those of groups as `keys site`."""
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from single(each, f"{before}{name} ")
        else:
            yield f"{before}{name}", each


def command(name: str, command: Any) -> str:
    arguments = [argument(p) for p in command.params if p.param_type_name == "argument"]
    rows = [option(p) for p in command.params if p.param_type_name == "option" and not p.hidden]
    table = ["| option | default | |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"## dnasa {name}", "", f"`{' '.join(['dnasa', name, *arguments])}`", "", command.help, "", *table])


def option(parameter: Any) -> str:
    default = "" if parameter.default in (None, False, ()) else f"`{parameter.default}`"
    text = " ".join(parameter.help.split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{'`, `'.join(parameter.opts)}` | {default} | {text} |"


def argument(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"
