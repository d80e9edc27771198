"""The seconds that a simulated run would take on given links.

Each node has a time of its own. It computes its gradients, exchanges messages, and continues once it has sent and received
all of them, so a slow node delays its neighbours first and others later. The messages of a node share its bandwidth. A message
that gets lost is sent again, as TCP does, and arrives later.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnasa.arrays import crc32
from dnasa.core import InputError, Network
from dnasa.files import read_toml
from dnasa.randomness import Streams
from dnasa.topology import Topology

Times = Any  # of the nodes in seconds, (n,); 0.0 at the start
Exchanged = Callable[[Times, float, int], Times]  # (times, bytes of each message, number) -> times after the exchange
OF_NODES = {"compute": "seconds per gradient", "bandwidth": "Mbit/s"}
OF_LINKS = {"bandwidth": "Mbit/s", "latency": "ms"}
UNITS = OF_NODES | OF_LINKS
BYTE = 8e-6 * 1514 / 1448  # Mbit, with the headers of TCP in Ethernet frames
AGAIN = 0.2  # seconds after which, and after a round trip, TCP sends again at the earliest


def with_clock(network: Network, given: Mapping[str, Any] | str | Path) -> Network:
    """The network with a clock for these links."""
    if not network.simulated:
        raise InputError(
            "A clock predicts the seconds of a simulated run, and real processes measure them: leave it out."
        )
    clock = Clock(read_links(given, network.nodes), network)
    return replace(network, settings=replace(network.settings, clock=clock))


class Clock:
    """When each node is done with a step."""

    def __init__(self, links: "Links", network: Network):
        self.links = links
        graphs = network.topology.each
        self.exchanges = (
            [links.all_reduce()] if network.settings.all_reduce else [links.exchange(graph) for graph in graphs]
        )

    @property
    def fingerprint(self) -> str:
        """The same text for the same links."""
        compute, bandwidth, *others = self.links
        return f"{crc32(json.dumps([compute.tolist(), bandwidth.tolist(), others]).encode()):08x}"

    def computed(self, times: Times, gradients: int) -> Times:
        """The times after this number of gradients at each node."""
        return times + gradients * self.links.compute

    def exchanged(self, times: Times, size: float, exchanges: range) -> Times:
        """The times after these exchanges, with `size` bytes in each message; with 0 bytes none is made."""
        for k in exchanges if size else ():
            times = self.exchanges[k % len(self.exchanges)](times, size, k)
        return times

    def hidden(self, times: Times, rest: float, early: float, exchanges: range) -> Times:
        """The times after a gradient during which two exchanges are made: what is left of a step, and early messages."""
        computed = self.computed(times, 1)
        arrived = self.exchanged(np.broadcast_to(times, computed.shape), rest, exchanges)
        return np.maximum(computed, self.exchanged(arrived, early, exchanges))

    def single_messages(self, nodes: int) -> "SingleMessages":
        """The same links for messages that are sent one by one."""
        return SingleMessages(self.links, nodes)


class SingleMessages:
    """When a message arrives that is sent without asking the receiver. Those of a node leave one after the other."""

    def __init__(self, links: "Links", nodes: int):
        self.links = links
        latency, limit = links.between(*np.indices((nodes, nodes)).reshape(2, -1))
        self.latency = latency.reshape(nodes, nodes)
        self.bandwidth = np.minimum(links.bandwidth[:, None], limit.reshape(nodes, nodes))
        self.idle = np.zeros(nodes)  # when the last message of a node has left
        self.sent = np.zeros((nodes, nodes), dtype=int)
        self.losses = Streams("lost")

    def send(self, i: int, j: int, now: float, size: float) -> tuple[float, bool]:
        """When a message of `size` bytes from node i arrives at node j; or when it is sent again, and True."""
        self.idle[i] = max(now, self.idle[i]) + size * BYTE / self.bandwidth[i, j]
        self.sent[i, j] += 1
        lost = self.links.loss > 0 and self.losses.at(i, j, int(self.sent[i, j])).random() < self.links.loss
        return float(self.idle[i] + self.latency[i, j] + (AGAIN + self.latency[i, j] if lost else 0)), bool(lost)


# ---------------------------------------------------------------- links


class Link(NamedTuple):
    """Between two nodes, in both directions."""

    nodes: tuple[int, int]
    bandwidth: float  # Mbit/s
    latency: float | None  # seconds; None: as the other links


class Links(NamedTuple):
    compute: np.ndarray  # seconds per gradient of each node
    bandwidth: np.ndarray  # Mbit/s that each node sends
    latency: tuple[float, float]  # seconds; each link has its own in this range
    loss: float  # share of the messages
    exceptions: tuple[Link, ...]

    def exchange(self, graph: Topology) -> Exchanged:
        """An exchange between neighbours. A message leaves once its receiver has announced that it is ready, as with gloo."""
        entries = graph.sparse.tocoo()
        apart = entries.row != entries.col
        receivers, senders = entries.row[apart], entries.col[apart]
        latency, limit = self.between(senders, receivers)
        sending = np.bincount(senders, minlength=graph.nodes) * BYTE / self.bandwidth
        transfer = np.maximum(sending[senders], BYTE / limit)

        def exchanged(times: Times, size: float, k: int) -> Times:
            after = times + size * sending
            leaving = np.maximum(times[senders], times[receivers] + latency)
            np.maximum.at(after, receivers, leaving + size * transfer + latency + self._lost(latency, k))
            return after

        return exchanged

    def all_reduce(self) -> Exchanged:
        """An all-reduce around a ring: 2(n - 1) times, each node sends 1/n to the next, at the pace of the slowest."""
        nodes = len(self.compute)
        latency, limit = self.between(np.arange(nodes), np.arange(1, nodes + 1) % nodes)
        part = BYTE / np.minimum(self.bandwidth, limit) / nodes
        each = np.tile(latency, (2 * (nodes - 1), 1))

        def exchanged(times: Times, size: float, k: int) -> Times:
            return np.full(nodes, times.max() + (each + size * part + self._lost(each, k)).max(-1).sum())

        return exchanged

    def _lost(self, latency: np.ndarray, k: int) -> Any:
        """The seconds for which messages of exchange k are late because they get lost."""
        if not self.loss:
            return 0.0
        return (Streams("lost").at(0, 0, k).geometric(1 - self.loss, latency.shape) - 1) * (AGAIN + 2 * latency)

    def between(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The latency and the bandwidth of these links."""
        bandwidth = np.full(len(senders), np.inf)
        low, high = self.latency
        latency = np.full(len(senders), low)
        if high > low:
            ends = zip(np.minimum(senders, receivers).tolist(), np.maximum(senders, receivers).tolist(), strict=True)
            latency += (high - low) * np.array([Streams("latency").at(0, i, j).random() for i, j in ends])
        for link in self.exceptions:
            i, j = link.nodes
            here = ((senders == i) & (receivers == j)) | ((senders == j) & (receivers == i))
            bandwidth[here] = link.bandwidth
            if link.latency is not None:
                latency[here] = link.latency
        return latency, bandwidth


