"""The exchange between real processes, whatever carries the messages.

Each process holds a block of nodes. For every neighbouring process there is one message per exchange, with the rows that the
neighbour needs of everything the rule sends. Receives are posted first, the process' own share of the product is computed
while messages travel, and there are no barriers.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from dnasa.core import Array, Channel, InputError, Membership, Messages, Network, RunError, nodes_text
from dnasa.networks.buffers import Buffers, make_buffers
from dnasa.networks.monitor import Monitor
from dnasa.networks.simulated import Product, check_exchange, dense_if_small, product
from dnasa.topology import Changing, Topology, without

Message = tuple[int, Array]  # the other process, and a contiguous buffer of bytes


class Transport(Protocol):
    """What carries messages: MPI or torch.distributed."""

    rank: int
    size: int
    carries_cuda: bool
    survives: bool
    tag: Any  # which of the networks of these processes this is
    monitor: Monitor | None

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any: ...

    def finish(self, pending: Any) -> None: ...

    def sum(self, buffer: Array) -> Array: ...

    def allgather_text(self, text: str) -> list[str]: ...

    def duplicate(self) -> "Transport": ...

    def shrink(self) -> "tuple[list[int], Transport]": ...


@dataclass
class Traffic:
    """What this process has sent."""

    messages: int = 0
    bytes: int = 0


class Source(NamedTuple):
    """A process that we receive from: the columns of W that are its nodes, and their share of the product."""

    peer: int
    columns: np.ndarray
    weigh: Product
    factor: float | None  # that share, where it is a single number


class Target(NamedTuple):
    """A process that we send to, and the rows of ours that it needs."""

    peer: int
    rows: np.ndarray | slice


class Plan(NamedTuple):
    sources: list[Source]
    targets: list[Target]
    weigh: Product  # this process' own share of the product


def blocks(nodes: int, processes: int) -> list[range]:
    """Consecutive nodes for each process; their numbers differ by at most one."""
    if processes > nodes:
        raise InputError(
            f"{processes} processes cannot share {nodes} nodes: start at most {nodes}, or use a graph with more nodes."
        )
    ends = [nodes * (p + 1) // processes for p in range(processes)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def make_plan(weights: Any, shares: Sequence[range], rank: int) -> Plan:
    here = shares[rank]
    mine, needed = weights[here.start : here.stop], weights[:, here.start : here.stop]
    sources, targets = [], []
    for peer, theirs in enumerate(shares):
        if peer == rank:
            continue
        columns = np.unique(mine[:, theirs.start : theirs.stop].indices) + theirs.start
        if len(columns):
            block = mine[:, columns]
            factor = float(block[0, 0]) if block.shape == (1, 1) else None
            sources.append(Source(peer, columns, product(dense_if_small(block)), factor))
        rows = np.unique(needed[theirs.start : theirs.stop].indices)
        if len(rows):
            targets.append(Target(peer, slice(None) if len(rows) == len(here) else rows))
    return Plan(sources, targets, product(dense_if_small(mine[:, here.start : here.stop])))


@dataclass
class ProcessExchange:
    """The product with W and the mean over a transport; buffers are reused from step to step."""

    topology: Topology | Changing
    transport: Transport
    rounds: int = 1
    channel: Channel | None = None
    node_ids: Sequence[int] | None = None  # the nodes' original numbers, where some have been lost
    shares: Sequence[range] | None = None  # each process' rows among them
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        check_exchange(self.topology, self.rounds, self.channel)
        self.shares = self.shares or blocks(self.topology.nodes, self.transport.size)
        self.node_ids = self.node_ids or range(self.topology.nodes)
        self.rows = self.shares[self.transport.rank]
        self.multipliers: dict[int, Multiplier] = {}

    def network(self) -> Network:
        return Network(
            self.topology.nodes,
            lambda messages, t: self.at(t)(messages),
            self.mean,
            range(self.node_ids[self.rows.start], self.node_ids[self.rows.stop - 1] + 1),  # type: ignore[index]
            rank=self.transport.rank,
            allgather_text=self.transport.allgather_text,
            gather=self.gather,
            traffic=self.traffic,
            rounds=self.rounds,
            channel=self.channel,
            topology=self.topology,
            at=self.at,
            duplicate=self.duplicate,
            node_ids=self.node_ids,  # type: ignore[arg-type]
            membership=self._membership(),
        )

    def _membership(self) -> Membership:
        survivors, monitor = self.survivors if self.transport.survives else None, self.transport.monitor
        if monitor is None:
            return Membership(survivors=survivors)
        return Membership(partial(monitor.note, str(self.transport.tag)), monitor.fail, survivors)

    def at(self, t: int) -> "Multiplier":
        key = t % self.topology.period
        if key not in self.multipliers:
            graph = self.topology.at(t)
            self.multipliers[key] = Multiplier(graph.sparse, self.shares, self.transport, self.traffic)  # type: ignore[arg-type]
        return self.multipliers[key]

    def mean(self, a: Array) -> Array:
        part = a.mean(-2) * (len(self.rows) / self.topology.nodes)
        return self._sum(np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part.contiguous())

    def _sum(self, a: Array) -> Array:
        if a.dtype.itemsize == 2:  # 16-bit numbers do not add up well, and not at all in MPI
            return self._sum(a.float()).to(a.dtype)
        if getattr(a, "is_cuda", False) and not self.transport.carries_cuda:
            return self.transport.sum(a.cpu()).to(a.device)
        return self.transport.sum(a)

    def gather(self, x: Array) -> Array:
        """All nodes' rows in every process: each contributes its own to a sum with zeros."""
        shape = (*x.shape[:-2], self.topology.nodes, x.shape[-1])
        everything = np.zeros(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(shape)
        everything[..., self.rows.start : self.rows.stop, :] = x
        return self._sum(everything)

    def duplicate(self) -> Network:
        transport = self.transport.duplicate()
        return ProcessExchange(
            self.topology, transport, self.rounds, self.channel, self.node_ids, self.shares, self.traffic
        ).network()

    def survivors(self) -> Network:
        """The network of the remaining processes, on the remaining graph."""
        alive, transport = self.transport.shrink()
        rows = [self.shares[rank] for rank in alive]  # type: ignore[index]
        left = [row for block in rows for row in block]
        lost = sorted(set(range(self.topology.nodes)) - set(left))
        ends = np.cumsum([len(block) for block in rows]).tolist()
        return ProcessExchange(
            without(self.topology, lost) if lost else self.topology,
            transport,
            self.rounds,
            self.channel,
            node_ids=[self.node_ids[row] for row in left],  # type: ignore[index]
            shares=[range(end - len(block), end) for end, block in zip(ends, rows, strict=True)],
            traffic=self.traffic,
        ).network()


class Multiplier:
    """The product with W of one graph, between processes."""

    def __init__(self, W: Any, shares: Sequence[range], transport: Transport, traffic: Traffic):
        self.W, self.transport, self.traffic = W, transport, traffic
        self.rows = shares[transport.rank]
        self.plan = make_plan(W, shares, transport.rank)
        self.buffers: dict[Any, Buffers] = {}

    def __call__(
        self, payloads: Messages, decode: Sequence[Callable[[Array], Array]] | None = None, weights: Any = None
    ) -> Messages:
        """With `weights`, all messages travel as usual and are weighed by these instead of W."""
        own, sources = self._weighing(weights)
        buffers = self._filled(payloads)
        self.traffic.messages += len(buffers.sends)
        self.traffic.bytes += buffers.bytes
        pending = self.transport.start(buffers.receives, buffers.sends)
        out = [own((part,))[0] for part in parts(buffers.own, decode)]
        self.transport.finish(pending)
        for (weigh, factor), rows in zip(sources, buffers.received(), strict=True):
            for total, part in zip(out, parts(rows, decode), strict=True):
                if factor is None:
                    total += weigh((part,))[0]
                else:
                    add_scaled(total, part, factor)
        return tuple(out) if decode is not None else tuple(message for part in out for message in part)

    def _weighing(self, weights: Any) -> tuple[Product, list[tuple[Product, float | None]]]:
        if weights is None:
            return self.plan.weigh, [(source.weigh, source.factor) for source in self.plan.sources]
        mine = weights[self.rows.start : self.rows.stop]

        def weigh(columns: np.ndarray) -> Product:
            return product(dense_if_small(mine[:, columns]))

        return weigh(np.asarray(self.rows)), [(weigh(source.columns), None) for source in self.plan.sources]

    def _filled(self, payloads: Messages) -> Buffers:
        key = tuple((p.shape, p.dtype) for p in payloads)
        if key not in self.buffers:
            incoming = [(source.peer, len(source.columns)) for source in self.plan.sources]
            outgoing = [(target.peer, target.rows) for target in self.plan.targets]
            self.buffers[key] = make_buffers(payloads, incoming, outgoing, self.transport.carries_cuda)
        buffers = self.buffers[key]
        buffers.fill(payloads)
        return buffers


def add_scaled(total: Array, part: Array, factor: float) -> None:
    """total += factor part; the part may be overwritten."""
    if isinstance(part, np.ndarray):
        part *= factor
        total += part
    else:
        total.add_(part, alpha=factor)


def parts(stacks: Sequence[Array], decode: Sequence[Callable[[Array], Array]] | None) -> list[Array]:
    """What is weighed: stacks of equal messages as they are, or every message decoded."""
    if decode is None:
        return list(stacks)
    messages = [message for stack in stacks for message in stack]
    return [decoder(message) for decoder, message in zip(decode, messages, strict=True)]


def missing(peers: Sequence[int], shares: Sequence[range], why: str) -> RunError:
    """Names the processes that did not answer, and their nodes."""
    names = ", ".join(f"rank {peer} ({nodes_text(shares[peer])})" for peer in sorted(set(peers)))
    return RunError(f"No answer from {names}: {why}.")


def agree(network: Network, settings: dict[str, Any]) -> None:
    """Every process must have been started with the same settings; names the first that differs, before the first step."""
    everyone = [json.loads(text) for text in network.allgather_text(json.dumps(settings))]
    for name, value in everyone[0].items():
        for rank, other in enumerate(everyone):
            if other.get(name) != value:
                raise InputError(
                    f"The processes were started with different settings: {name} is {value} at rank 0 "
                    f"and {other.get(name)} at rank {rank}. Start all with the same."
                )
