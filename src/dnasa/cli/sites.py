"""`dnasa sites`: whether sites can train together."""

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