# ---------------------------------------------------------------- read


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
    _check_keys(given, (*OF_NODES, "latency", "loss", "link"), "")
    for key in (*OF_NODES, "latency"):
        if key not in given:
            raise InputError(f"{key} is missing: links need {', '.join(OF_NODES)} and latency.")
    compute, bandwidth = (_of_nodes(key, given[key], nodes) for key in OF_NODES)
    latency = _latency(given["latency"])
    exceptions = given.get("link", [])
    if not isinstance(exceptions, list) or not all(isinstance(link, Mapping) for link in exceptions):
        raise InputError("link must be a list of tables: write [[link]] for each.")
    own = tuple(_link(link, nodes) for link in exceptions)
    return Links(compute, bandwidth, latency, _share("loss", given.get("loss", 0)), own)


def _link(given: Mapping[str, Any], nodes: int) -> Link:
    _check_keys(given, ("nodes", *OF_LINKS), "link.")
    ends: Any = given.get("nodes")
    known = isinstance(ends, list) and all(type(i) is int and 0 <= i < nodes for i in ends)
    if not known or len(ends) != 2 or ends[0] == ends[1]:
        raise InputError(f"link.nodes must be two nodes from 0 to {nodes - 1}, such as [0, 1], not {ends!r:.40}.")
    bandwidth = _number("bandwidth", given["bandwidth"], "link.") if "bandwidth" in given else math.inf
    latency = _number("latency", given["latency"], "link.") / 1000 if "latency" in given else None
    return Link((ends[0], ends[1]), bandwidth, latency)


def _latency(given: Any) -> tuple[float, float]:
    """A latency, or the lowest and the highest: each link then has its own."""
    pair = given if isinstance(given, list) and len(given) == 2 else [given, given]
    low, high = (_number("latency", each) / 1000 for each in pair)
    if low > high:
        raise InputError(f"latency must be [lowest, highest], not {given}.")
    return low, high


def _share(key: str, given: Any) -> float:
    if type(given) not in (int, float) or not 0 <= given < 1:
        raise InputError(
            f"{key} must be the share of messages that get lost, from 0 to less than 1, not {given!r:.40}."
        )
    return float(given)


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise InputError(f"unknown key '{where}{key!s:.40}'. The keys here: {', '.join(known)}.")


def _of_nodes(key: str, value: Any, nodes: int) -> np.ndarray:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    values = value if isinstance(value, list) else [value] * nodes
    if len(values) != nodes:
        raise InputError(f"{key} has {len(values)} numbers for {nodes} nodes: give one for each, or one for all.")
    return np.array([_number(key, each) for each in values])


def _number(key: str, value: Any, where: str = "") -> float:
    low = "above 0" if key == "bandwidth" else "of 0 or more"
    good = type(value) in (int, float) and 0 <= value < math.inf and (value > 0 or key != "bandwidth")
    if not good:
        raise InputError(f"{where}{key} must be a number {low}, in {UNITS[key]}, not {value!r:.40}.")
    return float(value)
