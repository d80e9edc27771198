"""What happens in a run: runs and sites write events; logs, metrics and the overview are made of them.

The events go through the logger "dnasa.events", so that whoever wants them adds a handler, and nobody needs to be told where.
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dnasa.core import InputError

LOGGER = logging.getLogger("dnasa.events")
LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Events:
    """Writes the events of one process.

    Attributes:
        site: The name of its site.
    """

    site: str

    def write(self, event: str, **fields: Any) -> None:
        """Write an event: a word, and details that JSON can hold."""
        LOGGER.info(event, extra={"fields": {"site": self.site, **fields}})

    def step(self, t: int, sent: Any) -> None:
        """Say that t steps are done, with the traffic of this process, to those who asked for every step."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            fields = {"site": self.site, "step": t, "bytes": sent and sent.bytes}
            LOGGER.debug("step", extra={"fields": fields})


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    """An event with its time, in UTC."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": time, "event": record.msg, **getattr(record, "fields", {})}


class JsonFormatter(logging.Formatter):
    """One line of JSON for each event."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(as_json(record), default=str)


def json_lines(target: str) -> logging.Handler:
    """A handler that appends events to a file, or writes them to standard error if it is called "-"."""
    handler: logging.Handler
    if target == "-":
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            handler = logging.FileHandler(Path(target), encoding="utf-8")
        except OSError as error:
            raise InputError(f"Cannot write the log {target}: {error.strerror}. Choose another file, or -.") from error
    handler.setLevel(logging.INFO)
    handler.setFormatter(JsonFormatter())
    return handler
