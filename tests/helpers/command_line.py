"""The command line in this process, which is faster than a subprocess."""

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dnasa import cli


def run(*words: object, cwd: Path | str = ".") -> SimpleNamespace:
    out, errors = io.StringIO(), io.StringIO()
    cli.running.engine, cli.console.quiet = "simulated", False
    with redirect_stdout(out), redirect_stderr(errors), chdir(cwd), mock.patch("sys.argv", ["dnasa", *map(str, words)]):
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=errors.getvalue())


def succeed(*words: object, cwd: Path | str = ".") -> SimpleNamespace:
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def refused(*words: object, cwd: Path | str = ".") -> str:
    """The one line that a command with exit code 2 ends with."""
    done = run(*words, cwd=cwd)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr
