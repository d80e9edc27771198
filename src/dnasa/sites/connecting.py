"""Connections between sites: who dials whom, and who is let in.

A certificate says which site a connection is with. The first thing sent over it is a greeting: JSON with its length before it.
Of two sites that can be dialed, the one whose name comes first in the alphabet dials, whatever the order in their files. One
that cannot be dialed dials the others.
"""

import asyncio
import json
import logging
import math
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.events import Events
from dnasa.sites.file import Site, Sites
from dnasa.sites.tls import client_context, names, server_context

DIALING = 5.0  # seconds for a TCP connection
HANDSHAKE = 10.0  # seconds for TLS and the greeting
PENDING = 64  # connections without a greeting yet; then the oldest is closed
PENDING_EACH = 16  # those of one address
CROWDED = "too many connections at once"
LENGTH = struct.Struct("!I")
LONGEST_GREETING = 1 << 16
PIECE = 1 << 18  # bytes that are encrypted or read at once
Greeting = dict[str, Any]


class Refused(Exception):
    """The other side is not let in, or said something that it must not say."""


def explain(error: Exception) -> str:
    """Why there is no connection, in words that say where to look."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens there"
        case TimeoutError():
            return "no answer: a firewall, or a wrong address"
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError() if alert_of(error):
            return f"it refuses this site's certificate: {alert_of(error)}"
        case ssl.SSLError() | ConnectionError() | EOFError():
            return f"it closed the connection, as it does to certificates it refuses: {first_line(error)}"
    return first_line(error)


def alert_of(error: Exception) -> str:
    """What the other side has against this site's certificate, such as "certificate revoked"; empty if it said nothing."""
    reason = getattr(error, "reason", None) or ""
    return reason.partition("_ALERT_")[2].replace("_", " ").lower()


def dials(sites: Sites, other: int) -> bool:
    """Whether this site dials that one, and not the other way round."""
    own, peer = sites.sites[sites.own], sites.sites[other]
    return peer.reachable and (not own.reachable or own.name < peer.name)


# ---------------------------------------------------------------- a connection


@dataclass(eq=False)
class Wire:
    """A connection under TLS."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    site: int = -1  # at the other end

    async def write(self, *parts: bytes) -> None:
        for part in parts:
            for start in range(0, len(part), PIECE):
                self.writer.write(memoryview(part)[start : start + PIECE])
                await self.writer.drain()

    async def send_greeting(self, greeting: Greeting) -> None:
        text = json.dumps(greeting).encode()
        await self.write(LENGTH.pack(len(text)) + text)

    async def read_greeting(self) -> Greeting:
        (length,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
        if length > LONGEST_GREETING:
            raise Refused(f"its greeting has {length} bytes")
        try:
            return dict(json.loads(await self.reader.readexactly(length)))
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused("its greeting is not a JSON object") from error

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(site: Site) -> socket.socket:
    """A TCP connection; a `ConnectionRefusedError` says that no process listens there."""
    loop, error = asyncio.get_running_loop(), OSError(f"{site.host} has no address")
    try:
        found = await loop.getaddrinfo(site.host, site.port, type=socket.SOCK_STREAM)
    except RuntimeError:  # Python starts no threads once the script has ended, and the others may still need this site
        found = socket.getaddrinfo(site.host, site.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        plain = socket.socket(family, kind, protocol)
        plain.setblocking(False)
        try:
            await loop.sock_connect(plain, address)
            return plain
        except BaseException as problem:
            plain.close()
            if not isinstance(problem, OSError):
                raise
            error = problem
    raise error


class Handshake(ssl.SSLObject):
    """asyncio would close the connection without the alert that tells the other side why: it waits first, but for no time."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            known: dict[str, Any] = vars(self.context)
            known.setdefault("failure", error)
            with suppress(RuntimeError):  # the time is over already
                known["limit"].reschedule(0)
            raise ssl.SSLWantReadError from error


