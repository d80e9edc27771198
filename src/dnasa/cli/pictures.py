"""The pictures, their numbers and the table of a run, in its folder."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.checks import choose
from dnasa.cli.options import split
from dnasa.cli.rendering import print_line
from dnasa.core import InputError
from dnasa.extras import can_draw
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dnasa.runs.result import Result

FORMATS = ("png", "pdf", "svg")
RESULTS = re.compile(rf"(curves|stepsizes|networks)(-\w+)?\.({'|'.join(FORMATS)}|tex)|table\.tex")


def formats(text: str, style: str = "screen") -> list[str]:
    """Parse the value of --format, and check --style: a mistake shows before anything is run."""
    from dnasa.comparing.style import parse

    kinds = split(text)
    if not kinds:
        raise InputError(f"--format names no format: give one or several of {', '.join(FORMATS)}.")
    for kind in kinds:
        choose("format", kind, dict.fromkeys(FORMATS))
    parse(style)
    return list(dict.fromkeys(kinds))


def names(command: str, options: Mapping[str, Any]) -> list[str]:
    """The files that a command with these options writes at its end."""
    if command == "train":
        return ["history.png"] * can_draw() + ([] if options.get("problem") else ["model.safetensors", "model.json"])
    kinds = formats(options.get("format") or FORMATS[0]) if can_draw() else []
    texts = ["csv", "tex"] if options.get("latex") else ["csv"]
    drawn = [f"{name}.{kind}" for name in ("curves", "stepsizes") for kind in (*texts, *kinds)]
    return drawn + [f"table.{kind}" for kind in texts]


def drawn(kinds: Sequence[str]) -> Sequence[str]:
    """The formats to draw: none, with a line that says so, where matplotlib is missing."""
    if can_draw():
        return kinds
    print_line("Figures are left out, since they need matplotlib: pip install 'dnasa[plot]'.")
    return ()


def save_history(folder: Path, result: "Result") -> None:
    from dnasa.comparing.plots import draw_history, rendered

    OwnFiles(folder).save({f"history.{kind}": rendered(draw_history(result.history), kind) for kind in drawn(["png"])})
    figure = " and history.png" if can_draw() else ""
    print_line(f"Saved {folder}/history.csv, x.safetensors, config.json{figure}.")


def save_results(
    folder: Path,
    figures: Mapping[str, tuple[Callable[[], "Figure"], "pd.DataFrame"]],
    table: "pd.DataFrame",
    latex: Mapping[str, Callable[[], str]],
    kinds: Sequence[str],
    style: str,
) -> None:
    """Each figure, by its name, has a CSV file with the numbers drawn. Each file is complete or absent.

    Figures and tables of an earlier call that are not written again are removed, since they would show other numbers.
    """
    from dnasa.comparing.plots import rendered
    from dnasa.comparing.style import context

    files, kinds = {}, drawn(kinds)
    with context(style):
        for name, (draw, numbers) in figures.items():
            files[f"{name}.csv"] = numbers.to_csv(index=False).encode()
            files |= {f"{name}.{kind}": rendered(draw(), kind) for kind in kinds}
        files |= {name: write().encode() for name, write in latex.items()}
    files["table.csv"] = table.to_csv(index=False).encode()
    own = OwnFiles(folder)
    for name in (old := sorted(name for name in own.names() - {*files} if RESULTS.fullmatch(name))):
        own.remove(name)
    if old:
        print_line(f"Removed files of an earlier call: {', '.join(old)}.")
    own.save(files)
    print_line(f"Saved {', '.join(files)} and all runs in {folder}.")
