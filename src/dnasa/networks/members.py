"""Which processes take part in a run that others may leave and join.

The list of members is in a store; models and messages never go there. Each list is an epoch. When a member notices that
something has changed, it calls for the next epoch, and all meet there: each writes that it is here. As soon as every member
of the last epoch is here, or gone, or silent for the timeout, the first to notice closes the list, atomically; who is not on
it was left behind.

The keys of the store `dnasa` and, below the first line, of the store `dnasa run N`:

| key               | value                                                                       |
|-------------------|-----------------------------------------------------------------------------|
| `run`             | the number N of the latest run                                              |
| `graph`           | the description of the network that all processes must have                 |
| `holder NODE`     | the member that holds the node, as JSON                                     |
| `left NAME`       | empty; there if the process of this name was left behind                    |
| `report NAME`     | the latest report of the process (`ProcessReport`), as JSON                 |
| `admits`          | empty; there once others may join                                           |
| `EPOCH called`    | empty; there once a process has called for this epoch                       |
| `EPOCH here NODE` | the member that has come to this epoch and holds the node, as JSON          |
| `EPOCH members`   | the closed list of the members of this epoch, as JSON                       |
"""

import json
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

from torch.distributed import TCPStore

from dnasa.core import InputError, ProcessLost, RunError
from dnasa.networks.monitor import Monitor, StoreBoard
from dnasa.networks.rendezvous import POLL, Store, parsed

PATIENCE = 20  # how many timeouts a process that wants to join waits for the others
CHANGED = "The members of this network have changed: the current one is optimizer.network."


class Member(NamedTuple):
    """A process: the node it holds, a name of its own, and the address of a socket that is closed when it ends."""

    node: int
    name: str
    host: str
    port: int


