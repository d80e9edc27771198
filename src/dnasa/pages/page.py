"""The page: one HTML file with styles, scripts and contents that loads nothing else."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dnasa.checks import digits
from dnasa.comparing import latex
from dnasa.pages.contents import INTERVALS, read

STYLES = ("uPlot.css", "page.css")
SCRIPTS = ("uPlot.js", "page.js")
WIDE = 3  # columns with intervals beside each other in LaTeX
MOST_CELLS = 2_000_000  # of the table that a chart is drawn from


def render_template(name: str, **values: Any) -> str:
    """A page from a file in `static`, with the styles."""
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters |= {"cell": cell, "percent": percent}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.from_string(_static(name)).render(values, style="\n".join(map(_static, STYLES)))


def render(contents: dict[str, Any]) -> str:
    folders = contents["folders"]
    script = "\n".join(map(_static, SCRIPTS))
    return render_template(
        "page.html",
        **contents,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        several=len(folders) > 1,
        charts=_charts(contents),
        results=_results(contents),
        compared=[[folder["name"]] * (len(folders) > 1) + row for folder in folders for row in folder["comparison"]],
        **_runs(folders),
    )


def files_of_report(folder: Path, threshold: float | None = None) -> dict[str, bytes]:
    """The page, by its ending; of a run with a tested model also all its results as CSV, and its tables in LaTeX."""
    contents = read(folder, threshold)
    written = {".html": render(contents).encode()}
    if (tests := contents["folders"][0]["tests"]) and (folder / "evaluation.json").is_file():
        written[".csv"] = tests["csv"].encode()
        written[".tex"] = "\n".join(part for one in tests["tables"] for part in as_latex(one)).encode()
    return written


def as_latex(shown: dict[str, Any]) -> Iterator[str]:
    """The table, its columns with intervals a few at a time: more would be too small to read."""
    title, notes, (first, *others) = shown["title"], shown["notes"], zip(shown["columns"], *shown["rows"], strict=True)
    size, name = WIDE if title.startswith("Results") else len(others), title.split()[0].lower()
    for begin in range(0, len(others), size):
        part = f" {begin // size + 1}" if len(others) > size else ""
        columns = {head: cells for head, *cells in (first, *others[begin : begin + size])}
        yield with_notes(columns, title + (f", part{part}" if part else ""), notes, f"{name}{part}")
        notes = [INTERVALS, "Further notes: part 1."]


def with_notes(columns: Mapping[str, Sequence[str]], title: str, notes: Sequence[str], name: str) -> str:
    """A table in LaTeX with notes below it."""

    def escaped(words: str) -> str:
        return re.sub("([<>])", r"$\1$", latex.numbers(words))

    cells = {escaped(head): list(map(escaped, column)) for head, column in columns.items()}
    below = rf"\par\smallskip\raggedright\footnotesize {escaped(' '.join(notes))}" if notes else ""
    return latex.table(cells, escaped(f"{title}."), name).replace(r"\end{table", f"{below}\n\\end{{table")


def _static(name: str) -> str:
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


def _runs(folders: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for each folder, with the settings in which they differ."""
    names = dict.fromkeys(name for folder in folders for name in folder["settings"])
    differing = [name for name in names if len({folder["settings"].get(name) for folder in folders}) > 1]
    rows = [
        [folder["name"], folder["state"], folder["step"], *(folder["settings"].get(name) for name in differing)]
        for folder in folders
    ]
    return {"runs": rows, "differing": differing}


def _results(contents: dict[str, Any]) -> list[list[Any]]:
    names = ["step", *(metric["name"] for metric in contents["metrics"])]
    lines = [line for folder in contents["folders"] for line in folder["lines"]]
    return [[line["group"], line["seed"], *(line["answer"].get(name) for name in names)] for line in lines]


def _charts(contents: dict[str, Any]) -> dict[str, Any]:
    """What the script draws: each line's values for every axis and every metric."""
    lines = [line for folder in contents["folders"] for line in folder["lines"]]
    axes = [axis for axis in contents["axes"] if axis == "step" or _is_usable(axis, lines)]
    metrics = [metric["name"] for metric in contents["metrics"]]
    return {
        "axes": axes,
        "lines": [
            {"title": f"{line['group']}, seed {line['seed']}", "group": line["group"], "color": line["color"]}
            | {"axes": [line["columns"].get(axis, []) for axis in axes]}
            | {"metrics": [_drawn(line["columns"], metric) for metric in metrics]}
            for line in lines
        ],
    }


def _is_usable(axis: str, lines: list[dict[str, Any]]) -> bool:
    """Whether the lines have several places on an axis, but not too many different ones to draw."""
    places = {value for line in lines for value in line["columns"].get(axis, ())}
    return len(places) > 1 and len(places) * len(lines) <= MOST_CELLS


def _drawn(columns: dict[str, list[Any]], metric: str) -> list[Any]:
    """The values of a metric; the consensus error begins after step 0, where it is the rounding of equal points."""
    values = columns.get(metric, [])
    if metric != "consensus":
        return values
    return [None if step == 0 else value for step, value in zip(columns["step"], values, strict=True)]


def cell(value: Any, column: str = "") -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if "accuracy" in column:
        return percent(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return digits(value, 4) if 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
