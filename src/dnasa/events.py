"""What happens in a run between sites: networks and runs write events, and the run folder keeps them.

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
        if LOGGER.hasHandlers():  # a record takes as long as two steps of a small run
            LOGGER.info(event, extra={"fields": {"site": self.site, **fields}})

    def warn(self, event: str, line: str, level: int = logging.WARNING, **fields: Any) -> None:
        """Write an event, and a line for people at this level of the logger."""
        LINES.log(level, "%s", line)
        LOGGER.log(min(level, logging.INFO), event, extra={"fields": {"site": self.site, **fields}})


class JsonFormatter(logging.Formatter):
    """One line of JSON for each event, with its time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, "event": record.msg, **getattr(record, "fields", {})}, default=str)
