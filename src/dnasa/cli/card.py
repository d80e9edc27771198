"""`dnasa bench-card`: one page that lets somebody else check a result."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from dnasa.cli import configs
from dnasa.cli.options import FIELDS, Options
from dnasa.files import to_json

SECTIONS = ("code", "hardware", "data", "protocol")  # of facts
EMPTY: tuple[Any, ...] = (None, [], {})
CHECKSUMS = "Equal checksums mean equal source, data or settings."
COMPARE = (
    "Then compare the card of the folder `repeated` with this one: on the same kind of machine, with the same versions, the "
    "results agree in all digits; elsewhere, the last ones may differ."
)


def bench_card(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, a comparison or a study that has ended.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of Markdown.")] = False,
) -> None:
    """Print what others need to check a result: code, hardware, data, protocol, the command that repeats it, results."""
    from dnasa.comparing import card

    found = card.read(folder, command_line)
    if json:
        sys.stdout.write(to_json(found).decode())
    else:
        title = _text(folder.resolve().name)
        sys.stdout.write("\n".join([f"# {title}", "", CHECKSUMS, *_markdown(found)]) + "\n")


def command_line(config: Mapping[str, Any]) -> str:
    """The command that repeats a run; files of the user by their names alone, since others have them elsewhere."""
    command, options = config.get("command"), config.get("options", {})
    if command not in ("train", "compare"):
        return "none: the run was started from Python"
    stored = {name: _portable(value) for name, value in options.items() if name in FIELDS}
    given = {
        name: value for name, value in stored.items() if name == "data" or value not in ([], getattr(Options, name))
    }
    return shlex.join(["dnasa", *configs.as_words(command, given), "--out", "repeated"])


def _portable(value: Any) -> Any:
    if isinstance(value, list):
        return [_portable(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


# ---------------------------------------------------------------- Markdown


def _markdown(card: Mapping[str, Any]) -> Iterator[str]:
    from dnasa.comparing import captions

    cells = card.get("cells", {})
    for section, entries in card.items():
        if entries and section not in ("ranks", "cells", "results"):
            yield from ("", f"## {section.capitalize()}", "", *_section(section, entries))
    yield from _ranks(card["ranks"]) if cells else ()
    yield from _cells(cells) if cells else ("", "## Results", "", *_table(card["results"]))
    results = [row for part in (card, *cells.values()) for row in part.get("results", ())]
    if any(row.get("difference_low") is not None for row in results):
        yield from ("", f"Bold marks the best and what does not differ clearly from it. {captions.CLEAR}")


def _section(name: str, entries: Any) -> Iterator[str]:
    if not isinstance(entries, str):
        return _facts(entries)
    return _repeat(entries) if name == "repeat" else _code(entries, "toml")


def _repeat(command: str) -> Iterator[str]:
    words = shlex.split(command)
    if words[1] == "study" and words[2].endswith(".toml"):
        yield from (f"Save the study file below as `{words[2]}`, and run:", "")
    yield from _code(command)
    if words[0] == "dnasa":
        yield from ("", COMPARE)


def _ranks(ranks: Mapping[str, Any]) -> Iterator[str]:
    facts = {name: value for name, value in ranks.items() if name != "methods"}
    yield from ("", "## Ranks", "", *_facts(facts))
    if "methods" in ranks:
        rows = [
            {"method": row["method"], "average rank": f"{row['rank']:.2f}", "best in": row["best_in"]}
            for row in ranks["methods"]
        ]
        yield from ("", *_lines(rows))


def _cells(cells: Mapping[str, Any]) -> Iterator[str]:
    """The cells of each problem: first what they share, then for each what differs, and its results."""
    from dnasa.comparing import card

    for data, group in groupby(cells.items(), lambda item: item[1]["data"].get("data")):
        problem = card.joined(dict(group))
        shared = _all_facts(problem)
        yield from ("", f"## {_text(data or 'Results')}", *(("", *shared) if shared else ()))
        for cell, own in problem["cells"].items():
            facts = "; ".join(fact.removeprefix("- ") for fact in _all_facts(own))
            yield from ("", f"### {_text(cell)}", *(("", facts) if facts else ()), "", *_table(own["results"]))


def _all_facts(sections: Mapping[str, Any]) -> list[str]:
    return [fact for name, entries in sections.items() if name in SECTIONS for fact in _facts(entries)]


def _code(text: str, language: str = "") -> Iterator[str]:
    """Text as it is, between fences that it does not contain."""
    fence = "`" * max([3, *(1 + len(ticks) for ticks in re.findall("`+", text))])
    yield from (f"{fence}{language}", _encodable(text.strip()), fence)


def _facts(entries: Mapping[str, Any]) -> Iterator[str]:
    return (f"- {_text(name)}: {_text(value)}" for name, value in entries.items() if value not in EMPTY)


def _table(results: list[dict[str, Any]]) -> Iterator[str]:
    from dnasa.comparing import card

    return _lines(card.table(results))


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table, without columns that are empty."""
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    yield f"| {' | '.join(name.replace('_', ' ') for name in columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_text(row[name]).replace('|', '/') for name in columns)} |"


def _text(value: Any) -> str:
    """A value on one line, without characters that cannot be encoded."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return "; ".join(f"{_text(name)}: {_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return _encodable(" ".join(str(value).split()))


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
