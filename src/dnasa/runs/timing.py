"""Where the time goes: totals for every run, and on request a trace that Chrome and Perfetto can show."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnasa.core import InputError
from dnasa.files import write_output
from dnasa.runs.own_files import OwnFiles

TRACED_STEPS = 300

now = time.perf_counter


class Timeline:
    """Seconds spent in gradients, exchanges, rules and evaluations; with `trace`, also when, for the first steps.

    Exchanges in a thread of their own (`thread=1`) run during other work; the time the run waited for them is `waiting`.
    """

    def __init__(self, rank: int = 0, trace: bool = False):
        self.rank, self.trace = rank, trace
        self.totals = {"gradient": 0.0, "exchange": 0.0, "rule": 0.0, "evaluation": 0.0}
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, began: float, t: int, thread: int = 0) -> float:
        """Add the time since `began` to `name`; returns the time now."""
        ended = now()
        self.totals[name] += ended - began
        if self.trace and t < TRACED_STEPS:
            stamps = {"ts": 1e6 * began, "dur": 1e6 * (ended - began)}
            self.events.append(
                {"name": name, "ph": "X", "pid": self.rank, "tid": thread, "args": {"step": t}, **stamps}
            )
        return ended

    def exchanged(self, began: float, t: int, name: str = "exchange") -> None:
        """Add the time of an exchange, or of a gradient, within a rule's step, and subtract it from the rule's."""
        self.totals["rule"] -= self.add(name, began, t) - began

    def waited(self, began: float, part_of: str) -> None:
        """Add the time that a rule's step or an evaluation waited for the other thread."""
        seconds = now() - began
        self.totals[part_of] -= seconds
        self.totals["waiting"] = self.totals.get("waiting", 0.0) + seconds

    def summary(self, steps: int, traffic: Any) -> dict[str, float]:
        """Seconds by kind and, between real processes, messages and bytes per step of this process."""
        out = {f"{name}_seconds": round(seconds, 6) for name, seconds in self.totals.items()}
        if traffic is not None and steps:
            out |= {"messages_per_step": traffic.messages / steps, "bytes_per_step": traffic.bytes / steps}
        return out


def checked_events(given: Any) -> list[dict[str, Any]]:
    """The events of another process; raises an error if they are none."""
    return [{**event, "ts": float(event["ts"]), "pid": int(event["pid"])} for event in given]


def write_trace(path: Path, parts: list[list[dict[str, Any]]], own: OwnFiles | None, sites: Sequence[str] = ()) -> None:
    """One file for all processes, each a row of its own; in the folder of the run it is one of its files."""
    events = [event for part in parts for event in part]
    first = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] -= first
    ranks = {rank: sites[rank] if sites else f"rank {rank}" for rank in sorted({event["pid"] for event in events})}
    names = [{"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}} for rank, name in ranks.items()]
    try:
        data = json.dumps({"traceEvents": names + events}).encode()
        if own is not None and path.parent.resolve() == own.path.resolve():
            own.write(path.name, data)
        else:
            write_output(path, data)
    except OSError as error:
        raise InputError(f"Cannot write the trace to {path}: {error.strerror}. Choose another file.") from error
