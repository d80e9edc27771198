"""The exchange between real processes, whatever carries the messages.

Each process holds a block of nodes. For every neighboring process there is one message per exchange, with the rows that the
neighbor needs of everything the rule sends. Receives are posted first, the process's own share of the product is computed
while messages travel, and there are no barriers.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.arrays import concatenate, contiguous, copied, empty_like, like, on_gpu, to_numpy
from dnasa.checks import whole
from dnasa.communication import Channel, MessageSettings, Network, Processes
from dnasa.core import Array, InputError, Messages, RunError
from dnasa.networks.buffers import Arrays, Buffers, Routes, described
from dnasa.networks.simulated import Product, dense_if_small, exchanges, product, split, suits_all_reduce, turns
from dnasa.networks.transport import Message, Transport
from dnasa.topology import Topology
from dnasa.topology.rounds import count_rounds
from dnasa.topology.types import checksum

if TYPE_CHECKING:
    from dnasa.networks.masks import Masks

Sum = Callable[[Array], Array]  # over all processes, of an array that it may overwrite


COLLECTED = "A private run collects no models: leave out checkpoints, or train between sites, which write their own."
LARGEST, BEYOND, FRACTION = 2.0**40, 2.0**51, 52  # of numbers that are added up with masks
EXCHANGED, MEANS = 0, 1  # what masks are for
EXCHANGES = ("exchange", "average")  # what rules send; the rest is for evaluations, checkpoints and agreement


class Sending(NamedTuple):
    """A kind of message: its purpose, the first node of the process that it goes to (None: all others), its arrays or text."""

    kind: str
    peer: int | None
    arrays: Arrays
    text: str = ""


@dataclass
class Traffic:
    """What this process has sent: the number of messages of each kind, and their bytes.

    `report` is called before the first message of each kind is sent.
    """

    sent: dict[Sending, tuple[int, int]] = field(default_factory=dict)
    report: Callable[[], None] = lambda: None

    def add(self, kind: str, peer: int | None, arrays: Arrays, size: int, messages: int = 1, text: str = "") -> None:
        sending = Sending(kind, peer, arrays, text)
        count, total = self.sent.get(sending, (0, 0))
        self.sent[sending] = count + messages, total + size
        if not count:
            self.report()

    def tell(self, kind: str, peer: int, size: int) -> None:
        """Count what a thread of the network sends, which cannot end the run."""
        with suppress(InputError, RunError):
            self.add(kind, peer, (), size)

    @property
    def messages(self) -> int:
        """The messages of the exchanges."""
        return sum(count for sending, (count, _) in list(self.sent.items()) if sending.kind in EXCHANGES)

    @property
    def bytes(self) -> int:
        """The bytes of the exchanges."""
        return sum(size for sending, (_, size) in list(self.sent.items()) if sending.kind in EXCHANGES)


def connect(
    topology: Topology,
    transport: Transport,
    rounds: int | str | None = None,
    channel: Channel | None = None,
    every: int = 1,
) -> Network:
    """The network of the processes between which the transport carries messages; all must have the same settings."""
    agree(transport, network_options(topology, rounds, channel, every))
    return ProcessNetwork(topology, transport, rounds, channel, every, Traffic()).network()


def network_options(topology: Topology, rounds: int | str | None, channel: Channel | None, every: int) -> dict[str, Any]:
    """What all processes must share: how messages travel, first since the default graph follows it, the weights, and when."""
    private = channel is not None and channel.private
    return {
        "--private": "and shared noise of --epsilon" if channel is not None and channel.only_sums else private,
        "--compress": None if channel is None or private else channel.settings,
        "--topology": topology.name,
        "--nodes": topology.nodes,
        "--weights": f"of checksum {checksum(topology.each)}",
        "--rounds": count_rounds(topology, rounds),
        "--every": whole("every", every),
    }


def blocks(nodes: int, processes: int) -> list[range]:
    """Consecutive nodes for each process; their numbers differ by at most one."""
    if processes > nodes:
        raise InputError(f"{processes} processes cannot share {nodes} nodes: start at most {nodes}.")
    return consecutive([nodes * (p + 1) // processes - nodes * p // processes for p in range(processes)])


def consecutive(sizes: Sequence[int]) -> list[range]:
    """Ranges of these sizes, one after the other."""
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


@dataclass
class ProcessNetwork:
    """The product with W and the mean over a transport; buffers are reused from step to step."""

    topology: Topology
    transport: Transport
    rounds: int | str | None
    channel: Channel | None
    every: int
    traffic: Traffic
    masks: "Masks | None" = None  # of what leaves this process, if the channel is private

    def __post_init__(self) -> None:
        self.every = whole("every", self.every)
        self.count, self.graphs = exchanges(self.topology, self.rounds, self.channel)
        self.shares = consecutive([len(block) for block in self.transport.nodes])  # rows of W
        self.rows = self.shares[self.transport.rank]
        self.multipliers: dict[int, Multiplier] = {}
        suited = suits_all_reduce(self.topology, self.channel)
        self.private = self.channel is not None and self.channel.private
        if self.private and self.masks is None and not self.transport.silent:
            self.masks = self._agreed_masks()
        add = self._masked_sum if self.private else self.transport.all_reduce() if suited and self.channel is None else None
        self.average = None if add is None else partial(self._mean, add=add)
        self.all_reduces = suited and (add is not None or self.channel is not None)

    def _agreed_masks(self) -> "Masks":
        from dnasa.networks.masks import agreed

        if self.topology.nodes > len(self.shares) or self.transport.shards > 1:
            raise InputError("A private run needs one process for each node: start as many processes as there are nodes.")
        return agreed(self.transport.rank, self.allgather_text, self.transport.blamed)

    def network(self) -> Network:
        return Network(
            self.topology.nodes,
            lambda messages, k: self.at(k)(messages),
            self.mean,
            self.topology,
            MessageSettings(self.count, self.every, self.channel, self.all_reduces),
            Processes(
                self.transport.nodes[self.transport.rank],
                self.transport.rank,
                [node for block in self.transport.nodes for node in block],
                allgather_text=self.allgather_text,
                gather=self.gather,
                copy=self.copy,
                traffic=self.traffic,
                duplicate=self.duplicate,
                sharded=self.transport.sharded and self.sharded,
                shards=self.transport.shards,
                sum_shards=self.sum_shards,
            ),
            self.at,
        )

    def duplicate(self) -> Network:
        masks = self.masks and self.masks.separate()
        return replace(self, transport=self.transport.duplicate(), masks=masks).network()

    def sharded(self, ranks: Sequence[int]) -> Network:
        return replace(self, transport=self.transport.sharded(ranks)).network()  # type: ignore[misc]

    def sum_shards(self, a: Array) -> Array:
        return a if self.transport.shards == 1 else self._sum(a, self.transport.sum_shards)

    def at(self, k: int) -> "Multiplier":
        key = k % self.graphs.period
        if key not in self.multipliers:
            W = self.graphs.at(k).sparse
            self.multipliers[key] = Multiplier(W, self.shares, self.transport, self.traffic, self.average, self.masks)
        return self.multipliers[key]

    def allgather_text(self, text: str) -> list[str]:
        self.traffic.add("text", None, (), len(text.encode()), text=text)
        return self.transport.allgather_text(text)

    def mean(self, a: Array) -> Array:
        row = self._sent(a[..., 0, :])  # as large as the mean of the nodes here
        self.traffic.add("mean", None, described([row]), row.nbytes)
        return self._mean(a, self._masked_sum if self.private else self.transport.sum)

    def _mean(self, a: Array, add: Sum) -> Array:
        return self._sum(contiguous(a.mean(-2) * (len(self.rows) / self.topology.nodes)), add)

    def _sum(self, a: Array, add: Sum) -> Array:
        if a.dtype.itemsize == 2:  # 16-bit numbers do not add up well, and not at all in MPI
            return self._sum(a.float(), add).to(a.dtype)
        if on_gpu(a) and not self.transport.carries_cuda:
            return add(a.cpu()).to(a.device)
        return add(a)

    def _sent(self, a: Array) -> Array:
        """An array as large as what is sent to add this one up."""
        return np.empty((2, *a.shape), np.int64) if self.private else a

    def _masked_sum(self, a: Array) -> Array:
        """The sum over all processes, in whole numbers and fractions of 2^-52, each masked modulo 2^64.

        It is NaN where a process has a number that is not finite or beyond 2^40.
        """
        numbers = to_numpy(a).astype(np.float64)
        fits = np.abs(numbers) < LARGEST
        whole = np.floor(np.where(fits, numbers, 0))
        fractions = np.where(fits, numbers, 0) - whole
        codes = np.rint([np.where(fits, whole, BEYOND), fractions * 2.0**FRACTION]).astype(np.int64)
        if self.masks is not None:
            self.masks.add(codes, MEANS)
        whole, fractions = self.transport.sum(codes).astype(np.float64)
        return like(np.where(whole < BEYOND / 2, whole + fractions / 2.0**FRACTION, np.nan), a)

    def copy(self, a: Array, source: int, targets: Sequence[int] | None = None) -> Array:
        """The array of one process at the targets, by default at all."""
        targets = range(len(self.shares)) if targets is None else targets
        if self.transport.rank == source:
            for target in targets:
                self.traffic.add("copy", self.transport.nodes[target].start, described([a]), a.nbytes)
        data = contiguous(copied(a))
        if on_gpu(a) and not self.transport.carries_cuda:
            return self.transport.copy(data.cpu(), source, targets).to(a.device)
        return self.transport.copy(data, source, targets)

    def gather(self, x: Array) -> Array:
        """All nodes' rows in every process: each contributes its own to a sum with zeros."""
        if self.private:
            raise InputError(COLLECTED)
        self.traffic.add("gather", None, described([x]), x.nbytes)
        shape = (*x.shape[:-2], self.topology.nodes, x.shape[-1])
        everything = np.zeros(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(shape)
        everything[..., self.rows.start : self.rows.stop, :] = x
        return self._sum(everything, self.transport.sum)


class Multiplier:
    """The product with W of one graph, between processes."""

    def __init__(
        self,
        W: Any,
        shares: Sequence[range],
        transport: Transport,
        traffic: Traffic,
        average: Callable[[Array], Array] | None,
        masks: "Masks | None" = None,
    ):
        self.W, self.transport, self.traffic = W, transport, traffic
        self.average = average  # of all nodes, by an all-reduce, where this is the product
        self.masks = masks
        self.rows = shares[transport.rank]
        self.routes = find_routes(W, shares, transport.rank)
        self.products = self._products(W)
        self.buffers: dict[Any, Buffers] = {}
        self.shares, self.scattered = shares, dict[Any, tuple[list[Message], list[Message]]]()

    def __call__(
        self, payloads: Messages, decode: Sequence[Callable[[Array], Array]] | None = None, weights: Any = None
    ) -> Messages:
        """Multiply by W, or by `weights` instead; all messages travel in either case."""
        if self.average is not None and decode is None and weights is None:
            return self._averaged(payloads, self.average)
        own, adders = self.products if weights is None else self._products(weights)
        buffers, pending = self._started(payloads)
        mine = decoded(buffers.own, decode)
        out = [own((part,))[0] for part in mine]
        self.transport.finish(pending)
        for add, (peer, _), stacks in zip(adders, self.routes.incoming, buffers.received(), strict=True):
            parts = decoded(stacks, decode)
            self.transport.inspect(peer, parts, mine)
            for total, part in zip(out, parts, strict=True):
                add(total, part)
        return tuple(out) if decode is not None else tuple(message for part in out for message in part)

    def neighbours(self, payloads: Messages) -> list[tuple[Array, Messages]]:
        buffers, pending = self._started(payloads)
        self.transport.finish(pending)
        received = buffers.received()
        for (peer, _), parts in zip(self.routes.incoming, received, strict=True):
            self.transport.inspect(peer, parts, buffers.own)
        stacks = [concatenate(parts, -2) for parts in zip(buffers.own, *received, strict=True)]
        messages = [message for stack in stacks for message in stack]
        return [(weights, tuple(m[..., nodes, :] for m in messages)) for nodes, weights in self.turns]

    def mask(self, codes: np.ndarray) -> None:
        if self.masks is not None:
            self.masks.add(codes, EXCHANGED)

    def scatter(self, parts: Array, decode: Callable[[Array], Array]) -> Array:
        data = parts.cpu() if on_gpu(parts) and not self.transport.carries_cuda else parts
        receives, sends = self._parts_of_others(data)
        for peer, buffer in sends:
            buffer[...] = data[..., self.shares[peer].start : self.shares[peer].stop, :]
            self.traffic.add("exchange", self.transport.nodes[peer].start, described([buffer]), buffer.nbytes)
        self.transport.finish(self.transport.start(receives, sends))
        own = decode(parts[..., self.rows.start : self.rows.stop, :].swapaxes(-3, -2))
        blocks = {self.transport.rank: own}
        for peer, buffer in receives:
            arrived = buffer.swapaxes(-3, -2)
            blocks[peer] = decode(arrived.to(parts.device) if on_gpu(parts) else arrived)
            self.transport.inspect(peer, [blocks[peer]], [own])
        return concatenate([blocks[peer] for peer in range(len(blocks))], -2)

    def _parts_of_others(self, parts: Array) -> tuple[list[Message], list[Message]]:
        """Memory for the parts that come from each other process, and for those that go there; the same at every step."""
        *runs, here, _, width = parts.shape
        key = (*parts.shape, parts.dtype)
        if key not in self.scattered:
            others = [(peer, len(nodes)) for peer, nodes in enumerate(self.shares) if nodes != self.rows]
            self.scattered[key] = (
                [(peer, empty_like(parts, (*runs, nodes, here, width))) for peer, nodes in others],
                [(peer, empty_like(parts, (*runs, here, nodes, width))) for peer, nodes in others],
            )
        return self.scattered[key]

    @cached_property
    def turns(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The turns of the nodes here, whose neighbors are numbered as they lie here: own nodes first, then those received."""
        columns = np.concatenate([self.rows, *(columns for _, columns in self.routes.incoming)])
        return turns(self.W[self.rows.start : self.rows.stop][:, columns])

    def _started(self, payloads: Messages) -> tuple[Buffers, Any]:
        """The buffers of an exchange, and the messages on their way."""
        key = tuple((p.shape, p.dtype) for p in payloads)
        if key not in self.buffers:
            self.buffers[key] = Buffers(payloads, self.routes, self.transport.carries_cuda)
        buffers = self.buffers[key]
        buffers.fill(payloads)
        for (peer, data), arrays in zip(buffers.sends, buffers.arrays, strict=True):
            self.traffic.add("exchange", self.transport.nodes[peer].start, arrays, data.nbytes)
        return buffers, self.transport.start(buffers.receives, buffers.sends)

    def _averaged(self, payloads: Messages, average: Callable[[Array], Array]) -> Messages:
        """The average of all nodes for each node here. In a ring all-reduce, each process sends its sum in parts, twice."""
        mean = average(concatenate(payloads, -1))
        processes, size = len(self.transport.nodes), mean.nbytes * max(1, 4 // mean.dtype.itemsize)  # at least 32 bits
        sent = 2 * (processes - 1)
        self.traffic.add("average", None, described([mean]), sent * size // processes, messages=sent)
        return split(concatenate([mean[..., None, :]] * len(self.rows), -2), payloads)

    def _products(self, weights: Any) -> tuple[Product, list["Adder"]]:
        """This process's own share of the product, and that of each process it receives from."""
        mine = weights[self.rows.start : self.rows.stop]
        own = product(dense_if_small(mine[:, self.rows.start : self.rows.stop]))
        return own, [adder(mine[:, columns]) for _, columns in self.routes.incoming]


def find_routes(W: Any, shares: Sequence[range], rank: int) -> Routes:
    here, routes = shares[rank], Routes([], [])
    mine, needed = W[here.start : here.stop], W[:, here.start : here.stop]
    for peer, theirs in enumerate(shares):
        if peer == rank:
            continue
        columns = np.unique(mine[:, theirs.start : theirs.stop].indices) + theirs.start
        if len(columns):
            routes.incoming.append((peer, columns))
        rows = np.unique(needed[theirs.start : theirs.stop].indices)
        if len(rows):
            routes.outgoing.append((peer, slice(None) if len(rows) == len(here) else rows))
    return routes


Adder = Callable[[Array, Array], None]


def adder(block: Any) -> Adder:
    """A function that adds the product of this block of W and a part to a total; it may overwrite the part."""
    single = block.shape == (1, 1)
    factor, multiply = float(block[0, 0]) if single else 1.0, product(dense_if_small(block))

    def add(total: Array, part: Array) -> None:
        if not single:
            total += multiply((part,))[0]
        elif isinstance(part, np.ndarray):  # without a further array
            part *= factor
            total += part
        else:
            total.add_(part, alpha=factor)

    return add


def decoded(stacks: Sequence[Array], decode: Sequence[Callable[[Array], Array]] | None) -> list[Array]:
    """What is weighted: stacks of equal messages as they are, or every message decoded."""
    if decode is None:
        return list(stacks)
    messages = [message for stack in stacks for message in stack]
    return [decoder(message) for decoder, message in zip(decode, messages, strict=True)]


def agree(network: Network | Transport, settings: dict[str, Any]) -> None:
    """Every process must have been started with the same settings."""
    if isinstance(network, Network):
        name, everyone = network.processes.name_of, network.processes.allgather_json(settings, lambda given: {**given})
    else:
        name, everyone = "rank {}".format, [*map(json.loads, network.allgather_text(json.dumps(settings)))]
    check_equal({name(rank): others for rank, others in enumerate(everyone)})


def check_equal(everyone: dict[str, dict[str, Any]]) -> None:
    """Refuse settings of processes that differ; names the first of them, and of lists the first entries that differ."""
    first, own = next(iter(everyone.items()), ("", {}))
    for name, value in own.items():
        for process, other in everyone.items():
            if (theirs := other.get(name)) != value:
                if isinstance(value, list) and isinstance(theirs, list):
                    value, theirs = next((a, b) for a, b in zip_longest(value, theirs, fillvalue="nothing") if a != b)
                raise InputError(
                    f"The processes were started with different settings: {name} is {value} at {first} "
                    f"and {theirs} at {process}. Use the same settings in every process."
                )
