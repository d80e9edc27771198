"""The exchange between sites: machines of different owners, each with one node, over TLS.

Messages travel between neighbours only, directly. Sums, for metrics and averages, take two exchanges: every member adds up
one part of the numbers and sends it to all.
"""

import atexit
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from dnasa.checks import first_line
from dnasa.core import (
    Array,
    Channel,
    InputError,
    Membership,
    MessageSettings,
    Network,
    Processes,
    ProcessLost,
    RunError,
)
from dnasa.networks import processes
from dnasa.networks.mailbox import SiteMailbox
from dnasa.networks.members import Members
from dnasa.networks.transport import Message, ProcessTransport
from dnasa.sites.connecting import Refused
from dnasa.sites.file import Sites
from dnasa.sites.limits import DIVERGED, FIRST, Limits
from dnasa.sites.links import Key, Mesh, Receive
from dnasa.topology import Topology, count_rounds

LONGEST_TEXT = 1 << 24  # bytes


def connect(
    topology: Topology,
    sites: Sites,
    rounds: int | str | None,
    timeout: float,
    channel: Channel | None,
    every: int = 1,
    traffic: processes.Traffic | None = None,
) -> Network:
    """The network of these sites: waits for all of them, or joins a run that has begun."""
    if len(sites.sites) != topology.nodes:
        raise InputError(
            f"There are {len(sites.sites)} sites, and the graph has {topology.nodes} nodes: give both the same number."
        )
    members = Members(sites, described(sites, topology, rounds, channel, every), timeout, traffic)
    atexit.register(leave, members)
    return SiteNetworks(members, topology, rounds, channel, every).first_network()


def described(
    sites: Sites, topology: Topology, rounds: int | str | None, channel: Channel | None, every: int = 1
) -> str:
    """Describes what all sites must share, on two lines: the sites in their order; the weights, and how messages travel."""
    names = ", ".join(site.name for site in sites.sites)
    return f"with the sites {names} in this order\n{processes.network_text(topology, rounds, channel, every)}"


def tell_stopped(sites: Sites, reason: str, timeout: float, traffic: processes.Traffic) -> None:
    """Tell the other sites why this one does not take part: those that come within the timeout."""
    mesh = Mesh(sites, "", dict, dict, lambda kind, node, size: traffic.add(kind, node, (), size))
    mesh.stopped = reason
    mesh.open()
    end = time.monotonic() + timeout
    while len(mesh.conflicts) < len(mesh.links) and time.monotonic() < end:
        mesh.wait(0.1)
    mesh.close()


def leave(members: Members) -> None:
    """Wait until all have ended, or somebody is lost or sends more: to a process still communicating, an exit is a loss."""
    if members.view.number:
        monitor = members.monitor
        monitor.end()
        while monitor.problem is None and not monitor.others_ended() and not members.mesh.inbox.early:
            time.sleep(monitor.interval / 5)
        monitor.close()
    members.mesh.drain()
    members.mesh.close()


