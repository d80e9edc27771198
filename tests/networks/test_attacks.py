"""Attacks over real connections: outsiders do not disturb a run, and who gets nonsense from a member names it."""

import asyncio
import json
import logging
import os
import random
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from certificates import Signed, bundle, sign
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from local_sites import NAMES, keys, local_sites
from test_recovery import Process
from thread_network import ThreadTransport, run_threads

import dnasa
from dnasa.communication import Network, Processes
from dnasa.core import ProcessLost, RunError
from dnasa.data.summaries import Summary
from dnasa.engine.plan import _node_data
from dnasa.engine.recovery import Position, positions_of
from dnasa.networks.processes import agree
from dnasa.networks.sites import root_mean_square, wrong
from dnasa.optim.wrapping import Wrapping
from dnasa.rules import RULES
from dnasa.runs.divergence import Divergence
from dnasa.sites import connecting
from dnasa.sites.connecting import LENGTH, PENDING_EACH, Refused, alert_of, dial
from dnasa.sites.file import Sites
from dnasa.sites.inbox import EARLY_LIMIT, NETWORKS, Inbox, Key
from dnasa.sites.keys import make_authority, make_site, revoke
from dnasa.sites.link import ARRIVED, HEADER, MESSAGE, STATE
from dnasa.sites.tls import client_context
from dnasa.tasks.sources import checked_summaries
from dnasa.trained.evaluation import Evaluation, like

SIZE, CYCLE = 5_000, 8
PAUSE = 0.02  # seconds between cycles, so that the run leaves the cores to others
MEGABYTES = 60  # that a run may grow by during an attack


class Site:
    """A site that exchanges in a thread all the while, in cycles that begin with the same numbers."""

    def __init__(self, sites: Sites, timeout: float = 3.0):
        self.process = Process(sites, timeout=timeout)
        self.members = self.process.members
        self.ends: list[float] = []  # the last number of each cycle
        self.nodes: list[int] = []
        self.poison: Callable[[Site], Any] | None = None  # what to do, or send, once
        self.poison_at = 0  # the cycle in which to do it
        self.error: Exception | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self.network = self.process.connect()
            while not self.stopped:
                try:
                    self._cycle()
                except ProcessLost:
                    if not self.stopped:
                        self.network = self.network.processes.membership.survivors()  # type: ignore[misc]
        except Exception as error:
            self.error = error

    def _cycle(self) -> None:
        self.nodes = list(self.network.processes.node_ids)
        x = np.arange(SIZE, dtype=np.float64)[None] % 7 + self.members.node
        for k in range(CYCLE):
            if self.poison is not None and len(self.ends) >= self.poison_at:
                poison, self.poison = self.poison, None
                x = x if (sent := poison(self)) is None else np.full_like(x, sent)
            (x,) = self.network.multiply((x,), k)
        self.ends.append(float(x[0, -1]))
        time.sleep(PAUSE)

    def inject(self, *frames: tuple[bytes, bytes]) -> None:
        """Send these frames to all, as they are."""
        for link in self.members.links.values():
            link.outbox += frames
            link.wake()

    def stop(self) -> None:
        self.stopped = True
        self.process.end()
        self.members.left = "stopped"


class Run:
    """Sites that exchange."""

    def __init__(self, files: list[Sites], **options: Any):
        self.files = files
        self.sites = [Site(sites, **options) for sites in files]
        self.goes_on(*self.sites)

    def goes_on(self, *sites: Site, cycles: int = 2) -> None:
        """All of these end further cycles."""
        before = [len(site.ends) for site in sites]
        within(
            60,
            lambda: all(s.error or len(s.ends) >= b + cycles for s, b in zip(sites, before, strict=True)),
            lambda: [(site.members.name(site.members.node), site.nodes, len(site.ends)) for site in sites],
        )
        assert [site.error for site in sites] == [None] * len(sites)

    def stop(self) -> None:
        for site in self.sites:
            site.stop()
        for site in self.sites:
            site.thread.join(1)

    @property
    def address(self) -> tuple[str, int]:
        return self.files[0].sites[0].host, self.files[0].sites[0].port

    def refused(self) -> dict[str, int]:
        door = self.sites[0].members.mesh.door
        assert door is not None
        return dict(door.refusals)


