"""The optimizer's calls in a network that processes leave and join."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dnasa.core import InputError, Network, ProcessLost, RunError, Snapshot, State, leaves, rebuilt
from dnasa.optim.parameters import copy_from
from dnasa.runs.metrics import squared_distances

if TYPE_CHECKING:
    from dnasa.optim.decentralized import Decentralized

T = TypeVar("T")


class Position(NamedTuple):
    """How far a process is: its calls of `step`, `averaged` and `consensus`, its steps, and whether it has no state yet."""

    calls: int
    step: int
    new: bool
    settings: Any


class Recovery:
    """Makes the calls that all nodes make together, and repeats them if the network changes in between.

    The processes that are left, and those that join, continue at the latest call that any of them has reached.
    Processes that were behind skip the calls that the others have made: those steps are lost. All restart the rule.
    """

    def __init__(self, opt: "Decentralized", settings: Any):
        self.opt, self.settings = opt, settings
        self.calls = self.resume_at = self.lost_steps = 0
        self.means: list[Tensor] = []  # of the answers and the buffers, when the network changed last
        self.consensus = float("nan")
        self.name: Callable[[], str] = str  # of the call under way
        self.broken = ""  # why no further call can be done

    def begin(self, start: Callable[[], None]) -> None:
        """Before the first step, nobody can join."""
        while True:
            try:
                return start()
            except ProcessLost:
                if self.opt.network.membership.survivors is None:
                    raise
            self.opt.network = self.opt.buffers.network = self.opt.network.membership.survivors()

    def together(self, name: Callable[[], str], work: Callable[[], T], missed: Callable[[], T]) -> T:
        """`work()`, or `missed()` if the others had done that call already when the network changed."""
        if self.broken:
            raise RunError(f"{self.broken} The processes have been out of step since then: start them again.")
        self.calls, self.name = self.calls + 1, name
        while self.calls >= self.resume_at:
            try:
                return work()
            except ProcessLost:
                if self.opt.network.membership.survivors is None:
                    raise
            except BaseException:
                self.calls -= 1  # the user may catch it, and call again
                raise
            self._continue(self.opt.stopped(), self.opt.network.membership.survivors)
        return missed()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Around an exchange of the call under way, which all processes must be in.

        A call that fails before its exchange leaves nothing behind; one that fails within it leaves messages behind.
        """
        self.opt.network.membership.note(self.name())
        try:
            yield
        except (InputError, ProcessLost):
            raise
        except BaseException as error:
            if self.opt.network.nodes > 1:
                why = str(error).rstrip(".") or type(error).__name__
                self.broken = f"The exchange of {self.name()} failed: {why}."
            raise

    def miss_step(self) -> None:
        self.lost_steps += 1

    def join(self) -> None:
        """Take part from the next step on; before that the others may be in `averaged` or `consensus`."""
        self._continue(self.opt.stopped(), self.opt.network.membership.join, new=True)  # type: ignore[arg-type]
        self.calls = self.resume_at - 1
        works = {"averaged": self.opt.means, "consensus": self.opt.distance}
        while not (call := self._next_call()).startswith("step"):
            self.together(partial(str, call), works[call.partition("(")[0]], lambda: None)

    def _next_call(self) -> str:
        while True:
            with suppress(ProcessLost):
                return self.opt.network.membership.next_call()
            self._continue(self.opt.stopped(), self.opt.network.membership.survivors)  # type: ignore[arg-type]

    def _continue(self, snapshot: Snapshot, connect: Callable[[], Network], new: bool = False) -> None:
        """Processes may be lost while the others agree: then they begin again."""
        before = [] if new else list(self.opt.network.node_ids)
        while True:
            with suppress(ProcessLost):
                network = connect()
                connect = network.membership.survivors  # type: ignore[assignment]
                positions = self._positions(network, new)
                state = self._received(network, positions, snapshot.state)
                break
        self.resume_at = max(position.calls for position in positions if not position.new)
        step = max(position.step for position in positions if not position.new)
        self.opt.resume(network, snapshot._replace(state=self.opt.rule.restarted(state), memory={}), step)
        warn_of_changes(before, network, step)

    def _positions(self, network: Network, new: bool) -> list[Position]:
        own = Position(self.calls, self.opt.t, new, self.settings)
        positions = [Position(*json.loads(text)) for text in network.allgather_text(json.dumps(own))]
        known = next((position for position in positions if not position.new), None)
        if known is None:
            raise RunError("All processes that had the model are gone.")
        if new:
            check_same(json.loads(json.dumps(self.settings)), known.settings)
        if any(position.settings != known.settings for position in positions):
            raise ProcessLost("A process with other settings wants to join.")
        return positions

    def _received(self, network: Network, positions: Sequence[Position], state: State) -> State:
        """The state to continue with: a process that joins gets the mean of the others', and their frozen parameters."""
        new = [position.new for position in positions]
        joins, factor = new[network.rank], len(new) / (len(new) - sum(new))

        def mean(a: Tensor) -> Tensor:
            row = a.reshape(1, -1)
            return (network.mean(torch.zeros_like(row) if joins else row.clone()) * factor).view_as(a)

        arrays = leaves(state)
        if any(new):
            means = {name: mean(a) for name, a in arrays.items()}
            copy_from(network, new.index(False), self.opt.untrained_tensors)
            state = rebuilt(state, means) if joins else state
        answer = self.opt.rule.result(state)
        self.means = [mean(a) for a in (answer, *self.opt.buffers.tensors)]
        self.consensus = float(mean(squared_distances(answer, self.means[0].view(-1))))
        if joins:
            for a, value in zip(self.opt.buffers.tensors, self.means[1:], strict=True):
                a.copy_(value)
        return state


def check_same(own: dict[str, Any], known: dict[str, Any]) -> None:
    """A process that joins must have the settings of the others."""
    for name, value in known.items():
        if own[name] != value:
            detail = "" if len(str(value)) > 60 else f": {value} there, {own[name]} here"
            raise InputError(
                f"The run has another setting of {name} than this process{detail}. Start it as the others."
            )


def warn_of_changes(before: Sequence[int], network: Network, step: int) -> None:
    now = list(network.node_ids)
    gone, come = sorted(set(before) - set(now)), sorted(set(now) - set(before)) if before else []
    what = [f"without {named(gone)}"] * bool(gone) + [f"with {named(come)}"] * bool(come)
    if what:
        warnings.warn(f"After step {step} the run continues {' and '.join(what)}: {len(now)} nodes.", stacklevel=2)


def named(nodes: Sequence[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
