"""What a process among several writes into the run folder: its events, and an audit of what it sent."""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.core import InputError, RunError
from dnasa.events import LOGGER, JsonFormatter
from dnasa.files import make_folder
from dnasa.runs.names import node_name
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    from dnasa.networks.processes import Traffic


class Audit:
    """What was sent since the last report: `traffic` counts it by kind and receiver, `names` are those of the nodes."""

    def __init__(self, traffic: Any, names: Sequence[str] = ()):
        self.traffic, self.names = traffic, names
        self.reported: dict[Any, tuple[int, int]] = {}

    def lines(self) -> list[dict[str, Any]]:
        before, self.reported = self.reported, dict(self.traffic.sent if self.traffic else {})
        out = []
        for sending, (messages, size) in self.reported.items():
            earlier, earlier_size = before.get(sending, (0, 0))
            to = "all others" if sending.peer is None else node_name(self.names, sending.peer)
            arrays = [{"shape": list(shape), "dtype": dtype} for shape, dtype in sending.arrays]
            counts = {"messages": messages - earlier, "bytes": size - earlier_size}
            if messages > earlier:
                out.append({"kind": sending.kind, "to": to, **counts, "arrays": arrays})
                out[-1] |= {"text": sending.text} if sending.text else {}
        return out


class Journal(logging.Handler):
    """Writes `events-SITE.jsonl` and `audit-SITE.jsonl`. Each process has files of its own, since several may share a folder.

    The audit has a line before the first message of each kind leaves, and one at each evaluation, so that a run that fails or
    is killed has one too.
    """

    def __init__(self, path: Path, site: str, traffic: "Traffic", names: Sequence[str]):
        super().__init__(logging.INFO)
        self.setFormatter(JsonFormatter())
        self.site = site
        self.own = OwnFiles(make_folder(path))
        self.files = {kind: f"{kind}-{site.replace(' ', '-')}.jsonl" for kind in ("events", "audit")}
        self.own.claim(list(self.files.values()))
        self.audit = Audit(traffic, names)
        self.audited = 0  # the steps whose messages are in the audit
        self.waiting: list[str] = []
        LOGGER.addHandler(self)
        traffic.report = lambda: self.write(self.audited)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event and write it, if possible at once: a thread of the network cannot end the run, the next `write` can."""
        if getattr(record, "fields", {}).get("site") == self.site:
            self.waiting.append(self.format(record))
            with suppress(InputError, RunError):
                self._append("events", self.waiting)
                self.waiting.clear()

    def write(self, t: int) -> None:
        """Write the events that wait, and what was sent since the last time, up to step t."""
        self.acquire()
        try:
            self._append("events", self.waiting)
            self.waiting.clear()
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            head = {"time": time, "site": self.site, "steps": [self.audited, t]}
            self._append("audit", [json.dumps(head | line) for line in self.audit.lines()])
            self.audited = t
        finally:
            self.release()

    def detach(self) -> None:
        """Receive no more events."""
        LOGGER.handlers = [each for each in LOGGER.handlers if each is not self]  # threads iterate over the old list

    def _append(self, kind: str, lines: Sequence[str]) -> None:
        if lines:
            self.own.append(self.files[kind], "".join(f"{line}\n" for line in lines).encode())
