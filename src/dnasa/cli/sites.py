"""`dnasa keys` and `dnasa sites`: the keys of sites that train together, and sites that have stopped for good."""

from pathlib import Path
from typing import Annotated

import typer

from dnasa.cli.rendering import print_line

sites = typer.Typer(no_args_is_help=True, help="Sites that train together: those that have stopped.")


@sites.command()
def drop(
    name: Annotated[str, typer.Argument(help="Name of the site that was stopped for good.")],
    file: Annotated[Path, typer.Argument(help="The file that lists the sites.")] = Path("sites.toml"),
) -> None:
    """Let the run of this site go on without another one that was stopped for good, where too few are left for a majority."""
    from dnasa.checks import choose
    from dnasa.core import InputError
    from dnasa.files import write_durably
    from dnasa.sites.file import read_sites
    from dnasa.sites.tls import DROPPED

    listed = read_sites(file)
    names = [site.name for site in listed.sites]
    choose("site", name, {other: other for other in names if other != names[listed.own]})
    path = listed.keys / DROPPED
    if path.is_symlink() or (path.exists() and path.read_bytes() not in [each.encode() for each in names]):
        raise InputError(f"{path} is not a file of dnasa: move it away first.")
    write_durably(path, name.encode())
    print_line(
        f"A run that is going on at this site, and through it the others, counts {name} out. Make sure that it has stopped."
    )


keys = typer.Typer(no_args_is_help=True, help="Make and revoke the keys with which sites know each other.")

Folder = Annotated[Path, typer.Option("--keys", help="Folder of the authority.")]
Name = Annotated[str, typer.Argument(help="Name of the site: letters, digits, '-' and '.'.")]
HERE = Path("keys")


@keys.command()
def init(folder: Folder = HERE) -> None:
    """Make an authority, which signs the certificates of all sites."""
    from dnasa.sites.keys import make_authority

    make_authority(folder)
    print_line(f"Made the authority in {folder}. Whoever has authority.key can make sites: keep it secret.")


@keys.command()
def site(
    name: Name,
    folder: Folder = HERE,
    days: Annotated[int, typer.Option(help="Days until the certificate expires.", min=1, max=3650)] = 730,
) -> None:
    """Make the bundle of a site: its certificate, its key and the authority's certificate."""
    from dnasa.sites.keys import make_site

    bundle = make_site(folder, name, days)
    print_line(f"Made {bundle}. Move this folder to the site's machine over a safe channel: it holds the site's key.")


@keys.command()
def revoke(name: Name, folder: Folder = HERE) -> None:
    """Revoke all certificates made for a site so far: the others refuse it once they have the new revoked.pem."""
    from dnasa.sites.keys import revoke as revoke_certificates

    written = revoke_certificates(folder, name)
    print_line(f"Wrote {', '.join(map(str, written))}. Copy {written[0]} into the bundle of every site.")
