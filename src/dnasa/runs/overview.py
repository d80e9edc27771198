"""Who is here, who is lost and since when: what the events of sites say together."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnasa.files import fits, read_bytes

LARGEST_LOG = 2**26  # bytes of a site's events


@dataclass
class SiteState:
    """What is known of a site.

    Attributes:
        state: "not seen yet", "waiting" before the run, "member", "lost", or how its run ended.
        since: The time since when.
        connection: "connected" or "disconnected", as the others saw it last.
    """

    state: str = "not seen yet"
    since: str = ""
    connection: str = ""
    step: int | None = None
    bytes: int | None = None
    members: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state not in ("not seen yet", "waiting", "member", "lost")

    def become(self, state: str, time: str) -> None:
        if state != self.state:
            self.state, self.since = state, time


class Overview:
    """The state of every site that events have named, and how often each event happened."""

    def __init__(self) -> None:
        self.sites: dict[str, SiteState] = {}
        self.counts: Counter[str] = Counter()
        self.last = ""  # the time of the last event

    def site(self, name: str) -> SiteState:
        return self.sites.setdefault(name, SiteState())

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event into account; what has another form than those of dnasa is ignored."""
        if not fits(event, {"time": str, "event": str, "site": str}):
            return
        kind, time = event["event"], event["time"]
        self.last = time
        self.counts[kind] += 1
        if kind == "started" and fits(event.get("sites"), [str]):
            for name in event["sites"]:  # in their order
                self.site(name).become("member", time)
        own = self.site(event["site"])
        if kind in ("started", "evaluated"):
            own.become("member", time)
        elif kind == "ended":
            own.become(str(event.get("state")), time)
        elif own.state == "not seen yet":
            own.become("waiting", time)
        for name in ("step", "bytes", "members"):
            if type(event.get(name)) is int:
                setattr(own, name, event[name])
        if fits(event.get("metrics"), {}):
            own.metrics = {str(k): v for k, v in event["metrics"].items() if type(v) in (int, float)}
        if isinstance(event.get("peer"), str):
            self._add_peer(kind, self.site(event["peer"]), time)

    def _add_peer(self, kind: str, peer: SiteState, time: str) -> None:
        """A connection that breaks changes no member: it is lost when the others go on without it."""
        if kind in ("connected", "disconnected"):
            peer.connection = kind
        elif kind in ("lost", "joined"):
            peer.become("lost" if kind == "lost" else "member", time)


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