async def opened(
    plain: socket.socket, context: Any, sites: Sites, greet: Callable[[Wire], Awaitable[Greeting]], accepted: bool
) -> tuple[Wire, Greeting]:
    """This connection under TLS, and the greeting of the other side, if that comes in time, however slowly bytes trickle."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(PIECE)
    protocol = asyncio.StreamReaderProtocol(reader)
    context.sslobject_class = Handshake
    try:
        async with asyncio.timeout(HANDSHAKE) as context.limit:
            if accepted:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, plain, ssl=context)
            else:
                transport, _ = await loop.create_connection(lambda: protocol, sock=plain, ssl=context, server_hostname="")
            wire = Wire(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
            try:
                wire.site = site_of(names(transport.get_extra_info("ssl_object")), sites)
                return wire, await greet(wire)
            except BaseException:
                wire.close()
                raise
    except TimeoutError as error:
        raise vars(context).pop("failure", None) or Refused(f"it has not greeted within {HANDSHAKE:g} s") from error


def site_of(certified: list[str], sites: Sites) -> int:
    """The number of the site that the certificate of the other side names."""
    found = [number for number, site in enumerate(sites.sites) if site.name in certified]
    if len(found) != 1 or found[0] == sites.own:
        raise Refused(f"the certificate of {', '.join(certified)} is not that of another site")
    return found[0]


async def dial(sites: Sites, other: int, greeting: Callable[[], Awaitable[Greeting]]) -> tuple[Wire, Greeting]:
    """Connect to that site, and greet it; a `ConnectionRefusedError` says that no process listens there."""
    peer, context = sites.sites[other], client_context(sites.keys)

    async def greet(wire: Wire) -> Greeting:
        if wire.site != other:
            raise Refused(f"{peer.name} has the certificate of {sites.sites[wire.site].name}")
        await wire.send_greeting(await greeting())
        answer = await wire.read_greeting()
        if "refused" in answer:
            raise Refused(str(answer["refused"])[:500])
        return answer

    async with asyncio.timeout(DIALING):
        plain = await connect(peer)
    return await opened(plain, context, sites, greet, accepted=False)


# ---------------------------------------------------------------- accepting

Welcome = Callable[[Wire, Greeting], Awaitable[None]]


class Door:
    """Listens for other sites. Whoever else comes is refused and logged with the address.

    `welcome` is called with the connection of each site that has come, and its greeting.
    """

    def __init__(self, sites: Sites, welcome: Welcome):
        self.sites, self.welcome = sites, welcome
        self.events = Events(sites.sites[sites.own].name)
        self.pending: dict[asyncio.Task[None] | None, str] = {}  # that have not greeted yet, and their addresses
        self.refusals: Counter[str] = Counter()  # by address
        self.refused = ""  # the last address, and why
        self.listener = self._listen()

    def _listen(self) -> socket.socket:
        assert self.sites.listen is not None, "Only a site with an address listens."
        host, port = self.sites.listen
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            both = host == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server(address[:2], family=family, backlog=PENDING, dualstack_ipv6=both)
        except OSError as error:
            raise InputError(
                f"Cannot listen on {host} port {port}: {error.strerror or first_line(error)}. Stop what listens there, perhaps "
                "another process of this site, or write listen = '0.0.0.0:PORT' into the file of the sites if this address is "
                "not on this machine."
            ) from error
        listener.setblocking(False)
        return listener

    async def accept(self) -> None:
        """Let other sites in until this is canceled."""
        with self.listener:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        accepted, address = await asyncio.get_running_loop().sock_accept(self.listener)
                    except OSError:  # for example, too many open files
                        await asyncio.sleep(0.1)
                        continue
                    host = str(address[0])
                    self._make_room(host)
                    self.pending[tasks.create_task(self._admit(accepted, host))] = host
                    await asyncio.sleep(0)  # it begins

    def _make_room(self, host: str) -> None:
        """Close the oldest connection if there are many: others cannot keep a site out by keeping theirs open."""
        same = [task for task, other in self.pending.items() if other == host]
        if len(same) >= PENDING_EACH or len(self.pending) >= PENDING:
            oldest = same[0] if len(same) >= PENDING_EACH else next(iter(self.pending))
            self._refuse(self.pending.pop(oldest), CROWDED)
            oldest.cancel()  # type: ignore[union-attr]

    async def _admit(self, plain: socket.socket, host: str) -> None:
        try:
            with plain:
                context = server_context(self.sites.keys)
                wire, greeting = await opened(plain, context, self.sites, Wire.read_greeting, accepted=True)
                self.pending.pop(asyncio.current_task(), None)
                with closing(wire):
                    await self.welcome(wire, greeting)
        except (asyncio.CancelledError, ssl.SSLEOFError, ConnectionError, TimeoutError, EOFError):
            pass  # this site closed it (a canceled task of Python 3.11 is never freed), or the other side did
        except Exception as error:  # whatever it is, let others in
            known = explain(error) if alert_of(error) else getattr(error, "verify_message", "")
            self._refuse(host, known or first_line(error))
        finally:
            self.pending.pop(asyncio.current_task(), None)

    def _refuse(self, host: str, reason: str) -> None:
        """Log a refusal: the first of an address, then the 10th, the 100th, and so on."""
        if len(self.refusals) > 1000:
            self.refusals.clear()
        self.refusals[host] += 1
        count, self.refused = self.refusals[host], f"{host}: {reason}"
        level = logging.WARNING if math.log10(count).is_integer() else logging.DEBUG
        self.events.warn("refused", f"refused {host}: {reason}", level, address=host, reason=reason, count=count)