class Members:
    """This process's view of the list. `epoch` is 0 until it is a member; `graph` describes what all must have in common."""

    def __init__(self, store: TCPStore, nodes: int, timeout: float, node: int | None, graph: str = ""):
        self.nodes, self.timeout = nodes, timeout
        self.epoch, self.list = 0, list[Member]()
        self._monitor: MembersMonitor | None = None
        self.run, self.store = self._find_run(store)
        self._check_graph(graph)
        self.listener = listener(store.host, store.port)
        name = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:8]}"
        self.store.set(f"report {name}", "")
        self.me = Member(-1, name, *self.listener.getsockname()[:2])
        self.me = self._claim(range(nodes) if node is None else [node])

    def _find_run(self, store: TCPStore) -> tuple[int, Store]:
        """The number and the store of the latest run or, if all its processes have ended, of the next."""
        numbers = Store(store, "dnasa")
        try:
            run = int(numbers.compare_set("run", "", "0"))
        except ValueError as error:
            raise InputError(f"The store at {numbers.address} is damaged: start a new `dnasa rendezvous`.") from error
        while True:
            self.store = Store(store, f"dnasa run {run}")
            latest = self._latest()
            if not latest or not all(map(self._gone, latest)):
                return run, self.store
            numbers.compare_set("run", str(run), str(run + 1))
            run += 1

    def _check_graph(self, graph: str) -> None:
        common = self.store.compare_set("graph", "", graph).decode(errors="replace")
        if common != graph:
            raise InputError(f"The run has another network ({common}) than this process ({graph}): give all the same.")

    # ------------------------------------------------------------ nodes

    def _claim(self, nodes: Sequence[int]) -> Member:
        """Take the first of these nodes that no running process holds."""
        deadline, warned = time.monotonic() + 2 * self.timeout, False
        while time.monotonic() < deadline:
            for node in nodes:
                mine, before = self.me._replace(node=node), self._get(f"holder {node}")
                holder = parsed(before, self._member)
                if holder and not self._gone(holder) and not self.store.check([f"left {holder.name}"]):
                    continue
                if self.store.compare_set(f"holder {node}", before, json.dumps(mine)) == json.dumps(mine).encode():
                    return mine
            if not warned:
                warned = True
                warnings.warn(f"No node is free: waiting {2 * self.timeout:g} s for a process that ends.", stacklevel=2)
            time.sleep(10 * POLL)
        taken = f"All {self.nodes} nodes of the graph have" if len(nodes) > 1 else f"Node {nodes[0]} has"
        raise InputError(f"{taken} a running process: start one when another has ended, or use a larger graph.")

    def _holds_node(self, member: Member) -> bool:
        return self._read(f"holder {member.node}") == member and (member == self.me or not self._gone(member))

    def _gone(self, member: Member) -> bool:
        """Whether its socket is closed. That of a process that hangs, or cannot be reached, is not."""
        try:
            socket.create_connection((member.host, member.port), timeout=1).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return False

    # ------------------------------------------------------------ epochs

    def started(self) -> bool:
        return bool(self._closed(1))

    def _get(self, key: str) -> bytes:
        return self.store.get(key) if self.store.check([key]) else b""

    def _member(self, value: Any) -> Member:
        """Parse a member from JSON; a ValueError or a TypeError if it is something else."""
        member = Member(*value)
        fits = [*map(type, member)] == [int, str, str, int]
        if not fits or member.node not in range(self.nodes) or member.port not in range(2**16):
            raise ValueError(value)
        ip_address(member.host)
        return member

    def _read(self, key: str) -> Member | None:
        return parsed(self._get(key), self._member)

    def _came(self, epoch: int) -> list[Member | None]:
        """The members that are here for that epoch, by node."""
        return [self._read(f"{epoch} here {node}") for node in range(self.nodes)]

    def _closed(self, epoch: int) -> list[Member]:
        """The list of that epoch, empty if it is still open."""
        return self._list(self._get(f"{epoch} members"))

    def _list(self, text: bytes) -> list[Member]:
        return parsed(text, lambda members: [self._member(member) for member in members]) or []

    def _latest(self) -> list[Member]:
        """The list that was closed last."""
        epoch, latest = 1, list[Member]()
        while closed := self._closed(epoch):
            epoch, latest = epoch + 1, closed
        return latest

    def called(self) -> bool:
        """Whether somebody calls for the next epoch."""
        return self.store.check([f"{self.epoch + 1} called"])

    def _come(self, epoch: int) -> None:
        self.store.set(f"{epoch} here {self.me.node}", json.dumps(self.me))
        self.store.set(f"{epoch} called", "")

    def begin(self) -> None:
        """Enter the first epoch, once all nodes have a process."""
        self._come(1)
        self._wait(1, lambda: all(self._came(1)), "start")

    def meet(self) -> None:
        """Enter the next epoch, of the members that are left and those that want to join."""
        epoch = self.epoch + 1
        self._come(epoch)
        self._wait(epoch, lambda: all(map(self._settled, self.list)), "meet")

    def join(self) -> None:
        """Enter the first epoch that the members let this process into."""
        deadline, epoch = time.monotonic() + PATIENCE * self.timeout, 1
        while time.monotonic() < deadline:
            if not self._closed(epoch) and self.store.check(["admits"]):
                self._come(epoch)
            closed = self._closed(epoch)
            if self.me in closed:
                self._enter(epoch, closed)
                return
            epoch += bool(closed)
            time.sleep(0 if closed else POLL)
        raise RunError(
            f"No process of the run let node {self.me.node} in for {PATIENCE * self.timeout:g} s: they do once their "
            "optimizer is made, dnasa.solve does not."
        )

    def _settled(self, member: Member) -> bool:
        """Whether a member of the last epoch is here, or will not come."""
        came = self._read(f"{self.epoch + 1} here {member.node}") == member
        return came or self._gone(member) or self.monitor.silent(self.list.index(member), self.timeout)

    def _wait(self, epoch: int, complete: Callable[[], bool], what: str) -> None:
        began, warned, key = time.monotonic(), False, f"{epoch} members"
        while not (closed := self._list(before := self._get(key))):
            if complete():
                present = [member for member in self._came(epoch) if member and self._holds_node(member)]
                self.store.compare_set(key, before, json.dumps(present))
            elif not warned and time.monotonic() > began + self.timeout:
                warned = True
                missing = [node for node, member in enumerate(self._came(epoch)) if member is None]
                warnings.warn(
                    f"Node {self.me.node} has waited {self.timeout:g} s to {what}; missing: {missing}.", stacklevel=2
                )
            else:
                time.sleep(POLL)
        if self.me not in closed:
            raise RunError(
                f"Node {self.me.node} was left behind: it was silent for {self.timeout:g} s. Start it again to join."
            )
        self._enter(epoch, closed)

    def _enter(self, epoch: int, members: list[Member]) -> None:
        previous, before = self._monitor, self.list
        self.epoch, self.list = epoch, members
        for member in set(before) - set(self.list):
            self.store.set(f"left {member.name}", "")
        self._monitor = MembersMonitor(self)
        if previous is not None:
            previous.close()
            previous.problem = RunError(CHANGED)

    @property
    def rank(self) -> int:
        return self.list.index(self.me)

    @property
    def monitor(self) -> "MembersMonitor":
        """The monitor of the current epoch."""
        assert self._monitor is not None, "Only a member has a monitor."
        return self._monitor


class MembersMonitor(Monitor):
    """A monitor that also notices when somebody calls for the next epoch."""

    def __init__(self, members: Members):
        self.members = members
        keys = [f"report {member.name}" for member in members.list]
        super().__init__(StoreBoard(members.store, keys[members.rank], keys), members.rank, len(keys))

    def fail(self, reason: str) -> None:
        """The others go on without this process."""

    def diagnose(self) -> None:
        """A loss needs no reason: the others go on."""

    def end(self) -> None:
        """The others go on without this process."""
        self.ended = True
        self._beat()

    def others_ended(self) -> bool:
        others = [rank for rank in range(len(self.reports)) if rank != self.rank]
        return all(self._has_ended(rank) or self.silent(rank, self.members.timeout) for rank in others)

    def others_ahead(self) -> bool:
        """Whether another process is in a call that this one has not made."""
        return any(self.others_call(network) for network in self.counts)

    def others_call(self, network: str) -> str:
        """The call of the others after this process's last one; empty as long as there is none."""
        key = f"{network} {self.counts.get(network, 0) + 1}"
        return next((report.calls[key] for report in self.reports if report and key in report.calls), "")

    def _beat(self) -> None:
        super()._beat()
        with suppress(OSError):
            while True:
                self.members.listener.accept()[0].close()
        try:
            if self.problem is None and self.members.called():
                self.problem = ProcessLost("Processes left or want to join.")
        except RunError as error:
            self.problem = error


def listener(host: str, port: int) -> socket.socket:
    """A socket that is open as long as this process runs, at the address by which it reaches the store."""
    with socket.create_connection((host, port)) as connection:
        host = connection.getsockname()[0]
    server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    server.setblocking(False)
    return server
