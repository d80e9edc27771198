"""The seconds that a simulated run would take on given links.

Each node has a time of its own. It computes its gradients, exchanges messages, and continues once it has sent and received
all of them, so a slow node delays its neighbours first and others later. The messages of a node share its bandwidth.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dnasa.arrays import crc32
from dnasa.core import InputError, Network
from dnasa.files import read_toml
from dnasa.topology import Topology

Times = Any  # of the nodes in seconds, (n,); 0.0 at the start
Exchanged = Callable[[Times, float], Times]  # (times, bytes of each message) -> times after the exchange
BYTE = 8e-6 * 1514 / 1448  # Mbit, with the headers of TCP in Ethernet frames
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Node = Annotated[int, Field(ge=0, strict=True)]


class Link(BaseModel):
    """Between two nodes, in both directions; None: as the others."""

    model_config = ConfigDict(extra="forbid")
    nodes: tuple[Node, Node]
    bandwidth: Rate | None = None  # Mbit/s
    latency: Amount | None = None  # ms


class Links(BaseModel):
    """The TOML file."""

    model_config = ConfigDict(extra="forbid")
    compute: Amount | list[Amount]  # seconds per gradient
    bandwidth: Rate | list[Rate]  # Mbit/s that a node sends
    latency: Amount  # ms
    link: list[Link] = []


def with_clock(network: Network, given: Mapping[str, Any] | str | Path) -> Network:
    """The network with a clock for these links."""
    if not network.simulated:
        raise InputError(
            "A clock predicts the seconds of a simulated run, and real processes measure them: leave it out."
        )
    clock = Clock(read_links(given, network.nodes), network)
    return replace(network, settings=replace(network.settings, clock=clock))


def read_links(given: Mapping[str, Any] | str | Path, nodes: int) -> Links:
    """The links in a TOML file, or in a dictionary with the same keys."""
    if isinstance(given, Mapping):
        return _links(given, nodes)
    path = Path(given)
    return read_toml(
        path,
        lambda reason: f"Cannot read the links in {path}: {reason}. Give a .toml file.",
        lambda links: _links(links, nodes),
    )


def _links(given: Mapping[str, Any], nodes: int) -> Links:
    try:
        links = Links.model_validate(
            {key: getattr(value, "tolist", lambda v=value: v)() for key, value in given.items()}
        )
    except ValidationError as error:
        first = error.errors()[0]
        known = [str(part) for part in first["loc"] if part in {*Links.model_fields, *Link.model_fields}]
        where = ".".join(known) or first["loc"][0]
        raise InputError(
            f"{where}: {first['msg']}. Links have compute (seconds per gradient), bandwidth (Mbit/s), latency (ms) and, for "
            "exceptions, [[link]]."
        ) from error
    for name in ("compute", "bandwidth"):
        value = getattr(links, name)
        if isinstance(value, list) and len(value) != nodes:
            raise InputError(f"{name} has {len(value)} numbers for {nodes} nodes: give one for each, or one for all.")
    for link in links.link:
        if len({*link.nodes}) < 2 or max(link.nodes) >= nodes:
            raise InputError(f"link.nodes must be two nodes from 0 to {nodes - 1}, not {list(link.nodes)}.")
    return links


class Clock:
    """When each node is done with a step."""

    def __init__(self, links: Links, network: Network):
        self.links, self.nodes = links, network.nodes
        self.compute = np.broadcast_to(np.array(links.compute, dtype=float), network.nodes)
        self.bandwidth = np.broadcast_to(np.array(links.bandwidth, dtype=float), network.nodes)
        graphs = network.topology.each
        self.exchanges = (
            [self._all_reduce()] if network.settings.all_reduce else [self._exchange(graph) for graph in graphs]
        )

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

    def single_messages(self) -> "SingleMessages":
        """The same links for messages that are sent one by one."""
        return SingleMessages(self)

    def _exchange(self, graph: Topology) -> Exchanged:
        """An exchange between neighbours. A message leaves once its receiver has announced that it is ready, as with gloo."""
        entries = graph.sparse.tocoo()
        apart = entries.row != entries.col
        receivers, senders = entries.row[apart], entries.col[apart]
        latency, limit = self.between(senders, receivers)
        sending = np.bincount(senders, minlength=graph.nodes) * BYTE / self.bandwidth
        transfer = np.maximum(sending[senders], BYTE / limit)

        def exchanged(times: Times, size: float) -> Times:
            after = times + size * sending
            leaving = np.maximum(times[senders], times[receivers] + latency)
            np.maximum.at(after, receivers, leaving + size * transfer + latency)
            return after

        return exchanged

    def _all_reduce(self) -> Exchanged:
        """An all-reduce around a ring: 2(n - 1) times, each node sends 1/n to the next, at the pace of the slowest."""
        nodes = self.nodes
        latency, limit = self.between(np.arange(nodes), np.arange(1, nodes + 1) % nodes)
        part = BYTE / np.minimum(self.bandwidth, limit) / nodes
        return lambda times, size: np.full(nodes, times.max() + 2 * (nodes - 1) * (latency + size * part).max())

    def between(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The latency in seconds and the bandwidth of these links."""
        latency, bandwidth = np.full(len(senders), self.links.latency / 1000), np.full(len(senders), math.inf)
        for link in self.links.link:
            i, j = link.nodes
            here = ((senders == i) & (receivers == j)) | ((senders == j) & (receivers == i))
            if link.bandwidth is not None:
                bandwidth[here] = link.bandwidth
            if link.latency is not None:
                latency[here] = link.latency / 1000
        return latency, bandwidth


class SingleMessages:
    """When a message arrives that is sent without asking the receiver. Those of a node leave one after the other."""

    def __init__(self, clock: Clock):
        nodes = clock.nodes
        latency, limit = clock.between(*np.indices((nodes, nodes)).reshape(2, -1))
        self.latency = latency.reshape(nodes, nodes)
        self.bandwidth = np.minimum(clock.bandwidth[:, None], limit.reshape(nodes, nodes))
        self.idle = np.zeros(nodes)  # when the last message of a node has left

    def send(self, i: int, j: int, now: float, size: float) -> float:
        """When a message of `size` bytes from node i arrives at node j."""
        self.idle[i] = max(now, self.idle[i]) + size * BYTE / self.bandwidth[i, j]
        return float(self.idle[i] + self.latency[i, j])