def memory() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def knock(address: tuple[str, int], context: ssl.SSLContext) -> None:
    """Greet, and wait for an answer; raises an error if there is none."""
    with socket.create_connection(address, timeout=5) as plain, context.wrap_socket(plain) as connection:
        connection.sendall(LENGTH.pack(2) + b"{}")
        if not connection.recv(1):
            raise ConnectionError


def trickle(address: tuple[str, int], data: bytes) -> None:
    """Send a byte at a time; returns when the other side has closed the connection."""
    with socket.create_connection(address) as connection, suppress(ConnectionError):
        connection.settimeout(0.1)
        for number in range(100):
            connection.sendall(data[number : number + 1])
            try:
                connection.recv(1)
            except TimeoutError:
                continue
            return


def answer(connection: socket.socket, seconds: float = 5.0) -> bytes:
    """What the other side says until it closes the connection."""
    connection.settimeout(seconds)
    said = b""
    try:
        while part := connection.recv(1 << 16):
            said += part
    except ConnectionError:
        pass
    return said


def wait_for(caplog: pytest.LogCaptureFixture, pattern: str) -> None:
    """Until a line like this is in the log."""
    within(20, lambda: re.search(pattern, caplog.text), lambda: caplog.text)


def within(seconds: float, condition: Callable[[], object], why: Callable[[], object]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.02)


def message(site: Site, size: int | None = None, repeat: int = 0) -> list[tuple[bytes, bytes]]:
    """The next message of a site, or its last one again, with so many bytes."""
    transport: Any = site.network.at(0).transport  # type: ignore[misc, union-attr]
    number = transport.sent[transport.number, 0] + 1 - repeat
    body = bytes(8 * SIZE if size is None else min(size, 8))
    return [(HEADER.pack(MESSAGE, transport.view.number, transport.number, number, len(body) if size is None else size), body)]


def state(text: bytes) -> list[tuple[bytes, bytes]]:
    return [(HEADER.pack(STATE, 0, 0, 0, len(text)), text)]


def ramp(site: Site) -> float:
    """Numbers that grow by a factor of 100 in each exchange."""
    site.poison = ramp
    site.level = 100 * getattr(site, "level", 1.0)  # type: ignore[attr-defined]
    return float(site.level)  # type: ignore[attr-defined]