class SiteTransport(ProcessTransport):
    """Messages between the members of one view."""

    error = ProcessLost
    carries_cuda = False

    def __init__(self, members: Members, number: int):
        self.members, self.mesh, self.view = members, members.mesh, members.view
        self.sites = sorted(self.view.members)
        self.others = [peer for peer in range(len(self.sites)) if peer != members.rank]
        nodes = [range(node, node + 1) for node in self.sites]
        super().__init__(members.rank, nodes, members.timeout, members.monitor)
        self.monitor = members.monitor
        self.tag = f"view {self.view.number} network {number}"
        self.number = 3 * number  # of the exchanges; that of the sums is one more, and that of mail two
        self.sent: Counter[tuple[int, int]] = Counter()
        self.wanted: Counter[tuple[int, int]] = Counter()
        self.limits, self.sum_limits = Limits(), Limits(later=FIRST)  # sums differ in kind

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[int, Receive]]:
        return self._start(self.number, receives, sends)

    def _start(self, number: int, receives: Sequence[Message], sends: Sequence[Message]) -> list[tuple[int, Receive]]:
        self.check()
        pending = [(peer, self._want(number, peer, view_of(buffer))) for peer, buffer in receives]
        copies = {id(buffer): bytes(view_of(buffer)) for _, buffer in sends}  # one for all neighbours that get the same
        for peer, buffer in sends:
            self._send(number, peer, copies[id(buffer)])
        return pending

    def _send(self, number: int, peer: int, data: bytes) -> None:
        key = self._key(self.sent, number, peer)
        self.mesh.links[key.site].send(key._replace(site=self.members.node), data, self.check)

    def _key(self, counts: Counter[tuple[int, int]], number: int, peer: int) -> Key:
        counts[number, peer] += 1
        return Key(self.sites[peer], self.view.id, number, counts[number, peer])

    def _want(self, number: int, peer: int, buffer: memoryview) -> Receive:
        key = self._key(self.wanted, number, peer)
        try:
            receive = self.mesh.inbox.want(key, buffer)
        except Refused as error:
            raise self._accused(peer, str(error)) from error
        self.mesh.links[key.site].wake()
        return receive

    def finish(self, pending: list[tuple[int, Receive]]) -> None:
        for peer, receive in pending:
            if not receive.done.is_set():
                self.wait_until(partial(self._is_done, peer, receive))

    def _is_done(self, peer: int, receive: Receive) -> bool:
        done = receive.done.wait(self.monitor.interval / 10)
        if not done and self.mesh.closed.is_set():
            raise self._no_answer([peer], "this site has left")
        if not done and self.mesh.gone(self.sites[peer]):  # even if it said that it has ended
            raise self._no_answer([peer], "it is gone")
        return done

    def inspect(self, peer: int, arrived: Sequence[Array], own: Sequence[Array]) -> None:
        """Accuse a site whose numbers are not finite, or much larger than this site's own."""
        known = self.limits.diverged
        if wrong := self.limits.check(peer, arrived, own):
            raise self._accused(peer, wrong)
        if known is None and self.limits.diverged is not None:
            name = self.members.name(self.sites[peer])
            warnings.warn(
                f"The numbers of {name} have passed {DIVERGED:.0e}: the run diverges, or that site sends wrong numbers.",
                stacklevel=2,
            )

    def _inspect_sum(self, peer: int, arrived: np.ndarray, own: np.ndarray) -> None:
        if wrong := self.sum_limits.check(peer, [arrived], [own]):
            raise self._accused(peer, wrong)

    def _accused(self, peer: int, reason: str) -> RunError:
        self.mesh.accuse(self.sites[peer], reason)
        return self._no_answer([peer], reason)

    def sum(self, buffer: Array) -> Array:
        """Every member adds up one part, in the order of the members, and sends it to all: the sums are equal everywhere."""
        flat = as_array(buffer).reshape(-1)
        parts = np.array_split(flat, len(self.sites))
        shape = (len(self.sites), parts[self.rank].size)
        received, others = np.empty(shape, flat.dtype), self.others
        received[self.rank], own = parts[self.rank], flat.copy()
        self.finish(
            self._start(self.number + 1, [(peer, received[peer]) for peer in others], [(p, parts[p]) for p in others])
        )
        for peer in others:
            self._inspect_sum(peer, received[peer], own)
        parts[self.rank][:] = received.sum(0)
        sends = [(peer, parts[self.rank].copy()) for peer in others]
        self.finish(self._start(self.number + 1, [(peer, parts[peer]) for peer in others], sends))
        for peer in others:
            self._inspect_sum(peer, parts[peer], own)
        return buffer

    def _gather(self, own: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(self.sites), *own.shape), own.dtype)
        rows[self.rank] = own
        self.finish(self._start(self.number + 1, [(p, rows[p]) for p in self.others], [(p, own) for p in self.others]))
        return rows

    def _lengths(self, own: int) -> list[int]:
        lengths = super()._lengths(own)
        for peer, length in enumerate(lengths):
            if not 0 <= length <= LONGEST_TEXT:
                raise self._accused(peer, f"it announced a text of {length} bytes")
        return lengths

    def _text(self, peer: int, row: np.ndarray) -> str:
        try:
            return super()._text(peer, row)
        except UnicodeDecodeError as error:
            raise self._accused(peer, "its text is not UTF-8") from error

    # ------------------------------------------------------------ mail, which nobody waits for

    def send_mail(self, peer: int, data: bytes) -> None:
        self._send(self.number + 2, peer, data)

    def want_mail(self, peer: int, size: int) -> Receive:
        return self._want(self.number + 2, peer, memoryview(bytearray(size)))

    def wait_for_mail(self, receives: Iterable[Receive], began: float, seconds: float) -> None:
        self.liveness.check(began, self.timeout, self._lost)
        with self.mesh.news:
            if seconds > 0 and not any(receive.done.is_set() for receive in receives):
                self.mesh.news.wait(min(seconds, self.monitor.interval / 5))

    def refuse_mail(self, peer: int, reason: str) -> RunError:
        return self._accused(peer, reason)

    def node(self, peer: int) -> int:
        return self.sites[peer]

    # ------------------------------------------------------------ calls

    def next_call(self) -> str:
        """What the others call next; with nobody else, a step."""
        if len(self.sites) == 1:
            return "step"

        def is_known() -> bool:
            time.sleep(self.monitor.interval / 5)
            return bool(self.monitor.others_call(self.tag))

        self.check()
        self.wait_until(is_known)
        return self.monitor.others_call(self.tag)

    def _no_answer(self, ranks: Sequence[int], why: object) -> RunError:
        names = ", ".join(self.members.name(self.sites[rank]) for rank in sorted(set(ranks)))
        return self.error(f"No answer from {names}: {why}.")


