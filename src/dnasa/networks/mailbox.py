"""Offers between sites that do not wait for each other: they arrive in order, and none is lost."""

import math
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from dnasa.arrays import like, to_numpy
from dnasa.channels.pairs import Offer
from dnasa.core import Array, Messages, RunError
from dnasa.networks.buffers import described
from dnasa.networks.processes import Traffic
from dnasa.sites.links import Receive

HEADER = struct.Struct("!?Qd")  # whether the sender has ended; the number and the steps of the offer


class Post(Protocol):
    """What carries the messages of a mailbox."""

    def send_mail(self, peer: int, data: bytes) -> None: ...

    def want_mail(self, peer: int, size: int) -> Receive: ...

    def wait_for_mail(self, receives: Iterable[Receive], began: float, seconds: float) -> None:
        """Wait until one of them is here, at most this long; raises an error if processes are lost since `began`."""

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None: ...

    def blamed(self, peer: int, reason: str) -> RunError: ...

    def node(self, peer: int) -> int: ...


class SiteMailbox:
    """One run's mailbox. The first own offer shows what those of others look like.

    Args:
        post: Carries the messages.
        neighbours: The processes to exchange offers with.
        traffic: Counts what is sent.
    """

    def __init__(self, post: Post, neighbours: Iterable[int], traffic: Traffic):
        self.carrier, self.traffic = post, traffic
        self.expected = dict.fromkeys(neighbours, 0)  # the number of the next offer of each neighbour
        self.own: Messages = ()  # in the last offer
        self.receives: dict[int, Receive] = {}  # of the neighbours that have not ended
        self.began = time.monotonic()  # to wait

    def post(self, neighbour: int, offer: Offer) -> None:
        first, self.own = not self.own, offer.messages
        if first:
            self.receives = {peer: self._want(peer) for peer in self.expected}
        arrays = [to_numpy(message).tobytes() for message in offer.messages]
        data = b"".join([HEADER.pack(False, offer.number, offer.steps), *arrays])
        self.traffic.add("exchange", self.carrier.node(neighbour), described(offer.messages), len(data))
        self.carrier.send_mail(neighbour, data)

    def take(self, seconds: float) -> list[tuple[int, Offer | None]]:
        """Take what has arrived (`engine.late.Mailbox`); raises `ProcessLost` when the members must meet."""
        if not seconds:
            self.began = time.monotonic()
        deadline = time.monotonic() + seconds
        while True:
            self.carrier.wait_for_mail(self.receives.values(), self.began, deadline - time.monotonic())
            found = [(peer, self._read(peer)) for peer, receive in list(self.receives.items()) if receive.done.is_set()]
            if found or time.monotonic() >= deadline:
                return found

    def end(self) -> None:
        """Tell the neighbours that this node has ended, and wait until all of them have."""
        for peer in self.expected:
            self.traffic.add("end", self.carrier.node(peer), (), self._size)
            self.carrier.send_mail(peer, HEADER.pack(True, 0, 0.0).ljust(self._size, b"\0"))
        self.began = time.monotonic()
        while self.receives:
            self.take(math.inf)

    @property
    def _size(self) -> int:
        return HEADER.size + sum(m.nbytes for m in self.own)

    def _want(self, peer: int) -> Receive:
        return self.carrier.want_mail(peer, self._size)

    def _read(self, peer: int) -> Offer | None:
        data = self.receives.pop(peer).buffer
        ended, number, steps = HEADER.unpack_from(data)
        if ended:
            return None
        offer = Offer(number, steps, self._messages(data))
        if number != self.expected[peer] or not math.isfinite(steps):
            reason = f"it sent offer {number} of step {steps:g} after {self.expected[peer]} offers"
            raise self.carrier.blamed(peer, reason)
        self.carrier.inspect(peer, offer.messages, self.own)
        self.expected[peer] += 1
        self.receives[peer] = self._want(peer)
        return offer

    def _messages(self, data: memoryview) -> Messages:
        messages, start = [], HEADER.size
        for own in self.own:
            end = start + own.nbytes
            dtype = to_numpy(own[..., :0]).dtype
            messages.append(like(np.frombuffer(data[start:end], dtype).reshape(own.shape), own))
            start = end
        return tuple(messages)
