"""The types that everything else is written in: rules, channels, networks, schedules and errors.

Arrays have shape `(..., k, m)`: `k` nodes held by this process, `m` numbers each (`d` for iterates, 1 for a number of a
node's own). Leading axes are independent runs, so that a whole grid search is one array. NumPy and torch both work.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = [
    "Array",
    "Channel",
    "Exchange",
    "Gradients",
    "InputError",
    "Interrupted",
    "Layout",
    "Membership",
    "MessageSettings",
    "Messages",
    "Multiply",
    "Needs",
    "Network",
    "ProcessLost",
    "Processes",
    "Prox",
    "Rule",
    "RunError",
    "Schedule",
    "State",
    "assign",
    "leaves",
    "size",
    "slices",
]

T = TypeVar("T")
Array = Any
"""A NumPy array or a torch tensor."""
State = Any
"""The state of a rule: a NamedTuple of arrays (or of further such tuples) whose first array is x."""
Messages = tuple[Array, ...]
"""What a rule exchanges in a step, and what it receives: the same, averaged over the neighbors."""
Gradients = tuple[Array, ...]
"""One gradient for each of a rule's points."""
Schedule = Callable[[int], Any]
"""A function of the step t = 0, 1, 2, ..."""
Prox = Callable[[Array, Any], Array]
"""(x, step) -> argmin_y h(y) + |y - x|^2 / (2 step), of each row of x."""
Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the parts of x, in order."""
# Columns of every history, which no metric may be named after.
COLUMNS = (
    *("run", "rule", "schedule", "eta", "seed", "step", "nodes", "consensus", "improved"),
    *("samples", "epochs", "messages", "bytes", "clock_seconds", "seconds"),
)


class InputError(ValueError):
    """A user's mistake: one line that names the cause and the remedy, even where quoted names contain line breaks.

    Args:
        message: The text; its lines are joined to one.
        kind: What other sites may know of it: no values, no rows.
    """

    def __init__(self, message: str = "", kind: str = ""):
        super().__init__(" ".join(message.splitlines()))
        self.kind = kind


class RunError(RuntimeError):
    """A run could not continue, through no mistake of the user: a process was lost, for example."""


class ProcessLost(RunError):
    """Processes died; the remaining ones can continue."""


class Interrupted(RunError):
    """A stop was requested, and the run stopped after a complete step."""


class Exchange(NamedTuple):
    """A further exchange of the same step.

    Attributes:
        send: `send(state, t)` gives the messages, and the state until they arrive.
        receive: `receive(state, messages)` takes them mixed, and gives the next state.
    """

    send: Callable[[State, int], tuple[Messages, State]]
    receive: Callable[[State, Messages], State]


def size(layout: Layout) -> int:
    """The number of parameters.

    Args:
        layout: The names and shapes of the parts of x.
    """
    return sum(prod(shape) for _, shape in layout)


def slices(layout: Layout) -> list[slice]:
    """Where each part is in x.

    Args:
        layout: The names and shapes of the parts of x.
    """
    ends = accumulate(prod(shape) for _, shape in layout)
    return [slice(end - prod(shape), end) for (_, shape), end in zip(layout, ends, strict=True)]


class Needs(NamedTuple):
    """What a rule needs of W.

    Attributes:
        smallest_eigenvalue: All eigenvalues of W must be strictly above it.
        directed: Whether the rule works on directed graphs; otherwise W must be symmetric.
        doubly_stochastic: Whether W must be doubly stochastic, so that the rule cannot be used with push-sum.
        fixed_graph: Whether W must be the same in every step.
        late: Whether the rule, which has no `then`, converges where nodes do not wait for each other.
    """

    smallest_eigenvalue: float = -1.0
    directed: bool = False
    doubly_stochastic: bool = False
    fixed_graph: bool = False
    late: bool = False

    @property
    def allows_push_sum(self) -> bool:
        """Whether the rule can be used on a directed graph once `push_sum` wraps it."""
        return not self.doubly_stochastic and self.smallest_eigenvalue <= -1


def no_prox(x: Array, step: Any) -> Array:
    """h = 0."""
    return x


class Rule(NamedTuple):
    """What a node does in a step: gradients at `points`, messages, exchange, new state.

    Attributes:
        init: `init(x)` makes the state, a NamedTuple of arrays, x first.
        send: `send(state, gradients, t)` gives the messages to exchange, if any, and the state until they arrive.
        receive: `receive(state, messages)` takes the mixed messages, early ones first, and gives the next state.
        then: Further exchanges of the same step, for methods that send on what they just received.
        early: `early(state, t)` gives messages that need no gradient of this step. The first, mixed, is the next x.
        points: `points(state, t)` says where gradients are wanted, all on the same sample; by default at x.
        answer: `answer(state)` is what the user gets: x (the default), or an average of iterates.
        restart: `restart(state)` is applied when nodes left or joined; by default the rule restarts at x.
        estimate: `estimate(state)` is the rule's estimate of the full gradient, for the tracking metric.
        needs: What the rule needs of W.
        form: A form that the engine has a fast path for (`rules.forms`). Set it to None if you replace a function of the rule.
        stepsize: `stepsize(state, t)` is the factor of the direction in which x moves, for weight decay; by default there is
            none. Leave it out if the state has other iterates than x.
    """

    init: Callable[[Array], State]
    send: Callable[[State, Gradients, int], tuple[Messages, State]]
    receive: Callable[[State, Messages], State]
    then: tuple[Exchange, ...] = ()
    early: Callable[[State, int], Messages] | None = None
    points: Callable[[State, int], tuple[Array, ...]] | None = None
    answer: Callable[[State], Array] | None = None
    restart: Callable[[State], State] | None = None
    estimate: Callable[[State], Array | None] | None = None
    needs: Needs = Needs()
    form: Any = None
    stepsize: Callable[[State, int], Any] | None = None

    @property
    def hides(self) -> bool:
        """Whether the rule's exchanges can run while the next gradient is computed."""
        return self.early is not None and self.points is None and not self.then

    def early_messages(self, state: State, t: int) -> Messages:
        """The messages that need no gradient of step t."""
        return () if self.early is None else self.early(state, t)

    def gradient_points(self, state: State, t: int) -> tuple[Array, ...]:
        """Where the gradients of step t are taken."""
        return (state.x,) if self.points is None else self.points(state, t)

    def result(self, state: State) -> Array:
        """The answer that the user gets."""
        return state.x if self.answer is None else self.answer(state)

    def gradient_estimate(self, state: State) -> Array | None:
        """The rule's estimate of the full gradient; None if it has none."""
        return None if self.estimate is None else self.estimate(state)

    def restarted(self, state: State) -> State:
        """The state after nodes left or joined."""
        return self.init(state.x) if self.restart is None else self.restart(state)


