"""The metrics of a run for Prometheus."""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dnasa.core import InputError
from dnasa.extras import needed_by
from dnasa.runs.events import LOGGER, as_json
from dnasa.runs.overview import Overview

if TYPE_CHECKING:
    from prometheus_client import Metric

LOOPBACK = "127.0.0.1"


class Metrics(logging.Handler):
    """Collects metrics from the events of one site, the first to write one."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.overview = Overview()
        self.site: str | None = None
        self.first: tuple[float, int] | None = None  # time and number of the first step of this process
        self.last = (0.0, 0)

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.site = self.site or fields.get("site")
        if record.levelno > logging.DEBUG:
            self.overview.add(as_json(record))
        elif record.msg == "refused":  # the log has the first, the tenth, ...
            self.overview.counts["refused"] += 1
        elif fields.get("site") == self.site and "step" in fields:
            self.last = time.monotonic(), fields["step"]
            self.first = self.first or self.last
            state = self.overview.site(fields["site"])
            state.step, state.bytes = fields["step"], fields["bytes"]

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        site = self.site or ""
        state = self.overview.site(site) if site else None
        values = {
            "dnasa_step": ("Steps done.", state.step if state else None),
            "dnasa_seconds_per_step": ("Mean time of the steps of this process.", self._seconds_per_step()),
            "dnasa_members": ("Sites that take part.", state.members if state else None),
        }
        for name, (text, value) in values.items():
            gauge = GaugeMetricFamily(name, text, labels=["site"])
            if value is not None:
                gauge.add_metric([site], value)
            yield gauge
        sent = CounterMetricFamily("dnasa_sent_bytes", "Bytes that this site sent in exchanges.", labels=["site"])
        if state and state.bytes is not None:
            sent.add_metric([site], state.bytes)
        peers = GaugeMetricFamily("dnasa_peers", "Other sites by state.", labels=["site", "state"])
        others = [other.state for name, other in self.overview.sites.items() if name != site]
        for kind in sorted(set(others)):
            peers.add_metric([site, kind], others.count(kind))
        evaluation = GaugeMetricFamily("dnasa_evaluation", "Metrics of the last evaluation.", labels=["site", "metric"])
        for name, value in (state.metrics if state else {}).items():
            evaluation.add_metric([site, name], value)
        events = CounterMetricFamily(
            "dnasa_events", "Events by kind, such as lost and refused.", labels=["site", "event"]
        )
        for kind, count in self.overview.counts.items():
            events.add_metric([site, kind], count)
        yield from (sent, peers, evaluation, events)

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
