"""The page: one HTML file with styles, scripts and contents that loads nothing else."""

import base64
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.comparing import latex
from dnasa.core import InputError
from dnasa.pages.contents import read, tables
from dnasa.runs.folder import RunFolder
from dnasa.trained import evaluation, results

if TYPE_CHECKING:
    import pandas as pd

STYLES = ("uPlot.css", "page.css")
SCRIPTS = ("uPlot.js", "page.js")
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


WIDE = 3  # columns with intervals beside each other in LaTeX


def files_of_report(folder: Path, threshold: float | None = None) -> dict[str, bytes]:
    """The page, by its ending; of a run with a tested model also all its results as CSV, and its tables in LaTeX."""
    written = {".html": render(read(folder, threshold)).encode()}
    with suppress(InputError):  # the page says what is damaged
        if (measured := evaluation.read(folder)) is not None:
            from dnasa.data.columns import as_csv

            sites = RunFolder(folder, resume=True).sites
            written[".csv"] = as_csv(results.numbers(measured, sites, threshold)).encode()
            frames = tables(folder, measured, sites, threshold)
            written[".tex"] = "\n".join(part for title, frame in frames.items() for part in _latex(title, frame)).encode()
    return written


def _latex(title: str, frame: "pd.DataFrame") -> Iterator[str]:
    """The table, its columns with intervals a few at a time: more would be too small to read."""
    first, *others = frame.columns
    size = WIDE if title.startswith("Results") else len(others)
    for begin in range(0, len(others), size):
        part = f" {begin // size + 1}" if len(others) > size else ""
        yield _latex_part(title, part, frame[[first, *others[begin : begin + size]]])


def _latex_part(title: str, part: str, frame: "pd.DataFrame") -> str:
    columns = {latex.text(str(name)): [latex.text(str(value)).replace("<", "$<$") for value in frame[name]] for name in frame}
    brackets = "" if title in ("Training rows", "Cohort", "Confusion matrix") else " In brackets: 95\\,\\% intervals."
    words = title + (f", part{part}" if part else "")
    return latex.table(columns, f"{latex.text(words)}.{brackets}", f"{title.split()[0].lower()}{part}")


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
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
