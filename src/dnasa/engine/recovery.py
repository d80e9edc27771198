"""Recovery from a change of the network: the processes that are left continue together, with those that joined."""

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from dnasa.communication import Network
from dnasa.core import ProcessLost, Rule, RunError, State
from dnasa.networks.processes import check_equal
from dnasa.networks.simulated import FEWEST
from dnasa.runs.names import node_names

T = TypeVar("T")
APART = 1000  # steps or calls between two processes of one network; those that exchange are a few apart


class Member(Protocol):
    """A run or an optimizer, of which a process is a part."""

    network: Network


def surviving(member: Member, work: Callable[[], T], recover: Callable[[], None]) -> T:
    """What `work()` returns; each time processes are lost from a `member.network` that survives it, `recover()` first."""
    while True:
        try:
            return work()
        except ProcessLost:
            if member.network.processes.membership.survivors is None:
                raise
        recover()


def reconnect(connect: Callable[[], Network], agree: Callable[[Network], T]) -> tuple[Network, T]:
    """Connect the processes that are there, and let them agree; again without those that are lost meanwhile.

    Returns the network, and what they agree on.
    """
    network: Network | None = None
    while True:
        try:
            network = connect() if network is None else network.processes.membership.survivors()  # type: ignore[misc]
            return network, agree(network)
        except ProcessLost:
            continue


class Position(NamedTuple):
    """How far a process is: its calls that all make together, its steps, whether it needs the others' state, its settings."""

    calls: int
    step: int
    new: bool
    settings: Any


def positions_of(network: Network, own: Position) -> list[Position]:
    """Everyone's position. All must have the same settings: a process with others that wants to join is refused."""
    positions = network.processes.allgather_json(own, lambda given: _position(network, own, given))
    known = next((position for position in positions if not position.new), None)
    if known is None:
        raise RunError("All processes that had the model are gone.")
    if own.new:
        check_equal({"the others": known.settings, "this process": json.loads(json.dumps(own.settings))})
    if any(position.settings != known.settings for position in positions):
        raise ProcessLost("A process with other settings wants to join.")
    return positions


def _position(network: Network, own: Position, given: Any) -> Position:
    """The position of a process; raises an error if none can be there."""
    calls, step, new, settings = given
    position = Position(int(calls), int(step), bool(new), type(own.settings)(settings))
    apart = max(abs(position.calls - own.calls), abs(position.step - own.step))
    if apart > APART * network.settings.every and not (own.new or position.new):
        raise ValueError("no two processes are that far apart")
    return position


def changes(before: Network, network: Network, positions: Sequence[Position]) -> tuple[list[int], list[int]]:
    """The nodes that were lost since `before`, and those that joined, this process's own included."""
    old, now = set(before.processes.node_ids), set(network.processes.node_ids)
    own = set(network.local_nodes) if positions[network.rank].new else set()
    return sorted(old - now), sorted(now - old | own)


def warn_of_changes(network: Network, lost: list[int], joined: list[int], step: int) -> None:
    kinds = (("without", lost), ("with", joined))
    what = [f"{word} {node_names(network.processes.names, nodes)}" for word, nodes in kinds if nodes]
    if what:
        left = f"{network.nodes} site{'s' if network.nodes > 1 else ''}"
        warnings.warn(f"After step {step} the run continues {' and '.join(what)}: {left}.", stacklevel=2)


def newcomers(positions: Sequence[Position]) -> tuple[int, list[int]]:
    """The first process that has the model, and those that need it."""
    new = [position.new for position in positions]
    return new.index(False), [rank for rank, is_new in enumerate(new) if is_new]


def received_state(network: Network, positions: Sequence[Position], rule: Rule, state: State) -> State:
    """The state to continue with: a process that is new begins at x of the first that is not; in private, at their mean."""
    source, new = newcomers(positions)
    if not new:
        return state
    if network.private:
        if network.nodes - len(new) < FEWEST:
            raise RunError("Of a private run, fewer than 3 members are left: their mean would tell of one. Start another run.")
        share = network.nodes / (network.nodes - len(new)) * (network.rank not in new)
        x = network.mean(share * state.x)[..., None, :]
    else:
        x = network.processes.copy(state.x, source, new)
    return rule.init(x) if network.rank in new else state
