"""What a process would send, found without connecting to anybody."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dnasa.core import Array, Channel, Network
from dnasa.networks import processes
from dnasa.networks.transport import Message, Transport
from dnasa.sites.file import read_sites
from dnasa.topology import Topology


class SilentTransport(Transport):
    """Sends nothing, and receives zeros: the other processes' arrays, and texts like its own."""

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
    sites: Path | None = None,
    own: int = 0,
    every: int = 1,
) -> Network:
    """A network with a process for each node, which counts what node `own` sends, or the site that the file says this is."""
    listed = None if sites is None else read_sites(sites)
    nodes = [range(node, node + 1) for node in range(topology.nodes)]
    network = processes.connect(topology, SilentTransport(listed.own if listed else own, nodes), rounds, channel, every)
    names = [site.name for site in listed.sites] if listed else []
    return replace(network, processes=replace(network.processes, names=names))
