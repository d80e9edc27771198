"""How messages travel: networks, the processes that hold their nodes, and channels that compress."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

from dnasa.core import Array, Messages, RunError

__all__ = ["Channel", "Clock", "Membership", "Memory", "MessageSettings", "Multiply", "Network", "Processes"]

T = TypeVar("T")


class Multiply(Protocol):
    """The product with W of one step, a function of `(payloads, decode=None, weights=None)`.

    Payloads have shape `(..., k, w)` and are all that travels. `decode` decodes rows of each payload, this process's own first.
    `weights` replaces W for this product by a matrix with no entries that W does not have.

    Attributes:
        W: The sparse matrix of this step.
        rows: The rows of the nodes held by this process.
    """

    W: Any
    rows: range

    def neighbours(self, payloads: Messages) -> "list[tuple[Array, Messages]]":
        """Send the payloads without mixing them. Returns weights and payloads, each time of one neighbor of every node here.

        Args:
            payloads: What this process's nodes send.
        """

    def scatter(self, parts: Array, decode: Callable[[Array], Array]) -> Array:
        """Send `parts[..., i, j, :]` of each node i here to node j. Returns what each was sent by all nodes, decoded.

        Args:
            parts: What this process's nodes send, `(..., k, n, w)`.
            decode: Decodes the last axis.
        """

    def mask(self, codes: Any) -> None:
        """Add masks that cancel in the sum over all nodes, where numbers leave this process.

        Args:
            codes: A NumPy array of integers, which is changed.
        """

    def __call__(
        self, payloads: Messages, decode: "Sequence[Callable[[Array], Array]] | None" = None, weights: Any = None
    ) -> Messages: ...


Memory = tuple[Any, ...]  # of a channel: one entry for each message of an exchange, a tuple of arrays (k rows each)


class Channel(NamedTuple):
    """How messages travel. Randomness is a function of (seed, t, node) alone.

    Attributes:
        init: `init(message)` makes the memory for a message, a tuple of arrays with a row for each node.
        exchange: `exchange(memory, messages, multiply, t, first)` gives the mixed messages and the memory after, an entry for
            each message. `first` is the number of the first of them within step t: a step may take several calls.
        settings: What a resumed run must agree on.
        size: `size(message, number, t)` is the number of bytes that a node's row of the `number`-th message of step t has on
            the wire; None: those of its numbers.
        fixed_graph: Whether the memory is valid for one W only.
        symmetric: Whether W must be symmetric.
        fades: Whether the memory of a message shrinks as the message does (`Rule.fading`).
        averages: Whether the exchange gives all nodes the average of all, as on the complete graph, the only one it suits.
        private: Whether nobody but their owner may see a node's numbers: all that leaves a process is added up with masks.
        only_sums: Whether others learn the sums of messages over all nodes, and no counts beside them.
    """

    init: Callable[[Array], tuple[Array, ...]]
    exchange: Callable[[Memory, Messages, Multiply, int, int], tuple[Messages, Memory]]
    settings: Any = None
    size: Callable[[Array, int, int], float] | None = None
    fixed_graph: bool = False
    symmetric: bool = False
    fades: bool = False
    averages: bool = False
    private: bool = False
    only_sums: bool = False

    @property
    def name(self) -> str:
        """For messages: what `compress` was, if it was a text."""
        name = self.settings[0] if isinstance(self.settings, list) else self.settings
        return name if isinstance(name, str) else "This channel"


@dataclass(frozen=True)
class Membership:
    """What changes when processes come and go; a network of one process has the defaults.

    Attributes:
        note: Names the call that all processes make next.
        fail: Tells the others why this process stops.
        stop: Soon ends a wait for others: this process was asked to stop.
        survivors: After `ProcessLost`, connects the remaining processes and those that joined; None if losses end the run.
        join: Joins the run later; None if this process has joined already.
        admit: Allows others to join from now on: this process has the model.
        returned: Whether the others went on without this process, so that it needs their model.
        next_call: What the other processes call next.
    """

    note: Callable[[str], None] = lambda call: None
    fail: Callable[[str], None] = lambda reason: None
    stop: Callable[[], None] = lambda: None
    survivors: "Callable[[], Network] | None" = None
    join: "Callable[[], Network] | None" = None
    admit: Callable[[], None] = lambda: None
    returned: bool = False
    next_call: Callable[[], str] = lambda: "step"


@dataclass(frozen=True)
class Processes:
    """The processes that hold the nodes, as this one sees them; a network in one process has the defaults.

    Attributes:
        local_nodes: The nodes of this process; None: all of them.
        rank: The number of this process.
        node_ids: The original numbers of the nodes, some of which may be lost; None: none is.
        names: The names of the nodes by their original numbers; empty if they have none.
        allgather_text: Everyone's text.
        gather: Everyone's rows.
        copy: `copy(a, source, targets=None)`, the array of one process at the targets, by default at all.
        traffic: Counts what was sent.
        duplicate: Makes another network of the same processes whose messages stay separate.
        sharded: The same for messages of which each of the given ranks of a site has a shard; None without `site`.
        shards: How many processes hold the node of this one together, each with a shard of it.
        sum_shards: The sum over these processes; it may overwrite its argument.
        membership: What changes when processes come and go.
        last_step: Where a run stops at the latest, as a dry run does; None: at its last step.
        own_folders: Whether each process keeps the run in a folder of its own, as sites do; otherwise the first does for all.
    """

    local_nodes: range = None  # type: ignore[assignment]
    rank: int = 0
    node_ids: Sequence[int] = None  # type: ignore[assignment]
    names: Sequence[str] = ()
    allgather_text: Callable[[str], list[str]] = lambda text: [text]
    gather: Callable[[Array], Array] = lambda x: x
    copy: Callable[..., Array] = lambda a, source, targets=None: a
    traffic: Any = None
    duplicate: "Callable[[], Network] | None" = None
    sharded: "Callable[[Sequence[int]], Network] | None" = None
    shards: int = 1
    sum_shards: Callable[[Array], Array] = lambda a: a
    membership: Membership = Membership()
    last_step: int | None = None
    own_folders: bool = False

    def mean_of_shards(self, a: Array) -> Array:
        return self.sum_shards(a / self.shards)

    @property
    def writes(self) -> bool:
        """Whether this process prints and keeps the run."""
        return self.rank == 0 or self.own_folders

    def name_of(self, rank: int) -> str:
        """The name of that process's site, or its number."""
        return self.names[self.node_ids[rank]] if self.names else f"rank {rank}"

    def allgather_json(self, own: Any, read: Callable[[Any], T]) -> list[T]:
        """What `read` makes of everyone's JSON; an error names a process whose text it cannot read."""
        return [self._read(rank, text, read) for rank, text in enumerate(self.allgather_text(json.dumps(own)))]

    def _read(self, rank: int, text: str, read: Callable[[Any], T]) -> T:
        try:
            return read(json.loads(text))
        except Exception as error:
            if rank == self.rank:
                raise
            raise RunError(f"{self.name_of(rank)} is at fault: its text cannot be read. This process stops.") from error


