"""What a process would send, found without connecting to anybody."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dnasa.core import Array, Channel, Network
from dnasa.networks import processes
from dnasa.networks.liveness import Liveness
from dnasa.networks.transport import Message

if TYPE_CHECKING:
    from dnasa.topology import Topology


class SilentTransport:
    """Sends nothing, and receives zeros: the other processes' arrays, and texts like its own."""

    carries_cuda = False
    tag = 0

    def __init__(self, rank: int, nodes: Sequence[range]):
        self.rank, self.nodes, self.liveness = rank, nodes, Liveness()

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Sequence[Message]:
        return receives

    def finish(self, pending: Sequence[Message]) -> None:
        for _, buffer in pending:
            buffer[:] = 0

    def sum(self, buffer: Array) -> Array:
        return buffer

    def allgather_text(self, text: str) -> list[str]:
        return [text] * len(self.nodes)


def connect(
    topology: "Topology",
    rounds: int | str | None,
    channel: Channel | None,
    names: Sequence[str] = (),
    rank: int = 0,
    every: int = 1,
) -> Network:
    """A network with a process for each node, which counts what the process of this rank sends; `names` are the sites'."""
    nodes = [range(node, node + 1) for node in range(topology.nodes)]
    transport = SilentTransport(rank, nodes)
    network = processes.connect(topology, transport, rounds, channel, every)
    return replace(network, processes=replace(network.processes, names=names))
