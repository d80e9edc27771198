"""What happens at a site: networks and runs write events; the run folder and metrics are made of them.

The events go through the logger "dnasa.sites", so that whoever wants them adds a handler, and nobody needs to be told where.
"""

import json
import logging
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("dnasa.sites")
LOGGER.setLevel(logging.INFO)
MOST_KEPT = 500  # events from before there was a run folder


@dataclass(frozen=True)
class Events:
    """Writes the events of one site.

    Attributes:
        site: Its name.
    """

    site: str

    def write(self, event: str, **fields: Any) -> None:
        """Write an event.

        `connected`, `joined`, `disconnected`, `lost`, `barred` and `accused` have the field `peer`, `relaying` has `peers`,
        and `refused` has `address`, `reason` and `count`, of the refusals of this address.

        Args:
            event: What happened, in a word.
            **fields: The details, which JSON can hold.
        """
        LOGGER.info(event, extra={"fields": {"site": self.site, **fields}})

    def warn(self, event: str, line: str, level: int = logging.WARNING, **fields: Any) -> None:
        """Write an event that is also a line for people.

        Args:
            event: What happened, in a word.
            line: The line.
            level: That of the logger.
            **fields: The details, which JSON can hold.
        """
        LOGGER.log(level, "%s", line, extra={"event": event, "fields": {"site": self.site, **fields}})

    def step(self, t: int, sent: Any) -> None:
        """Say that t steps are done, to those who asked for every step.

        Args:
            t: The number of steps.
            sent: The traffic of this process, or None.
        """
        if LOGGER.isEnabledFor(logging.DEBUG):
            fields = {"site": self.site, "step": t, "bytes": sent and sent.bytes}
            LOGGER.debug("step", extra={"fields": fields})


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    """An event with its time, in UTC."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": time, "event": getattr(record, "event", record.msg), **getattr(record, "fields", {})}


def is_from(record: logging.LogRecord, site: str) -> bool:
    """Whether this is an event of that site."""
    return getattr(record, "fields", {}).get("site") == site


class JsonFormatter(logging.Formatter):
    """One line of JSON for each event."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(as_json(record), default=str)


class Kept(logging.Handler):
    """The latest events of this process, for a run folder that begins after some of them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: deque[logging.LogRecord] = deque(maxlen=MOST_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event; print a warning where logging would, had the logger no handler."""
        self.records.append(record)
        if record.levelno >= logging.WARNING and not logging.getLogger().handlers and logging.lastResort:
            logging.lastResort.handle(record)

    def take(self, site: str) -> list[logging.LogRecord]:
        """Remove the events of a site, and return them."""
        self.acquire()
        try:
            taken = [record for record in self.records if is_from(record, site)]
            self.records = deque((record for record in self.records if not is_from(record, site)), MOST_KEPT)
        finally:
            self.release()
        return taken


KEPT = Kept()
LOGGER.addHandler(KEPT)
