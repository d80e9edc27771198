"""The calls that all nodes make together, in a network that processes leave and join."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from dnasa.communication import Network
from dnasa.core import InputError, ProcessLost, RunError, State
from dnasa.engine.recovery import (
    Position,
    changes,
    newcomers,
    positions_of,
    received_state,
    reconnect,
    surviving,
    warn_of_changes,
)
from dnasa.optim.agreement import copy_from
from dnasa.optim.node import Node

T = TypeVar("T")


class Recovery:
    """Makes the calls that all nodes make together, and repeats them if the network changes in between.

    The processes that are left, and those that join, continue at the latest call that any of them has reached.
    Processes that are a few calls behind skip those that the others have made: their steps are lost. A process that comes back
    takes part from the next step of the others on, whatever their number. All restart the rule.
    """

    def __init__(self, node: Node, settings: Any):
        self.node, self.settings = node, settings
        self.calls = self.resume_at = self.lost_steps = 0
        self.name: Callable[[], str] = str  # describes the current call
        self.broken = ""  # why no further call can be made

    # ------------------------------------------------------------ calls

    def begin(self, start: Callable[[], None]) -> None:
        """Run `start`, again if processes are lost; from then on others can join."""

        def reconnected() -> None:
            self.node.network = self.node.network.processes.membership.survivors()  # type: ignore[misc]

        surviving(self.node, start, reconnected)
        self.node.network.processes.membership.admit()

    def join(self) -> None:
        """Take part from the next step on; before that the others may be in `averaged` or `consensus`."""
        self._meet(self.node.network.processes.membership.join, new=True)  # type: ignore[arg-type]
        self._follow()

    def _follow(self) -> None:
        """Make the calls of the others until their next one is a step."""
        self.calls = self.resume_at - 1
        while True:
            call = surviving(self.node, lambda: self.node.network.processes.membership.next_call(), self._continue)
            if call.startswith("step"):
                return
            if call.startswith("averaged"):
                self.averaged()
            else:
                self.distance()

    def step(self, work: Callable[[], T], missed: Callable[[], T]) -> T:
        """`work()`, or `missed()` if the others had done that step already when the network changed."""
        return self._together(lambda: f"step {self.node.t + 1}", work, missed)

    def miss_step(self) -> None:
        self.lost_steps += 1

    def averaged(self) -> list[Tensor]:
        """The means over all nodes of the answers and the buffers; this node's own if the others had made that call already."""
        return self._measured("averaged", self.node.means, self.node.values)

    def distance(self) -> float:
        """How far the answers are apart; NaN if the others had made that call already."""
        return self._measured("consensus", self.node.distance, lambda: float("nan"))

    def _measured(self, name: str, work: Callable[[], T], missed: Callable[[], T]) -> T:
        def exchanged() -> T:
            with self.exchange():
                return work()

        return self._together(lambda: f"{name}() after {self.node.t} steps", exchanged, missed)

    def _together(self, name: Callable[[], str], work: Callable[[], T], missed: Callable[[], T]) -> T:
        if self.broken:
            raise RunError(f"{self.broken} The processes have been out of step since then: start them again.")
        self.calls, self.name = self.calls + 1, name
        try:
            return surviving(self.node, lambda: work() if self.calls >= self.resume_at else missed(), self._continue)
        except BaseException:
            self.calls -= 1  # the user may catch it, and call again
            raise

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Wrap an exchange of the current call, which all processes must be in.

        A call that fails before its exchange leaves nothing behind; one that fails within it leaves messages behind.
        """
        self.node.network.processes.membership.note(self.name())
        try:
            yield
        except (InputError, ProcessLost):
            raise
        except BaseException as error:
            if self.node.network.nodes > 1:
                why = str(error).rstrip(".") or type(error).__name__
                self.broken = f"The exchange of {self.name()} failed: {why}."
            raise

    # ------------------------------------------------------------ a network that has changed

    def _continue(self) -> None:
        name, t = self.name, self.node.t
        if self._meet(self.node.network.processes.membership.survivors):  # type: ignore[arg-type]
            self.lost_steps += self.node.t - t
            self._follow()
            self.name, self.resume_at = name, self.calls + 1
            self.calls += name().startswith("step")  # another call is left out

    def _meet(self, connect: Callable[[], Network], new: bool = False) -> bool:
        """Connect with the processes that are there, and continue with them at the latest call.

        All exchange their positions as texts; one that is new gets the model, with frozen parameters and buffers; then each
        restarts its rule. Returns whether this process was new to them.
        """
        before = self.node.network
        snapshot = self.node.stopped()

        def agree(network: Network) -> tuple[list[Position], State]:
            is_new = new or network.processes.membership.returned
            positions = positions_of(network, Position(self.calls, self.node.t, is_new, self.settings))
            source, others = newcomers(positions)
            if others:
                copy_from(network, source, self.node.untrained, others)
            return positions, received_state(network, positions, self.node.rule, snapshot.state)

        network, (positions, state) = reconnect(connect, agree)
        known = [position for position in positions if not position.new]
        self.resume_at, step = max(position.calls for position in known), max(position.step for position in known)
        self.node.network = network
        self.node.restore(snapshot._replace(state=state).restarted(self.node.rule), step)
        network.processes.membership.admit()
        lost, joined = changes(before, network, positions)
        warn_of_changes(network, lost, joined, step)
        return positions[network.rank].new
