"""A progress bar on a terminal, silence elsewhere."""

import sys
import time
from contextlib import nullcontext
from typing import Any


class Bar:
    """Steps, steps per second and the current loss on a terminal; redrawn a few times a second."""

    def __init__(self, steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:,.0f} steps/s  loss {task.fields[loss]:.4g}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.progress.add_task("", total=steps, speed=0.0, loss=float("nan"))
        self.begun = self.drawn = time.perf_counter()

    def __enter__(self) -> "Bar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, t: int, loss: float) -> None:
        self.progress.update(self.task, completed=t, loss=loss)

    def advance(self, t: int) -> None:
        now = time.perf_counter()
        if now - self.drawn > 0.1:
            self.drawn = now
            self.progress.update(self.task, completed=t, speed=t / (now - self.begun))


class Quiet:
    """No terminal, no bar."""

    def show(self, t: int, loss: float) -> None: ...

    def advance(self, t: int) -> None: ...


def progress_bar(steps: int, progress: bool | None) -> Any:
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return nullcontext(Quiet())
    return Bar(steps)
