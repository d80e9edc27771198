"""The exchange between processes that may leave and join: gloo, with a new process group whenever the members change."""

import atexit
import datetime
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions

from dnasa.core import Array, Channel, InputError, Membership, Network, ProcessLost, RunError
from dnasa.networks.members import POLL, Members
from dnasa.networks.processes import Message, ProcessExchange, Traffic
from dnasa.networks.torchdist import UNLIMITED, Waiter, as_tensor, first_line, gathered_texts, wait_for
from dnasa.topology import Changing, Topology, without
from dnasa.topology.types import checksum

TORCHRUN = (
    "torchrun ends all its processes when one of them dies: start one torchrun for each node (torchrun --nnodes 8 "
    "--node-rank 0 --nproc-per-node 1 --max-restarts 100 --master-addr HOST --master-port 29500 train.py), or each process "
    "by itself with dnasa.connect(graph, join='HOST:29500')."
)

BACKGROUND: list[threading.Thread] = []  # that open and close groups; they may wait for a process that hangs


def connect(
    topology: Topology | Changing, address: str | None, rounds: int, timeout: float, channel: Channel | None
) -> Network:
    """Part of the run whose store is at that address, or the one of torchrun; waits until all have come, or joins later."""
    if address is None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(TORCHRUN)
    host, port = find_store(address)
    node = None if address else int(os.environ["RANK"])
    store = open_store(host, port, timeout)
    members = Members(store, topology.nodes, timeout, node, described(topology, rounds, channel))
    atexit.register(leave, members)
    exchange = Exchange(members, store, topology, rounds, channel)
    if members.started():
        return exchange.outside()
    members.begin()
    return exchange.new_epoch()


def described(topology: Topology | Changing, rounds: int, channel: Channel | None) -> str:
    """What must be the same at all processes: the weights, and how messages travel."""
    weights = checksum(topology.each)
    text = f"{topology.name}, {topology.nodes} nodes, checksum {weights}"
    text += f", {rounds} rounds" * (rounds > 1)
    return text if channel is None else f"{text}, messages {channel.settings}"


def find_store(address: str | None) -> tuple[str, int]:
    if address is None:
        if "MASTER_ADDR" not in os.environ:
            raise InputError(
                "To survive lost processes, start them with torchrun, with mpirun --with-ft ulfm, or with "
                "dnasa.connect(graph, join='HOST:29500') and `dnasa rendezvous`."
            )
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"The address to join is HOST:PORT, such as 10.0.0.1:29500, not '{address}'.")
    return host, int(port)


def open_store(host: str, port: int, timeout: float) -> TCPStore:
    remedy = f"start `dnasa rendezvous --port {port}` there first"
    wait_for_port(host, port, timeout, remedy)
    try:
        return TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=timeout))
    except RuntimeError as error:
        raise InputError(f"What answers at {host}:{port} is no rendezvous: {remedy}.") from error


