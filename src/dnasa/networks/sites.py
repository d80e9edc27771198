"""The exchange between sites: machines of different owners, each with one node, over TLS.

Messages travel between neighbors only, directly. Sums, for metrics and averages, take two exchanges: every member adds up
one part of the numbers and sends it to all.
"""

import atexit
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.arrays import copied
from dnasa.checks import first_line
from dnasa.communication import Channel, Membership, MessageSettings, Network, Processes
from dnasa.core import Array, InputError, ProcessLost, RunError
from dnasa.networks import processes
from dnasa.networks.members import Members
from dnasa.networks.transport import Message, Transport, as_numpy
from dnasa.sites.connecting import Refused
from dnasa.sites.file import Sites
from dnasa.sites.inbox import Key, Receive
from dnasa.sites.mesh import Mesh
from dnasa.sites.views import INTERVAL, View
from dnasa.topology import Topology
from dnasa.topology.graphs import without
from dnasa.topology.rounds import count_rounds

if TYPE_CHECKING:
    from dnasa.networks.masks import Masks

MOST_SITES = 20  # each tells all others what it says of itself
LONGEST_TEXT = 1 << 24  # bytes
FIRST = 10  # exchanges that show how large numbers are
FACTOR = 1e9  # some rules send squares of gradients, which differ by a factor of 1e5 between sites
JOINED: list[Members] = []  # of this process
CHANGED = "The members of this network have changed: the current one is optimizer.network."


def connect(
    topology: Topology,
    sites: Sites,
    rounds: int | str | None,
    timeout: float,
    channel: Channel | None,
    every: int = 1,
    traffic: processes.Traffic | None = None,
    wait_for: int | None = None,
) -> Network:
    """The network of these sites: waits for them, or joins a run that has begun."""
    count = len(sites.sites)
    if count > MOST_SITES:
        raise InputError(f"{count} sites are too many, at most {MOST_SITES} agree: join machines of one owner into one site.")
    if wait_for is not None and not count < 2 * wait_for <= 2 * count:
        raise InputError(f"wait_for must be a majority of the {count} sites, {count // 2 + 1} to {count}, not {wait_for}.")
    if count != topology.nodes:
        raise InputError(f"There are {count} sites, and the graph has {topology.nodes} nodes: give both the same number.")
    members = Members(sites, described(sites, topology, rounds, channel, every, wait_for), timeout, traffic, wait_for)
    atexit.register(members.end)
    JOINED.append(members)
    return SiteNetworks(members, topology, rounds, channel, every).first_network()


def described(
    sites: Sites,
    topology: Topology,
    rounds: int | str | None,
    channel: Channel | None,
    every: int = 1,
    wait_for: int | None = None,
) -> str:
    """Describes what all sites must share, a line for each option: "with --rounds 2", "without --private"."""
    names = ", ".join(site.name for site in sites.sites)
    options = {"--sites": f"{names} in this order"} | processes.network_options(topology, rounds, channel, every)
    options["wait_for"] = wait_for
    return "\n".join(
        f"without {name}" if value in (None, False) else f"with {name}" + ("" if value is True else f" {value}")
        for name, value in options.items()
    )


def leave_all() -> None:
    """Say goodbye in all runs of this process."""
    for members in JOINED:
        members.leave("it was stopped")


def tell_stopped(sites: Sites, reason: str, timeout: float, traffic: processes.Traffic) -> None:
    """Tell the other sites why this one does not take part: those that come within the timeout."""
    mesh = Mesh(sites, "", str, lambda site, text: text, traffic.tell)
    mesh.stopped = reason
    traffic.add("text", None, (), len(reason.encode()), text=reason)
    mesh.open()
    end = time.monotonic() + timeout
    while len(mesh.conflicts) < len(mesh.links) and time.monotonic() < end:
        mesh.wait(0.1)
    mesh.close()


