"""Where the time of a run goes."""

import time
from typing import Any

now = time.perf_counter


class Timeline:
    """Seconds spent in gradients, exchanges, rules and evaluations.

    Exchanges in a thread of their own run during other work; the time the run waited for them is `waiting`.
    """

    def __init__(self) -> None:
        self.totals = {"gradient": 0.0, "exchange": 0.0, "rule": 0.0, "evaluation": 0.0}

    def add(self, name: str, began: float) -> float:
        """Add the time since `began` to `name`; returns the time now."""
        ended = now()
        self.totals[name] += ended - began
        return ended

    def exchanged(self, began: float, name: str = "exchange") -> None:
        """Add the time of an exchange, or of a gradient, within a rule's step, and subtract it from the rule's."""
        self.totals["rule"] -= self.add(name, began) - began

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