def wait_for_port(host: str, port: int, timeout: float, remedy: str) -> None:
    """Processes may be started before the store is there."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
            return
        except socket.gaierror as error:
            raise InputError(f"There is no host '{host}': {error.strerror}.") from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise InputError(f"Nothing answers at {host}:{port}: {remedy}.") from error
            time.sleep(10 * POLL)


def serve(port: int) -> TCPStore:
    """The store in which the processes of a run find each other."""
    try:
        return TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise InputError(f"Port {port} is in use: give another one with --port.") from error


def leave(members: Members) -> None:
    """Wait until all have ended, or somebody is ahead or lost: to a process still communicating, an exit looks like a loss."""
    monitor = members.monitor
    if monitor is None:
        return
    monitor.end()
    while monitor.problem is None and not monitor.others_ended() and not monitor.others_ahead():
        time.sleep(monitor.interval / 5)
    monitor.close()
    members.listener.close()
    if Waiter.stuck() or any(thread.is_alive() for thread in BACKGROUND):  # they wait for a process that hangs
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def losses(members: Members) -> Iterator[None]:
    """An error of gloo is a lost process; our own errors stay what they are."""
    try:
        yield
    except RunError:
        raise
    except RuntimeError as error:
        raise ProcessLost(f"Node {members.me.node} lost a process: {first_line(error)}.") from error


def new_group(members: Members, store: TCPStore) -> ProcessGroupGloo | None:
    """Of the members of this epoch. Connecting may block as long as one of them hangs, so another thread does it."""
    if len(members.list) == 1:
        return None
    place = (
        f"run {members.run} epoch {members.epoch}",
        members.rank,
        len(members.list),
        datetime.timedelta(seconds=members.timeout),
    )
    made: queue.SimpleQueue[ProcessGroupGloo | RuntimeError] = queue.SimpleQueue()
    start_thread(lambda: made.put(connected_group(store, *place)))
    deadline = time.monotonic() + 2 * members.timeout
    while members.monitor.problem is None and time.monotonic() < deadline:  # type: ignore[union-attr]
        with suppress(queue.Empty):
            group = made.get(timeout=POLL)
            if isinstance(group, ProcessGroupGloo):
                return group
            raise ProcessLost(f"Node {members.me.node} lost a process: {first_line(group)}.")
    raise ProcessLost(f"Node {members.me.node} could not connect to all members.")


def connected_group(
    store: TCPStore, prefix: str, rank: int, size: int, timeout: datetime.timedelta
) -> ProcessGroupGloo | RuntimeError:
    """With a connection of its own to the store, since connecting blocks it."""
    try:
        again = TCPStore(store.host, store.port, is_master=False, timeout=timeout)
        return ProcessGroupGloo(PrefixStore(prefix, again), rank, size, timeout)
    except RuntimeError as error:
        return error


def start_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    BACKGROUND[:] = [*filter(threading.Thread.is_alive, BACKGROUND), thread]
    thread.start()


class Transport:
    """Messages between the members of one epoch."""

    carries_cuda, survives = False, True

    def __init__(self, members: Members, group: ProcessGroupGloo | None, number: int):
        self.members, self.group, self.number = members, group, number
        self.rank, self.size = members.rank, len(members.list)
        self.epoch, self.monitor = members.epoch, members.monitor
        self.tag = f"epoch {self.epoch} network {number}"
        self.waiter = Waiter()

    def _check(self, began: float) -> None:
        if self.members.epoch != self.epoch:
            raise RunError("The members of this network have changed: the present one is optimizer.network.")
        late = self.monitor.check(began, self.members.timeout) if self.monitor else []
        if late:
            nodes = ", ".join(str(self.members.list[rank].node) for rank in late)
            raise ProcessLost(f"No answer from node {nodes} for {self.members.timeout:g} s.")

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Any]:
        self._check(time.monotonic())
        with losses(self.members):
            works = [self.group.recv([as_tensor(buffer)], peer, self.number) for peer, buffer in receives]  # type: ignore[union-attr]
            return works + [self.group.send([as_tensor(buffer)], peer, self.number) for peer, buffer in sends]  # type: ignore[union-attr]

    def finish(self, pending: list[Any]) -> None:
        began = time.monotonic()
        for work in pending:
            error = self.waiter.wait(work, lambda: self._check(began))
            if error is not None:
                raise ProcessLost(f"Node {self.members.me.node} lost a neighbour: {first_line(error)}.") from error

    def _collective(self, start: Callable[[Any], Any]) -> None:
        began = time.monotonic()
        self._check(began)
        if self.group is not None:
            with losses(self.members):
                wait_for(start(self.group), lambda: self._check(began))

    def next_call(self) -> str:
        """What the others call next; with nobody else, a step."""
        began = time.monotonic()
        while self.size > 1:
            self._check(began)
            call = self.monitor.others_call(self.tag)  # type: ignore[union-attr]
            if call:
                return call
            time.sleep(self.monitor.interval / 5)  # type: ignore[union-attr]
        return "step"

    def sum(self, buffer: Array) -> Array:
        options = AllreduceOptions()
        options.timeout = UNLIMITED
        self._collective(lambda group: group.allreduce([as_tensor(buffer)], options))
        return buffer

    def allgather_text(self, text: str) -> list[str]:
        return gathered_texts(text, self.size, self._allgather)

    def _allgather(self, parts: list[torch.Tensor], own: torch.Tensor) -> None:
        options = AllgatherOptions()
        options.timeout = UNLIMITED
        parts[self.rank].copy_(own)
        self._collective(lambda group: group.allgather([parts], [own], options))


@dataclass
class Exchange:
    """Makes the network of each epoch. The nodes of the graph are places: a process that joins takes a free one."""

    members: Members
    store: TCPStore
    topology: Topology | Changing
    rounds: int
    channel: Channel | None
    number: int = 0  # of the network: the one of `connect`, and the one of an optimizer
    traffic: Traffic = field(default_factory=Traffic)
    group: ProcessGroupGloo | None = None
    transports: list[Transport] = field(default_factory=list)  # of this epoch

    def network(self) -> Network:
        here = [member.node for member in self.members.list]
        lost = sorted(set(range(self.topology.nodes)) - set(here))
        transport: Any = Transport(self.members, self.group, self.number)  # duplicated and renewed here instead
        self.transports.append(transport)
        exchange = ProcessExchange(
            without(self.topology, lost) if lost else self.topology,
            transport,
            self.rounds,
            self.channel,
            node_ids=here,
            shares=[range(i, i + 1) for i in range(len(here))],
            traffic=self.traffic,
        )
        network = exchange.network()
        membership = Membership(  # without `fail`: the others go on without this process
            network.membership.note, survivors=self.survivors, admit=self.admit, next_call=transport.next_call
        )
        return replace(network, duplicate=self.duplicate, membership=membership)

    def survivors(self) -> Network:
        self.members.meet()
        return self.new_epoch()

    def new_epoch(self) -> Network:
        self.close_group()
        self.group = new_group(self.members, self.store)
        return self.network()

    def close_group(self) -> None:
        """And its connections. A collective under way ends first: that may take until a process that hangs has ended."""
        groups = [self.group]
        self.group = None
        for transport in self.transports:
            transport.group = None
        self.transports.clear()
        start_thread(groups.clear)

    def outside(self) -> Network:
        """Before this process is let in: an optimizer calls `join` when it is ready."""
        node = self.members.me.node
        return Network(
            self.topology.nodes,
            refuse,
            refuse,
            range(node, node + 1),
            node,
            refuse,
            refuse,
            rounds=self.rounds,
            channel=self.channel,
            topology=self.topology,
            duplicate=self.duplicate,
            membership=Membership(survivors=self.survivors, join=self.join),
        )

    def duplicate(self) -> Network:
        """For an optimizer, of which there can be one: all its processes must agree on where to go on."""
        if self.number:
            raise InputError("A network that survives losses has one optimizer: connect again for a second one.")
        self.number = 1
        return self.network() if self.members.epoch else self.outside()

    def admit(self) -> None:
        self.members.store.set("admits", "")

    def join(self) -> Network:
        self.members.join()
        return self.new_epoch()


def refuse(*_: Any) -> Any:
    raise InputError("This process joins a run that has begun: make the optimizer first.")
