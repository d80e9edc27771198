"""The metrics of a run for Prometheus."""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dnasa.core import InputError
from dnasa.events import LOGGER, as_json
from dnasa.extras import needed_by
from dnasa.runs.overview import Overview

if TYPE_CHECKING:
    from prometheus_client import Metric

LOOPBACK = "127.0.0.1"


class Metrics(logging.Handler):
    """Collects metrics from the events of one site, the first to write one."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.overview = Overview()
        self.site = ""
        self.first: tuple[float, int] | None = None  # time and number of the first step of this process
        self.last = (0.0, 0)

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.site = self.site or fields.get("site", "")
        if record.levelno > logging.DEBUG:
            self.overview.add(as_json(record))
        elif record.msg == "refused":  # the log has the first, the tenth, ...
            self.overview.counts["refused"] += 1
        elif fields.get("site") == self.site and "step" in fields:
            self.last = time.monotonic(), fields["step"]
            self.first = self.first or self.last
            state = self.overview.site(self.site)
            state.step, state.bytes = fields["step"], fields["bytes"]

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self.overview.site(self.site) if self.site else None
        peers = [other.state for name, other in self.overview.sites.items() if name != self.site]
        sent = state.bytes if state else None
        tables: list[tuple[Any, str, str, str, Any]] = [
            (GaugeMetricFamily, "dnasa_step", "Steps done.", "", {"": state and state.step}),
            (GaugeMetricFamily, "dnasa_seconds_per_step", "Mean time of a step.", "", {"": self._seconds_per_step()}),
            (GaugeMetricFamily, "dnasa_members", "Sites that take part.", "", {"": state and state.members}),
            (CounterMetricFamily, "dnasa_sent_bytes", "Bytes that this site sent in exchanges.", "", {"": sent}),
            (GaugeMetricFamily, "dnasa_peers", "Other sites by state.", "state", {s: peers.count(s) for s in peers}),
            (GaugeMetricFamily, "dnasa_evaluation", "Last evaluation.", "metric", state.metrics if state else {}),
            (CounterMetricFamily, "dnasa_events", "Events by kind, as lost, refused.", "event", self.overview.counts),
        ]
        for kind, name, help, label, values in tables:
            family = kind(name, help, labels=["site", *([label] if label else [])])
            for key, value in values.items():
                if value is not None:
                    family.add_metric([self.site, *([key] if label else [])], value)
            yield family

    def _seconds_per_step(self) -> float | None:
        if self.first is None or self.last[1] == self.first[1]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


class Exporter:
    """Serves the metrics of this process until it ends; leaving a `with` block ends it too.

    Args:
        address: A port, on 127.0.0.1, or HOST:PORT.
    """

    def __init__(self, address: str):
        with needed_by("--metrics-port"):
            from prometheus_client import CollectorRegistry, start_http_server

        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise InputError(f"--metrics-port takes a port or HOST:PORT, such as 9400; not '{address}'.")
        self.metrics, registry = Metrics(), CollectorRegistry()
        registry.register(self.metrics)
        try:
            self.server, _ = start_http_server(int(port), host.strip("[]") or LOOPBACK, registry)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"Cannot serve metrics at {address}: {reason}. Choose another --metrics-port.") from error
        LOGGER.addHandler(self.metrics)
        LOGGER.setLevel(logging.DEBUG)

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *error: object) -> None:
        LOGGER.removeHandler(self.metrics)
        LOGGER.setLevel(logging.INFO)
        self.server.shutdown()
        self.server.server_close()
