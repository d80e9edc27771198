"""Where the time goes: totals for every run, and on request a trace that Chrome and Perfetto can show."""

import json
import time
from pathlib import Path
from typing import Any

from dnasa.core import Array, InputError, Mix

TRACED_STEPS = 300

now = time.perf_counter


class Timeline:
    """Seconds spent in gradients, exchanges, rules and evaluations; with `trace`, also when, for the first steps.

    Exchanges in a thread of their own (`thread=1`) pass while other things happen; what the run waited for them is `waiting`.
    """

    def __init__(self, rank: int = 0, trace: bool = False):
        self.rank, self.trace = rank, trace
        self.totals = {"gradient": 0.0, "exchange": 0.0, "rule": 0.0, "evaluation": 0.0}
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, began: float, t: int, thread: int = 0) -> float:
        """Book the time since `began` to `name`; returns the present."""
        ended = now()
        self.totals[name] += ended - began
        if self.trace and t < TRACED_STEPS:
            stamps = {"ts": 1e6 * began, "dur": 1e6 * (ended - began)}
            self.events.append(
                {"name": name, "ph": "X", "pid": self.rank, "tid": thread, "args": {"step": t}, **stamps}
            )
        return ended

    def timed(self, mix: Mix, t: int, thread: int = 0) -> Mix:
        """The exchange with its time booked; what the rule does around it remains the rule's."""

        def exchange(*arrays: Array) -> tuple[Array, ...]:
            began = now()
            mixed = mix(*arrays)
            ended = self.add("exchange", began, t, thread)
            if not thread:
                self.totals["rule"] -= ended - began
            return mixed

        return exchange

    def waited(self, began: float, of: str) -> None:
        """Part of a rule's step, or of an evaluation, was waiting for the other thread."""
        seconds = now() - began
        self.totals[of] -= seconds
        self.totals["waiting"] = self.totals.get("waiting", 0.0) + seconds

    def summary(self, steps: int, traffic: Any) -> dict[str, float]:
        """Seconds by kind and, between real processes, messages and bytes per step of this process."""
        out = {f"{name}_seconds": round(seconds, 6) for name, seconds in self.totals.items()}
        if traffic is not None and steps:
            out |= {"messages_per_step": traffic.messages / steps, "bytes_per_step": traffic.bytes / steps}
        return out


def write_trace(path: str | Path, parts: list[str]) -> None:
    """One file for all processes, each a row of its own."""
    events = [event for part in parts for event in json.loads(part)]
    first = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] -= first
    ranks = sorted({event["pid"] for event in events})
    names = [{"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}} for rank in ranks]
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"traceEvents": names + events}))
    except OSError as error:
        raise InputError(f"Cannot write the trace to {path}: {error.strerror}. Choose another file.") from error
