"""The user's rules, graphs and compressors.

They come from files given with `--plugin`, and from installed packages with an entry point in `dnasa.rules`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from dnasa import networks
from dnasa.core import InputError
from dnasa.files import execute, failure, read_bytes
from dnasa.rules import RULES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dnasa.rules"


def load(files: Sequence[Path]) -> None:
    """Import every plugin once, in this process; each must register a rule, a graph or a compressor."""
    load_installed()
    for file in files:
        load_file(file.resolve())


@cache
def load_installed() -> None:
    from importlib.metadata import entry_points  # 30 ms

    for entry in entry_points(group=GROUP):
        if entry.dist is not None and Path(str(entry.dist.locate_file(""))).resolve() == Path.cwd():
            continue  # `python -m dnasa` also finds packages that lie in the current folder and are not installed
        _register(f"'{entry.name}' ({entry.value})", partial(_load_entry, entry))


@cache
def load_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"There is no plugin file {path}: give the path of a Python file.")
    _register(str(path), lambda: execute(path, f"dnasa_plugin_{path.stem}", read_bytes(path)))


def check_trusted(code: Iterable[Path], source: Path, trust: bool) -> None:
    """Refuse code that a file names and the user does not, unless `source` is trusted; announce it otherwise."""
    for file in sorted(code):
        if not trust:
            raise InputError(
                f"{source} names code, {file}, which is not executed unless you trust it: read the file, then add --trust."
            )
        if networks.launched_rank() == 0:
            print(f"Executing {file}, which {source} names.", file=sys.stderr, flush=True)


def _load_entry(entry: "EntryPoint") -> None:
    """An entry point names a module that registers rules when imported, or a function that does."""
    loaded = entry.load()
    if callable(loaded):
        loaded()


def _register(name: str, plugin: Callable[[], object]) -> None:
    from dnasa.channels.compressed import REGISTERED
    from dnasa.topology import TOPOLOGIES

    before = dict(RULES), dict(TOPOLOGIES), dict(REGISTERED)
    try:
        plugin()
    except (Exception, SystemExit) as error:
        raise InputError(f"The plugin {name} {failure(name, error).rstrip('.')}.") from error
    if before == (RULES, TOPOLOGIES, REGISTERED):
        raise InputError(
            f"The plugin {name} registers nothing: it must call register of dnasa.rules, dnasa.topology or dnasa.channels."
        )