ATTACKS: dict[str, tuple[Callable[[Site], Any], str]] = {
    "unknown kind": (lambda site: [(HEADER.pack(9, 0, 0, 0, 0), b"")], "it sent a frame of kind 9"),
    "oversized": (lambda site: message(site, size=1 << 50), "bytes where"),
    "wrong size": (lambda site: message(site, size=8), "it sent "),
    "repeated": (lambda site: message(site, repeat=1), "it sent message "),
    "not sent": (lambda site: [(HEADER.pack(ARRIVED, 0, 0, 10**9, 0), b"")], "it acknowledged messages that were not"),
    "not JSON": (lambda site: state(b"[" * (1 << 20)), "its state cannot be read"),
    "unknown node": (lambda site: state(b'{"vote": [[1, ""], [9, [[7, "x"]]]]}'), "its state cannot be read"),
    "large numbers": (lambda site: 9e11, "it sent numbers of size 9.0e+11"),
    "no numbers": (lambda site: np.nan, "it sent numbers that are not finite"),
    "ramp": (ramp, "is the limit: they are wrong, or the run diverges"),
    "large sum": (lambda site: site.network.mean(np.full((1, 30), 1e30)), "it sent numbers of size"),
    "nonsense": (lambda site: site.network.processes.allgather_text("nothing"), "its text cannot be read"),
    "bad model": (lambda site: site.network.processes.copy(np.full((1, 3), np.nan), 1), "it sent numbers that are not finite"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_member_that_sends_nonsense_is_named_and_its_numbers_are_not_used(tmp_path: Path, name: str) -> None:
    attack, reason = ATTACKS[name]
    run = Run(local_sites(tmp_path, 2), timeout=20.0)
    first, attacker = run.sites

    def poison(site: Site) -> float | None:
        sent = attack(site)
        if isinstance(sent, list) and isinstance(sent[0], tuple):
            site.inject(*sent)
        return sent if isinstance(sent, float) else None

    try:
        both = name in ("large sum", "nonsense", "bad model")  # take part in the same cycle, which must not have begun
        first.poison_at = attacker.poison_at = max(len(first.ends), len(attacker.ends)) + (20 if both else 1)
        if name == "large sum":
            first.poison = lambda site: site.network.mean(np.ones((1, 30))) and None
        if name == "bad model":
            first.poison = lambda site: site.network.processes.copy(np.ones((1, 3)), 1) and None
        if name == "nonsense":
            first.poison = lambda site: site.network.processes.allgather_json(1, int) and None
        attacker.poison = poison
        within(60, lambda: first.error, lambda: first.ends)
        assert isinstance(first.error, RunError)
        assert re.match(f"paris is at fault: .*{re.escape(reason)}", str(first.error)), first.error
        assert np.abs(first.ends).max() <= (1e10 if name == "ramp" else 10)  # the numbers are from 0 to 8
    finally:
        run.stop()


@pytest.mark.parametrize("text", ["{", "[" * 20_000, "null", "3", '["a"]', "[[1, 2, 3]]", "\x00"])
def test_a_text_that_cannot_be_read_names_its_site(text: str) -> None:
    """Texts that sites exchange are JSON, of the shape that each reader expects."""
    network = Network(
        2,
        lambda messages, t: messages,
        lambda a: 0 * a.mean(-2) + 1,
        processes=Processes(range(1), names=NAMES, allgather_text=lambda own: [own, text]),
    )
    problem, tests = dnasa.problems.LeastSquares(), Evaluation(task="regression", target="y", names=["y"])
    divergence = Divergence(network, 2, 3)
    own = [Summary(3, (1,), tests=1, name="berlin").to_json()]
    readers: list[Callable[[], Any]] = [
        lambda: agree(network, {"the rule": "dnasa"}),
        lambda: _node_data(problem, network, [0]),
        lambda: positions_of(network, Position(1, 2, False, {"the rule": "dnasa"})),
        divergence._agree,
        lambda: network.processes.allgather_json(tests.model_dump(), lambda given: like(tests, given)),
        lambda: network.processes.allgather_json(own, lambda given: checked_summaries(json.dumps(own), json.dumps(given))),
        lambda: Wrapping([], network),
    ]
    for reader in readers:
        with pytest.raises(RunError, match=r"^paris is at fault: its text cannot be read"):
            reader()


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"columns": [{"name": "x", "kind": "number", "moments": {"n": 9, "mean": float("nan"), "squares": 1.0}}]},
        {"columns": [{"name": "x", "kind": "number", "moments": {"n": 9, "mean": 1.0, "squares": -1.0}}]},
        {"columns": [{"name": "x", "kind": "number", "moments": {"n": 10**30, "mean": 1.0, "squares": 1.0}}]},
        {"columns": [{"name": "x", "kind": "text", "counts": {"a": -5}}]},
        {"columns": [{"name": "x", "kind": "\x1b[2J"}]},
        {"array": {"n": 9, "mean": float("inf"), "squares": 1.0}},
    ],
)
def test_a_summary_with_numbers_that_no_rows_have_names_its_site(change: dict[str, Any]) -> None:
    own = Summary(9, (1,), name="berlin").to_json()
    processes = Processes(range(1), 0, range(2), NAMES, lambda text: [text, json.dumps([own | change])])
    with pytest.raises(RunError, match=r"^paris is at fault: its text cannot be read"):
        processes.allgather_json([own], lambda given: checked_summaries(json.dumps([own]), json.dumps(given)))


