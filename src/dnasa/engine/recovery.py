"""Recovery from a change of the network: the processes that are left continue together, with those that joined."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dnasa.core import Network, ProcessLost

T = TypeVar("T")


def surviving(network: Callable[[], Network], work: Callable[[], T], recover: Callable[[], None]) -> T:
    """What `work()` returns; whenever its network, which may be another by then, loses processes: `recover()` and again."""
    while True:
        try:
            return work()
        except ProcessLost:
            if network().membership.survivors is None:
                raise
        recover()


def reconnect(connect: Callable[[], Network], agree: Callable[[Network], T]) -> tuple[Network, T]:
    """The network of the processes that are there, and what they agree on; again, if another is lost meanwhile."""
    while True:
        with suppress(ProcessLost):
            network = connect()
            connect = network.membership.survivors  # type: ignore[assignment]
            return network, agree(network)
