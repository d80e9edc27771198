"""A progress bar on a terminal, nothing elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
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

    def show(self, t: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The smallest current loss of the runs that have not diverged."""
        losses = [row.get("train_loss", row.get("test_loss", row["consensus"])) for row in rows]
        finite = [loss for loss in losses if loss == loss]
        self.progress.update(self.task, completed=t, loss=min(finite, default=float("nan")))

    def advance(self, t: int) -> None:
        now = time.perf_counter()
        if now - self.drawn > 0.1:
            self.drawn = now
            self.progress.update(self.task, completed=t, speed=t / (now - self.begun))


class Quiet:
    """Shows nothing."""

    def show(self, t: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def advance(self, t: int) -> None: ...


def progress_bar(steps: int, progress: bool | None) -> Any:
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return nullcontext(Quiet())
    return Bar(steps)
