"""The user's rules, graphs and compressors, from files given with `--plugin`."""

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from dnasa import networks
from dnasa.core import InputError
from dnasa.files import execute, failure, read_bytes
from dnasa.rules import RULES
from dnasa.rules.registry import find


def load(files: Sequence[Path] | None, rules: Sequence[str] = (), flag: str = "--rules") -> None:
    """Import every plugin once, in this process; each must register a rule or a graph. Then check the names of rules."""
    for file in files or ():
        load_file(file.resolve())
    for rule in rules:
        try:
            find(rule)
        except InputError as error:
            raise InputError(f"{flag}: {error}") from error


@cache
def load_file(path: Path) -> None:
    from dnasa.topology import TOPOLOGIES

    if not path.is_file():
        raise InputError(f"There is no plugin file {path}: give the path of a Python file.")
    before = dict(RULES), dict(TOPOLOGIES)
    try:
        execute(path, f"dnasa_plugin_{path.stem}", read_bytes(path))
    except (Exception, SystemExit) as error:
        raise InputError(f"The plugin {path} {failure(path, error).rstrip('.')}.") from error
    if before == (RULES, TOPOLOGIES):
        raise InputError(f"The plugin {path} adds nothing: it must use @dnasa.rules.rule, or add to dnasa.topology.TOPOLOGIES.")


def check_trusted(code: Iterable[Path], source: Path, trust: bool, remedies: str = "--trust") -> None:
    """Refuse code that a file names and the user does not, unless `source` is trusted; announce it otherwise."""
    for file in sorted(code):
        if not trust:
            raise InputError(f"{source} names code that is not executed: read {file}, then add {remedies}.")
        if networks.launched_rank() == 0:
            print(f"Executing {file}, which {source} names.", file=sys.stderr, flush=True)
