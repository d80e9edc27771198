"""Who is here, who is lost and since when: what the events of sites say together."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnasa.files import fits, read_bytes
from dnasa.sites.events import HERE, LOST

LARGEST_LOG = 2**26  # bytes of a site's events


@dataclass
class SiteState:
    """What is known of a site."""

    state: str = "not seen yet"
    since: str = ""
    step: int | None = None
    bytes: int | None = None
    members: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def become(self, state: str, time: str) -> None:
        if state != self.state:
            self.state, self.since = state, time


class Overview:
    """The state of every site that events have named, and how often each event happened."""

    def __init__(self) -> None:
        self.sites: dict[str, SiteState] = {}
        self.counts: Counter[str] = Counter()

    def site(self, name: str) -> SiteState:
        return self.sites.setdefault(name, SiteState())

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event into account; what has another form than those of dnasa is ignored."""
        if not fits(event, {"time": str, "event": str, "site": str}):
            return
        for name in event["sites"] if fits(event.get("sites"), [str]) else ():
            self.site(name)
        kind, time, own = event["event"], event["time"], self.site(event["site"])
        self.counts[kind] += 1
        own.become(str(event.get("state")) if kind == "ended" else "here", time)
        for name in ("step", "bytes", "members"):
            if type(event.get(name)) is int:
                setattr(own, name, event[name])
        if fits(event.get("metrics"), {}):
            own.metrics = {str(k): v for k, v in event["metrics"].items() if type(v) in (int, float)}
        if kind in HERE + LOST and isinstance(event.get("peer"), str):
            self.site(event["peer"]).become("here" if kind in HERE else "lost", time)


def read_overview(path: Path) -> Overview:
    """The overview of a run folder: of all the events in it, by their time."""
    events: list[Any] = []
    for file in sorted(path.glob("events-*.jsonl")):
        lines = read_bytes(file, largest=LARGEST_LOG).decode(errors="replace").splitlines()
        events += filter(None, map(_parsed, lines))
    overview = Overview()
    for event in sorted(events, key=lambda event: str(event.get("time"))):
        overview.add(event)
    return overview


def _parsed(line: str) -> dict[str, Any] | None:
    """The event of a line; None if it is not one, such as the last line of a site that lost its power."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
