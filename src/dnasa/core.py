"""The types that rules are written in, and errors.

Arrays have shape `(..., k, m)`: `k` nodes held by this process, `m` numbers each (`d` for iterates, 1 for a number of a
node's own). Leading axes are independent runs, so that a whole grid search is one array. NumPy and torch both work.
"""

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Array",
    "Exchange",
    "Gradients",
    "InputError",
    "Interrupted",
    "Layout",
    "Messages",
    "Needs",
    "ProcessLost",
    "Prox",
    "Rule",
    "RunError",
    "Schedule",
    "State",
    "assign",
    "zeros",
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
    """The number of parameters."""
    return sum(prod(shape) for _, shape in layout)


def slices(layout: Layout) -> list[slice]:
    """Where each part is in x."""
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
    """The proximal operator of h = 0."""
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
        fading: `fading(t)` says for each message of step t how much is left in it of what it was at the last exchange; by
            default all of it. Error feedback shrinks by that factor.
        form: A form that the engine has a fast path for (`rules.forms.declare`).
        stepsize: `stepsize(state, t)` is the factor of the direction in which x moves, for weight decay; by default there is
            none. Leave it out if the state has other iterates than x.
        only_sums: Whether, where all nodes get the exact average in each step, what they get depends on sums of their gradients
            alone, so that they can share the noise of differential privacy.
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
    fading: Callable[[int], tuple[float, ...]] | None = None
    form: Any = None
    stepsize: Callable[[State, int], Any] | None = None
    only_sums: bool = False

    @property
    def can_overlap(self) -> bool:
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
    """An `init` of states whose arrays without a default, all but x, are 0 at the start.

    Args:
        state: The class of the state, a NamedTuple.
    """
    kind: Any = state
    others = len(kind._fields) - len(kind._field_defaults) - 1
    return lambda x: kind(x, *(0 * x for _ in range(others)))


# ---------------------------------------------------------------- states as flat lists of named arrays


def leaves(state: State, prefix: str = "") -> dict[str, Array]:
    """All arrays of a state by name, in order; those of nested tuples as `outer.inner`."""
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
