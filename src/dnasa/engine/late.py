"""Runs without waiting: each node steps at its own speed, with what has arrived.

`Node` is what a node does, simulated or real; `Late` simulates all nodes by a clock, and `OwnNode` is a real one.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from dnasa.arrays import concatenate, copied
from dnasa.channels.exchange import row_bytes
from dnasa.channels.pairs import Offer, Pairs
from dnasa.communication import Network
from dnasa.core import Array, Gradients, Rule, State, leaves, rebuilt
from dnasa.engine.steppers import Stepper
from dnasa.runs.snapshots import Snapshot
from dnasa.topology import Topology

if TYPE_CHECKING:
    from dnasa.clock import Clock

GradientOfNode = Callable[[Array, int, int], Array]  # (point, node, step of this node)


class Node:
    """A node: it begins a step with gradients, and ends it once no exchange is overdue. `steps` are those of the run."""

    def __init__(self, rule: Rule, state: State, pairs: Pairs, steps: int):
        self.rule, self.state = rule, state
        self.sent_state = state  # within a step: until the messages arrive
        self.pairs, self.steps = pairs, steps

    @property
    def t(self) -> int:
        """The step for schedules: the mean of all nodes' steps, so that all have about the same stepsize."""
        return min(max(round(self.pairs.steps), 0), self.steps - 1)

    @property
    def points(self) -> tuple[Array, ...]:
        return self.rule.gradient_points(self.state, self.t)

    def begin(self, gradients: Gradients) -> list[tuple[int, Offer]]:
        """Begin a step. Returns what to send, and to whom."""
        early = self.rule.early_messages(self.state, self.t)
        messages, self.sent_state = self.rule.send(self.state, tuple(map(copied, gradients)), self.t)
        return self.pairs.begin((*early, *messages))

    @property
    def can_end(self) -> bool:
        return self.pairs.messages is not None and not self.pairs.overdue

    def end(self) -> None:
        self.state = self.rule.receive(self.sent_state, self.pairs.end())


def make_pairs(graph: Topology, i: int, late: int) -> Pairs:
    """The exchanges of node i, with weights that are exactly symmetric, so that a pair's changes cancel."""
    W = graph.sparse
    return Pairs({j: float((W[i, j] + W[j, i]) / 2) for j in graph.neighbours(i)}, late)


# ---------------------------------------------------------------- a real node


class Mailbox(Protocol):
    """How a real node sends offers to its neighbors, and takes theirs."""

    def post(self, neighbour: int, offer: Offer) -> None:
        """Send an offer without waiting."""

    def take(self, seconds: float) -> list[tuple[int, Offer | None]]:
        """What has arrived, with the sender; wait so long if nothing has. None in place of an offer: this neighbor has left."""


def run_node(
    node: Node, gradient: Callable[[Array, int], Array], mailbox: Mailbox, posted: Callable[[Offer], None] = lambda offer: None
) -> None:
    """Step until all nodes together have taken the steps of the run, on average, or all neighbors have ended.

    `gradient(point, step)` is for this node's own step. `posted` is called with each offer that is sent.
    """
    arrived: deque[tuple[int, Offer | None]] = deque()

    def post(offers: list[tuple[int, Offer]]) -> None:
        for neighbour, offer in offers:
            posted(offer)
            mailbox.post(neighbour, offer)

    def read() -> None:
        neighbour, offer = arrived.popleft()
        if offer is None:
            node.pairs.left(neighbour)
        else:
            post(node.pairs.arrived(neighbour, offer))

    alone = not node.pairs.pairs
    while node.pairs.steps < node.steps and (node.pairs.pairs or alone):
        gradients = tuple(gradient(point, node.pairs.own_steps) for point in node.points)
        arrived.extend(mailbox.take(0))
        while arrived:
            read()
        post(node.begin(gradients))
        while not node.can_end:
            if not arrived:
                arrived.extend(mailbox.take(math.inf))
            read()
        node.end()


class OwnNode(Stepper):
    """The real node of this process, after `t` steps of all nodes on average and `own_steps` of its own."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, late: int, steps: int, t: int, own_steps: int):
        self.network, self.sent = network, snapshot.sent
        pairs = make_pairs(network.topology, network.rank, late)
        pairs.steps, pairs.own_steps = float(t), own_steps
        self.node = Node(rule, snapshot.state, pairs, steps)

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.node.state, {}, self.sent)]

    def run(self, gradient: Callable[[Array, int], Array]) -> None:
        """Take all steps, and wait for the neighbors' last."""
        assert self.network.processes.mailbox is not None
        mailbox = self.network.processes.mailbox()
        run_node(self.node, gradient, mailbox, self._count)
        mailbox.end()

    def _count(self, offer: Offer) -> None:
        self.sent.messages += 1
        self.sent.bytes += row_bytes(self.network, offer.messages, 0)


# ---------------------------------------------------------------- all nodes, simulated


class Late(Stepper):
    """All nodes, in the order of a clock's events."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, late: int, steps: int, gradient: GradientOfNode):
        self.network, self.sent, self.gradient = network, snapshot.sent, gradient
        clock = cast("Clock", network.settings.clock)
        self.arrival = clock.single_messages()
        self.compute = clock.compute
        self.nodes = [
            Node(rule, _row(snapshot.state, i), make_pairs(network.topology, i, late), steps) for i in range(network.nodes)
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
        gradients = tuple(self.gradient(point, i, node.pairs.own_steps) for point in node.points)
        self._post(i, node.begin(gradients))
        self._end(i)

    def arrived(self, i: int, j: int, offer: Offer) -> None:
        """An offer of node j arrives at node i."""
        self._post(i, self.nodes[i].pairs.arrived(j, offer))
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
