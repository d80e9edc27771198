"""Metrics for Prometheus, over real HTTP."""

import http.client
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import dnasa
from dnasa import topology
from dnasa.core import InputError
from dnasa.events import LOGGER, Events
from dnasa.runs.exporter import Exporter

PROBLEM = dnasa.problems.Custom(lambda x, node, rng: x - node, start=np.zeros(5))


@contextmanager
def serving(address: str) -> Iterator[Exporter]:
    exporter = Exporter(address)
    try:
        yield exporter
    finally:
        LOGGER.removeHandler(exporter)
        LOGGER.setLevel(logging.INFO)
        exporter.server.shutdown()
        exporter.server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with serving("0") as server:
        yield server


def get(exporter: Exporter) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", exporter.server.server_address[1], timeout=20)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'dnasa_\w+(\{(\w+="[^"\n]*",?)+\})? [-+.\deinfa]+', line) for line in lines), lines
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_are_those_of_the_events(exporter: Exporter) -> None:
    berlin = Events("berlin")
    berlin.write("started", sites=["berlin", "paris", "lyon"])
    berlin.write("connected", peer="paris")
    berlin.write("connected", peer="lyon")
    berlin.write("disconnected", peer="lyon")
    for level in (logging.WARNING, logging.DEBUG, logging.DEBUG):  # the log has the first only
        berlin.warn("refused", "refused 192.0.2.1: revoked", level, address="192.0.2.1", reason="revoked")
    berlin.write("evaluated", step=8, members=2, bytes=1234, metrics={"test_loss": 0.5})
    status, text = get(exporter)
    found = values(text)
    assert status == 200
    assert found['dnasa_connected{peer="paris",site="berlin"}'] == 1
    assert found['dnasa_connected{peer="lyon",site="berlin"}'] == 0
    assert found['dnasa_events_total{event="refused",site="berlin"}'] == 3
    assert found['dnasa_step{site="berlin"}'] == 8
    assert found['dnasa_members{site="berlin"}'] == 2
    assert found['dnasa_sent_bytes{site="berlin"}'] == 1234
    assert found['dnasa_evaluation{metric="test_loss",site="berlin"}'] == 0.5


def test_a_run_counts_its_steps(exporter: Exporter) -> None:
    dnasa.solve(PROBLEM, topology.ring(4), steps=25, evaluate=10, progress=False)
    found = values(get(exporter)[1])
    assert found['dnasa_step{site="all nodes"}'] == 25


def test_a_port_is_on_loopback_unless_a_host_is_given() -> None:
    for address, host in (("0", "127.0.0.1"), ("0.0.0.0:0", "0.0.0.0")):
        with serving(address) as exporter:
            assert exporter.server.server_address[0] == host


@pytest.mark.parametrize("address", ["http", "", "99999", "host:", "-1", "no such host:9400"])
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"--metrics-port"):
        Exporter(address)
