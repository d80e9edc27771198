"""One connection with every other site.

A connection carries frames of these kinds: a site's state (small, JSON, only the latest counts), messages, how many have
arrived, and how the run began, for a site that comes later. Messages are kept until the other side has them, so a connection
that breaks loses nothing. One thread serves all connections; another one only adds to what is to be sent, and wakes it.
"""

import asyncio
import json
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import zip_longest
from typing import Any

from pydantic import TypeAdapter

from dnasa.checks import first_line
from dnasa.events import Events
from dnasa.sites.connecting import PIECE, Greeting, Refused, Wire
from dnasa.sites.file import Sites
from dnasa.sites.inbox import Inbox, Key
from dnasa.sites.views import INTERVAL

HEADER = struct.Struct("!BQIQQ")  # kind, view, network, number, bytes that follow
STATE, MESSAGE, ARRIVED, OPENING = range(4)
STATE_LIMIT, OPENING_LIMIT = 1 << 20, 1 << 26  # bytes
UNSENT_LIMIT = 16  # messages to a site; then the sender waits
TOGETHER = 0.02  # seconds in which several states may arrive, before this site makes use of them
TOLD = {STATE: "state", OPENING: "opening"}  # what sites tell each other besides messages, as the audit calls it


class OtherRun(Refused):
    """The other site runs something else."""


