"""How the program ends: exit codes, and one line that says why."""

import os
import sys
import time
import traceback
from types import SimpleNamespace
from typing import Any, NoReturn

import typer

from dnasa import networks
from dnasa.cli.rendering import print_error
from dnasa.core import InputError, Interrupted, RunError

UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
running = SimpleNamespace(engine="simulated")  # it decides how this process must end so that the others do not wait


def fail(code: int, message: str) -> NoReturn:
    """Print one line and exit; processes that wait for this one are ended too."""
    rank = networks.launched_rank()
    if rank and running.engine == "simulated":
        time.sleep(3)  # a mistake that all processes share is reported by the first, which then ends the others
    where = f"rank {rank}: " if rank else ""
    print_error(f"Error: {where}{' '.join(message.split())}")
    if running.engine != "simulated":
        networks.terminate(running.engine, code)
    raise SystemExit(code)


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
        message = error.format_message()
        if not message:  # the help was printed instead
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "dnasa"
        fail(2, f"{message}{'' if message.endswith(('.', '?')) else '.'} Try '{where} --help'.")
    except BrokenPipeError:  # as in `dnasa runs | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception:
        if running.engine == "simulated":
            raise
        traceback.print_exc()
        fail(1, "An unexpected error, see above.")
