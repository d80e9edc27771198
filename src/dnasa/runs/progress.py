"""The progress of a run: a bar on a terminal, elsewhere a line each minute, JSON lines on standard output, or nothing."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dnasa.core import InputError

Progress = bool | Literal["json"] | None
MetricRows = Sequence[Mapping[str, Any]]


class Display:
    """Shows nothing; counts steps and samples per second from the first step of this process, and the seconds left."""

    EVERY = math.inf  # seconds between two updates

    def __init__(self, steps: int, batch: int):
        self.steps, self.batch = steps, batch
        self.first: int | None = None
        self.begun = self.updated = self.steps_per_second = 0.0
        self.samples_per_step, self.loss = 0, math.nan

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, t: int, rows: MetricRows) -> None:
        """Show an evaluation. The samples of a step are those of all nodes and runs; after a loss there are fewer nodes."""
        self.samples_per_step = self.batch * sum(row["nodes"] for row in rows)
        losses = [row.get("train_loss", row.get("test_loss", row["consensus"])) for row in rows]
        self.loss = min((loss for loss in losses if loss == loss), default=math.nan)  # of those that have not diverged

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

    @property
    def samples_per_second(self) -> float:
        return self.steps_per_second * self.samples_per_step

    def remaining(self, t: int) -> float | None:
        return (self.steps - t) / self.steps_per_second if self.steps_per_second else None


class Bar(Display):
    EVERY = 0.1

    def __init__(self, steps: int, batch: int):
        super().__init__(steps, batch)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        fields = "{task.fields[samples]:,.0f} samples/s  loss {task.fields[loss]:.4g}  {task.fields[left]}"
        columns = (TextColumn("[bold]training"), BarColumn(), MofNCompleteColumn(), TextColumn(fields))
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task("", total=steps, samples=0.0, loss=math.nan, left="")

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, t: int, rows: MetricRows) -> None:
        super().show(t, rows)
        self.bar.update(self.task, completed=t, loss=self.loss)

    def update(self, t: int) -> None:
        left = duration(self.remaining(t))
        self.bar.update(self.task, completed=t, samples=self.samples_per_second, left=left)


class Lines(Display):
    """A line per minute on standard error, for output that is redirected to a file."""

    EVERY = 60.0

    def update(self, t: int) -> None:
        speed = f"{self.samples_per_second:,.0f} samples/s" if self.samples_per_second else ""
        loss = f"loss {self.loss:.4g}" if math.isfinite(self.loss) else ""  # none before the first evaluation
        parts = [f"Step {t:,} of {self.steps:,}", speed, loss, duration(self.remaining(t))]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)


class JsonLines(Display):
    """One JSON object per run and evaluation, on a line of standard output; what is not finite is null."""

    def show(self, t: int, rows: MetricRows) -> None:
        super().show(t, rows)
        progress = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "steps": self.steps,
            "samples_per_second": self.samples_per_second,
            "remaining_seconds": self.remaining(t),
        }
        for row in rows:
            line = {
                name: None if value in (math.inf, -math.inf) or value != value else value for name, value in row.items()
            }
            print(json.dumps(line | progress), flush=True)


def make_progress(steps: int, batch: int, progress: Progress) -> Display:
    """A context manager; by default a bar on a terminal, and a line each minute elsewhere."""
    if progress not in (True, False, None, "json"):
        raise InputError(f"progress is True, False, None or 'json', not {progress!r:.40}.")
    default = Bar if sys.stderr.isatty() else Lines
    return {True: Bar, False: Display, None: default, "json": JsonLines}[progress](steps, batch)


def duration(seconds: float | None) -> str:
    """A duration as hours, minutes and seconds."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} left"