def as_array(buffer: Array) -> np.ndarray:
    return buffer if isinstance(buffer, np.ndarray) else buffer.numpy()


def view_of(buffer: Array) -> memoryview:
    """The bytes of a contiguous array, where they are."""
    return as_array(buffer).reshape(-1).view(np.uint8).data


@dataclass
class SiteNetworks:
    """This site in a run that others leave and join: makes the network of each view."""

    members: Members
    topology: Topology
    rounds: int | str | None
    channel: Channel | None
    every: int = 1
    number: int = 0  # of the network: the one of `connect`, and the one of an optimizer

    def first_network(self) -> Network:
        return self.network() if self.members.begin() else self.outside()

    def network(self) -> Network:
        transport = SiteTransport(self.members, self.number)
        graph = processes.remaining(self.topology, range(self.topology.nodes), transport.sites)
        network = processes.connect(graph, transport, self.rounds, self.channel, self.every, self.members.traffic)

        def allgather_text(text: str) -> list[str]:
            try:
                texts = network.processes.allgather_text(text)
            except ProcessLost as error:
                if self.members.admits or self.members.view.number > 1 or self.number:  # those that are left can go on
                    raise
                raise RunError(f"{first_line(error)}, before the first step: start all sites again.") from None
            if not self.members.admits and len(texts) == self.topology.nodes:
                self.members.mesh.opening.append(texts)
            return texts

        membership = replace(
            network.processes.membership,
            fail=self.fail,
            survivors=self.survivors,
            admit=self.admit,
            returned=self.members.returned,
            next_call=transport.next_call,
            accuse=lambda rank, reason: self.members.mesh.accuse(transport.sites[rank], reason),
        )
        names = [site.name for site in self.members.mesh.sites.sites]
        own = replace(
            network.processes,
            allgather_text=allgather_text,
            duplicate=self.duplicate,
            membership=membership,
            own_folders=True,
            names=names,
            mailbox=lambda: SiteMailbox(transport, graph.neighbours(transport.rank), self.members.traffic),
        )
        return replace(network, processes=own)

    def outside(self) -> Network:
        """The network of a site that has not joined yet, until `join` is called. It knows how the run began."""
        node, exchanged = self.members.node, count()

        def allgather_text(text: str) -> list[str]:
            number = next(exchanged)
            texts = self.members.opening(number + 1)[number]
            if texts[node] != text:
                raise InputError(
                    f"{self.members.name(node)} takes part with other settings or data than those it began this run with."
                )
            return texts

        own = Processes(
            range(node, node + 1),
            node,
            names=[site.name for site in self.members.mesh.sites.sites],
            allgather_text=allgather_text,
            gather=refuse,
            traffic=self.members.traffic,
            duplicate=self.duplicate,
            membership=Membership(survivors=self.survivors, join=self.join),
            own_folders=True,
            mailbox=refuse,
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
            self.members.monitor.problem = RunError(
                f"{self.members.name(self.members.node)} has left the run: {reason}"
            )
            self.members.mesh.drain()
            self.members.mesh.close()

    def survivors(self) -> Network:
        self.members.meet()
        return self.network()

    def join(self) -> Network:
        self.members.join()
        return self.network()


def refuse(*_: Any) -> Any:
    raise InputError("This process joins a run that has begun: make the optimizer, or call solve, first.")
