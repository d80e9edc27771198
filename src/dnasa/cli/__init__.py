"""The command line: `dnasa train | fit | compare | resume | runs | report | predict | export | ...`."""

from dnasa.cli.commands import app
from dnasa.cli.exits import fail, run_app, running
from dnasa.cli.rendering import console, print_error, showing_warnings

__all__ = ["app", "console", "fail", "main", "running"]


def main() -> None:
    """A user's mistake ends in one line and exit code 2, a run that failed in one line and exit code 1."""
    with showing_warnings(print_error):
        run_app(app)
