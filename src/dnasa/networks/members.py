"""Which sites take part in a run that others may leave and join, agreed on without a server.

Every site tells all others its state: the view it is in, and the number of the view it has come to form. A view is a list of
members with a number and a random id. When a member notices that another is lost, or wants to join, it comes to form the next
view; the others see that and come too. As soon as every member of the last view has come, or is gone, or was silent for the
timeout, the first of those who came closes the list, and the others take it over from its state. Two sites that cannot
hear each other are never in one view: the later of them stays outside until they can. Sites that are cut off from most of the
others wait until they are back.
"""

import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from dnasa.core import InputError, ProcessLost, RunError
from dnasa.networks.processes import Traffic
from dnasa.sites.file import Sites
from dnasa.sites.links import Link, Mesh

RECENT = 32  # calls that a state names; neighbors are never that many calls apart
PATIENCE = 20  # how many timeouts a site that wants to join waits for the others
SOON = 10.0  # seconds after which a site that waits for the others to start says why
REMEDY = (
    "Every process must call step(), averaged() and consensus() equally often: give all of them the same number of "
    "batches, or train inside dnasa.optim.Join; an error that one of them catches leaves out its call."
)

Number = Annotated[int, Field(ge=0, lt=2**64)]
Node = Annotated[int, Field(ge=0, lt=2**16)]
Word = Annotated[str, Field(max_length=200)]


class View(NamedTuple):
    """A list of members: the process of each node that takes part. Views of one number with different ids are different."""

    number: Number = 0
    id: Number = 0
    members: dict[Node, Word] = {}  # noqa: RUF012 (never changed)


class SiteState(BaseModel):
    """What a site says of itself.

    Attributes:
        view: The view it is in.
        coming: The number of the view that it has come to form.
        joining: Whether it needs the model of the others.
        admits: Whether others may join.
        hears: The sites it is connected with.
        calls: Its recent calls that all members make together, by network and number.
        ended: Whether its script has ended.
    """

    view: View = View()
    coming: Number = 0
    joining: bool = False
    admits: bool = False
    hears: frozenset[Node] = frozenset()
    calls: dict[Word, Word] = {}
    ended: bool = False


NOTHING = SiteState()


