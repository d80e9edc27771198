"""Snapshots of a run as the named arrays of a checkpoint, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dnasa.arrays import concatenate, dtype_name, like
from dnasa.communication import Memory, Network
from dnasa.core import Array, Rule, State, leaves, rebuilt
from dnasa.runs.checkpoints import Checkpoint


@dataclass
class Sent:
    """What all nodes together have sent in one run: messages, bytes of them and, with a clock, when each node was done."""

    messages: int = 0
    bytes: float = 0.0
    times: Any = 0.0

    def compute(self, network: Network, gradients: int) -> None:
        """Count this number of gradients at each node."""
        if network.settings.clock is not None:
            self.times = network.settings.clock.computed(self.times, gradients)

    def add(self, network: Network, row: float, t: int) -> None:
        """Count an exchange of step t in which every message holds `row` bytes; with 0 bytes none is sent."""
        self._count(network, row, t)
        if network.settings.clock is not None:
            self.times = network.settings.clock.exchanged(self.times, row, network.exchanges(t))

    def add_hidden(self, network: Network, early: float, rest: float, t: int) -> None:
        """Count a gradient of step t, and the exchanges of its early and its other messages that it hides."""
        self._count(network, early + rest, t)
        if network.settings.clock is not None:
            self.times = network.settings.clock.hidden(self.times, rest, early, network.exchanges(t))

    def _count(self, network: Network, row: float, t: int) -> None:
        repeating = network.step_messages
        count = repeating[t % len(repeating)] if row else 0
        self.messages += count
        self.bytes += count * row


ChannelMemory = dict[int, Memory]  # by exchange of a step: 0 for `send`, 1 and up for `then`


class Snapshot(NamedTuple):
    """All that a rule needs to continue: its state, its channel's memory, and what it has sent so far."""

    state: State
    memory: ChannelMemory
    sent: Sent

    def restarted(self, rule: Rule) -> "Snapshot":
        """The snapshot after nodes left or joined: the rule restarts, and the channel forgets what was sent."""
        return Snapshot(rule.restarted(self.state), {}, self.sent)


def named_arrays(snapshot: Snapshot) -> dict[str, Array]:
    state = leaves(snapshot.state, "state.")
    memory = (leaves(entries, f"memory.{number}.") for number, entries in snapshot.memory.items())
    return state | {name: a for arrays in memory for name, a in arrays.items()}


class Restored:
    """The arrays of a checkpoint, each checked against what this run needs: anybody may have written it."""

    def __init__(self, found: Checkpoint, fresh: Sequence[Snapshot], network: Network):
        self.found, self.fresh, self.network = found, fresh, network

    def snapshots(self) -> list[Snapshot]:
        return [self._snapshot(number, fresh) for number, fresh in enumerate(self.fresh)]

    def _snapshot(self, number: int, fresh: Snapshot) -> Snapshot:
        expected, notes, x = leaves(fresh.state, "state."), self.found.notes, fresh.state.x
        arrays = {name: self._rows(f"{number}.{name}", x, a.shape[-1]) for name, a in expected.items()}
        prefix = f"{number}.memory."
        memory: dict[int, list[list[Array]]] = {}  # by exchange, message and array
        for key in sorted(tuple(map(int, n[len(prefix) :].split("."))) for n in self.found.arrays if n.startswith(prefix)):
            exchange, message, _ = key
            messages = memory.setdefault(exchange, [])
            messages += [[] for _ in range(message + 1 - len(messages))]
            messages[message].append(self._rows(f"{prefix}{'.'.join(map(str, key))}", x))
        messages_sent, bytes_sent = notes["sent"][number]
        times: Any = 0.0
        if self.network.settings.clock is not None:
            times = np.array(notes["clock"][number], dtype=np.float64).reshape(self.network.nodes)
        return Snapshot(
            rebuilt(fresh.state, arrays, "state."),
            {exchange: tuple(map(tuple, messages)) for exchange, messages in memory.items()},
            Sent(int(messages_sent), float(bytes_sent), times),
        )

    def kept(self, name: str) -> Array | None:
        """An array of the early stopping, of all groups; None where there was none yet."""
        if name not in self.found.arrays:
            return None
        x = concatenate([fresh.state.x for fresh in self.fresh])
        return self._rows(name, x, x.shape[-1])

    def _rows(self, name: str, x: Array, width: int | None = None) -> Array:
        """The rows of the local nodes, as those of x are; a node that was lost begins at the mean of the others."""
        members, nodes, alone = self.found.notes["members"], self.network.nodes, self.network.processes.own_folders
        a = self.found.arrays.get(name, np.empty(0))
        shape, dtype = (*x.shape[:-2], 1 if alone else len(members), width or a.shape[-1]), dtype_name(x)
        if a.shape != shape or a.dtype.name != dtype:
            raise ValueError(f"{name} is not {shape}, {dtype}")
        if alone:  # a site has the rows of its own node
            return like(a, x)
        if len(members) < nodes:
            filled = np.repeat(a.mean(-2, keepdims=True), nodes, axis=-2)
            filled[..., members, :] = a
            a = filled
        local = slice(self.network.local_nodes.start, self.network.local_nodes.stop)
        return like(np.ascontiguousarray(a[..., local, :]), x)
