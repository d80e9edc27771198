"""Connections between sites: who dials whom, and who is let in.

A certificate says which site a connection is with. The first thing sent over it is a greeting: JSON with its length before it.
Of two sites that can be dialed, the one whose name comes first in the alphabet dials, whatever the order in their files. One
that cannot be dialed dials the others.
"""

import json
import logging
import math
import os
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.events import Events
from dnasa.sites.file import Sites
from dnasa.sites.tls import client_context, names, server_context

DIALING = 5.0  # seconds for a TCP connection
HANDSHAKE = 10.0  # seconds for TLS and the greeting
CHECKING = 30.0  # seconds for `dnasa sites check`
PENDING = 64  # connections without a greeting yet; then the oldest is closed
PENDING_EACH = 16  # those of one address
LENGTH = struct.Struct("!I")
LONGEST_GREETING = 1 << 16
CHECK = "check"  # a greeting of `dnasa sites check`
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
        case ssl.SSLError() | ConnectionError():
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


def dial(sites: Sites, other: int, greeting: Callable[[], Greeting]) -> tuple[ssl.SSLSocket, Greeting]:
    """Connect to that site, and greet it; a `ConnectionRefusedError` says that no process listens there."""
    peer = sites.sites[other]
    plain = socket.create_connection((peer.host, peer.port), timeout=DIALING)
    with closed_after(plain, HANDSHAKE), closed_on_error(plain):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = client_context(sites.keys).wrap_socket(plain)
        with closed_on_error(connection):
            if site_of(connection, sites) != other:
                raise Refused(f"{peer.name} has the certificate of {', '.join(names(connection))}")
            send_greeting(connection, greeting())
            answer = read_greeting(connection)
            if "refused" in answer:
                raise Refused(str(answer["refused"])[:500])
            return connection, answer


def site_of(connection: ssl.SSLSocket, sites: Sites) -> int:
    """The number of the site that the certificate of the other side names."""
    certified = names(connection)
    found = [number for number, site in enumerate(sites.sites) if site.name in certified]
    if len(found) != 1 or found[0] == sites.own:
        raise Refused(f"the certificate of {', '.join(certified)} is not that of another site")
    return found[0]


def send_greeting(connection: ssl.SSLSocket, greeting: Greeting) -> None:
    text = json.dumps(greeting).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)


def read_greeting(connection: ssl.SSLSocket) -> Greeting:
    (length,) = LENGTH.unpack(read_exactly(connection, LENGTH.size))
    if length > LONGEST_GREETING:
        raise Refused(f"its greeting has {length} bytes")
    try:
        greeting = json.loads(read_exactly(connection, length))
        return dict(greeting)
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused("its greeting is not a JSON object") from error


def read_exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("The connection was closed.")
        rest = rest[count:]
    return bytes(data)


@contextmanager
def closed_after(connection: socket.socket, seconds: float) -> Iterator[Callable[[str], None]]:
    """Shut the connection down if this takes longer, however slowly bytes trickle in, or when the function is called."""
    same, reasons = socket.socket(fileno=os.dup(connection.fileno())), list[str]()  # TLS takes the number over

    def shut_down(reason: str) -> None:
        reasons.append(reason)
        with suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    connection.settimeout(2 * seconds)
    timer = threading.Timer(seconds, shut_down, (f"it has not greeted within {seconds:g} s",))
    timer.daemon = True
    try:
        timer.start()
        yield shut_down
    except OSError as error:
        if reasons:
            raise Refused(reasons[0]) from error
        raise
    finally:
        timer.cancel()
        same.close()


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


# ---------------------------------------------------------------- accepting


CROWDED = "too many connections at once"
Welcome = Callable[[int, ssl.SSLSocket, Greeting], None]


@dataclass(eq=False)
class Pending:
    """A connection that has not greeted yet."""

    host: str
    shut_down: Callable[[str], None] = lambda reason: None


