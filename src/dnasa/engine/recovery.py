"""Recovery from a change of the network: the processes that are left continue together, with those that joined."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from dnasa.core import Network, ProcessLost

T = TypeVar("T")


class HasNetwork(Protocol):
    """This process's part of the training; recovery replaces its network."""

    network: Network


def surviving(member: HasNetwork, work: Callable[[], T], recover: Callable[[], None]) -> T:
    """What `work()` returns; each time processes are lost from a network that survives it, `recover()` and try again."""
    while True:
        try:
            return work()
        except ProcessLost:
            if member.network.membership.survivors is None:
                raise
        recover()


def reconnect(connect: Callable[[], Network], agree: Callable[[Network], T]) -> tuple[Network, T]:
    """Connect the processes that are there, and let them agree; again without those that are lost meanwhile.

    Returns the network, and what they agree on.
    """
    network: Network | None = None
    while True:
        try:
            network = connect() if network is None else network.membership.survivors()  # type: ignore[misc]
            return network, agree(network)
        except ProcessLost:
            continue
