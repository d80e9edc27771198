"""What happens in a run between sites: networks and runs write events; the run folder and the metrics are made of them.

The events go through the logger "dnasa.events", so that whoever wants them adds a handler, and nobody needs to be told where.
"""

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LOGGER, LINES = logging.getLogger("dnasa.events"), logging.getLogger("dnasa.sites")
LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Events:
    """Writes the events of the site of that name."""

    site: str

    def write(self, event: str, **fields: Any) -> None:
        """Write an event: a word, and details that JSON can hold. The field `peer` names another site."""
        LOGGER.info(event, extra={"fields": {"site": self.site, **fields}})

    def warn(self, event: str, line: str, level: int = logging.WARNING, **fields: Any) -> None:
        """Write an event, and a line for people at this level of the logger."""
        LINES.log(level, "%s", line)
        LOGGER.log(min(level, logging.INFO), event, extra={"fields": {"site": self.site, **fields}})

    def step(self, t: int, sent: Any) -> None:
        """Say that t steps are done, with the traffic of this process, to those who asked for every step."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            LOGGER.debug("step", extra={"fields": {"site": self.site, "step": t, "bytes": sent and sent.bytes}})


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    """An event with its time, in UTC."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": time, "event": record.msg, **getattr(record, "fields", {})}


class JsonFormatter(logging.Formatter):
    """One line of JSON for each event."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(as_json(record), default=str)
