"""What happened in a real run without waiting, and the simulator made to do the same in the same order."""

import threading
from collections.abc import Mapping
from typing import Any

from dnasa.channels.pairs import Offer, Pairs
from dnasa.engine.late import Late

Log = list[tuple[Any, ...]]  # (node, what happened, further numbers)


class Recorded(Pairs):
    """Pairs that record when they take an offer."""

    def __init__(self, weights: Mapping[int, float], late: int, node: int, log: Log):
        super().__init__(weights, late)
        self.node, self.log = node, log

    def begin(self, messages: Any) -> Any:
        self.log.append((self.node, "computed"))
        return super().begin(messages)

    def arrived(self, neighbour: int, offer: Offer) -> Any:
        self.log.append((self.node, "arrived", neighbour, offer.number))
        return super().arrived(neighbour, offer)

    def left(self, neighbour: int) -> None:
        self.log.append((self.node, "left", neighbour))
        super().left(neighbour)


class OwnThread(threading.local):
    """Which node this thread is."""

    node = -1


def replay(simulated: Late, log: Log) -> None:
    """Do what the log says, in its order."""
    offers: dict[tuple[int, int, int], Offer] = {}
    keep = simulated._post
    simulated._post = lambda i, new: offers.update({(i, j, o.number): o for j, o in new}) or keep(i, new)  # type: ignore
    for i, kind, *what in log:
        if kind == "computed":
            simulated.computed(i)
        elif kind == "arrived":
            j, number = what
            simulated.arrived(i, j, offers[j, i, number])
        else:
            simulated.nodes[i].pairs.left(*what)
            simulated._end(i)
