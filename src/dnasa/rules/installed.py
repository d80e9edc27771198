"""Rules of installed packages: an entry point in `dnasa.rules` has the name of a rule, and is imported when asked for."""

from pathlib import Path

from dnasa.core import InputError
from dnasa.files import failure

GROUP = "dnasa.rules"


def load(name: str) -> None:
    """Import what the entry point of this name refers to: a module that registers the rule, or a function that does."""
    from importlib.metadata import entry_points  # 30 ms

    for entry in entry_points(group=GROUP, name=name):
        if entry.dist is not None and Path(str(entry.dist.locate_file(""))).resolve() == Path.cwd():
            continue  # `python -m dnasa` also finds packages that lie in the current folder and are not installed
        try:
            loaded = entry.load()
            if callable(loaded):
                loaded()
        except (Exception, SystemExit) as error:
            raise InputError(f"The plugin '{name}' ({entry.value}) {failure('', error).rstrip('.')}.") from error