class Door:
    """Listens for other sites, in threads of its own. Whoever else comes is refused and logged with the address.

    Attributes:
        welcome: Called in a thread with each site that has come, the connection, and its greeting.
        checked: Called with each site that has checked this one; None during a run.
        refusals: How many connections were refused, by address.
        refused: The address of the last one, and why.
    """

    def __init__(self, sites: Sites, welcome: Welcome, checked: Callable[[int], None] | None = None):
        self.sites, self.welcome, self.checked = sites, welcome, checked
        self.events = Events(sites.sites[sites.own].name)
        self.refusals: Counter[str] = Counter()
        self.refused = ""
        self.pending: dict[socket.socket, Pending] = {}
        self.lock = threading.Lock()
        self.listener = self._listen()
        self.closed = False
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def _listen(self) -> socket.socket:
        assert self.sites.listen is not None, "Only a site with an address listens."
        host, port = self.sites.listen
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            return socket.create_server(
                address[:2], family=family, backlog=PENDING, dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6()
            )
        except OSError as error:
            raise InputError(
                f"Cannot listen on {host} port {port}: {error.strerror or first_line(error)}. Stop what listens there, or "
                "write listen = '0.0.0.0:PORT' into the file of the sites if this address is not on this machine."
            ) from error

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        while not self.closed:
            try:
                connection, address = self.listener.accept()
            except OSError:
                if not self.closed:  # for example, too many open files
                    threading.Event().wait(0.1)
                continue
            pending = Pending(str(address[0]))
            try:
                self._make_room(pending.host)
                with self.lock:
                    self.pending[connection] = pending
                threading.Thread(target=self._admit, args=(connection, pending), daemon=True).start()
            except (Refused, RuntimeError) as error:  # for example, no thread can be started
                self._settle(connection)
                connection.close()
                self._refuse(pending.host, first_line(error))

    def _settle(self, connection: socket.socket) -> None:
        with self.lock:
            self.pending.pop(connection, None)

    def _make_room(self, host: str) -> None:
        """Shut down the oldest connection if there are many: others cannot keep a site out by keeping theirs open."""
        with self.lock:
            everyone = list(self.pending.values())
        same = [pending for pending in everyone if pending.host == host]
        if len(everyone) >= 2 * PENDING:
            raise Refused(CROWDED)
        if len(same) >= PENDING_EACH or len(everyone) >= PENDING:
            (same if len(same) >= PENDING_EACH else everyone)[0].shut_down(CROWDED)

    def _admit(self, plain: socket.socket, pending: Pending) -> None:
        host = pending.host
        try:
            with closed_on_error(plain):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with closed_after(plain, HANDSHAKE) as pending.shut_down:
                    connection = server_context(self.sites.keys).wrap_socket(plain, server_side=True)
                    with closed_on_error(connection):
                        site, greeting = site_of(connection, self.sites), read_greeting(connection)
                self._settle(plain)
                with closed_on_error(connection):
                    if greeting.get(CHECK):
                        self._check(site, connection)
                    else:
                        self.welcome(site, connection, greeting)
        except (ssl.SSLEOFError, ConnectionError, TimeoutError):
            pass  # the other side is gone
        except (Refused, InputError, OSError, ValueError) as error:
            known = explain(error) if alert_of(error) else getattr(error, "verify_message", "")
            self._refuse(host, known or first_line(error))
        finally:
            self._settle(plain)

    def _refuse(self, host: str, reason: str) -> None:
        """Log a refusal: the first of an address, then the 10th, the 100th, and so on."""
        with self.lock:
            if len(self.refusals) > 1000:
                self.refusals.clear()
            self.refusals[host] += 1
            count, self.refused = self.refusals[host], f"{host}: {reason}"
        level = logging.WARNING if math.log10(count).is_integer() else logging.DEBUG  # metrics count all of them
        self.events.warn("refused", f"refused {host}: {reason}", level, address=host, reason=reason, count=count)

    def _check(self, site: int, connection: ssl.SSLSocket) -> None:
        """Tell the time, and return what the other side sends to measure the latency."""
        with closed_after(connection, CHECKING), suppress(ConnectionError):
            send_greeting(connection, {"time": time.time(), "checking": self.checked is not None})
            while True:
                connection.sendall(read_exactly(connection, 1))
        if self.checked is not None:
            self.checked(site)
