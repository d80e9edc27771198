"""`dnasa bench-card`: one page that lets somebody else check a result."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dnasa.cli import configs
from dnasa.cli.options import FIELDS, Options
from dnasa.files import to_json

EMPTY: tuple[Any, ...] = (None, [], {})
CHECKSUMS = (
    "Checksums, of 8 or 16 hexadecimal digits, are equal where the source, the rows or the settings are the same."
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
        sys.stdout.write("\n".join([f"# {title}", "", CHECKSUMS, *_markdown(found, "##")]) + "\n")


def command_line(config: Mapping[str, Any]) -> str:
    """The command that repeats a run; files of the user by their names alone, since others have them elsewhere."""
    from dnasa.comparing.study_file import shipped

    command, options = config.get("command"), config.get("options", {})
    if command == "study":
        name = str(config.get("study", "FILE"))
        file = name if name in shipped() else f"{name}.toml"
        return shlex.join(["dnasa", "study", file, *(["--quick"] if config.get("quick") else [])])
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


def _markdown(sections: Mapping[str, Any], level: str) -> Iterator[str]:
    from dnasa.comparing import captions, card

    for section, entries in sections.items():
        if section == "parts":
            for part, own in entries.items():
                yield from ("", f"{level} {_text(part)}", *_markdown(own, f"{level}#"))
        elif entries:
            yield from ("", f"{level} {section.capitalize()}", "")
            if isinstance(entries, str):
                yield from ("```", _text(entries), "```")
            elif isinstance(entries, list):
                yield from _table(card.table(entries))
                several = any(row.get("difference_low") is not None for row in entries)
                yield from ("", captions.BOLD) if several else ()
            else:
                yield from (f"- {_text(name)}: {_text(value)}" for name, value in entries.items() if value not in EMPTY)


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
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
    return " ".join(str(value).split()).encode(errors="replace").decode()
