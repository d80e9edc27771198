"""Sites on this machine, with keys of their own."""

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from launching import free_port

from dnasa.sites.file import Sites, read_sites
from dnasa.sites.keys import make_authority, make_site

NAMES = ("berlin", "paris", "lyon", "oslo", "rome", "bern", "graz", "kiel")


@cache
def keys() -> Path:
    """The keys of all sites, made once for all tests of a process."""
    folder = Path(mkdtemp()) / "keys"
    make_authority(folder)
    for name in NAMES:
        make_site(folder, name)
    return folder


def write_sites(
    folder: Path, count: int, hidden: Collection[str] = (), addresses: Sequence[str] | None = None, names: Sequence[str] = NAMES
) -> list[Path]:
    """A file for each of so many sites; those in `hidden` accept no connections."""
    addresses = addresses or [f"127.0.0.1:{free_port()}" for _ in range(count)]
    named = zip(names, addresses, strict=False)
    lines = [f"{name} = '{'' if name in hidden else address}'" for name, address in named]
    files = []
    for name in names[:count]:
        files.append(folder / f"{name}.toml")
        files[-1].write_text("\n".join([f"keys = '{keys() / name}'", "[sites]", *lines]))
    return files


def local_sites(folder: Path, count: int, hidden: Collection[str] = ()) -> list[Sites]:
    return [read_sites(file) for file in write_sites(folder, count, hidden)]
