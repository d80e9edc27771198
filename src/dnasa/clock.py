"""The seconds that a simulated run would take on given links.

Each node has a time of its own. It computes its gradients, exchanges messages, and continues once it has sent and received
all of them, so a slow node delays its neighbors first and others later. The messages of a node share its bandwidth.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dnasa.arrays import crc32
from dnasa.checks import in_words
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.files import read_toml
from dnasa.topology import Topology

Times = Any  # of the nodes in seconds, (n,); 0.0 at the start
Exchanged = Callable[[Times, float], Times]  # (times, bytes of each message) -> times after the exchange
BYTE = 8e-6 * 1514 / 1448  # Mbit, with the headers of TCP in Ethernet frames
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class Links(BaseModel):
    """The TOML file."""

    model_config = ConfigDict(extra="forbid")
    compute: Amount | list[Amount]  # seconds per gradient
    bandwidth: Rate | list[Rate]  # Mbit/s that a node sends
    latency: Amount  # ms


def with_clock(network: Network, links: Mapping[str, Any] | str | Path) -> Network:
    """The network with a clock for these links."""
    if not network.simulated:
        raise InputError("A clock predicts the seconds of a simulated run, and real processes measure them: leave it out.")
    clock = Clock(read_links(links, network.nodes), network)
    return replace(network, settings=replace(network.settings, clock=clock))


def read_links(links: Mapping[str, Any] | str | Path, nodes: int) -> Links:
    """The links in a TOML file, or in a dictionary with the same keys."""
    if isinstance(links, Mapping):
        return _links(links, nodes)
    return read_toml(
        Path(links),
        lambda reason: f"Cannot read the links in {links}: {reason}. Give a .toml file.",
        lambda content: _links(content, nodes),
    )


def _links(content: Mapping[str, Any], nodes: int) -> Links:
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in content.items()}
    try:
        links = Links.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{first['loc'][0]} {in_words(first)}. Links have compute, bandwidth and latency.") from error
    for name in ("compute", "bandwidth"):
        value = getattr(links, name)
        if isinstance(value, list) and len(value) != nodes:
            raise InputError(f"{name} has {len(value)} numbers for {nodes} nodes: give one for each, or one for all.")
    return links


class Clock:
    """When each node is done with a step."""

    def __init__(self, links: Links, network: Network):
        self.links, self.nodes = links, network.nodes
        self.compute = np.broadcast_to(np.array(links.compute, dtype=float), network.nodes)
        self.bandwidth = np.broadcast_to(np.array(links.bandwidth, dtype=float), network.nodes)
        self.latency = links.latency / 1000  # seconds
        all_reduce, graphs = network.settings.all_reduce, network.topology.each
        self.exchanges = [self._all_reduce] if all_reduce else [self._exchange(graph) for graph in graphs]

    @property
    def fingerprint(self) -> str:
        """The same text for the same links."""
        return f"{crc32(self.links.model_dump_json().encode()):08x}"

    def computed(self, times: Times, gradients: int) -> Times:
        """The times after this number of gradients at each node."""
        return times + gradients * self.compute

    def exchanged(self, times: Times, size: float, exchanges: range) -> Times:
        """The times after these exchanges, with `size` bytes in each message; with 0 bytes none is made."""
        for k in exchanges if size else ():
            times = self.exchanges[k % len(self.exchanges)](times, size)
        return times

    def hidden(self, times: Times, rest: float, early: float, exchanges: range) -> Times:
        """The times after a gradient during which two exchanges are made: what is left of a step, and early messages."""
        computed = self.computed(times, 1)
        arrived = self.exchanged(np.broadcast_to(times, computed.shape), rest, exchanges)
        return np.maximum(computed, self.exchanged(arrived, early, exchanges))

    def _exchange(self, graph: Topology) -> Exchanged:
        """An exchange between neighbors. A message leaves once its receiver has announced that it is ready, as with gloo."""
        entries, latency = graph.sparse.tocoo(), self.latency
        apart = entries.row != entries.col
        receivers, senders = entries.row[apart], entries.col[apart]
        sending = np.bincount(senders, minlength=graph.nodes) * BYTE / self.bandwidth

        def exchanged(times: Times, size: float) -> Times:
            after = times + size * sending
            leaving = np.maximum(times[senders], times[receivers] + latency)
            np.maximum.at(after, receivers, leaving + size * sending[senders] + latency)
            return after

        return exchanged

    def _all_reduce(self, times: Times, size: float) -> Times:
        """An all-reduce around a ring: 2(n - 1) times, each node sends 1/n to the next, at the pace of the slowest."""
        part = self.latency + size / self.nodes * BYTE / self.bandwidth.min()
        return np.full(self.nodes, times.max() + 2 * (self.nodes - 1) * part)

    def single_messages(self) -> Callable[[int, float, float], float]:
        """A function that says when a message arrives: (node, time, bytes) -> time.

        It is sent without asking the receiver; the messages of a node leave one after the other.
        """
        idle = np.zeros(self.nodes)  # when the last message of a node has left

        def arrival(node: int, now: float, size: float) -> float:
            idle[node] = max(now, idle[node]) + size * BYTE / self.bandwidth[node]
            return float(idle[node] + self.latency)

        return arrival
