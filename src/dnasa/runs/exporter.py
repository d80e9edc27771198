"""The metrics of a run for Prometheus, served at /metrics."""

import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dnasa.core import InputError
from dnasa.runs.overview import Overview
from dnasa.sites.events import LOGGER, as_json

LOOPBACK = "127.0.0.1"
MOST_CLIENTS = 4  # at a time; further ones are refused
HELP = {
    "dnasa_step": "gauge Steps done.",
    "dnasa_seconds_per_step": "gauge Mean time of the steps of this process.",
    "dnasa_sent_bytes_total": "counter Bytes that this site sent in exchanges.",
    "dnasa_members": "gauge Sites that take part.",
    "dnasa_peers": "gauge Other sites by state.",
    "dnasa_evaluation": "gauge Metrics of the last evaluation, of the last run if there are several.",
    "dnasa_events_total": "counter Events by kind, such as lost and refused.",
}


class Metrics(logging.Handler):
    """Makes metrics of the events of one site, the first to write one."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.overview = Overview()
        self.own: str | None = None
        self.first: tuple[float, int] | None = None  # time and number of the first step of this process
        self.last = (0.0, 0)

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.own = self.own or fields.get("site")
        if record.levelno > logging.DEBUG:
            self.overview.add(as_json(record))
        elif getattr(record, "event", None) == "refused":  # the log has the first, the tenth, ...
            self.overview.counts["refused"] += 1
        elif fields.get("site") == self.own and "step" in fields:
            self.last = time.monotonic(), fields["step"]
            self.first = self.first or self.last
            own = self.overview.site(fields["site"])
            own.step, own.bytes = fields["step"], fields["bytes"]

    def render(self) -> str:
        """All metrics in Prometheus's text format."""
        self.acquire()
        try:
            rows = self._rows()
        finally:
            self.release()
        lines: list[str] = []
        for name, text in HELP.items():
            kind, _, help = text.partition(" ")
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value}" for which, labels, value in rows if which == name]
        return "\n".join(lines) + "\n"

    def _rows(self) -> list[tuple[str, dict[str, str], float]]:
        events = [("dnasa_events_total", {"event": kind}, count) for kind, count in self.overview.counts.items()]
        if self.own is None:
            return [*events]
        own, site = self.overview.site(self.own), {"site": self.own}
        known = {"dnasa_step": own.step, "dnasa_sent_bytes_total": own.bytes, "dnasa_members": own.members}
        known["dnasa_seconds_per_step"] = self._seconds_per_step()  # type: ignore[assignment]
        others = [state.state for name, state in self.overview.sites.items() if name != self.own]
        return [
            *((name, site, value) for name, value in known.items() if value is not None),
            *(("dnasa_peers", site | {"state": state}, others.count(state)) for state in sorted(set(others))),
            *(("dnasa_evaluation", site | {"metric": name}, value) for name, value in own.metrics.items()),
            *((name, site | labels, value) for name, labels, value in events),
        ]

    def _seconds_per_step(self) -> float | None:
        if self.first is None or self.last[1] == self.first[1]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


def _labels(labels: dict[str, str]) -> str:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    inside = ",".join(f'{name}="{value.translate(escaped)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


class Exporter(ThreadingHTTPServer):
    """Serves the metrics of this process until it ends; leaving a `with` block ends it too.

    Args:
        address: A port, on 127.0.0.1, or HOST:PORT.
    """

    daemon_threads = True

    def __init__(self, address: str):
        self.metrics = Metrics()
        self.free = threading.BoundedSemaphore(MOST_CLIENTS)
        try:
            super().__init__(_parse(address), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"Cannot serve metrics at {address}: {reason}. Choose another --metrics-port.") from error
        LOGGER.addHandler(self.metrics)
        LOGGER.setLevel(logging.DEBUG)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        LOGGER.removeHandler(self.metrics)
        LOGGER.setLevel(logging.INFO)
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a client closes its connection."""


class Handler(BaseHTTPRequestHandler):
    server: Exporter
    timeout = 5  # seconds that a connection may be silent

    def do_GET(self) -> None:
        found = self.path == "/metrics"
        body = (self.server.metrics.render() if found else "The metrics are at /metrics.\n").encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--metrics-port takes a port or HOST:PORT, such as 9400; not '{address}'.")
    return host.strip("[]") or LOOPBACK, int(port)
