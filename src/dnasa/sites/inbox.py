"""The messages that arrive at a site: those that it waits for, and those that come early."""

import threading
from typing import NamedTuple

from dnasa.sites.connecting import Refused

MESSAGE_LIMIT = 1 << 40  # bytes
NETWORKS = 4  # numbers of networks: exchanges and sums, of `connect` and of an optimizer
EARLY_LIMIT = 8  # messages of a site that came before they were wanted; then no more is read from it


class Key(NamedTuple):
    """Which message this is; `number` counts those of a network between two sites in a view."""

    site: int
    view: int
    network: int
    number: int


class Receive(NamedTuple):
    """A message that this process waits for."""

    buffer: memoryview
    done: threading.Event


class Inbox:
    """The messages that this process waits for, and those that came early: others may be in the next view already."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.view = 0
        self.largest = 1 << 20
        self.wanted: dict[Key, Receive] = {}
        self.early: dict[Key, memoryview] = {}
        self.counts: dict[Key, int] = {}  # messages of each site, view and network (number 0)

    def enter(self, view: int) -> None:
        """Forget the messages of earlier views."""
        with self.lock:
            self.counts = {key: count for key, count in self.counts.items() if key.view >= self.view}
            self.view = view
            self.wanted.clear()
            self.early = {key: data for key, data in self.early.items() if key.view >= view}

    def want(self, key: Key, buffer: memoryview) -> Receive:
        """Wait for a message; it may have come already."""
        receive = Receive(buffer, threading.Event())
        with self.lock:
            self.largest = max(self.largest, len(buffer))
            data = self.early.pop(key, None)
            if data is None:
                self.wanted[key] = receive
            else:
                check_size(len(data), len(buffer))
                buffer[:] = data
                receive.done.set()
        return receive

    def place(self, key: Key, size: int) -> memoryview | None:
        """Where a message goes; None if it must wait until it is wanted."""
        if key.network >= NETWORKS:
            raise Refused(f"it sent a message of network {key.network}")
        past = key.view < self.view
        with self.lock:
            last = self.counts.get(key._replace(number=0), key.number - 1 if past else 0)
            if key.number != last + 1:
                raise Refused(f"it sent message {key.number} after message {last}")
            receive = self.wanted.get(key)
            if receive is not None:
                check_size(size, len(receive.buffer))
                return receive.buffer
            large = size > 2 * self.largest
            if (past and large) or size > MESSAGE_LIMIT:
                raise Refused(f"it sent {size} bytes where none were expected")
            crowded = sum(other.site == key.site for other in self.early) >= EARLY_LIMIT
            if not past and (large or crowded):
                return None
        return memoryview(bytearray(size))

    def arrived(self, key: Key, data: memoryview) -> None:
        """Hand over a message that is complete."""
        with self.lock:
            self.counts[key._replace(number=0)] = key.number
            receive = self.wanted.pop(key, None)
            if receive is not None:
                if data is not receive.buffer:
                    receive.buffer[:] = data
                receive.done.set()
            elif key.view >= self.view:
                self.early[key] = data


def check_size(size: int, expected: int) -> None:
    if size != expected:
        raise Refused(f"it sent {size} bytes where {expected} were expected")
