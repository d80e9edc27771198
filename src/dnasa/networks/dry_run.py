"""What a process would send, found without connecting to anybody."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnasa.communication import Channel, Network
from dnasa.core import Array
from dnasa.networks import processes
from dnasa.networks.transport import Message, Transport
from dnasa.topology import Topology

STEPS = 40  # K-GT needs that many to send something


class SilentTransport(Transport):
    """Sends nothing, and receives zeros: the other processes' arrays, and texts like its own."""

    silent = True

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Sequence[Message]:
        return receives

    def finish(self, pending: Sequence[Message]) -> None:
        for _, buffer in pending:
            buffer[:] = 0

    def sum(self, buffer: Array) -> Array:
        return buffer

    def gather(self, own: np.ndarray) -> np.ndarray:
        return np.tile(own, (len(self.nodes), 1))


def connect(
    topology: Topology,
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
    return replace(network, processes=replace(network.processes, names=names, last_step=STEPS))