def assign(*fields: str) -> Callable[[State, Messages], State]:
    """A `receive` that puts the mixed messages into these fields of the state.

    Args:
        *fields: Their names, in the order in which the messages are sent.
    """
    return lambda state, mixed: state._replace(**dict(zip(fields, mixed, strict=True)))


def zeros(state: Callable[..., State]) -> Callable[[Array], State]:
    """An `init` of states whose arrays without a default, all but x, are 0 at the start."""
    kind: Any = state
    others = len(kind._fields) - len(kind._field_defaults) - 1
    return lambda x: kind(x, *(0 * x for _ in range(others)))


# ---------------------------------------------------------------- states as flat lists of named arrays


def leaves(state: State, prefix: str = "") -> dict[str, Array]:
    """All arrays of a state by name, in order; those of nested tuples as `outer.inner`.

    Args:
        state: The rule's state.
        prefix: Put before every name.
    """
    names = getattr(state, "_fields", range(len(state)))
    out: dict[str, Array] = {}
    for name, part in zip(names, state, strict=True):
        out |= leaves(part, f"{prefix}{name}.") if isinstance(part, tuple) else {f"{prefix}{name}": part}
    return out


def rebuilt(state: State, arrays: dict[str, Array], prefix: str = "") -> State:
    """A state of the same structure with these arrays."""
    names = getattr(state, "_fields", range(len(state)))
    parts = [
        rebuilt(part, arrays, f"{prefix}{name}.") if isinstance(part, tuple) else arrays[f"{prefix}{name}"]
        for name, part in zip(names, state, strict=True)
    ]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def with_x(state: State, x: Array) -> State:
    """The state with another x, its first array."""
    arrays = leaves(state)
    return rebuilt(state, arrays | {next(iter(arrays)): x})


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
    """

    init: Callable[[Array], tuple[Array, ...]]
    exchange: Callable[[Memory, Messages, Multiply, int, int], tuple[Messages, Memory]]
    settings: Any = None
    size: Callable[[Array, int, int], float] | None = None
    fixed_graph: bool = False
    symmetric: bool = False

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
        survivors: After `ProcessLost`, connects the remaining processes and those that joined; None if losses end the run.
        join: Joins the run later; None if this process has joined already.
        admit: Allows others to join from now on: this process has the model.
        returned: Whether the others went on without this process, so that it needs their model.
        next_call: What the other processes call next.
    """

    note: Callable[[str], None] = lambda call: None
    fail: Callable[[str], None] = lambda reason: None
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
        traffic: Counts what was sent.
        duplicate: Makes another network of the same processes whose messages stay separate.
        membership: What changes when processes come and go.
        own_folders: Whether each process keeps the run in a folder of its own, as sites do; otherwise the first does for all.
        mailbox: Makes the mailbox of a run without waiting, for the one node of this process; None: it waits.
    """

    local_nodes: range = None  # type: ignore[assignment]
    rank: int = 0
    node_ids: Sequence[int] = None  # type: ignore[assignment]
    names: Sequence[str] = ()
    allgather_text: Callable[[str], list[str]] = lambda text: [text]
    gather: Callable[[Array], Array] = lambda x: x
    traffic: Any = None
    duplicate: "Callable[[], Network] | None" = None
    membership: Membership = Membership()
    own_folders: bool = False
    mailbox: Callable[[], Any] | None = None

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
            raise RunError(
                f"{self.name_of(rank)} is at fault: its text cannot be read ({type(error).__name__}). This process stops."
            ) from error


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
