"""The exchange between processes that may leave and join: gloo, with a new process group whenever the members change."""

import atexit
import datetime
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from dnasa.core import Channel, InputError, Membership, Network, ProcessLost, first_line
from dnasa.networks import processes
from dnasa.networks.members import Members
from dnasa.networks.rendezvous import POLL, find_store, open_store
from dnasa.networks.torchdist import GlooTransport, Waiter
from dnasa.topology import Topology, count_rounds
from dnasa.topology.types import checksum

TORCHRUN = (
    "torchrun ends all its processes when one of them dies: start one torchrun for each node (torchrun --nnodes 8 "
    "--node-rank 0 --nproc-per-node 1 --max-restarts 100 --master-addr HOST --master-port 29500 train.py), or each process "
    "by itself with dnasa.connect(graph, join='HOST:29500')."
)

BACKGROUND: list[threading.Thread] = []  # that open and close groups; they may wait for a process that hangs


def connect(
    topology: Topology, address: str | None, rounds: int | str | None, timeout: float, channel: Channel | None
) -> Network:
    """Connect to the run whose store is at that address, or to torchrun's: wait for all processes, or join a started run."""
    if address is None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(TORCHRUN)
    host, port = find_store(address)
    node = None if address else int(os.environ["RANK"])
    store = open_store(host, port, timeout)
    members = Members(store, topology.nodes, timeout, node, described(topology, rounds, channel))
    atexit.register(leave, members)
    return Connection(members, store, topology, rounds, channel).first_network()


def described(topology: Topology, rounds: int | str | None, channel: Channel | None) -> str:
    """Describes what all processes must share: the weights, and how messages travel."""
    weights = checksum(topology.each)
    text = f"{topology.name}, {topology.nodes} nodes, checksum {weights}"
    if (count := count_rounds(topology, rounds)) > 1:
        text += f", {count} rounds"
    return text if channel is None else f"{text}, messages {channel.settings}"


def leave(members: Members) -> None:
    """Wait until all have ended, or somebody is ahead or lost: to a process still communicating, an exit looks like a loss."""
    if not members.epoch:
        return
    monitor = members.monitor
    monitor.end()
    while monitor.problem is None and not monitor.others_ended() and not monitor.others_ahead():
        time.sleep(monitor.interval / 5)
    monitor.close()
    members.listener.close()
    if Waiter.stuck() or any(thread.is_alive() for thread in BACKGROUND):  # they wait for a process that hangs
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def new_group(members: Members, store: TCPStore) -> ProcessGroupGloo | None:
    """Connect the members of this epoch, in another thread: connecting blocks while one of them hangs."""
    if len(members.list) == 1:
        return None
    prefix, rank, size = f"run {members.run} epoch {members.epoch}", members.rank, len(members.list)
    timeout = datetime.timedelta(seconds=members.timeout)
    result: queue.SimpleQueue[ProcessGroupGloo | RuntimeError] = queue.SimpleQueue()

    def connect_all() -> None:
        try:
            blocked = TCPStore(store.host, store.port, is_master=False, timeout=timeout)  # while all connect
            result.put(ProcessGroupGloo(PrefixStore(prefix, blocked), rank, size, timeout))
        except RuntimeError as error:
            result.put(error)

    start_thread(connect_all)
    deadline = time.monotonic() + 2 * members.timeout
    while members.monitor.problem is None and time.monotonic() < deadline:
        with suppress(queue.Empty):
            group = result.get(timeout=POLL)
            if isinstance(group, ProcessGroupGloo):
                return group
            raise ProcessLost(f"Node {members.me.node} lost a process: {first_line(group)}.")
    raise ProcessLost(f"Node {members.me.node} could not connect to all members.")


def start_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    BACKGROUND[:] = [*filter(threading.Thread.is_alive, BACKGROUND), thread]
    thread.start()


class ElasticTransport(GlooTransport):
    """Messages between the members of one epoch."""

    error = ProcessLost

    def __init__(self, members: Members, group: ProcessGroupGloo | None, number: int):
        nodes = [range(member.node, member.node + 1) for member in members.list]
        super().__init__(group, members.rank, nodes, members.timeout, members.monitor, number)
        self.monitor = members.monitor
        self.tag = f"epoch {members.epoch} network {number}"

    def next_call(self) -> str:
        """What the others call next; with nobody else, a step."""
        if len(self.nodes) == 1:
            return "step"

        def is_known() -> bool:
            time.sleep(self.monitor.interval / 5)
            return bool(self.monitor.others_call(self.tag))

        self.check()
        self.wait_until(is_known)
        return self.monitor.others_call(self.tag)


@dataclass
class Connection:
    """This process in a run that others leave and join: makes the network of each epoch."""

    members: Members
    store: TCPStore
    topology: Topology
    rounds: int | str | None
    channel: Channel | None
    number: int = 0  # of the network: the one of `connect`, and the one of an optimizer
    traffic: processes.Traffic = field(default_factory=processes.Traffic)
    group: ProcessGroupGloo | None = None
    transports: list[ElasticTransport] = field(default_factory=list)  # of this epoch

    def first_network(self) -> Network:
        if self.members.started():
            return self.outside()
        self.members.begin()
        return self.new_epoch()

    def network(self) -> Network:
        transport = ElasticTransport(self.members, self.group, self.number)
        self.transports.append(transport)
        nodes = [member.node for member in self.members.list]
        graph = processes.remaining(self.topology, range(self.topology.nodes), nodes)
        network = processes.connect(graph, transport, self.rounds, self.channel, self.traffic)
        membership = replace(
            network.membership, survivors=self.survivors, admit=self.admit, next_call=transport.next_call
        )
        return replace(network, duplicate=self.duplicate, membership=membership)

    def outside(self) -> Network:
        """The network of a process that has not joined yet: an optimizer calls `join` when it is ready."""
        node = self.members.me.node
        return Network(
            self.topology.nodes,
            refuse,
            refuse,
            range(node, node + 1),
            node,
            refuse,
            refuse,
            rounds=count_rounds(self.topology, self.rounds),
            channel=self.channel,
            topology=self.topology,
            duplicate=self.duplicate,
            membership=Membership(survivors=self.survivors, join=self.join),
        )

    def duplicate(self) -> Network:
        """Make the network of the optimizer; there can be one, since all processes must agree on where to continue."""
        if self.number:
            raise InputError("A network that survives losses has one optimizer: connect again for a second one.")
        self.number = 1
        return self.network() if self.members.epoch else self.outside()

    def admit(self) -> None:
        self.members.store.set("admits", "")

    def survivors(self) -> Network:
        self.members.meet()
        return self.new_epoch()

    def join(self) -> Network:
        self.members.join()
        return self.new_epoch()

    def new_epoch(self) -> Network:
        self.close_group()
        self.group = new_group(self.members, self.store)
        return self.network()

    def close_group(self) -> None:
        """Close the group and its connections, once a collective in progress has ended; a process that hangs delays that."""
        groups = [self.group]
        self.group = None
        for transport in self.transports:
            transport.group = None
        self.transports.clear()
        start_thread(groups.clear)


def refuse(*_: Any) -> Any:
    raise InputError("This process joins a run that has begun: make the optimizer first.")