def test_a_site_that_is_revoked_during_a_run_is_refused_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dnasa.sites")
    folder = tmp_path / "keys"
    make_authority(folder)
    for name in NAMES[:3]:
        make_site(folder, name)
    files = [replace(sites, keys=folder / name) for sites, name in zip(local_sites(tmp_path, 3), NAMES, strict=False)]
    run = Run(files, timeout=60.0)
    first, second, _ = run.sites
    began = time.monotonic()
    try:
        for path in revoke(folder, "lyon"):
            if path.parent.name not in ("berlin", "paris", "keys"):
                path.unlink()
        two = (first, second)
        within(60, lambda: all(s.error or s.nodes == [0, 1] for s in two), lambda: [(s.error, s.nodes) for s in two])
        assert time.monotonic() < began + 20  # long before the timeout
        run.goes_on(first, second)
        with pytest.raises((OSError, Refused)):
            asyncio.run(dial(files[2], 0, run.sites[2].members.links[0].renewal))
        wait_for(caplog, "refused 127.0.0.1: certificate revoked")
    finally:
        run.stop()


def test_messages_of_another_size_or_of_past_views_are_not_used() -> None:
    inbox = Inbox()
    inbox.enter(5)
    buffer = memoryview(bytearray(8))
    receive = inbox.want(Key(1, 5, 0, 1), buffer)
    with pytest.raises(Refused, match="it sent 9 bytes where 8 were expected"):
        inbox.place(Key(1, 5, 0, 1), 9)
    with pytest.raises(Refused, match="it sent message 2 after message 0"):
        inbox.place(Key(1, 5, 0, 2), 8)
    inbox.enter(6)
    for key in (Key(1, 5, 0, 1), Key(1, 5, 0, 2)):  # it has not heard of the next view yet
        place = inbox.place(key, 8)
        assert place is not None
        inbox.arrived(key, place)
    assert not inbox.early
    assert not receive.done.is_set()
    with pytest.raises(Refused, match="it sent message 1 after message 2"):
        inbox.place(Key(1, 5, 0, 1), 8)
    with pytest.raises(Refused, match="where none were expected"):
        inbox.place(Key(1, 5, 0, 3), 1 << 30)


