"""One connection with every other site, dialed again whenever it breaks.

A connection carries frames of these kinds: a site's state (small, JSON, only the latest counts), messages, how many have
arrived, and the question how the run began with its answer. Messages are kept
until the other side has them, so a connection that breaks loses nothing. One thread of each connection sends and receives;
nothing else touches its TLS object.
"""

import json
import select
import socket
import ssl
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from dnasa.checks import first_line
from dnasa.events import Events
from dnasa.sites.connecting import (
    Door,
    Greeting,
    Refused,
    alert_of,
    closed_on_error,
    dial,
    dials,
    explain,
    send_greeting,
)
from dnasa.sites.file import Sites
from dnasa.sites.tls import REVOKED, REVOKED_CERTIFICATE

HEADER = struct.Struct("!BQIQQ")  # kind, view, network, number, bytes that follow
STATE, MESSAGE, ARRIVED, ASK, OPENING = range(5)
STATE_LIMIT, OPENING_LIMIT, MESSAGE_LIMIT = 1 << 20, 1 << 26, 1 << 40  # bytes
NETWORKS = 6  # numbers of networks: exchanges, sums and mail, of `connect` and of an optimizer
EARLY_LIMIT = 8  # messages of a site that came before they were wanted; then no more is read from it
UNSENT_LIMIT = 16  # messages to a site; then the sender waits
TURN = 64  # records of TLS that are written, then read, at a time
RECORD = 1 << 14  # bytes
TOLD = {STATE: "state", OPENING: "opening"}  # what sites tell each other besides messages, as the audit calls it
INTERVAL = 0.5  # seconds between two states
HUSH = 10  # intervals of silence after which a connection is dialed again: after an outage TCP waits too long
GRACE = 0.8  # seconds for which a site that cannot be dialed may be away


class Key(NamedTuple):
    """Which message this is; `number` counts those of a network between two sites."""

    site: int
    view: int
    network: int
    number: int


class OtherRun(Refused):
    """The other site runs something else."""


class Receive(NamedTuple):
    """A message that this process waits for."""

    buffer: memoryview
    done: threading.Event


