"""What happens at a site: networks and runs write events; the run folder and metrics are made of them.

The events go through the logger "dnasa.sites", so that whoever wants them adds a handler, and nobody needs to be told where.
"""

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("dnasa.sites")
LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Events:
    """Writes the events of one site.

    Attributes:
        site: Its name.
    """

    site: str

    def write(self, event: str, **fields: Any) -> None:
        """Write an event.

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


class JsonFormatter(logging.Formatter):
    """One line of JSON for each event."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(as_json(record), default=str)


class Warnings(logging.Handler):
    """Prints warnings where logging would, had the logger no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logging.lastResort:
            logging.lastResort.handle(record)


LOGGER.addHandler(Warnings(logging.WARNING))
