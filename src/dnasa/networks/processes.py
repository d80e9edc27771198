"""The exchange between real processes, whatever carries the messages.

Each process holds a block of nodes. For every neighbouring process there is one message per step, with the rows that the
neighbour needs of everything the rule sends. Receives are posted first, the process' own share of the product is computed
while messages travel, and there are no barriers.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from dnasa.core import Array, InputError, Network, RunError, like
from dnasa.networks import wire as wires
from dnasa.networks.simulated import compact, product
from dnasa.topology import Changing, Topology, without

Message = tuple[int, Array]  # the other process, and a contiguous buffer


class Transport(Protocol):
    """What carries messages: MPI or torch.distributed."""

    rank: int
    size: int
    carries_cuda: bool
    survives: bool

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any: ...

    def finish(self, pending: Any) -> None: ...

    def sum(self, buffer: Array) -> Array: ...

    def share(self, text: str) -> list[str]: ...

    def another(self) -> "Transport": ...

    def shrunk(self) -> "tuple[list[int], Transport]": ...


@dataclass
class Traffic:
    """What this process has sent."""

    messages: int = 0
    bytes: int = 0


class Link(NamedTuple):
    """What goes between this process and one other: my rows it needs, how many come back, and their share of the product."""

    peer: int
    rows: np.ndarray | slice
    incoming: int
    weigh: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    factor: float | None  # that share, where it is a single number


class Plan(NamedTuple):
    links: list[Link]
    weigh: Callable[[tuple[Array, ...]], tuple[Array, ...]]  # this process' own share of the product


def blocks(nodes: int, processes: int) -> list[range]:
    """Nodes dealt to processes in order; shares differ by at most one."""
    if processes > nodes:
        raise InputError(
            f"{processes} processes cannot share {nodes} nodes: start at most {nodes}, or use more --nodes."
        )
    ends = [nodes * (p + 1) // processes for p in range(processes)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def make_plan(topology: Topology, shares: Sequence[range], rank: int) -> Plan:
    here, weights = shares[rank], topology.sparse
    mine = weights[here.start : here.stop]
    links = []
    for peer, theirs in enumerate(shares):
        part = mine[:, theirs.start : theirs.stop]
        if peer == rank or not part.nnz:
            continue
        wanted = np.unique(part.indices)  # the peer's rows that we need
        offered = np.unique(part.tocoo().row)  # W is symmetric: our rows that it needs
        rows = slice(None) if len(offered) == len(here) else offered
        block = part[:, wanted]
        factor = float(block[0, 0]) if block.shape == (1, 1) else None
        links.append(Link(peer, rows, len(wanted), product(compact(block)), factor))
    return Plan(links, product(compact(mine[:, here.start : here.stop])))


@dataclass
class Exchange:
    """`mix` and `mean` over a transport; buffers are kept from step to step."""

    topology: Topology | Changing
    transport: Transport
    rounds: int = 1
    wire: str | None = None
    members: Sequence[int] | None = None  # the nodes' own numbers, where some have been lost
    shares: Sequence[range] | None = None  # each process' rows among them
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"An exchange needs at least one round, not {self.rounds}.")
        wires.check(self.wire)
        self.shares = self.shares or blocks(self.topology.nodes, self.transport.size)
        self.members = self.members or range(self.topology.nodes)
        self.rows = self.shares[self.transport.rank]
        self.plans: dict[int, Plan] = {}
        self.buffers: dict[Any, Buffers] = {}

    def network(self) -> Network:
        return Network(
            self.topology.nodes,
            self.mix,
            self.mean,
            range(self.members[self.rows.start], self.members[self.rows.stop - 1] + 1),  # type: ignore[index]
            rank=self.transport.rank,
            share=self.transport.share,
            gather=self.gather,
            traffic=self.traffic,
            rounds=self.rounds,
            wire=self.wire,
            topology=self.topology,
            channel=self.channel,
            members=self.members,  # type: ignore[arg-type]
            survivors=self.survivors if self.transport.survives else None,
        )

    def plan(self, t: int) -> Plan:
        key = t % self.topology.period if isinstance(self.topology, Changing) else 0
        if key not in self.plans:
            now = self.topology.at(t) if isinstance(self.topology, Changing) else self.topology
            self.plans[key] = make_plan(now, self.shares, self.transport.rank)  # type: ignore[arg-type]
        return self.plans[key]

    def mix(self, *arrays: Array, t: int = 0) -> tuple[Array, ...]:
        for _ in range(self.rounds):
            arrays = self._once(arrays, self.plan(t))
        return arrays

    def _once(self, arrays: tuple[Array, ...], plan: Plan) -> tuple[Array, ...]:
        held, pending = self.send(arrays, plan)
        mine = like(held.packed, held.mine) if self.wire else held.mine
        (out,) = plan.weigh((mine,))
        self.transport.finish(pending)
        for link, (_, rows) in zip(plan.links, held.receives, strict=True):
            if held.packed is not held.mine:
                rows = like(rows, held.mine)
            if link.factor is None:
                out += link.weigh((rows,))[0]
            else:
                rows *= link.factor
                out += rows
        if self.wire:
            out += held.mine - mine
        return tuple(out)

    def send(self, arrays: tuple[Array, ...], plan: Plan) -> tuple["Buffers", Any]:
        """Start the exchange: returns the buffers, ours filled and the neighbours' to be, and what is pending."""
        key = (id(plan), len(arrays), arrays[0].shape, arrays[0].dtype)
        if key not in self.buffers:
            self.buffers[key] = make_buffers(arrays, plan, self.wire, self.transport.carries_cuda)
        held = self.buffers[key]
        stack_into(held.mine, arrays)
        if held.packed is not held.mine:
            held.packed.copy_(wires.in_range(wires.as_tensor(held.mine), self.wire))
        for link, (_, rows) in zip(plan.links, held.sends, strict=True):
            if rows is not held.packed:
                rows[:] = held.packed[..., link.rows, :]
        self.traffic.messages += len(held.sends)
        self.traffic.bytes += held.bytes
        return held, self.transport.start(held.receives, held.sends)

    def mean(self, a: Array) -> Array:
        part = a.mean(-2) * (len(self.rows) / self.topology.nodes)
        return self._sum(np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part.contiguous())

    def _sum(self, a: Array) -> Array:
        if a.dtype.itemsize == 2:  # 16-bit numbers do not add up well, and not at all in MPI
            return self._sum(a.float()).to(a.dtype)
        if getattr(a, "is_cuda", False) and not self.transport.carries_cuda:
            return self.transport.sum(a.cpu()).to(a.device)
        return self.transport.sum(a)

    def channel(self) -> Network:
        other = Exchange(self.topology, self.transport.another(), self.rounds, self.wire, self.members, self.shares)
        other.traffic = self.traffic
        return other.network()

    def survivors(self) -> Network:
        """The network of the processes that are left, on the graph that is left."""
        alive, transport = self.transport.shrunk()
        rows = [self.shares[rank] for rank in alive]  # type: ignore[index]
        left = [row for block in rows for row in block]
        ends = np.cumsum([len(block) for block in rows]).tolist()
        return Exchange(
            without(self.topology, sorted(set(range(self.topology.nodes)) - set(left))),
            transport,
            self.rounds,
            self.wire,
            members=[self.members[row] for row in left],  # type: ignore[index]
            shares=[range(end - len(block), end) for end, block in zip(ends, rows, strict=True)],
            traffic=self.traffic,
        ).network()

    def gather(self, x: Array) -> Array:
        """All nodes' rows in every process: each contributes its own to a sum with zeros."""
        shape = (*x.shape[:-2], self.topology.nodes, x.shape[-1])
        whole = np.zeros(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(shape)
        whole[..., self.rows.start : self.rows.stop, :] = x
        return self._sum(whole)


class Buffers(NamedTuple):
    """The memory of one exchange, the same at every step.

    `mine` are our rows; `packed` is what travels of them: the same memory, or a copy in the wire's dtype, and in main memory
    where the transport cannot reach a GPU's.
    """

    mine: Array
    packed: Array
    receives: list[Message]
    sends: list[Message]
    bytes: int


def make_buffers(arrays: tuple[Array, ...], plan: Plan, wire: str | None, carries_cuda: bool) -> Buffers:
    *runs, k, d = arrays[0].shape
    on_gpu = getattr(arrays[0], "is_cuda", False)
    staged = on_gpu and not carries_cuda

    def rows(count: int) -> Array:
        shape = (len(arrays), *runs, count, d)
        if not (wire or staged):
            return np.empty(shape, arrays[0].dtype) if isinstance(arrays[0], np.ndarray) else arrays[0].new_empty(shape)
        import torch

        dtype = getattr(torch, wire) if wire else arrays[0].dtype
        return torch.empty(
            shape, dtype=dtype, device="cuda" if on_gpu and carries_cuda else "cpu", pin_memory=bool(staged)
        )

    packed = rows(k)
    mine = like(packed, arrays[0]) if wire or staged else packed
    receives = [(link.peer, rows(link.incoming)) for link in plan.links]
    sends = [(link.peer, packed if isinstance(link.rows, slice) else rows(len(link.rows))) for link in plan.links]
    return Buffers(mine, packed, receives, sends, sum(buffer.nbytes for _, buffer in sends))


def stack_into(buffer: Array, arrays: tuple[Array, ...]) -> None:
    if isinstance(buffer, np.ndarray):
        np.stack(arrays, out=buffer)
    else:
        import torch

        torch.stack(arrays, out=buffer)


def missing(peers: Sequence[int], shares: Sequence[range], why: str) -> RunError:
    """Names the processes that did not answer, and their nodes."""
    names = ", ".join(f"rank {peer} ({named(shares[peer])})" for peer in sorted(set(peers)))
    return RunError(f"No answer from {names}: {why}.")


def named(nodes: range) -> str:
    return f"node {nodes.start}" if len(nodes) == 1 else f"nodes {nodes.start} to {nodes.stop - 1}"


def agree(network: Network, settings: dict[str, Any]) -> None:
    """Every process must have been started with the same settings; says which differ, before the first step."""
    everyone = [json.loads(text) for text in network.share(json.dumps(settings))]
    for name, value in everyone[0].items():
        for rank, other in enumerate(everyone):
            if other.get(name) != value:
                raise InputError(
                    f"The processes were started with different settings: {name} is {value} at rank 0 "
                    f"and {other.get(name)} at rank {rank}. Start all with the same."
                )