class SiteTransport(Transport):
    """Messages between the members of one view."""

    def __init__(self, members: Members, number: int):
        self.members, self.mesh, self.view = members, members.mesh, members.view
        self.sites, self.instances = members.nodes, dict(members.view.members)
        super().__init__(self.sites.index(members.node), [range(node, node + 1) for node in self.sites])
        self.others = [peer for peer in range(len(self.sites)) if peer != self.rank]
        self.tag = f"view {self.view.number} network {number}"
        self.number = 2 * number  # of the exchanges; that of the sums is one more
        self.sent: Counter[tuple[int, int]] = Counter()
        self.wanted: Counter[tuple[int, int]] = Counter()

    def check(self, began: float | None = None) -> None:
        """Raise an error if the members have changed, or must meet, or one was silent since a wait began."""
        if self.view is not self.members.view:
            raise RunError(CHANGED)
        self.members.check(began)

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Receive]:
        return self._start(self.number, receives, sends)

    def _start(self, number: int, receives: Sequence[Message], sends: Sequence[Message]) -> list[Receive]:
        self.check()
        self.members.exchanges += 1
        pending = [self._want(number, peer, view_of(buffer)) for peer, buffer in receives]
        copies = {id(buffer): bytes(view_of(buffer)) for _, buffer in sends}  # one for all neighbors that get the same
        for peer, buffer in sends:
            self._send(number, peer, copies[id(buffer)])
        return pending

    def _send(self, number: int, peer: int, data: bytes) -> None:
        key = self._key(self.sent, number, peer)
        self.mesh.links[key.site].send(self.instances[key.site], key._replace(site=self.members.node), data, self.check)

    def _key(self, counts: Counter[tuple[int, int]], number: int, peer: int) -> Key:
        counts[number, peer] += 1
        return Key(self.sites[peer], self.view.number, number, counts[number, peer])

    def _want(self, number: int, peer: int, buffer: memoryview) -> Receive:
        key = self._key(self.wanted, number, peer)
        try:
            receive = self.mesh.inbox.want(key, buffer)
        except Refused as error:
            raise self.blamed(peer, str(error)) from error
        self.mesh.links[key.site].wake()
        return receive

    def finish(self, pending: list[Receive]) -> None:
        for receive in pending:
            began = time.monotonic()
            while not receive.done.wait(INTERVAL / 10):
                self.check(began)

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None:
        """Stop if the numbers of a site are not finite, or much larger than this site's first ones."""
        if self.members.exchanges <= FIRST:
            self.members.scale = max(self.members.scale, *map(root_mean_square, filter(is_floating, own)), 1.0)
        reason = wrong(arrived, own, FACTOR * self.members.scale)
        if reason:
            raise self.blamed(peer, reason)

    def blamed(self, peer: int, reason: str) -> RunError:
        self.mesh.blame(self.sites[peer], reason)
        return RunError(self.mesh.fault)

    def sum(self, buffer: Array) -> Array:
        """Every member adds up one part, in the order of the members, and sends it to all: the sums are equal everywhere."""
        flat = as_numpy(buffer).reshape(-1)
        parts = np.array_split(flat, len(self.sites))
        received, own = np.empty((len(self.sites), parts[self.rank].size), flat.dtype), flat.copy()
        received[self.rank] = parts[self.rank]
        self._exchange_sums(received, parts, own)
        parts[self.rank][:] = received.sum(0)
        self._exchange_sums(parts, [parts[self.rank].copy()] * len(parts), own)
        return buffer

    def _exchange_sums(self, into: Any, parts: Sequence[np.ndarray], own: np.ndarray) -> None:
        receives, sends = ([(peer, arrays[peer]) for peer in self.others] for arrays in (into, parts))
        self.finish(self._start(self.number + 1, receives, sends))
        for peer in self.others:
            self.inspect(peer, [into[peer]], [own])

    def copy(self, buffer: Array, source: int, targets: Sequence[int]) -> Array:
        others = [peer for peer in targets if peer != source]
        sends = [(peer, buffer) for peer in others] if self.rank == source else []
        receives = [(source, buffer)] if self.rank in others else []
        own = [copied(buffer) for _, buffer in receives]
        self.finish(self._start(self.number + 1, receives, sends))
        self.inspect(source, [buffer for _, buffer in receives], own)
        return buffer

    def gather(self, own: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(self.sites), *own.shape), own.dtype)
        rows[self.rank] = own
        self.finish(self._start(self.number + 1, [(p, rows[p]) for p in self.others], [(p, own) for p in self.others]))
        return rows

    def _gather_lengths(self, own: int) -> list[int]:
        lengths = super()._gather_lengths(own)
        for peer, length in enumerate(lengths):
            if not 0 <= length <= LONGEST_TEXT:
                raise self.blamed(peer, f"it announced a text of {length} bytes")
        return lengths

    def next_call(self) -> str:
        """What the others call next; with nobody else, a step."""
        began, call = time.monotonic(), "step" if len(self.sites) == 1 else ""
        while not call:
            self.check(began)
            time.sleep(INTERVAL / 5)
            call = self.members.next_call(self.tag)
        return call


def wrong(arrived: Sequence[Array], own: Sequence[Array], limit: float) -> str:
    """What is wrong with these messages, where this site sent `own`; empty if nothing is.

    The limit does not grow during a run: otherwise a site could raise it bit by bit. While this site's own numbers are beyond
    it, nothing is said of the others'.
    """
    for stack, sent in zip(arrived, own, strict=True):
        if not is_floating(stack):
            continue
        size = root_mean_square(stack)
        if size <= limit or not root_mean_square(sent) <= limit:
            continue
        if not math.isfinite(size):
            return "it sent numbers that are not finite"
        return f"it sent numbers of size {size:.1e}, where {limit:.0e} is the limit: they are wrong, or the run diverges"
    return ""


def is_floating(a: Array) -> bool:
    return a.dtype.kind == "f" if isinstance(a, np.ndarray) else bool(a.is_floating_point())


