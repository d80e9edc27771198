"""The store in which the processes of a run find each other: that of torchrun, or of `dnasa rendezvous`."""

import datetime
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore

from dnasa.core import InputError, RunError

T = TypeVar("T")
POLL = 0.05  # seconds between two looks at the store while processes meet


def serve(port: int) -> TCPStore:
    """Start a store."""
    try:
        return TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise InputError(f"Port {port} is in use: give another one with --port.") from error


def find_store(address: str | None) -> tuple[str, int]:
    """The host and port of that address, or of torchrun's store."""
    if address is None:
        if "MASTER_ADDR" not in os.environ:
            raise InputError(
                "To survive lost processes, start them with torchrun, with mpirun --with-ft ulfm, or with "
                "dnasa.connect(graph, join='HOST:29500') and `dnasa rendezvous`."
            )
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"The address to join is HOST:PORT, such as 10.0.0.1:29500, not '{address}'.")
    return host, int(port)


def open_store(host: str, port: int, timeout: float) -> TCPStore:
    remedy = f"start `dnasa rendezvous --port {port}` there first"
    wait_for_port(host, port, timeout, remedy)
    try:
        return TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=timeout))
    except RuntimeError as error:
        raise InputError(f"What answers at {host}:{port} is no rendezvous: {remedy}.") from error


def wait_for_port(host: str, port: int, timeout: float, remedy: str) -> None:
    """Processes may be started before the store is there."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
            return
        except socket.gaierror as error:
            raise InputError(f"There is no host '{host}': {error.strerror}.") from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise InputError(f"Nothing answers at {host}:{port}: {remedy}.") from error
            time.sleep(10 * POLL)


class Store:
    """The part of a TCPStore that belongs to one run; says so when it does not answer."""

    def __init__(self, store: TCPStore, prefix: str):
        self.store, self.address = PrefixStore(prefix, store), f"{store.host}:{store.port}"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.store, name)

        def call(*args: Any) -> Any:
            try:
                return method(*args)
            except RuntimeError as error:
                raise RunError(f"The rendezvous at {self.address} has ended, and with it the run.") from error

        return call


def parsed(text: bytes, check: Callable[[Any], T]) -> T | None:
    """A value in the store, None if it is damaged or something else: others may write to the store, too."""
    try:
        return check(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        return None