@dataclass(frozen=True)
class MessageSettings:
    """How and when messages travel.

    Attributes:
        rounds: Mixing rounds per exchange.
        every: Steps from one that exchanges to the next; in the others, nodes keep their messages.
        channel: How messages travel; None: as they are.
        all_reduce: Whether an exchange is one all-reduce, in which all nodes together send 2(n - 1) messages.
        late: Nodes do not wait for each other: an exchange may last for this many further steps; None: they wait.
        overlap: Whether messages travel while the next gradient is computed.
        clock: Predicts the seconds of a simulated run; None: nobody asked.
    """

    rounds: int = 1
    every: int = 1
    channel: Channel | None = None
    all_reduce: bool = False
    late: int | None = None
    overlap: bool = False
    clock: "Clock | None" = None


@dataclass(frozen=True)
class Network:
    """The communication network: it multiplies messages by W, simulated or between processes.

    Your own network needs the first four fields only.

    Attributes:
        nodes: The number of nodes.
        multiply: `multiply(messages, k)`, the product with W of the k-th exchange; with one round per step, that of step k.
        mean: The average of `(..., k, m)` over all nodes, `(..., m)`, for metrics. Rules never see it.
        topology: The graph.
        settings: How and when messages travel.
        processes: The processes that hold the nodes.
        at: The product of the k-th exchange that channels use.
        step_weights: What step t multiplies by, at t modulo the length; empty if this process does not hold all nodes.
    """

    nodes: int
    multiply: Callable[[Messages, int], Messages]
    mean: Callable[[Array], Array]
    topology: Any = None
    settings: MessageSettings = MessageSettings()
    processes: Processes = Processes()
    at: Callable[[int], Multiply] | None = None
    step_weights: Sequence[Any] = ()

    def __repr__(self) -> str:
        return f"Network {self.topology or f'{self.nodes:,} nodes'}, {len(self.local_nodes)} of them here"

    def __post_init__(self) -> None:
        missing = [name for name in ("local_nodes", "node_ids") if getattr(self.processes, name) is None]
        if missing:
            filled: Any = dict.fromkeys(missing, range(self.nodes))
            object.__setattr__(self, "processes", replace(self.processes, **filled))

    @property
    def rank(self) -> int:
        return self.processes.rank

    @property
    def local_nodes(self) -> range:
        return self.processes.local_nodes

    def exchanges(self, t: int) -> range:
        """The numbers of the exchanges of step t, counted from the start of the run."""
        rounds, every = self.settings.rounds, self.settings.every
        number, left = divmod(t, every)
        return range(0) if left < every - 1 else range(number * rounds, (number + 1) * rounds)

    @cached_property
    def step_messages(self) -> list[int]:
        """Messages that all nodes together send when each sends one in every exchange of step t, by t modulo the length."""
        graph, every = self.topology, self.settings.every
        if graph is None:
            return [0]
        if self.settings.all_reduce:
            return [2 * (self.nodes - 1) * len(self.exchanges(t)) for t in range(every)]
        return [sum(graph.at(k).messages for k in self.exchanges(t)) for t in range(every * graph.period)]

    @property
    def site(self) -> str:
        """The name of this site; empty if processes have none. Numbers change when sites leave and join, names do not."""
        return self.processes.names[self.local_nodes[0]] if self.processes.names else ""

    @property
    def private(self) -> bool:
        """Whether others see sums over all nodes only."""
        return self.settings.channel is not None and self.settings.channel.private

    @property
    def simulated(self) -> bool:
        """Whether this process holds all nodes."""
        return len(self.local_nodes) == self.nodes


class Clock(Protocol):
    """Predicts when each node is done, from the times so far: 0.0, later `(n,)`."""

    @property
    def fingerprint(self) -> str: ...

    def computed(self, times: Any, gradients: int) -> Any: ...

    def exchanged(self, times: Any, size: float, exchanges: range) -> Any: ...

    def hidden(self, times: Any, rest: float, early: float, exchanges: range) -> Any: ...
