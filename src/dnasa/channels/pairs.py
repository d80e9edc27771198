"""Exchanges in pairs that no node waits for: messages may be late, and means over the nodes stay right.

With each neighbor j, node i has one exchange at a time. Both offer the messages of a step. Once i has the offer of j, it adds

    W_ij (offer of j - own offer)

to its messages, and j subtracts the same, each in its own time. Then their next exchange begins. So nothing is added that is
not subtracted elsewhere, at any speed. An offer that arrives twice counts once.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dnasa.core import Messages


class Offer(NamedTuple):
    """What a node sends to a neighbor."""

    number: int  # of the exchange with this neighbor, from 0
    steps: float  # the mean number of steps of all nodes, as the sender knows it
    messages: Messages


class Pair:
    """The exchanges with one neighbor, up to the one that is not complete yet."""

    def __init__(self, weight: float):
        self.weight = weight
        self.number = 0  # of this exchange
        self.own: Offer | None = None  # in this exchange
        self.received: dict[int, Offer] = {}  # in this exchange, or the next
        self.offered_at = -1  # the step of the last offer

    @property
    def pending(self) -> bool:
        return self.own is not None and self.number not in self.received

    def offer(self, steps: float, messages: Messages, step: int) -> Offer:
        self.own, self.offered_at = Offer(self.number, steps, messages), step
        return self.own

    def arrived(self, offer: Offer) -> None:
        if offer.number >= self.number:
            self.received.setdefault(offer.number, offer)

    def complete(self) -> tuple[Offer, Offer] | None:
        """Both offers of this exchange if they are here; the next exchange begins."""
        if self.own is None or self.number not in self.received:
            return None
        both = self.own, self.received.pop(self.number)
        self.own = None
        self.number += 1
        return both


class Pairs:
    """All exchanges of a node. It calls `begin` after the gradients of a step, and `end` once nobody is overdue.

    `steps` is the mean number of steps of all nodes, as this node knows it: it is exchanged like a message.
    The neighbors' `weights` are W_ij = W_ji. An exchange may last for `late` steps after the one it began in; then the node
    waits for it.
    """

    def __init__(self, weights: Mapping[int, float], late: int):
        self.pairs = {neighbour: Pair(weight) for neighbour, weight in sorted(weights.items())}
        self.late = late
        self.own_steps = 0
        self.steps = 0.0
        self.messages: Messages | None = None  # of the step that has begun

    def begin(self, messages: Messages) -> list[tuple[int, Offer]]:
        """Begin a step. Returns what to send, and to whom."""
        self.messages, self.steps = messages, self.steps + 1
        return self._proceed()

    def arrived(self, neighbour: int, offer: Offer) -> list[tuple[int, Offer]]:
        """Take an offer of a neighbor, in any order, possibly again. Returns what to send: a node that waits answers."""
        if neighbour in self.pairs:
            self.pairs[neighbour].arrived(offer)
        return [] if self.messages is None else self._proceed()

    def left(self, neighbour: int) -> None:
        """Continue without a neighbor."""
        self.pairs.pop(neighbour, None)

    @property
    def overdue(self) -> list[int]:
        """The neighbors that this step must wait for."""
        oldest = self.own_steps - self.late
        return [neighbour for neighbour, pair in self.pairs.items() if pair.pending and pair.offered_at <= oldest]

    def end(self) -> Messages:
        """End the step. Returns the messages with the changes of all exchanges that are complete."""
        assert self.messages is not None
        mixed, self.messages = self.messages, None
        self.own_steps += 1
        return mixed

    def _proceed(self) -> list[tuple[int, Offer]]:
        """Complete exchanges, and begin others: one at most with each neighbor in a step, so late = 0 is synchronous.

        A node that waits must begin exchanges too: otherwise nodes could wait for each other in a circle.
        """
        self._complete()
        assert self.messages is not None
        offers = [
            (neighbour, pair.offer(self.steps, self.messages, self.own_steps))
            for neighbour, pair in self.pairs.items()
            if pair.own is None and pair.offered_at < self.own_steps
        ]
        self._complete()
        return offers

    def _complete(self) -> None:
        assert self.messages is not None
        for pair in self.pairs.values():
            offers = pair.complete()
            if offers is None:
                continue
            own, other = offers
            changes = zip(self.messages, own.messages, other.messages, strict=True)
            self.messages = tuple([y + pair.weight * (b - a) for y, a, b in changes])
            self.steps += pair.weight * (other.steps - own.steps)
