"""`dnasa keys`: the keys of sites that train together."""

from pathlib import Path
from typing import Annotated

import typer

from dnasa.cli.rendering import print_line, print_table

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
    from dnasa.sites import keys

    written = keys.revoke(folder, name)
    print_line(f"Wrote {', '.join(map(str, written))}. Copy {written[0]} into the bundle of every site.")


@keys.command()
def show(folder: Folder = HERE) -> None:
    """List the certificates that were made: site, serial number, last day, whether revoked."""
    import pandas as pd

    from dnasa.sites.keys import issued

    rows = [
        (each.site, f"{each.serial:x}", f"{each.expires:%Y-%m-%d}", "yes" if each.revoked else "no") for each in issued(folder)
    ]
    frame = pd.DataFrame(rows, columns=["site", "serial number", "expires", "revoked"])
    print_table(frame, f"Certificates made in {folder}")