def root_mean_square(a: Array) -> float:
    """In one pass over memory; if squares overflow, once more in double precision."""
    flat = a.reshape(-1)
    count = max(1, flat.shape[0])
    if isinstance(flat, np.ndarray):
        square = float(np.vdot(flat, flat))
        return math.sqrt((square if math.isfinite(square) else float(np.square(flat, dtype=np.float64).sum())) / count)
    flat = flat.float() if flat.dtype.itemsize == 2 else flat
    square = float(flat.dot(flat))
    return math.sqrt((square if math.isfinite(square) else float(flat.double().square().sum())) / count)


def view_of(buffer: Array) -> memoryview:
    """The bytes of a contiguous array, where they are."""
    return as_numpy(buffer).reshape(-1).view(np.uint8).data


@dataclass
class SiteNetworks:
    """This site in a run that others leave and join: makes the network of each view."""

    members: Members
    topology: Topology
    rounds: int | str | None
    channel: Channel | None
    every: int = 1
    number: int = 0  # of the network: the one of `connect`, and the one of an optimizer
    masks: "Masks | None" = None  # of the last network, if the channel is private
    masked: View | None = None  # for which they were made

    @property
    def names(self) -> list[str]:
        return [site.name for site in self.members.mesh.sites.sites]

    def first_network(self) -> Network:
        return self.network() if self.members.begin() else self.outside()

    def network(self) -> Network:
        transport, members = SiteTransport(self.members, self.number), self.members
        lost = [node for node in range(self.topology.nodes) if node not in transport.sites]
        graph = without(self.topology, lost) if lost else self.topology
        known = self.masks.separate() if self.masks is not None and self.masked is members.view else None
        with self.losses_at_the_start():
            made = processes.ProcessNetwork(graph, transport, self.rounds, self.channel, self.every, members.traffic, known)
        self.masks, self.masked, network = made.masks, members.view, made.network()

        def allgather_text(text: str) -> list[str]:
            with self.losses_at_the_start():
                texts = made.allgather_text(text)
            if not members.admits and members.view.number == 1:
                by_site = dict(zip(transport.sites, texts, strict=True))
                members.mesh.opening.append([by_site.get(node) for node in range(self.topology.nodes)])
            return texts

        own = replace(
            network.processes,
            allgather_text=allgather_text,
            duplicate=self.duplicate,
            membership=Membership(
                note=partial(members.note, transport.tag),
                fail=self.fail,
                stop=members.stop,
                survivors=self.survivors,
                admit=self.admit,
                returned=members.returned,
                next_call=transport.next_call,
            ),
            own_folders=True,
            names=self.names,
        )
        return replace(network, processes=own)

    @contextmanager
    def losses_at_the_start(self) -> Iterator[None]:
        """A loss ends the run, if it comes before the first step of `solve`: those that are left cannot go on."""
        try:
            yield
        except ProcessLost as error:
            if self.members.admits or self.members.view.number > 1 or self.number:
                raise
            raise RunError(f"{first_line(error)}, before the first step: start all sites again.") from None

    def outside(self) -> Network:
        """The network of a site that has not joined yet, until `join` is called. It knows how the run began."""
        node, exchanged = self.members.node, count()

        def allgather_text(text: str) -> list[str]:
            number = next(exchanged)
            texts = self.members.opening(number + 1)[number]
            if texts[node] not in (text, None):
                raise InputError(f"{self.members.name(node)} has other settings or data than those it began this run with.")
            return [text if theirs is None else theirs for theirs in texts]

        own = Processes(
            range(node, node + 1),
            node,
            names=self.names,
            allgather_text=allgather_text,
            gather=refuse,
            copy=refuse,
            traffic=self.members.traffic,
            duplicate=self.duplicate,
            membership=Membership(survivors=self.survivors, join=self.join),
            own_folders=True,
        )
        settings = MessageSettings(count_rounds(self.topology, self.rounds), self.every, self.channel)
        return Network(self.topology.nodes, refuse, refuse, self.topology, settings, own)

    def duplicate(self) -> Network:
        """Make the network of the optimizer; there can be one, since all sites must agree on where to continue."""
        if self.number:
            raise InputError("A network of sites has one optimizer: connect again for a second one.")
        self.number = 1
        return self.network() if self.members.view.number else self.outside()

    def admit(self) -> None:
        self.members.admits, self.members.returned = True, False
        self.members.publish()

    def fail(self, reason: str) -> None:
        """After an error of `solve`, leave: the others go on. An optimizer may repeat a call that failed."""
        if not self.number:
            self.members.leave(reason)

    def survivors(self) -> Network:
        self.members.meet()
        return self.network()

    def join(self) -> Network:
        self.members.join()
        return self.network()


def refuse(*_: Any) -> Any:
    raise InputError("This process joins a run that has begun: make the optimizer, or call solve, first.")