class Members:
    """This site's view of the run; `view.number` is 0 until it takes part."""

    def __init__(self, sites: Sites, run: str, timeout: float, traffic: Traffic | None = None):
        self.node, self.timeout = sites.own, timeout
        self.view = View()
        self.coming, self.joining, self.admits, self.ended = 1, False, False, False
        self.returned = False  # from outside, since the last view
        self.left = ""  # why this site has left the run
        self.began = 0.0  # to meet
        self.counts: Counter[str] = Counter()  # calls of each network in this view
        self.calls: dict[str, str] = {}
        self.warned = False
        self.traffic = traffic or Traffic()
        self.mesh = Mesh(sites, run, self._described, self._parsed, self._told)
        self.publish = self.mesh.publish
        self.mesh.open()

    @property
    def links(self) -> dict[int, Link]:
        return self.mesh.links

    def _described(self) -> str:
        own = {name: getattr(self, name) for name in SiteState.model_fields if name != "hears"}
        return SiteState(**own, hears=frozenset(self._heard())).model_dump_json()

    def _parsed(self, text: bytes) -> SiteState:
        state = SiteState.model_validate_json(text)
        if max([*state.view.members, *state.hears], default=0) > len(self.links):
            raise ValueError("there are not so many sites")
        return state

    def _told(self, kind: str, node: int, size: int) -> None:
        self.traffic.add(kind, node, (), size)

    def name(self, node: int) -> str:
        return self.mesh.sites.sites[node].name

    @property
    def rank(self) -> int:
        return sorted(self.view.members).index(self.node)

    # ------------------------------------------------------------ what the others say

    def _heard(self) -> set[int]:
        known = [node for node, link in self.links.items() if link.connected]
        return {node for node in known if not self.mesh.silent(node, self.timeout)}

    def state(self, node: int) -> SiteState:
        return self.links[node].state or NOTHING

    def _instance(self, node: int) -> str:
        return self.mesh.instance if node == self.node else self.links[node].instance

    def _states(self) -> dict[int, SiteState]:
        return {node: self.state(node) for node in self._heard()}

    def _views(self) -> list[View]:
        """The views of other sites, the latest last; of two with one number, the one with the larger id counts."""
        return sorted((state.view for state in self._states().values()), key=lambda view: view[:2])

    def _includes(self, view: View) -> bool:
        return view.members.get(self.node) == self.mesh.instance

    def _others(self) -> Iterator[tuple[int, SiteState]]:
        """The other members, and what their processes say."""
        for node, instance in self.view.members.items():
            if node != self.node:
                yield node, self.state(node) if self._instance(node) == instance else NOTHING

    def started(self) -> bool:
        """Whether others are in a view without this process."""
        latest = self._views()[-1:]
        return bool(latest and latest[0].number and not self._includes(latest[0]))

    # ------------------------------------------------------------ calls that all members make together

    def note(self, network: str, call: str) -> None:
        """This process now makes the next call of that network; all members must make the same one."""
        self.counts[network] += 1
        recent = [*self.calls.items(), (f"{network} {self.counts[network]}", call)]
        self.calls = dict(recent[-RECENT:])
        self.check(waiting=False)

    def next_call(self, network: str) -> str:
        """The call of the others after this process's last one; empty as long as there is none."""
        key = f"{network} {self.counts[network] + 1}"
        return next((state.calls[key] for _, state in self._others() if key in state.calls), "")

    def check(self, began: float | None = None, waiting: bool = True) -> None:
        """Raise an error if the members must meet, or one was silent for the timeout since a wait began."""
        self._raise_fault()
        if self.mesh.closed.is_set():
            raise ProcessLost(f"{self.name(self.node)} has left the run.")
        if why := self.changed(waiting):
            raise ProcessLost(f"The members must meet: {why}.")
        for node, state in self._others():
            self._compare_calls(node, state.calls)
        if began is None or time.monotonic() <= began + self.timeout:
            return
        running = [node for node, state in self._others() if not state.ended]
        if lost := [self.name(node) for node in running if self.mesh.silent(node, self.timeout)]:
            raise ProcessLost(f"No answer from {', '.join(lost)}: nothing came for {self.timeout:g} s.")
        if not self.warned:
            self.warned, others = True, ", ".join(map(self.name, running))
            warnings.warn(f"{self.name(self.node)} has waited {self.timeout:g} s for {others}.", stacklevel=2)

    def _compare_calls(self, node: int, theirs: dict[str, str]) -> None:
        for key in self.calls.keys() & theirs.keys():
            if self.calls[key] != theirs[key]:
                raise InputError(
                    f"The sites call different things: {self.name(self.node)} is in {self.calls[key]}, {self.name(node)} "
                    f"in {theirs[key]}. {REMEDY}"
                )

    def _raise_fault(self) -> None:
        if self.mesh.fault or self.left:
            raise RunError(self.mesh.fault or self.left)

    def leave(self, reason: str) -> None:
        """Leave the run; the others go on."""
        self.left = f"{self.name(self.node)} has left the run: {reason}"
        self.mesh.drain()
        self.mesh.close()

    def end(self) -> None:
        """Wait until all have ended, or somebody is lost or sends more: to a process still communicating, an exit is a loss."""
        if self.view.number:
            self.ended = True
            self.publish()
            while not (self.mesh.fault or self.left or self.changed() or self.mesh.inbox.early or self._all_ended()):
                time.sleep(0.1)
        self.mesh.drain()
        self.mesh.close()

    def _all_ended(self) -> bool:
        mesh = self.mesh
        return all(state.ended or mesh.gone(node) or mesh.silent(node, self.timeout) for node, state in self._others())

    # ------------------------------------------------------------ changes

    def changed(self, waiting: bool = False) -> str:
        """Why the members of this view must meet; empty if they need not. Who waits needs those that have ended, too."""
        for node, instance in self.view.members.items():
            if node == self.node:
                continue
            state = self.state(node)
            if self._instance(node) != instance or self.mesh.gone(node):
                ended = self._instance(node) == instance and state.ended
                if waiting or not ended:
                    return f"{self.name(node)} is gone"
            elif state.coming > self.view.number or state.view[:2] > self.view[:2]:
                return f"{self.name(node)} calls the others together"
        if any(view[:2] > self.view[:2] for view in self._views()):
            return "some have formed another view"
        if self.admits and any(self._may_join(node) for node in self._heard() - self.view.members.keys()):
            return "another site wants to join"
        return ""

    def _may_join(self, node: int) -> bool:
        """Whether that site wants to join, and hears all members."""
        state, others = self.state(node), self.view.members.keys() - {node}
        return state.joining and state.coming > self.view.number and others <= state.hears | {node}

    def opening(self, wanted: int) -> list[list[str]]:
        """How the run began, with at least this many exchanges of texts, as the members say."""
        deadline = time.monotonic() + PATIENCE * self.timeout
        while len(self.mesh.opening) < wanted:
            if time.monotonic() > deadline:
                raise RunError(f"No site of the run told {self.name(self.node)} how it began.")
            for node, state in self._states().items():
                if state.admits and node in self._views()[-1].members:
                    self.links[node].asks = True
                    self.links[node].wake()
            self.mesh.wait(0.1)
        return self.mesh.opening

    def begin(self) -> bool:
        """Enter the first view once all sites are here; returns False if the run has begun without this process."""
        return self._meet(lambda: not self.started(), "start")

    def meet(self) -> None:
        """Enter the next view, of the members that are left and those that want to join."""
        self.coming = self.view.number + 1
        self._meet(lambda: True, "meet")

    def join(self) -> None:
        """Enter the first view that the members let this process into."""
        self.joining = True
        deadline = time.monotonic() + PATIENCE * self.timeout
        if not self._meet(lambda: time.monotonic() < deadline, "join"):
            raise RunError(
                f"No site of the run let {self.name(self.node)} in for {PATIENCE * self.timeout:g} s: they do once they "
                f"have begun to train. {self._missing()}"
            )

    def _meet(self, going: Callable[[], bool], what: str) -> bool:
        self.began, told = time.monotonic(), ""
        due = self.began + (self.timeout if self.view.number else min(SOON, self.timeout))
        while going():
            self._raise_fault()
            if self.mesh.conflicts and not self.view.number:
                raise InputError(next(iter(self.mesh.conflicts.values())))
            self.publish()
            view = self._offered() or self._formed()
            if view is not None:
                self._enter(view)
                return True
            if time.monotonic() > due:
                due += self.timeout
                if told != (told := self._missing()):
                    waited = time.monotonic() - self.began
                    warnings.warn(f"{self.name(self.node)} has waited {waited:.0f} s to {what}. {told}", stacklevel=2)
            self.mesh.wait(0.1)
        return False

    def _missing(self) -> str:
        """Which sites are missing, and why as far as this one knows."""
        here = self._here()
        missing = [f"{self.name(node)} ({self._absence(node)})" for node in self.links if node not in here]
        apart = [node for node in here if not self.links.keys() <= self.state(node).hears | {node}]
        missing += [f"{self.name(node)} (not connected with all others)" for node in apart if not missing]
        refused = f" Turned away: {self.mesh.door.refused}." if self.mesh.door and self.mesh.door.refused else ""
        return f"Missing: {', '.join(missing) or 'none'}.{refused} `dnasa sites check` says more."

    def _absence(self, node: int) -> str:
        link, address = self.links[node], self.mesh.sites.sites[node].address
        if link.connected:
            return "connected, and not ready yet"
        reason = link.problem or "not connected yet"
        return f"{address}: {reason}" if address else reason

    def _offered(self) -> View | None:
        """A view that others have formed with this process. If they formed one without it, it wants to join the next."""
        offered = [view for view in self._views() if view[:2] > self.view[:2]]
        if offered and self._includes(offered[-1]):
            return offered[-1]
        if offered and self.view.number:
            self._come_back()
        latest = offered[-1].number if offered else 0
        called = [state.coming for state in self._states().values() if not state.joining or self.joining]
        self.coming = max([self.coming, latest + 1, *called])
        return None

    def _come_back(self) -> None:
        """The others have gone on without this process: it needs their model."""
        if not self.admits and not self.returned:
            raise RunError(
                f"{self.name(self.node)} was left behind: nothing came from it for {self.timeout:g} s. Start it again."
            )
        self.admits, self.joining, self.returned = False, True, True

    def _here(self) -> set[int]:
        """The sites that have come to form the same view, and hear this one."""
        states = self._states().items()
        return {node for node, state in states if state.coming == self.coming and self.node in state.hears}

    def _formed(self) -> View | None:
        """The next view, if this process is the one to close it."""
        here = self._here() | {self.node}
        members = self._mutual(here)
        old = [node for node in members if not (self.joining if node == self.node else self.state(node).joining)]
        if not old or min(old) != self.node or not self._complete(here, members):
            return None
        return View(self.coming, random.getrandbits(63), {node: self._instance(node) for node in members})

    def _mutual(self, here: Iterable[int]) -> list[int]:
        """The sites that all hear each other, after those that hear the fewest have left one by one."""
        heard = {node: self._heard() if node == self.node else self.state(node).hears for node in here}
        members = sorted(here)

        def strangers(node: int) -> list[int]:
            return [m for m in members if m != node and not (m in heard[node] and node in heard[m])]

        while divided := list(filter(strangers, members)):
            members.remove(max(divided, key=lambda node: (len(strangers(node)), node)))
        return members

    def _complete(self, here: set[int], members: list[int]) -> bool:
        if not self.view.number:
            return len(members) == len(self.links) + 1
        left = {node for node, instance in self.view.members.items() if not self._is_gone(node, instance)}
        present = left & set(members)
        if left & here - present and time.monotonic() < self.began + self.timeout / 2:
            return False  # two of them may hear each other again soon
        most = 2 * len(present) > len(left) or (2 * len(present) == len(left) and min(left) in present)
        settled = all(self.mesh.silent(node, self.timeout) for node in left - here)
        return settled and most and not self._defers(here, left)

    def _defers(self, here: set[int], left: set[int]) -> bool:
        """Whether most of the others hear an earlier member, which this one does not hear: it closes the list."""
        heard = [self.state(node).hears for node in here - {self.node}]
        earlier = [node for node in left - here if node < self.node]
        return any(2 * (1 + sum(node in hears for hears in heard)) > len(left) for node in earlier)

    def _is_gone(self, node: int, instance: str) -> bool:
        return node != self.node and (self._instance(node) != instance or self.mesh.gone(node))

    def _enter(self, view: View) -> None:
        self.view, self.coming, self.joining = view, view.number, False
        self.counts, self.calls, self.warned = Counter(), {}, False
        self.mesh.enter(view.id)
        self.publish()
