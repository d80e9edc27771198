"""The progress of a run: a bar on a terminal, elsewhere a line each minute, JSON lines on standard output, or nothing."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any, Literal

from dnasa.core import InputError

Progress = bool | Literal["json"] | None
Rows = Sequence[Mapping[str, Any]]
LINE_EVERY = 60.0  # seconds


class Speed:
    """Steps and samples per second, counted from the first step of this process, and the seconds that are left."""

    def __init__(self, steps: int, batch: int):
        self.steps, self.batch = steps, batch
        self.first: int | None = None
        self.begun = 0.0
        self.samples_per_step = 0
        self.steps_per_second = 0.0

    def advance(self, t: int) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first, self.begun = t, now
        elif now > self.begun:
            self.steps_per_second = (t - self.first) / (now - self.begun)

    def evaluated(self, rows: Rows) -> None:
        """The samples of a step, of all nodes and runs together; after a loss there are fewer nodes."""
        self.samples_per_step = self.batch * sum(row["nodes"] for row in rows)

    @property
    def samples_per_second(self) -> float:
        return self.steps_per_second * self.samples_per_step

    def remaining(self, t: int) -> float | None:
        return (self.steps - t) / self.steps_per_second if self.steps_per_second else None


class Bar:
    """Steps, samples per second, the current loss and the remaining time; redrawn a few times a second."""

    def __init__(self, speed: Speed):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[samples]:,.0f} samples/s  loss {task.fields[loss]:.4g}  {task.fields[left]}"),
            console=Console(stderr=True),
        )
        self.speed, self.drawn = speed, time.perf_counter()
        self.task = self.progress.add_task("", total=speed.steps, samples=0.0, loss=float("nan"), left="")

    def __enter__(self) -> "Bar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, t: int, rows: Rows) -> None:
        self.speed.evaluated(rows)
        self.progress.update(self.task, completed=t, loss=smallest_loss(rows))

    def advance(self, t: int) -> None:
        self.speed.advance(t)
        now = time.perf_counter()
        if now - self.drawn > 0.1:
            self.drawn = now
            left = duration(self.speed.remaining(t))
            self.progress.update(self.task, completed=t, samples=self.speed.samples_per_second, left=left)


class Lines:
    """A line on standard error each minute, for output that is redirected to a file."""

    def __init__(self, speed: Speed):
        self.speed, self.printed, self.loss = speed, time.perf_counter(), float("nan")

    def show(self, t: int, rows: Rows) -> None:
        self.speed.evaluated(rows)
        self.loss = smallest_loss(rows)

    def advance(self, t: int) -> None:
        self.speed.advance(t)
        now = time.perf_counter()
        if now - self.printed < LINE_EVERY:
            return
        self.printed = now
        speed = f"{self.speed.samples_per_second:,.0f} samples/s"
        left = duration(self.speed.remaining(t))
        parts = [f"Step {t:,} of {self.speed.steps:,}", speed, f"loss {self.loss:.4g}", left]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)


class JsonLines:
    """One JSON object per run and evaluation, on a line of standard output; what is not finite is null."""

    def __init__(self, speed: Speed):
        self.speed = speed

    def show(self, t: int, rows: Rows) -> None:
        self.speed.evaluated(rows)
        progress = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "steps": self.speed.steps,
            "samples_per_second": self.speed.samples_per_second,
            "remaining_seconds": self.speed.remaining(t),
        }
        for row in rows:
            print(json.dumps({name: _finite(value) for name, value in (row | progress).items()}), flush=True)  # type: ignore[operator]

    def advance(self, t: int) -> None:
        self.speed.advance(t)


class Quiet:
    """Shows nothing."""

    def show(self, t: int, rows: Rows) -> None: ...

    def advance(self, t: int) -> None: ...


def make_progress(steps: int, batch: int, progress: Progress) -> Any:
    """A context manager; by default a bar on a terminal, and a line each minute elsewhere."""
    if progress == "json":
        return nullcontext(JsonLines(Speed(steps, batch)))
    if progress not in (True, False, None):
        raise InputError(f"progress is True, False, None or 'json', not {progress!r:.40}.")
    if progress is False:
        return nullcontext(Quiet())
    if progress is None and not sys.stderr.isatty():
        return nullcontext(Lines(Speed(steps, batch)))
    return Bar(Speed(steps, batch))


def smallest_loss(rows: Rows) -> float:
    """Of the runs that have not diverged."""
    losses = [row.get("train_loss", row.get("test_loss", row["consensus"])) for row in rows]
    return min((loss for loss in losses if loss == loss), default=float("nan"))


def duration(seconds: float | None) -> str:
    """As hours, minutes and seconds."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} left"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
