"""The progress of a run: a bar on a terminal, elsewhere a line each minute, JSON lines on standard output, or nothing."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from dnasa.core import InputError

Progress = bool | Literal["json"] | None
MetricRows = Sequence[Mapping[str, Any]]


class Display:
    """Shows nothing; measures the speed from the first step of this process."""

    EVERY = math.inf  # seconds between two updates

    def __init__(self, steps: int, batch: int):
        self.steps, self.batch = steps, batch
        self.first: int | None = None
        self.begun = self.updated = self.steps_per_second = 0.0
        self.loss = ""  # in words; none before the first evaluation, and where none is measured

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, t: int, rows: MetricRows) -> None:
        """Show an evaluation; the loss is the smallest of the runs that have not diverged."""
        losses = [row.get("train_loss", row.get("test_loss", row["consensus"])) for row in rows]
        known = [loss for loss in losses if loss == loss]
        self.loss = f"loss {min(known):.4g}" if known else ""

    def advance(self, t: int) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first, self.begun, self.updated = t, now, now
        elif now > self.begun:
            self.steps_per_second = (t - self.first) / (now - self.begun)
        if now - self.updated >= self.EVERY:
            self.updated = now
            self.update(t)

    def update(self, t: int) -> None: ...

    def remaining(self, t: int) -> float | None:
        return (self.steps - t) / self.steps_per_second if self.steps_per_second else None


class Bar(Display):
    EVERY = 0.1

    def __init__(self, steps: int, batch: int):
        super().__init__(steps, batch)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        loss = TextColumn("{task.fields[loss]}")
        self.bar = Progress(BarColumn(), MofNCompleteColumn(), loss, TimeRemainingColumn(), console=Console(stderr=True))
        self.task = self.bar.add_task("", total=steps, loss="")

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, t: int, rows: MetricRows) -> None:
        super().show(t, rows)
        self.update(t)

    def update(self, t: int) -> None:
        self.bar.update(self.task, completed=t, loss=self.loss)


class Lines(Display):
    """A line each minute on standard error, for output that is redirected to a file."""

    EVERY = 60.0

    def update(self, t: int) -> None:
        left = timedelta(seconds=round(self.remaining(t) or 0))
        words = [f"Step {t:,} of {self.steps:,}", self.loss, f"{left} left"]
        print(", ".join(filter(None, words)), file=sys.stderr, flush=True)


class JsonLines(Display):
    """One JSON object per run and evaluation, on a line of standard output; what is not finite is null."""

    def show(self, t: int, rows: MetricRows) -> None:
        samples = self.batch * sum(row["nodes"] for row in rows)  # of a step, all nodes and runs
        speed = {"samples_per_second": self.steps_per_second * samples, "remaining_seconds": self.remaining(t)}
        for row in rows:
            finite = {
                name: value if not isinstance(value, float) or math.isfinite(value) else None for name, value in row.items()
            }
            line = finite | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "steps": self.steps} | speed
            print(json.dumps(line), flush=True)


def make_progress(steps: int, batch: int, progress: Progress) -> Display:
    if progress not in (True, False, None, "json"):
        raise InputError(f"progress is True, False, None or 'json', not {progress!r:.40}.")
    default = Bar if sys.stderr.isatty() else Lines
    return {True: Bar, False: Display, None: default, "json": JsonLines}[progress](steps, batch)
