"""What happens at a site, as events for logs and metrics (`dnasa.runs.events`) and as lines for people."""

import logging
from dataclasses import dataclass
from typing import Any

EVENTS, LINES = logging.getLogger("dnasa.events"), logging.getLogger("dnasa.sites")


@dataclass(frozen=True)
class Events:
    """Writes the events of one site.

    Attributes:
        site: Its name.
    """

    site: str

    def write(self, event: str, **fields: Any) -> None:
        """Write an event: a word, and what JSON can hold. The field `peer` names another site."""
        EVENTS.info(event, extra={"fields": {"site": self.site, **fields}})

    def warn(self, event: str, line: str, level: int = logging.WARNING, **fields: Any) -> None:
        """Write an event and a line, at this level of the logger."""
        LINES.log(level, "%s", line)
        EVENTS.log(min(level, logging.INFO), event, extra={"fields": {"site": self.site, **fields}})
