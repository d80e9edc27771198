"""The connections of this site with all others, dialed again whenever they break."""

import asyncio
import ssl
import threading
import time
from contextlib import closing, suppress
from typing import Any

from dnasa.sites.connecting import Door, Greeting, Refused, Wire, alert_of, connect, dial, dials, explain
from dnasa.sites.link import Link, Local, OtherRun
from dnasa.sites.tls import REVOKED, REVOKED_CERTIFICATE
from dnasa.sites.views import INTERVAL

HUSH = 10  # intervals of silence after which a connection is dialed again: after an outage TCP waits too long
GRACE = 0.8  # seconds for which a site that cannot be dialed may be away


class Mesh(Local):
    """This site and its connections with all others; the arguments are those of `Local`."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.closed, self.stop = threading.Event(), asyncio.Event()
        self.door: Door | None = None
        self.thread: threading.Thread | None = None

    def open(self) -> None:
        """Listen, and dial the others."""
        self.door = Door(self.sites, self._welcome) if self.sites.listen else None
        self.thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="sites", daemon=True)
        self.thread.start()

    def enter(self, view: int) -> None:
        """Receive the messages of this view from now on."""
        self.inbox.enter(view)
        self.wake()

    def hears(self, site: int, timeout: float) -> bool:
        """Whether anything came from that site within the timeout, and nothing says that its process has ended."""
        link = self.links[site]
        return link.state is not None and link.quiet * INTERVAL <= timeout and not self.seems_gone(site)

    def seems_gone(self, site: int) -> bool:
        """Whether the process of that site seems to have ended: only a hint, since a firewall may refuse connections."""
        link = self.links[site]
        away = not link.ours and time.monotonic() > link.broken + GRACE and not self.sites.sites[site].reachable
        return not link.connected and (link.refused or away)

    def drain(self) -> None:
        """Give the others a moment to receive what was sent to them, such as the settings that made this site stop."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not all(link.drained for link in self.links.values()):
            time.sleep(INTERVAL / 10)

    def close(self) -> None:
        """End all connections."""
        self.closed.set()
        self.soon(self.stop.set)
        if self.thread is not None:
            self.thread.join(GRACE)

    def modified(self, name: str) -> int:
        """When that file in the folder of the keys was last changed; 0 if there is none."""
        with suppress(OSError):
            return (self.sites.keys / name).stat().st_mtime_ns
        return 0

    # ------------------------------------------------------------ the thread of the connections

    async def _work(self) -> None:
        self.loop = asyncio.get_running_loop()
        doors = [self.door.accept()] if self.door else []
        works = [asyncio.create_task(work) for work in (self._beat(), *map(self._keep, self.links.values()), *doors)]
        if not self.closed.is_set():
            await self.stop.wait()
        for work in works:
            work.cancel()
        if self.door:
            self.door.listener.close()  # a task that was canceled before it began does not

    async def _welcome(self, wire: Wire, greeting: Greeting) -> None:
        link = self.links[wire.site]
        try:
            await link.use(wire, greeting, answer=True)
        except Refused as error:
            differs = isinstance(error, OtherRun)  # which both must know
            with suppress(OSError):
                await wire.send_greeting(link.greeting() if differs else {"refused": str(error)})
            if not differs or (self.inbox.view and not greeting.get("stopped")):  # before the run begins, both stop and say why
                raise

    async def _beat(self) -> None:
        revoked = self.modified(REVOKED)
        while True:
            await asyncio.sleep(INTERVAL)
            for link in self.links.values():
                link.quiet += 1
                if link.quiet > HUSH:
                    link.break_off("nothing came for a while")
            if revoked != (revoked := self.modified(REVOKED)):
                for link in self.links.values():
                    link.break_off(f"{REVOKED} changed: certificates are checked again")
            self.publish(again=True)

    async def _keep(self, link: Link) -> None:
        """Keep a connection with this site, or find out that it is gone."""
        pause = 0.1 if dials(self.sites, link.site) else 1.0  # it dials this site, as soon as it can
        while True:
            await asyncio.sleep(pause)
            async with link.using:  # until it has no connection
                began = time.monotonic()
            try:
                await self._connect(link)
            except Exception as error:  # whatever it is, dial again
                revoked = getattr(error, "verify_code", 0) == REVOKED_CERTIFICATE
                link.refused |= revoked or isinstance(error, ConnectionRefusedError)
                self._explain(link, error)
            self.changed()
            pause = 0.1 if time.monotonic() > began + 1 else min(2 * pause, 1.0)

    def _explain(self, link: Link, error: Exception) -> None:
        """Keep why there is no connection, and warn once if the other site refuses this one."""
        link.problem = reason = explain(error)
        refused = isinstance(error, ssl.SSLCertVerificationError) or alert_of(error)
        if (refused or not isinstance(error, OSError | EOFError | OtherRun)) and reason != link.warned:
            link.warned = reason
            line = f"no connection with {link.name}: {reason}"
            self.events.warn("no connection", line, peer=link.name, reason=reason)

    async def _connect(self, link: Link) -> None:
        """Dial, and use the connection until it breaks; or see whether a site that dials this one listens."""
        peer = self.sites.sites[link.site]
        if dials(self.sites, link.site):
            wire, greeting = await dial(self.sites, link.site, link.renewal)
            with closing(wire):
                await link.use(wire, greeting)
        elif peer.reachable:
            async with asyncio.timeout(GRACE):
                (await connect(peer)).close()
            link.problem = "it listens, and has not dialed this site"
        else:
            link.problem = "it has not dialed this site"
