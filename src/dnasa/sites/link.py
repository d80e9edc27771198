"""One connection with every other site.

A connection carries frames of these kinds: a site's state (small, JSON, only the latest counts), messages, how many have
arrived, and the question how the run began with its answer. Messages are kept until the other side has them, so a connection
that breaks loses nothing. One thread of each connection sends and receives; nothing else touches its TLS object.
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
from functools import partial
from itertools import zip_longest
from typing import Any

from pydantic import TypeAdapter

from dnasa.checks import first_line
from dnasa.events import Events
from dnasa.sites.connecting import Greeting, Refused, send_greeting
from dnasa.sites.file import Sites
from dnasa.sites.inbox import Inbox, Key
from dnasa.sites.views import INTERVAL

HEADER = struct.Struct("!BQIQQ")  # kind, view, network, number, bytes that follow
STATE, MESSAGE, ARRIVED, ASK, OPENING = range(5)
STATE_LIMIT, OPENING_LIMIT = 1 << 20, 1 << 26  # bytes
UNSENT_LIMIT = 16  # messages to a site; then the sender waits
TURN = 64  # records of TLS that are written, then read, at a time
RECORD = 1 << 14  # bytes
TOLD = {STATE: "state", OPENING: "opening"}  # what sites tell each other besides messages, as the audit calls it


class OtherRun(Refused):
    """The other site runs something else."""


class Local:
    """This site, as its connections need it.

    Attributes:
        instance: Names this process: one that is started again has another.
        state: What this site says of itself, and `version` counts its changes.
        opening: The texts that the sites exchanged before the first step, None of those that came later. A site that joins
            reads them.
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
        parse: Callable[[int, bytes], Any],
        told: Callable[[str, int, int], None],
    ):
        self.sites, self.run, self.describe, self.parse, self.told = sites, run, describe, parse, told
        self.events = Events(sites.sites[sites.own].name)
        self.instance = uuid.uuid4().hex
        self.inbox = Inbox()
        self.news = threading.Condition()
        self.version, self.state = 0, b""
        self.stopped, self.fault, self.conflicts = "", "", dict[int, str]()
        self.opening: list[list[str | None]] = []
        self.links: dict[int, Link] = {}

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
        """Wake those that wait for something to change."""
        with self.news:
            self.news.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most this long."""
        with self.news:
            self.news.wait(seconds)

    def blame(self, site: int, reason: str) -> None:
        """Stop this site, since another one said what it must not say."""
        if not self.fault:
            name = self.sites.sites[site].name
            self.fault = f"{name} is at fault: {reason}. This site stops."
            self.events.write("fault", peer=name, reason=reason)
        self.changed()


class Link:
    """Everything that is known of another site, and what it has not received yet.

    Attributes:
        instance: Names the process at the other end.
        state: The latest that it said of itself.
        refused: Whether no process listened at its address, or its certificate was revoked, when it was last dialed.
        ours: Why this process broke the last connection off, which says nothing about the other; empty if it did not.
        quiet: Own intervals since anything came.
        asks: Whether this process wants to know how the run began.
        problem: The last reason for which there was no connection.
        warned: The last one that was a warning.
    """

    def __init__(self, local: Local, site: int):
        self.local, self.site, self.name = local, site, local.sites.sites[site].name
        self.instance, self.problem, self.warned, self.asks = "", "", "", False
        self.state: Any = None
        self.refused, self.ours = False, ""
        self.quiet = 0
        self.broken = time.monotonic()  # when the last connection broke
        self.outbox: deque[bytes | memoryview] = deque()  # header, body, header, body, ...
        self.sent = self.acknowledged = self.received = 0  # messages
        self.room = threading.Condition()
        self.using = threading.Lock()  # the one connection
        self.connection: Connection | None = None

    @property
    def connected(self) -> bool:
        return self.connection is not None

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

    @property
    def drained(self) -> bool:
        """Whether all that this site has to say is on its way, or nobody listens."""
        connection = self.connection
        return connection is None or not (self.outbox or connection.output or connection.shown != self.local.version)

    def greeting(self) -> Greeting:
        local = self.local
        about = {"run": local.run, "stopped": local.stopped, "instance": local.instance}
        greeting = {**about, "knows": self.instance, "received": self.received}
        local.told("greeting", self.site, len(json.dumps(greeting)))
        return greeting

    def renewal(self) -> Greeting:
        """The greeting for the next connection. The last one ends first: what has been received is final."""
        self.break_off()
        with self.using:
            return self.greeting()

    def use(self, tls: ssl.SSLSocket, greeting: Greeting, answer: bool = False) -> None:
        """Send and receive over a new connection until it breaks."""
        self._check(greeting)
        if answer and self.connected and greeting.get("instance") != self.instance:
            raise Refused(f"another process of {self.name} is connected: stop it first")
        self.break_off()
        with self.using:
            self._resume(greeting)
            if answer:
                send_greeting(tls, self.greeting())
            self.connection, self.quiet = Connection(self, tls), 0
            self.refused, self.ours = False, ""
            self.local.events.write("connected", peer=self.name)
            self.local.publish()
            try:
                self.connection.run()
            except (OSError, ValueError, Refused) as error:
                if isinstance(error, Refused):
                    self.local.blame(self.site, str(error))
                self.local.events.write("disconnected", peer=self.name, reason=self.ours or first_line(error))
            finally:
                self.connection.close()
                self.connection, self.broken = None, time.monotonic()
                self.local.publish()
                self.local.changed()

    def _check(self, greeting: Greeting) -> None:
        conflict = self._conflict(str(greeting.get("run"))[:5000], greeting.get("stopped"))
        if conflict:
            self.local.conflicts[self.site] = conflict
            raise OtherRun(conflict)
        instance, received = greeting.get("instance"), greeting.get("received")
        if not isinstance(instance, str) or len(instance) > 64 or not isinstance(received, int):
            raise Refused("its greeting is incomplete")

    def _resume(self, greeting: Greeting) -> None:
        """Go on where the last connection ended; with another process of this site, begin afresh."""
        with self.room:
            if greeting["instance"] != self.instance:
                self.instance, self.state = greeting["instance"], None
                self.outbox.clear()
                self.sent = self.acknowledged = self.received = 0
                self.room.notify_all()
        if greeting.get("knows") == self.local.instance:
            self.acknowledge(greeting["received"])

    def _conflict(self, run: str, stopped: object) -> str:
        """Why no run can begin with this site, as its greeting says; empty if one can."""
        if stopped:
            why = f"because of {stopped!s:.100}: start again once it is fixed"
            return f"{self.name} stopped before the run began, {why}."
        if run == self.local.run:
            return ""
        parts = zip_longest(run.split("\n"), self.local.run.split("\n"), fillvalue="nothing")
        theirs, ours = next((theirs, ours) for theirs, ours in parts if theirs != ours)
        return f"The sites run different things: {self.name} runs {theirs:.300}, this site {ours}. Give all the same."


class Connection:
    """One connection with a site."""

    def __init__(self, link: Link, tls: ssl.SSLSocket):
        self.link, self.local, self.tls = link, link.local, tls
        self.signal, self.signaled = socket.socketpair()
        for end in (tls, self.signal, self.signaled):
            end.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.signaled, select.POLLIN)
        self.output: deque[memoryview] = deque()
        self.next = link.acknowledged  # message to be sent
        self.shown = -1  # version of the own state
        self.seen = b""  # the last state of the other site
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
        link, local = self.link, self.local
        if self.shown != local.version:
            self.shown = local.version
            self._tell(STATE, local.state)
        elif self.asked:
            self.asked = False
            self._tell(OPENING, json.dumps(local.opening).encode())
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
        self.local.told(TOLD[kind], self.link.site, len(text))
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
        buffer = self.local.inbox.place(key, size)
        self.waiting = (key, size) if buffer is None else None
        if buffer is not None:
            self._expect(buffer, lambda data: self._arrived(key, data))
        return buffer is not None

    def _arrived(self, key: Key, data: memoryview) -> None:
        self.link.received += 1
        self.local.inbox.arrived(key, data)
        self.local.changed()

    def _opening(self, data: memoryview) -> None:
        opening = _parsed(TypeAdapter(list[list[str | None]]).validate_json, data, "it does not say how the run began")
        if any(len(texts) != len(self.local.sites.sites) for texts in opening):
            raise Refused("it does not say how the run began")
        self.asking = self.link.asks = False
        self.local.opening = opening or self.local.opening
        self.local.changed()

    def _state(self, data: memoryview) -> None:
        if data == self.seen:
            return
        self.seen = bytes(data)
        self.link.state = _parsed(partial(self.local.parse, self.link.site), data, "its state cannot be read")
        self.local.publish()
        self.local.changed()


def _parsed(parse: Callable[[bytes], Any], data: memoryview, wrong: str) -> Any:
    try:
        return parse(bytes(data))
    except ValueError as error:
        raise Refused(wrong) from error