def test_empty_messages_with_new_numbers_do_not_stay_in_memory() -> None:
    inbox = Inbox()
    inbox.enter(5)
    inbox.enter(6)
    for view in (5, 6, 7):
        for network in range(100):
            with suppress(Refused):
                if (place := inbox.place(key := Key(1, view, network, 1), 0)) is not None:
                    inbox.arrived(key, place)
    assert len(inbox.counts) <= 3 * NETWORKS
    assert len(inbox.early) <= EARLY_LIMIT
    with pytest.raises(Refused, match=f"it sent a message of network {NETWORKS}"):
        inbox.place(Key(1, 5, NETWORKS, 1), 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_size_of_numbers(dtype: str) -> None:
    a = torch.tensor([[3.0, -4.0], [0.0, 5.0]], dtype=getattr(torch, dtype))
    assert root_mean_square(a) == pytest.approx(50**0.5 / 2)
    if dtype.startswith("float"):
        assert root_mean_square(a.numpy()) == pytest.approx(50**0.5 / 2, rel=1e-3)
    large = torch.tensor([1e30], dtype=torch.float32)
    assert root_mean_square(large) == root_mean_square(large.numpy()) == pytest.approx(1e30)
    assert np.isnan(root_mean_square(np.array([1.0, np.nan])))


def test_numbers_beyond_the_limit_are_refused_unless_this_sites_own_are() -> None:
    ones = np.ones((1, 1, 4))

    def reason(value: float, own: float = 0.0) -> str:
        return wrong([value * ones], [own * ones], 1e9)

    assert not reason(0)
    assert not reason(9e8)
    assert "size 9.0e+11, where 1e+09 is the limit" in reason(9e11, own=1.0)
    assert "size 1.1e+09" in reason(1.1e9, own=9e8)  # however slowly it got there
    assert "not finite" in reason(np.nan)
    assert "not finite" in reason(np.inf)
    assert not reason(np.nan, own=1e16)  # the whole run diverges
    assert not reason(np.nan, own=np.nan)
    assert not wrong([np.full(3, 200, np.uint8)], [np.zeros(3, np.uint8)], 1e9)


@pytest.mark.filterwarnings("ignore")  # some stepsizes are too large
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_sends_numbers_beyond_the_limit(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Nodes whose gradients and answers differ by a factor of a thousand, from a start far away."""
    eta = 1e-3 if RULES[rule].needs_eta else None
    checks = []

    def inspect(transport: Any, peer: int, arrived: Any, own: Any) -> None:
        checks.append(wrong(arrived, own, 1e11))  # the first numbers are 100

    def solve(network: Network) -> None:
        def gradient(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
            return 0.1 * 10.0**node * (x - 10.0**node * np.arange(4)) + rng.normal(size=4)

        problem = dnasa.problems.Custom(gradient, start=np.full(4, 100.0), fingerprint="uneven")
        dnasa.solve(problem, network, rule, eta=eta, steps=40, evaluate=[40])

    graph = dnasa.topology.ring(4, weights="lazy")
    monkeypatch.setattr(ThreadTransport, "inspect", inspect)
    run_threads(graph, solve)
    assert checks
    assert set(checks) == {""}


@pytest.mark.parametrize("compress", ["sign", "topk:0.5"])
def test_numbers_are_checked_after_they_are_decoded(compress: str) -> None:
    channel, graph = dnasa.channels.compression(compress), dnasa.topology.ring(3)
    problems = []

    def inspect(transport: Any, peer: int, arrived: Any, own: Any) -> None:
        if reason := wrong(arrived, own, 1e9):
            problems.append((peer, reason))

    def send(network: Network) -> None:
        a = np.full((1, 64), 1e30 if network.rank == 1 else 1.0)
        channel.exchange((channel.init(0 * a),), (a,), network.at(0), 0, 0)  # type: ignore[misc]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadTransport, "inspect", inspect)
        run_threads(graph, send, channel=channel)
    assert {peer for peer, _ in problems} == {1}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(local_sites(tmp_path_factory.mktemp("sites"), 3), timeout=20.0)
    yield run
    run.stop()


@pytest.fixture
def attacked(running: Run, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    """The run, which nothing of what the test does may disturb."""
    caplog.set_level(logging.INFO, "dnasa.sites")
    door = running.sites[0].members.mesh.door
    assert door is not None
    door.refusals.clear()  # not every refusal of one address is logged
    views = [site.members.view for site in running.sites]
    linux = Path("/proc/self/statm").exists()
    threads, files, megabytes = threading.active_count(), open_files() if linux else 0, memory() if linux else 0.0
    yield running
    running.goes_on(*running.sites)
    assert [site.members.view for site in running.sites] == views
    assert all(set(site.ends) == {site.ends[0]} for site in running.sites)
    within(20, lambda: threading.active_count() <= threads + 2, threading.enumerate)
    if linux:
        within(20, lambda: open_files() <= files + 4, open_files)
        assert memory() < megabytes + MEGABYTES


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: berlin\r\n\r\n",
        random.Random(1).randbytes(100_000),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x10\x01" + random.Random(2).randbytes(200),
    ],
    ids=["HTTP", "random", "long record", "random hello"],
)
def test_whatever_is_not_tls_is_refused_and_logged(attacked: Run, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    for _ in range(20):
        with socket.create_connection(attacked.address) as connection:
            try:
                connection.sendall(data)
            except ConnectionError:
                continue
            answer(connection)
    wait_for(caplog, "refused 127.0.0.1: ")
    assert sum(line.startswith("refused 127") for line in caplog.messages) <= 2  # the first and the tenth


def test_connections_that_say_nothing_do_not_keep_a_site_out(attacked: Run, caplog: pytest.LogCaptureFixture) -> None:
    site = attacked.sites[0]
    with ExitStack() as stack:
        for _ in range(3 * PENDING_EACH):
            stack.enter_context(socket.create_connection(attacked.address))
        door = site.members.mesh.door
        assert door is not None
        assert len(door.pending) <= PENDING_EACH
        for link in attacked.sites[1].members.links.values():
            link.break_off()
        attacked.goes_on(*attacked.sites)
        within(20, lambda: all(link.connected for link in site.members.links.values()), lambda: caplog.text)
    assert "refused 127.0.0.1: too many connections at once" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)], ids=["silent", "slow"])
def test_a_slow_connection_is_cut(
    attacked: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connecting, "HANDSHAKE", 1.0)
    began = time.monotonic()
    trickle(attacked.address, data)
    assert 0.9 < time.monotonic() - began < 6
    wait_for(caplog, "refused 127.0.0.1: it has not greeted within 1 s")


def authority() -> Signed:
    key = load_pem_private_key((keys() / "authority.key").read_bytes(), None)
    return Signed(x509.load_pem_x509_certificate((keys() / "authority.crt").read_bytes()), key)


def signed_by(folder: Path, issuer: Signed, **options: Any) -> ssl.SSLContext:
    made = sign("lyon", issuer, **options)
    return client_context(bundle(folder / "bundle", (keys() / "authority.crt").read_bytes(), made.pem, made.key_pem()))


def anonymous(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.parametrize(
    ("context", "reason", "told"),
    [
        (anonymous, "did not return a certificate", "certificate required"),
        (lambda folder: signed_by(folder, sign("another", ca=True)), "unable to get local issuer certificate", "unknown ca"),
        (lambda folder: signed_by(folder, authority(), days=(-9, -1)), "certificate has expired", "certificate expired"),
        (lambda folder: signed_by(folder, authority(), days=(1, 9)), "certificate is not yet valid", "bad certificate"),
        (lambda folder: client_context(keys() / "oslo"), "the certificate of oslo is not that of another site", ""),
        (lambda folder: client_context(keys() / "berlin"), "the certificate of berlin is not that of another site", ""),
    ],
    ids=["none", "another authority", "expired", "not yet valid", "not listed", "its own"],
)
def test_a_certificate_that_is_not_that_of_another_site_is_refused_and_logged(
    attacked: Run,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    context: Callable[[Path], ssl.SSLContext],
    reason: str,
    told: str,
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)) as error:
        knock(attacked.address, context(tmp_path))
    assert alert_of(error.value).endswith(told)
    wait_for(caplog, f"refused 127.0.0.1: .*{reason}")


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"[" * 60_000, "its greeting is not a JSON object"),
        (b"[1]", "its greeting is not a JSON object"),
        (b'{"run": "another"}', "lyon runs another, berlin with --sites berlin, paris, lyon in this order"),
        (None, "its greeting has 4294967295 bytes"),
    ],
)
def test_a_site_that_greets_wrongly_is_refused(
    attacked: Run, caplog: pytest.LogCaptureFixture, greeting: bytes | None, reason: str
) -> None:
    with (
        socket.create_connection(attacked.address, timeout=5) as plain,
        client_context(keys() / "lyon").wrap_socket(plain) as connection,
    ):
        connection.sendall(struct.pack("!I", 2**32 - 1) if greeting is None else LENGTH.pack(len(greeting)) + greeting)
        answer(connection)
    wait_for(caplog, f"refused 127.0.0.1: {reason}")


@pytest.mark.parametrize(
    "wrong",
    [{"received": 10**9}, {"received": -1}, {"received": "1"}, {"instance": 5}, {"instance": "x" * 65}],
    ids=["more than sent", "negative", "text", "number", "long"],
)
def test_a_greeting_that_does_not_fit_is_refused(running: Run, wrong: dict[str, Any]) -> None:
    link = running.sites[0].members.links[2]
    honest = running.sites[2].members.links[0].greeting()
    check = link._resume if wrong in ({"received": 10**9}, {"received": -1}) else link._check
    with pytest.raises(Refused):
        check(honest | wrong)
    running.goes_on(*running.sites)
