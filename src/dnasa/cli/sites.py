"""`dnasa keys` and `dnasa sites`: the keys of sites that train together, and whether they reach each other."""

from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from dnasa.cli.rendering import print_line, print_table

sites = typer.Typer(no_args_is_help=True, help="Sites that train together: their connections.")
CLOCK = 60.0  # seconds that a clock may be off


def clock(ahead: float | None) -> str:
    """How another site's clock differs from this one."""
    if ahead is None or isnan(ahead):
        return "-"
    return f"{abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}" if ahead else "in step"


@sites.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file that lists the sites.")] = Path("sites.toml"),
    wait: Annotated[float, typer.Option(help="Seconds to wait for the other sites.", min=0, max=86400)] = 60.0,
) -> None:
    """Check who answers, with latency and clocks. Run it at all sites at the same time, or during a run."""
    import pandas as pd

    from dnasa.sites.checking import check as ask
    from dnasa.sites.file import read_sites

    given = read_sites(file)
    own, listen = given.sites[given.own].name, given.listen
    print_line(f"This site is {own}. It {f'listens on {listen[0]} port {listen[1]}' if listen else 'only dials'}.")
    answers = ask(given, wait)
    rows = [(each.name, each.address, each.result, each.latency, clock(each.clock)) for each in answers]
    columns = ["site", "address", "result", "ms there and back", "clock"]
    print_table(pd.DataFrame(rows, columns=columns), f"The other sites, as {own} sees them")
    for each in answers:
        if each.clock is not None and abs(each.clock) > CLOCK:
            print_line(f"Warning: the clocks of {own} and {each.name} differ by {abs(each.clock):.0f} s: set them.")
    if not all(each.good for each in answers):
        raise typer.Exit(1)


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
