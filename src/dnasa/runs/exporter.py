"""The metrics of a run for Prometheus."""

import logging

from dnasa.core import InputError
from dnasa.events import LOGGER, as_json
from dnasa.extras import needed_by


class Exporter(logging.Handler):
    """Serves metrics, made of the events of this process, until it ends."""

    def __init__(self, address: str):
        with needed_by("--metrics-port"):
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        super().__init__(logging.DEBUG)
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise InputError(f"--metrics-port takes a port or HOST:PORT, such as 9400; not '{address}'.")
        registry = CollectorRegistry()
        self.numbers = {
            "step": Gauge("dnasa_step", "Steps done.", ["site"], registry=registry),
            "members": Gauge("dnasa_members", "Sites that take part.", ["site"], registry=registry),
            "bytes": Gauge("dnasa_sent_bytes", "Bytes that this site sent in exchanges.", ["site"], registry=registry),
        }
        self.connected = Gauge("dnasa_connected", "1 for a connected site.", ["site", "peer"], registry=registry)
        self.evaluation = Gauge("dnasa_evaluation", "Last evaluation.", ["site", "metric"], registry=registry)
        self.events = Counter("dnasa_events", "Events, such as lost, refused.", ["site", "event"], registry=registry)
        try:
            self.server, _ = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
        except OSError as error:
            raise InputError(f"Cannot serve metrics at {address}: {error}. Choose another --metrics-port.") from error
        LOGGER.addHandler(self)
        LOGGER.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        event = as_json(record)
        site, kind = event["site"], event["event"]
        for name, gauge in self.numbers.items():
            if event.get(name) is not None:
                gauge.labels(site).set(event[name])
        for name, value in event.get("metrics", {}).items():
            self.evaluation.labels(site, name).set(value)
        if kind in ("connected", "disconnected"):
            self.connected.labels(site, event["peer"]).set(kind == "connected")
        if kind != "step":
            self.events.labels(site, kind).inc()
