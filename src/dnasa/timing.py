"""Where the time goes: totals for every run, and on request a trace that Chrome and Perfetto can show."""

import json
import time
from pathlib import Path
from typing import Any

from dnasa.core import Array, InputError, Mix

TRACED_STEPS = 300

now = time.perf_counter


class Timeline:
    """Seconds spent in gradients, exchanges, rules and evaluations; with `trace`, also when, for the first steps."""

    def __init__(self, rank: int, trace: bool):
        self.rank, self.trace = rank, trace
        self.totals = {"gradient": 0.0, "exchange": 0.0, "rule": 0.0, "evaluation": 0.0}
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, began: float, t: int) -> float:
        """Book the time since `began` to `name`; returns the present."""
        ended = now()
        self.totals[name] += ended - began
        if self.trace and t < TRACED_STEPS:
            stamps = {"ts": 1e6 * began, "dur": 1e6 * (ended - began)}
            self.events.append({"name": name, "ph": "X", "pid": self.rank, "tid": 0, "args": {"step": t}, **stamps})
        return ended

    def timed(self, mix: Mix, t: int) -> Mix:
        """The exchange with its time booked; what the rule does around it remains the rule's."""

        def exchange(*arrays: Array) -> tuple[Array, ...]:
            began = now()
            mixed = mix(*arrays)
            self.totals["rule"] -= self.add("exchange", began, t) - began
            return mixed

        return exchange

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
