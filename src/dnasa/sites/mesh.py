"""The connections of this site with all others, dialed again whenever they break."""

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from dnasa.sites.connecting import Door, Greeting, Refused, alert_of, closed_on_error, dial, dials, explain, send_greeting
from dnasa.sites.link import Link, Local, OtherRun
from dnasa.sites.tls import REVOKED, REVOKED_CERTIFICATE
from dnasa.sites.views import INTERVAL

HUSH = 10  # intervals of silence after which a connection is dialed again: after an outage TCP waits too long
GRACE = 0.8  # seconds for which a site that cannot be dialed may be away


class Mesh(Local):
    """This site and its connections with all others; the arguments are those of `Local`."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.closed = threading.Event()
        self.door: Door | None = None
        self.links.update({n: Link(self, n) for n in range(len(self.sites.sites)) if n != self.sites.own})

    def open(self) -> None:
        """Listen, and dial the others."""
        self.door = Door(self.sites, self._welcome) if self.sites.listen else None
        for work in (self._beat, *(lambda link=link: self._keep(link) for link in self.links.values())):
            threading.Thread(target=work, name="sites", daemon=True).start()

    def enter(self, view: int) -> None:
        """Receive the messages of this view from now on."""
        self.inbox.enter(view)
        for link in self.links.values():
            link.wake()

    def hears(self, site: int, timeout: float) -> bool:
        """Whether anything came from that site within the timeout, and nothing says that its process has ended."""
        link = self.links[site]
        return link.state is not None and link.quiet * INTERVAL <= timeout and not self.seems_gone(site)

    def seems_gone(self, site: int) -> bool:
        """Whether the process of that site seems to have ended: only a hint, since a firewall may refuse connections."""
        link = self.links[site]
        away = not link.ours and time.monotonic() > link.broken + GRACE and not self._reachable(site)
        return not link.connected and (link.refused or away)

    def drain(self) -> None:
        """Give the others a moment to receive what was sent to them, such as the settings that made this site stop."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not all(link.drained for link in self.links.values()):
            time.sleep(INTERVAL / 10)

    def close(self) -> None:
        """End all connections."""
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
        revoked = self.modified(REVOKED)
        while not self.closed.wait(INTERVAL):
            for link in self.links.values():
                link.quiet += 1
                if link.connected and link.quiet > HUSH:
                    link.break_off("nothing came for a while")
            if revoked != (revoked := self.modified(REVOKED)):
                for link in self.links.values():
                    link.break_off(f"{REVOKED} changed: certificates are checked again")
            self.publish(again=True)

    def modified(self, name: str) -> int:
        """When that file in the folder of the keys was last changed; 0 if there is none."""
        with suppress(OSError):
            return (self.sites.keys / name).stat().st_mtime_ns
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
                link.refused |= revoked or isinstance(error, ConnectionRefusedError)
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