class Local:
    """This site, as its connections need it: one thread serves all of them.

    `run` describes what all sites must have in common. `describe` gives what this site says of itself, as text, and `parse`
    reads what another says, or raises a `ValueError`. `told` is called with the kind, the receiver and the bytes of what this
    site tells others besides messages.
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
        self.instance = uuid.uuid4().hex  # names this process: one that is started again has another
        self.inbox = Inbox()
        self.news = threading.Condition()
        self.version, self.state = 0, b""  # what this site says of itself, and how often that has changed
        self.stopped = ""  # why this site does not take part, which is all that it tells the others then
        self.fault = ""  # which site said what it must not say, and what: this one stops
        self.conflicts: dict[int, str] = {}  # the sites with which no run can begin, and why
        self.opening: list[list[str | None]] = []  # texts exchanged before the first step, for sites that join
        self.links = {n: Link(self, n) for n in range(len(sites.sites)) if n != sites.own}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.answers = False  # whether this site will make use of what others said

    def soon(self, call: Callable[[], object]) -> None:
        """Call this in the thread of the connections, as long as there is one."""
        with suppress(AttributeError, RuntimeError):
            self.loop.call_soon_threadsafe(call)  # type: ignore[union-attr]

    def publish(self, again: bool = False) -> None:
        """Tell the others the state of this site, if it has changed, or again."""
        with self.news:
            state = self.describe().encode()
            if state == self.state and not again:
                return
            self.state = state
            self.version += 1  # last: connections look at it first
        self.wake()

    def answer(self) -> None:
        """Make use of what another site said, together with what others say at the same time."""
        if not self.answers and self.loop is not None:
            self.answers = True
            self.loop.call_later(TOGETHER, self._answer)

    def _answer(self) -> None:
        self.answers = False
        self.publish()
        self.changed()

    def wake(self) -> None:
        """Look for something to send to any site, or to read from it."""

        def look() -> None:
            for link in self.links.values():
                link.look()

        self.soon(look)

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
        instance: Names the process at the other end, whose latest `state` was made of the text `said`.
        opening: How the run began, as it says to a site that is not a member yet.
        outside: Whether its process is no member of the view of this site, which tells it how the run began.
        refused: Whether no process listened at its address, or its certificate was revoked, when it was last dialed.
        ours: Why this process broke the last connection off, which says nothing about the other; empty if it did not.
        quiet: Own intervals since anything came.
    """

    def __init__(self, local: Local, site: int):
        self.local, self.site, self.name = local, site, local.sites.sites[site].name
        self.instance, self.problem, self.warned, self.ours = "", "", "", ""
        self.state: Any = None
        self.said = b""
        self.opening: list[list[str | None]] = []
        self.outside = self.refused = False
        self.quiet, self.broken = 0, time.monotonic()
        self.outbox: deque[tuple[bytes, bytes]] = deque()  # headers and bodies of messages
        self.sent = self.acknowledged = self.received = 0  # messages
        self.using, self.woken = asyncio.Lock(), asyncio.Event()
        self.wire: Wire | None = None
        self.shown = -1  # version of the own state

    @property
    def connected(self) -> bool:
        return self.wire is not None

    def send(self, instance: str, key: Key, data: bytes, check: Callable[[], object]) -> None:
        """Send a message to this process of the site, or to nobody if there is another one now.

        Waits while many are on their way, and calls `check`, which may raise.
        """
        with self.local.news:
            while len(self.outbox) >= UNSENT_LIMIT:
                self.local.news.wait(INTERVAL / 5)
                check()
            if instance == self.instance:
                self.outbox.append((HEADER.pack(MESSAGE, key.view, key.network, key.number, len(data)), data))
        self.wake()

    def wake(self) -> None:
        """Look for something to send, or to read, in the thread of the connections."""
        self.local.soon(self.look)

    def look(self) -> None:
        self.woken.set()
        self.woken.clear()

    def acknowledge(self, count: int) -> None:
        """The other side has received this many messages."""
        if not self.acknowledged <= count <= self.sent:
            raise Refused("it acknowledged messages that were not sent")
        for _ in range(count - self.acknowledged):
            self.outbox.popleft()
        self.acknowledged = count
        self.local.changed()

    def break_off(self, reason: str = "there is a newer one") -> None:
        """Close the connection; it is made again."""
        if (wire := self.wire) is not None:
            self.ours = reason
            self.local.soon(wire.close)

    @property
    def drained(self) -> bool:
        """Whether all that this site has to say is on its way, or nobody listens."""
        wire = self.wire
        unsent = wire and wire.writer.transport.get_write_buffer_size()
        return wire is None or not (self.outbox or unsent or self.shown != self.local.version)

    def greeting(self) -> Greeting:
        local = self.local
        about = {"run": local.run, "stopped": local.stopped, "instance": local.instance}
        greeting = {**about, "knows": self.instance, "received": self.received}
        local.told("greeting", self.site, len(json.dumps(greeting)))
        return greeting

    async def renewal(self) -> Greeting:
        """The greeting for the next connection. The last one ends first: what has been received is final."""
        self.break_off()
        async with self.using:
            return self.greeting()

    async def use(self, wire: Wire, greeting: Greeting, answer: bool = False) -> None:
        """Send and receive over a new connection until it breaks."""
        self._check(greeting)
        if answer and self.connected and greeting.get("instance") != self.instance:
            raise Refused(f"another process of {self.name} is connected: stop it first")
        self.break_off()
        async with self.using:
            self._resume(greeting)
            if answer:
                await wire.send_greeting(self.greeting())
            self.wire, self.shown, self.quiet, self.refused, self.ours = wire, -1, 0, False, ""
            self.local.events.write("connected", peer=self.name)
            self.local.publish()
            writing, reason = asyncio.create_task(self._write(wire)), "this site has ended"
            try:
                await self._read(wire)
            except (OSError, EOFError, Refused) as error:
                if isinstance(error, Refused):
                    self.local.blame(self.site, str(error))
                reason = first_line(error)
            finally:
                writing.cancel()
                wire.close()
                self.wire, self.broken = None, time.monotonic()
                self.local.events.write("disconnected", peer=self.name, reason=self.ours or reason)
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

    def _conflict(self, run: str, stopped: object) -> str:
        """Why no run can begin with this site, as its greeting says; empty if one can."""
        if stopped:
            why = f"because of {stopped!s:.100}: start again once it is fixed"
            return f"{self.name} stopped before the run began, {why}."
        if run == self.local.run:
            return ""
        parts = zip_longest(run.split("\n"), self.local.run.split("\n"), fillvalue="nothing")
        theirs, ours = next((theirs, ours) for theirs, ours in parts if theirs != ours)
        here = self.local.sites.sites[self.local.sites.own].name
        return f"{self.name} runs {theirs:.300}, {here} {ours:.300}: give every site the same options."

    def _resume(self, greeting: Greeting) -> None:
        """Go on where the last connection ended; with another process of this site, begin afresh."""
        if greeting["instance"] != self.instance:
            with self.local.news:  # another thread may be about to send to the last one
                self.instance, self.state, self.said = greeting["instance"], None, b""
                self.outbox.clear()
            self.sent = self.acknowledged = self.received = 0
        if greeting.get("knows") == self.local.instance:
            self.acknowledge(greeting["received"])

    # ------------------------------------------------------------ sending

    async def _write(self, wire: Wire) -> None:
        """Send what there is: the own state first."""
        local, number, told, opened = self.local, self.acknowledged, self.received, False
        with suppress(OSError), closing(wire):
            while True:
                if self.shown != local.version:
                    self.shown = local.version
                    await self._tell(wire, STATE, local.state)
                elif self.outside and not opened:
                    opened = True
                    await self._tell(wire, OPENING, json.dumps(local.opening).encode())
                elif number < self.acknowledged + len(self.outbox):
                    header, body = self.outbox[number - self.acknowledged]
                    number += 1
                    self.sent = max(self.sent, number)
                    await wire.write(header, body)
                elif told != self.received:
                    told = self.received
                    await wire.write(HEADER.pack(ARRIVED, 0, 0, told, 0))
                else:
                    await self.woken.wait()

    async def _tell(self, wire: Wire, kind: int, text: bytes) -> None:
        self.local.told(TOLD[kind], self.site, len(text))
        await wire.write(HEADER.pack(kind, 0, 0, 0, len(text)) + text)

    # ------------------------------------------------------------ receiving

    async def _read(self, wire: Wire) -> None:
        while True:
            kind, view, network, number, size = HEADER.unpack(await wire.reader.readexactly(HEADER.size))
            self.quiet = 0
            if kind == MESSAGE:
                await self._receive(wire, Key(self.site, view, network, number), size)
            elif kind == ARRIVED and not size:
                self.acknowledge(number)
            elif kind == STATE and size <= STATE_LIMIT:
                self._hear(await wire.reader.readexactly(size))
            elif kind == OPENING and size <= OPENING_LIMIT:
                self._learn(await wire.reader.readexactly(size))
            else:
                raise Refused(f"it sent a frame of kind {kind} with {size} bytes")

    async def _receive(self, wire: Wire, key: Key, size: int) -> None:
        """Read a message to where it belongs; one that is not wanted yet stays in the socket."""
        while (buffer := self.local.inbox.place(key, size)) is None:
            self.quiet = 0
            await self.woken.wait()
            if wire.writer.is_closing():
                raise ConnectionResetError("The connection was closed.")
        for start in range(0, size, PIECE):
            end = min(start + PIECE, size)
            buffer[start:end] = await wire.reader.readexactly(end - start)
            self.quiet = 0
        self.received += 1
        self.local.inbox.arrived(key, buffer)
        self.local.changed()
        self.look()

    def _hear(self, text: bytes) -> None:
        if text != self.said:
            self.said, self.state = text, _parsed(partial(self.local.parse, self.site), text, "its state cannot be read")
            self.local.answer()

    def _learn(self, text: bytes) -> None:
        """How the run began, if this site is not a member yet."""
        if not self.local.inbox.view:
            wrong = "it does not say how the run began"
            self.opening = _parsed(TypeAdapter(list[list[str | None]]).validate_json, text, wrong)
            if any(len(texts) != len(self.local.sites.sites) for texts in self.opening):
                raise Refused(wrong)
            self.local.changed()


def _parsed(parse: Callable[[bytes], Any], text: bytes, wrong: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise Refused(wrong) from error
