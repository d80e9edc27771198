"""`dnasa watch`: the page of runs that are under way, for browsers on this machine that know the token."""

import hmac
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dnasa.core import InputError
from dnasa.pages.contents import Folders
from dnasa.pages.page import render

LOOPBACK = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Serves `/`, the page, only with the token that `url` has."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0):
        self.folders, self.lock = Folders(folder, wait=True), threading.Lock()
        self.token = secrets.token_urlsafe(16)
        try:
            super().__init__((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"Cannot listen on port {port}: {str(error).rstrip('.')}. Choose another --port, or leave it out."
            ) from error

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/?token={self.token}"

    def page(self) -> str:
        with self.lock:
            self.folders.update()
            return render(self.folders.contents(), live=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a browser closes its connection."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 60  # seconds that a connection may be silent

    def do_GET(self) -> None:
        self._send(*self._answer())

    def _answer(self) -> tuple[int, str, str]:
        """The status, the kind of the content, and the content. Whatever goes wrong, the browser gets an answer."""
        try:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            given = query.get("token", [""])[0].encode()
            if not hmac.compare_digest(given, self.server.token.encode()):
                return 403, "text/plain", "Open the address that `dnasa watch` printed: it has the token.\n"
            if address.path != "/":
                return 404, "text/plain", "There is no such page.\n"
        except ValueError:
            return 400, "text/plain", "This address cannot be read.\n"
        try:
            return 200, "text/html", self.server.page()
        except Exception as error:
            return 500, "text/plain", f"{error}\n"

    def _send(self, code: int, kind: str, text: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""
