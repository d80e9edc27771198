"""How the program ends: exit codes, and one line that says why."""

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NoReturn

import typer

from dnasa import networks
from dnasa.core import InputError, Interrupted, RunError

WANTED = {"integer": "one whole number", "number": "one number", "float": "one number"}
UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


class Running:
    """The engine in use: it decides how this process must end so that the others do not wait for it."""

    engine = "simulated"


running = Running()


def fail(code: int, message: str) -> NoReturn:
    """Print one line and exit; processes that wait for this one are ended too."""
    rank = networks.launched_rank()
    if rank and running.engine == "simulated":
        time.sleep(3)  # a mistake that all processes share is reported by the first, which then ends the others
    print(f"Error: {f'rank {rank}: ' if rank else ''}{_one_line(message)}", file=sys.stderr, flush=True)
    if running.engine != "simulated":
        networks.terminate(running.engine, code)
    raise SystemExit(code)


def _one_line(message: str) -> str:
    """Remove line breaks and characters that cannot be encoded, which names in files may contain."""
    return " ".join(message.split()).encode(errors="replace").decode()


class Output:
    """A standard stream that may fail, as in `dnasa train | head -3`: the rest is dropped, and the run goes on."""

    def __init__(self, stream: Any):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        return self._attempt(self.stream.write, text) or len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


@contextmanager
def tolerant_output() -> Iterator[None]:
    streams = [Output(stream or open(os.devnull, "w")) for stream in (sys.stdout, sys.stderr)]  # noqa: SIM115 (closed at exit)
    with redirect_stdout(streams[0]) as out, redirect_stderr(streams[1]) as errors:
        try:
            yield
        finally:
            out.flush()
            errors.flush()


def _usage(error: Any) -> str:
    """What is wrong with the words of the command line; where a number is wanted, with the first sentence of its help."""
    message, option = error.format_message(), getattr(error, "param", None)
    found = re.search(r"valid (integer|number|float)\b", message)
    if found is None or option is None or not getattr(option, "help", None):
        return message
    about = re.split(r";|(?<!\.)\.(?: |$)", option.help)[0]
    return f"{option.opts[0]} takes {WANTED[found[1]]} ({about[:1].lower()}{about[1:]})."


def run_app(app: typer.Typer) -> None:
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        fail(2, str(error))
    except MemoryError:
        fail(2, "There is not enough memory for this: use fewer nodes, a smaller batch or fewer seeds.")
    except Interrupted as interruption:
        fail(130, str(interruption))
    except RunError as error:
        fail(1, str(error))
    except (KeyboardInterrupt, typer.Abort):
        fail(130, "Interrupted.")
    except UsageError as error:
        message = _usage(error)
        if not message:  # the help was printed instead
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "dnasa"
        fail(2, f"{message}{'' if message.endswith(('.', '?')) else '.'} Try '{where} --help'.")
    except Exception:
        if running.engine == "simulated":
            raise
        traceback.print_exc()
        fail(1, "An unexpected error, see above.")