class Inbox:
    """The messages that this process waits for, and those that came early: others may be in the next view already."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.view, self.past = 0, {0}
        self.largest = 1 << 20
        self.wanted: dict[Key, Receive] = {}
        self.early: dict[Key, memoryview] = {}
        self.counts: dict[Key, int] = {}  # messages of each site, view and network (number 0)

    def enter(self, view: int) -> None:
        with self.lock:
            self.past |= {self.view, *(key.view for key in self.counts)} - {view}
            self.counts = {key: count for key, count in self.counts.items() if key.view in (self.view, view)}
            self.view = view
            self.wanted.clear()
            self.early = {key: data for key, data in self.early.items() if key.view == view}

    def want(self, key: Key, buffer: memoryview) -> Receive:
        receive = Receive(buffer, threading.Event())
        with self.lock:
            self.largest = max(self.largest, len(buffer))
            data = self.early.pop(key, None)
            if data is None:
                self.wanted[key] = receive
            elif len(data) != len(buffer):
                raise Refused(f"it sent {len(data)} bytes where {len(buffer)} were expected")
            else:
                buffer[:] = data
                receive.done.set()
        return receive

    def place(self, key: Key, size: int) -> memoryview | None:
        """Where a message goes; None if it must wait until it is wanted."""
        if key.network >= NETWORKS:
            raise Refused(f"it sent a message of network {key.network}")
        with self.lock:
            last = self.counts.get(key._replace(number=0), key.number - 1 if key.view in self.past else 0)
            if key.number != last + 1:
                raise Refused(f"it sent message {key.number} after message {last}")
            if receive := self.wanted.get(key):
                if len(receive.buffer) != size:
                    raise Refused(f"it sent {size} bytes where {len(receive.buffer)} were expected")
                return receive.buffer
            old, large = key.view in self.past, size > 2 * self.largest
            if (old and large) or size > MESSAGE_LIMIT:
                raise Refused(f"it sent {size} bytes where none were expected")
            if not old and (large or sum(other.site == key.site for other in self.early) >= EARLY_LIMIT):
                return None
        return memoryview(bytearray(size))

    def arrived(self, key: Key, data: memoryview) -> None:
        with self.lock:
            self.counts[key._replace(number=0)] = key.number
            if receive := self.wanted.pop(key, None):
                if data is not receive.buffer:
                    receive.buffer[:] = data
                receive.done.set()
            elif key.view not in self.past:
                self.early[key] = data


class Link:
    """Everything that is known of another site, and what it has not received yet.

    Attributes:
        instance: Names the process at the other end.
        state: The latest that it said of itself.
        connected: Whether there is a connection.
        gone: Whether no process listened at its address, or its certificate was revoked, when it was last dialed.
        ours: Why this process broke the last connection off, which says nothing about the other; empty if it did not.
        quiet: Own intervals since anything came.
        asks: Whether this process wants to know how the run began.
        problem: The last reason for which there was no connection.
        warned: The last one that was a warning.
    """

    def __init__(self, mesh: "Mesh", site: int):
        self.mesh, self.site, self.name = mesh, site, mesh.sites.sites[site].name
        self.instance, self.problem, self.warned, self.asks = "", "", "", False
        self.state: Any = None
        self.connected, self.gone, self.ours = False, False, ""
        self.quiet = 0
        self.broken = time.monotonic()  # when the last connection broke
        self.outbox: deque[bytes | memoryview] = deque()  # header, body, header, body, ...
        self.sent = self.acknowledged = self.received = 0  # messages
        self.room = threading.Condition()
        self.using = threading.Lock()  # the one connection
        self.connection: Connection | None = None

    def send(self, key: Key, data: bytes, check: Callable[[], object]) -> None:
        """Send a message. Waits while many are on their way, and calls `check`, which may raise."""
        with self.room:
            while len(self.outbox) >= 2 * UNSENT_LIMIT:
                self.room.wait(INTERVAL / 5)
                check()
            self.outbox += HEADER.pack(MESSAGE, key.view, key.network, key.number, len(data)), data
        self.wake()

    def wake(self) -> None:
        if (connection := self.connection) is not None:
            connection.wake()

    def acknowledge(self, count: int) -> None:
        """The other side has received this many messages."""
        with self.room:
            if not self.acknowledged <= count <= self.sent:
                raise Refused("it acknowledged messages that were not sent")
            for _ in range(2 * (count - self.acknowledged)):
                self.outbox.popleft()
            self.acknowledged = count
            self.room.notify_all()

    def break_off(self, reason: str = "there is a newer one") -> None:
        """Close the connection; it is made again."""
        if (connection := self.connection) is not None:
            self.ours = reason
            connection.shut_down()

    def greeting(self) -> Greeting:
        mesh = self.mesh
        about = {"run": mesh.run, "stopped": mesh.stopped, "instance": mesh.instance}
        greeting = {**about, "knows": self.instance, "received": self.received}
        mesh.told("greeting", self.site, len(json.dumps(greeting)))
        return greeting

    def renewal(self) -> Greeting:
        """The greeting for the next connection. The last one ends first: what has been received is final."""
        self.break_off()
        with self.using:
            return self.greeting()

    def use(self, tls: ssl.SSLSocket, greeting: Greeting, answer: bool = False) -> None:
        """Send and receive over a new connection until it breaks."""
        self.break_off()
        with self.using:
            self._resume(greeting)
            if answer:
                send_greeting(tls, self.greeting())
            self.connection, self.connected, self.quiet = Connection(self, tls), True, 0
            self.gone, self.ours = False, ""
            self.mesh.events.write("connected", peer=self.name)
            self.mesh.publish()
            try:
                self.connection.run()
            except (OSError, ValueError, Refused) as error:
                if isinstance(error, Refused):
                    self.mesh.blame(self.site, str(error))
                self.mesh.events.write("disconnected", peer=self.name, reason=self.ours or first_line(error))
            finally:
                self.connection.close()
                self.connection, self.connected, self.broken = None, False, time.monotonic()
                self.mesh.publish()
                self.mesh.changed()

    def _resume(self, greeting: Greeting) -> None:
        if conflict := self._conflict(str(greeting.get("run"))[:5000], greeting.get("stopped")):
            self.mesh.conflicts[self.site] = conflict
            raise OtherRun(conflict)
        instance, received = greeting.get("instance"), greeting.get("received")
        if not isinstance(instance, str) or len(instance) > 64 or not isinstance(received, int):
            raise Refused("its greeting is incomplete")
        with self.room:
            if instance != self.instance:  # another process of this site
                self.instance, self.state = instance, None
                self.outbox.clear()
                self.sent = self.acknowledged = self.received = 0
                self.room.notify_all()
        if greeting.get("knows") == self.mesh.instance:
            self.acknowledge(received)

    def _conflict(self, run: str, stopped: object) -> str:
        """Why no run can begin with this site, as its greeting says; empty if one can."""
        if stopped:
            why = f"because of {stopped!s:.100}: start again once it is fixed"
            return f"{self.name} stopped before the run began, {why}."
        if run == self.mesh.run:
            return ""
        parts = zip_longest(run.split("\n"), self.mesh.run.split("\n"), fillvalue="nothing")
        theirs, ours = next((theirs, ours) for theirs, ours in parts if theirs != ours)
        return f"The sites run different things: {self.name} runs {theirs:.300}, this site {ours}. Give all the same."


class Connection:
    """One connection with a site."""

    def __init__(self, link: Link, tls: ssl.SSLSocket):
        self.link, self.mesh, self.tls = link, link.mesh, tls
        self.signal, self.signaled = socket.socketpair()
        for end in (tls, self.signal, self.signaled):
            end.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.signaled, select.POLLIN)
        self.output: deque[memoryview] = deque()
        self.next = link.acknowledged  # message to be sent
        self.shown = -1  # version of the own state
        self.told = link.received  # what was acknowledged
        self.readable = self.writable = True
        self.asked = self.asking = False
        self.waiting: tuple[Key, int] | None = None  # the header of a message that is not wanted yet
        self._expect(bytearray(HEADER.size), self._header)

    def run(self) -> None:
        while True:
            wrote = self.writable and self._repeat(self._write)
            if not (self.readable and self._repeat(self._read)) and not wrote:
                self._wait()

    def _wait(self) -> None:
        """Wait for the other side, or for something to send; a message that is not wanted yet stays where it is."""
        events = select.POLLIN * (self.waiting is None) | select.POLLOUT * bool(self.output)
        if events:
            self.poll.register(self.tls, events)
        else:
            with suppress(KeyError):
                self.poll.unregister(self.tls)
        for number, event in self.poll.poll(1000 * INTERVAL):
            if number == self.signaled.fileno():
                self.signaled.recv(4096)
                self.readable |= self.waiting is not None
            else:
                self.readable |= event != select.POLLOUT
                self.writable |= event != select.POLLIN

    def wake(self) -> None:
        with suppress(OSError):
            self.signal.send(b"\0")

    def shut_down(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self.tls, socket.SHUT_RDWR)  # the TLS object belongs to its thread

    def close(self) -> None:
        for end in (self.tls, self.signal, self.signaled):
            end.close()

    def _repeat(self, work: Callable[[], bool]) -> bool:
        """Whether there was anything to do."""
        for count in range(TURN):
            try:
                if not work():
                    return count > 0
            except ssl.SSLWantReadError:
                self.readable = False
                return count > 0
            except ssl.SSLWantWriteError:
                self.writable = False
                return count > 0
        return True

    # ------------------------------------------------------------ sending

    def _write(self) -> bool:
        if not self.output and not self._queue():
            return False
        sent = self.tls.send(self.output[0][:RECORD])
        rest = self.output[0][sent:]
        if rest:
            self.output[0] = rest
        else:
            self.output.popleft()
        return True

    def _queue(self) -> bool:
        """Whether there is something to send: the own state first."""
        link, mesh = self.link, self.mesh
        if self.shown != mesh.version:
            self.shown = mesh.version
            self._tell(STATE, mesh.state)
        elif self.asked:
            self.asked = False
            self._tell(OPENING, json.dumps(mesh.opening).encode())
        elif link.asks and not self.asking:
            self.asking = True
            self._add(HEADER.pack(ASK, 0, 0, 0, 0))
        elif not self._queue_message():
            if self.told == link.received:
                return False
            self.told = link.received
            self._add(HEADER.pack(ARRIVED, 0, 0, self.told, 0))
        return True

    def _queue_message(self) -> bool:
        link = self.link
        with link.room:
            place = 2 * (self.next - link.acknowledged)
            if place >= len(link.outbox):
                return False
            self._add(link.outbox[place], link.outbox[place + 1])
            self.next += 1
            link.sent = max(link.sent, self.next)
        return True

    def _tell(self, kind: int, text: bytes) -> None:
        self.mesh.told(TOLD[kind], self.link.site, len(text))
        self._add(HEADER.pack(kind, 0, 0, 0, len(text)), text)

    def _add(self, header: bytes | memoryview, body: bytes | memoryview = b"") -> None:
        parts = [bytes(header) + bytes(body)] if len(body) < RECORD else [header, body]
        self.output.extend(map(memoryview, parts))

    # ------------------------------------------------------------ receiving

    def _expect(self, buffer: bytearray | memoryview, then: Callable[[memoryview], None]) -> None:
        self.whole = self.rest = memoryview(buffer)
        self.then = then

    def _read(self) -> bool:
        if self.waiting and not self._place(*self.waiting):
            self.link.quiet = 0
            return False
        if self.rest:
            count = self.tls.recv_into(self.rest)
            if not count:
                raise ConnectionResetError("The other side closed the connection.")
            self.link.quiet = 0
            self.rest = self.rest[count:]
        if not self.rest:
            whole, then = self.whole, self.then
            self._expect(bytearray(HEADER.size), self._header)
            then(whole)
        return True

    def _header(self, data: memoryview) -> None:
        kind, view, network, number, size = HEADER.unpack(data)
        if kind == MESSAGE:
            self._place(Key(self.link.site, view, network, number), size)
        elif kind == STATE and size <= STATE_LIMIT:
            self._expect(bytearray(size), self._state)
        elif kind == ASK and not size:
            self.asked = True
        elif kind == OPENING and self.asking and size <= OPENING_LIMIT:
            self._expect(bytearray(size), self._opening)
        elif kind == ARRIVED and not size:
            self.link.acknowledge(number)
        else:
            raise Refused(f"it sent a frame of kind {kind} with {size} bytes")

    def _place(self, key: Key, size: int) -> bool:
        buffer = self.mesh.inbox.place(key, size)
        self.waiting = (key, size) if buffer is None else None
        if buffer is not None:
            self._expect(buffer, lambda data: self._arrived(key, data))
        return buffer is not None

    def _arrived(self, key: Key, data: memoryview) -> None:
        self.link.received += 1
        self.mesh.inbox.arrived(key, data)
        self.mesh.changed()

    def _opening(self, data: memoryview) -> None:
        opening = _parsed(TypeAdapter(list[list[str]]).validate_json, data, "it does not say how the run began")
        if any(len(texts) != len(self.mesh.sites.sites) for texts in opening):
            raise Refused("it does not say how the run began")
        self.asking = self.link.asks = False
        self.mesh.opening = opening or self.mesh.opening
        self.mesh.changed()

    def _state(self, data: memoryview) -> None:
        self.link.state = _parsed(self.mesh.parse, data, "its state cannot be read")
        self.mesh.changed()


def _parsed(parse: Callable[[bytes], Any], data: memoryview, wrong: str) -> Any:
    try:
        return parse(bytes(data))
    except ValueError as error:
        raise Refused(wrong) from error


class Mesh:
    """This site's connections with all others.

    Attributes:
        opening: The texts that the sites exchanged before the first step: a site that joins reads them.
        stopped: Why this site does not take part, which is all that it tells the others; empty if it does.
        conflicts: The sites with which no run can begin, and why.
        fault: Which site said what it must not say, and what: this one stops then; empty if none did.

    Args:
        sites: The file of the sites.
        run: Describes what all sites must have in common.
        describe: What this site says of itself, as text.
        parse: Reads what another site says of itself; raises a `ValueError` if it cannot.
        told: Called with the kind, the receiver and the bytes of what this site tells others besides messages.
    """

    def __init__(
        self,
        sites: Sites,
        run: str,
        describe: Callable[[], str],
        parse: Callable[[bytes], Any],
        told: Callable[[str, int, int], None],
    ):
        self.sites, self.run, self.describe, self.parse, self.told = sites, run, describe, parse, told
        self.events = Events(sites.sites[sites.own].name)
        self.instance = uuid.uuid4().hex
        self.inbox = Inbox()
        self.news = threading.Condition()
        self.version, self.state = 0, b""
        self.stopped, self.fault, self.conflicts = "", "", dict[int, str]()
        self.opening: list[list[str]] = []
        self.closed = threading.Event()
        self.door: Door | None = None
        self.links = {n: Link(self, n) for n in range(len(sites.sites)) if n != sites.own}

    def open(self) -> None:
        """Listen, and dial the others."""
        self.door = Door(self.sites, self._welcome) if self.sites.listen else None
        for work in (self._beat, *(lambda link=link: self._keep(link) for link in self.links.values())):
            threading.Thread(target=work, name="sites", daemon=True).start()

    def publish(self, again: bool = False) -> None:
        """Tell the others the state of this site, if it has changed, or again."""
        with self.news:
            state = self.describe().encode()
            if state == self.state and not again:
                return
            self.state = state
            self.version += 1  # last: connections look at it first
        for link in self.links.values():
            link.wake()

    def changed(self) -> None:
        with self.news:
            self.news.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most this long."""
        with self.news:
            self.news.wait(seconds)

    def enter(self, view: int) -> None:
        self.inbox.enter(view)
        for link in self.links.values():
            link.wake()

    def blame(self, site: int, reason: str) -> None:
        """Stop this site, since another one said what it must not say."""
        if not self.fault:
            name = self.links[site].name
            self.fault = f"{name} is at fault: {reason}. This site stops."
            self.events.write("fault", peer=name, reason=reason)
        self.changed()

    def silent(self, site: int, timeout: float) -> bool:
        return self.links[site].quiet * INTERVAL > timeout

    def gone(self, site: int) -> bool:
        """Whether the process of that site has ended, as far as this one can tell: one that dials would be back by now."""
        link = self.links[site]
        away = not link.ours and time.monotonic() > link.broken + GRACE and not self._reachable(site)
        return not link.connected and (link.gone or away)

    def drain(self) -> None:
        """Give the others a moment to receive what was sent to them, such as the settings that made this site stop."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(link.connected and link.outbox for link in self.links.values()):
            time.sleep(INTERVAL / 10)

    def close(self) -> None:
        self.closed.set()
        if self.door is not None:
            self.door.close()
        for link in self.links.values():
            link.break_off("this site has ended")

    # ------------------------------------------------------------ threads

    def _welcome(self, site: int, tls: ssl.SSLSocket, greeting: Greeting) -> None:
        try:
            self.links[site].use(tls, greeting, answer=True)
        except Refused as error:
            differs = isinstance(error, OtherRun)  # which both must know
            with suppress(OSError):
                send_greeting(tls, self.links[site].greeting() if differs else {"refused": str(error)})
            if self.stopped or greeting.get("stopped"):
                return tls.close()  # both know why
            raise

    def _beat(self) -> None:
        revoked = self._revoked()
        while not self.closed.wait(INTERVAL):
            for link in self.links.values():
                link.quiet += 1
                if link.connected and link.quiet > HUSH:
                    link.break_off("nothing came for a while")
            if revoked != (revoked := self._revoked()):
                for link in self.links.values():
                    link.break_off(f"{REVOKED} changed: certificates are checked again")
            self.publish(again=True)

    def _revoked(self) -> int:
        with suppress(OSError):
            return (self.sites.keys / REVOKED).stat().st_mtime_ns
        return 0

    def _keep(self, link: Link) -> None:
        """Keep a connection with this site, or find out that it is gone."""
        pause = 0.1
        while not self.closed.wait(0.3 if link.connected else pause):
            if link.connected:
                continue
            began = time.monotonic()
            try:
                self._connect(link)
            except Exception as error:  # whatever it is, dial again
                revoked = getattr(error, "verify_code", 0) == REVOKED_CERTIFICATE
                link.gone |= revoked or isinstance(error, ConnectionRefusedError)
                self._explain(link, error)
            self.changed()
            pause = 0.1 if time.monotonic() > began + 1 else min(2 * pause, 1.0)

    def _explain(self, link: Link, error: Exception) -> None:
        """Keep why there is no connection, and warn once if the other site refuses this one."""
        link.problem = reason = explain(error)
        refused = isinstance(error, ssl.SSLCertVerificationError) or alert_of(error)
        if (refused or not isinstance(error, OSError | OtherRun)) and reason != link.warned:
            link.warned = reason
            line = f"no connection with {link.name}: {reason}"
            self.events.warn("no connection", line, peer=link.name, reason=reason)

    def _connect(self, link: Link) -> None:
        """Dial, and use the connection until it breaks; or see whether a site that dials this one listens."""
        if dials(self.sites, link.site):
            tls, greeting = dial(self.sites, link.site, link.renewal)
            with closed_on_error(tls):
                link.use(tls, greeting)
        elif self._reachable(link.site):
            peer = self.sites.sites[link.site]
            socket.create_connection((peer.host, peer.port), timeout=GRACE).close()
            link.problem = "it listens, and has not dialed this site"
        else:
            link.problem = "it has not dialed this site"

    def _reachable(self, site: int) -> bool:
        return self.sites.sites[site].reachable
