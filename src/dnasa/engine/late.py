"""Runs without waiting, simulated by a clock: each node steps at its own speed, with what has arrived.

With each neighbor, a node has one exchange at a time. Both offer the messages of a step; each then adds what the other
subtracts, so means over the nodes stay right at any speed.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from dnasa.arrays import concatenate, copied
from dnasa.channels.exchange import row_bytes
from dnasa.communication import Network
from dnasa.core import Array, Gradients, Messages, Rule, State, leaves, rebuilt
from dnasa.engine.steppers import Stepper
from dnasa.runs.snapshots import Snapshot
from dnasa.topology import Topology

if TYPE_CHECKING:
    from dnasa.clock import Clock

GradientOfNode = Callable[[Array, int, int], Array]  # (point, node, step of this node)


class Offer(NamedTuple):
    steps: float  # the mean number of steps of all nodes, as the sender knows it
    messages: Messages


class Pair:
    """The exchanges of a node with one neighbor, one at a time."""

    def __init__(self, weight: float):
        self.weight = weight
        self.own: Offer | None = None  # in this exchange
        self.offered_at = -1  # the step of the last offer
        self.received: deque[Offer] = deque()  # in this exchange, and perhaps in the next


class Node:
    """A node: it begins a step with gradients, and ends it once no exchange has lasted longer than `late` further steps.

    `mean_steps` is the mean number of steps of all nodes, as this node knows it: it is exchanged like a message. `steps` are
    those of the run.
    """

    def __init__(self, rule: Rule, state: State, weights: Mapping[int, float], late: int, steps: int):
        self.rule, self.state = rule, state
        self.sent_state = state  # within a step: until the messages arrive
        self.messages: Messages | None = None  # of the step that has begun
        self.pairs = {neighbour: Pair(weight) for neighbour, weight in weights.items()}
        self.late, self.steps = late, steps
        self.own_steps, self.mean_steps = 0, 0.0

    @property
    def t(self) -> int:
        """The step for schedules: the mean of all nodes' steps, so that all have about the same stepsize."""
        return min(max(round(self.mean_steps), 0), self.steps - 1)

    @property
    def points(self) -> tuple[Array, ...]:
        return self.rule.gradient_points(self.state, self.t)

    def begin(self, gradients: Gradients) -> list[tuple[int, Offer]]:
        """Begin a step. Returns what to send, and to whom."""
        early = self.rule.early_messages(self.state, self.t)
        messages, self.sent_state = self.rule.send(self.state, tuple(map(copied, gradients)), self.t)
        self.messages, self.mean_steps = (*early, *messages), self.mean_steps + 1
        return self.proceed()

    def arrived(self, neighbour: int, offer: Offer) -> list[tuple[int, Offer]]:
        """Take an offer of a neighbor. Returns what to send: a node that waits answers."""
        self.pairs[neighbour].received.append(offer)
        return [] if self.messages is None else self.proceed()

    def proceed(self) -> list[tuple[int, Offer]]:
        """Complete exchanges, and begin others: one at most with each neighbor in a step, so late = 0 is synchronous.

        A node that waits must begin exchanges too: otherwise nodes could wait for each other in a circle.
        """
        self.complete()
        assert self.messages is not None
        offers = []
        for neighbour, pair in self.pairs.items():
            if pair.own is None and pair.offered_at < self.own_steps:
                pair.own, pair.offered_at = Offer(self.mean_steps, self.messages), self.own_steps
                offers.append((neighbour, pair.own))
        self.complete()
        return offers

    def complete(self) -> None:
        """Where both offers are here, add W_ij (offer of j - own offer); j subtracts the same, in its own time."""
        assert self.messages is not None
        for pair in self.pairs.values():
            if pair.own is not None and pair.received:
                own, other, pair.own = pair.own, pair.received.popleft(), None
                changes = zip(self.messages, own.messages, other.messages, strict=True)
                self.messages = tuple([y + pair.weight * (b - a) for y, a, b in changes])
                self.mean_steps += pair.weight * (other.steps - own.steps)

    @property
    def can_end(self) -> bool:
        oldest = self.own_steps - self.late
        overdue = any(pair.own is not None and pair.offered_at <= oldest for pair in self.pairs.values())
        return self.messages is not None and not overdue

    def end(self) -> None:
        assert self.messages is not None
        self.state = self.rule.receive(self.sent_state, self.messages)
        self.messages = None
        self.own_steps += 1


class Late(Stepper):
    """All nodes, in the order of a clock's events."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, late: int, steps: int, gradient: GradientOfNode):
        self.network, self.sent, self.gradient = network, snapshot.sent, gradient
        clock = cast("Clock", network.settings.clock)
        self.arrival = clock.single_messages()
        self.compute = clock.compute
        graph: Topology = network.topology
        W = (graph.sparse + graph.sparse.T) / 2  # exactly symmetric, so that a pair's changes cancel
        self.nodes = [
            Node(rule, _row(snapshot.state, i), {j: float(W[i, j]) for j in graph.neighbours(i)}, late, steps)
            for i in range(network.nodes)
        ]
        self.done = 0  # steps of nodes
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self.planned = 0  # events so far
        for i in range(network.nodes):
            self._compute(i)

    @property
    def x(self) -> Array:
        return concatenate([node.state.x for node in self.nodes], -2)

    @property
    def snapshots(self) -> list[Snapshot]:
        each = [leaves(node.state) for node in self.nodes]
        arrays = {name: concatenate([arrays[name] for arrays in each], -2) for name in each[0]}
        return [Snapshot(rebuilt(self.nodes[0].state, arrays), {}, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return ()  # each node computes its gradients when it begins a step

    def step(self, gradients: Gradients, t: int) -> None:
        """Run until there are as many further steps as nodes."""
        last = self.done + len(self.nodes)
        while self.done < last:
            self.now, _, event = heapq.heappop(self.events)
            event()
        self.sent.times = np.full(len(self.nodes), self.now)

    def computed(self, i: int) -> None:
        """Node i has the time of its gradients behind it."""
        node = self.nodes[i]
        gradients = tuple(self.gradient(point, i, node.own_steps) for point in node.points)
        self._post(i, node.begin(gradients))
        self._end(i)

    def arrived(self, i: int, j: int, offer: Offer) -> None:
        """An offer of node j arrives at node i."""
        self._post(i, self.nodes[i].arrived(j, offer))
        self._end(i)

    def _end(self, i: int) -> None:
        if self.nodes[i].can_end:
            self.nodes[i].end()
            self.done += 1
            self._compute(i)

    def _compute(self, i: int) -> None:
        gradients = len(self.nodes[i].points)
        self._at(self.now + gradients * self.compute[i], partial(self.computed, i))

    def _post(self, i: int, offers: list[tuple[int, Offer]]) -> None:
        for j, offer in offers:
            size = row_bytes(self.network, offer.messages, 0)
            self.sent.messages += 1
            self.sent.bytes += size
            self._at(self.arrival(i, self.now, size), partial(self.arrived, j, i, offer))

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self.planned += 1  # events of the same time happen in the order in which they were planned
        heapq.heappush(self.events, (time, self.planned, event))


def _row(state: State, i: int) -> State:
    return rebuilt(state, {name: copied(a[..., i : i + 1, :]) for name, a in leaves(state).items()})
