"""This site as a member of a run that others leave and join: one state machine before, during and after training.

The thread of the connections decides the views (`sites.views`), also while this process computes. The training looks whether
the view that it is in still counts, each time before it sends something and while it waits; if not, it meets the others in
the next one.
"""

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, NoReturn

from pydantic import BaseModel, Field

from dnasa.core import InputError, Interrupted, ProcessLost, RunError
from dnasa.files import read_bytes, write_durably
from dnasa.networks.processes import Traffic
from dnasa.sites.file import Sites
from dnasa.sites.link import Link
from dnasa.sites.mesh import Mesh
from dnasa.sites.tls import DROPPED, VOTED
from dnasa.sites.views import INTERVAL, Agreement, View, Vote

RECENT = 32  # calls that a state names; neighbors are never that many calls apart
PATIENCE = 20  # how many timeouts a site that wants to join waits for the others, and they for one that does nothing
SOON = 10.0  # seconds after which a site that waits for the others to start says why
STOPPING = 3.0  # seconds for the step of a site that was asked to stop
REMEDY = "Every process must call step(), averaged() and consensus() equally often, or train inside dnasa.optim.Join."

VOTED_TEXT = b"This site has voted in a run that began without all sites. Remove this file once no site trains any more.\n"

Number = Annotated[int, Field(ge=0, lt=2**64)]
Node = Annotated[int, Field(ge=0, lt=2**16)]
Word = Annotated[str, Field(max_length=200)]


class SiteState(BaseModel):
    """What a site says of itself.

    Attributes:
        vote: Its vote for the next view.
        hears: The sites that it hears.
        joining: Whether it waits for the model of the others.
        admits: Whether it has the model, so that others may join.
        calls: Its recent calls that all members make together, by network and number.
        exchanges: How many exchanges it has begun; None while it waits for others.
        ended: Whether its script has ended.
        stopped: Why it does not take part: no run can begin with the options of all.
    """

    vote: Vote
    hears: frozenset[Node] = frozenset()
    joining: bool = False
    admits: bool = False
    calls: dict[Word, Word] = {}
    exchanges: Number | None = None
    ended: bool = False
    stopped: Annotated[str, Field(max_length=1000)] = ""


class Members:
    """This site, the others as far as it knows, and the view that the training is in.

    `run` describes what all sites must have in common; a site that is silent for the timeout is left out of the next view; the
    run begins with `wait_for` sites, by default all.
    """

    def __init__(self, sites: Sites, run: str, timeout: float, traffic: Traffic | None = None, wait_for: int | None = None):
        self.node, self.timeout = sites.own, timeout
        self.traffic = traffic or Traffic()
        self.mesh = Mesh(sites, run, self._described, self._parsed, self.traffic.tell)
        self.mark = sites.keys / VOTED
        self.voted_before = wait_for is not None and not self._is_first()
        needs = len(sites.sites) if wait_for is None or self.voted_before else wait_for
        self.agreement = Agreement(self.node, self.mesh.instance, len(sites.sites), needs=needs)
        self.view = self.agreement.vote.view
        self.joining = self.admits = self.ended = False
        self.returned = False  # from outside, since the last view
        self.left = ""  # why this site has left the run
        self.stopped = ""  # why no run can begin
        self.counts: Counter[str] = Counter()  # calls of each network in this view
        self.calls: dict[str, str] = {}
        self.exchanges = 0
        self.scale = 1.0  # of this site's first numbers, at least 1
        self.waits_since: float | None = None
        self.stops_at = math.inf
        self.warned = False
        self.last_seen: dict[int, tuple[int | None, float]] = {}  # the exchanges of each site, and since when
        self.drops_at = self.mesh.modified(DROPPED)
        self.publish = self.mesh.publish
        self.mesh.open()

    @property
    def links(self) -> dict[int, Link]:
        return self.mesh.links

    @property
    def vote(self) -> Vote:
        return self.agreement.vote

    def name(self, node: int) -> str:
        return self.mesh.sites.sites[node].name

    @property
    def nodes(self) -> list[int]:
        """The members of the view that the training is in."""
        return sorted(member.site for member in self.view.members)

    def _is_first(self) -> bool:
        """Whether no process of this site can have voted in this run: one that has forgotten its vote must wait for all."""
        try:
            if not os.path.lexists(self.mark):
                write_durably(self.mark, VOTED_TEXT)
                return True
        except OSError as error:
            raise InputError(f"Cannot write {self.mark}, which wait_for needs: {error.strerror}.") from error
        return False

    # ------------------------------------------------------------ what sites say of themselves

    def _described(self) -> str:
        """The state of this site, after the agreement has made use of all that the others say."""
        heard = frozenset(self._heard())
        self._agree(heard)
        return SiteState(
            vote=self.vote,
            hears=heard,
            joining=self.joining,
            admits=self.admits,
            calls=self.calls,
            exchanges=None if self.waits_since else self.exchanges,
            ended=self.ended,
            stopped=self.stopped,
        ).model_dump_json()

    def _parsed(self, node: int, text: bytes) -> SiteState:
        state = SiteState.model_validate_json(text)
        vote = state.vote
        views = [vote.view.members, *(p.members for p in (vote.accepted, vote.proposed) if p and p.members)]
        sites = {*state.hears, *(member.site for members in views for member in members)}
        if not sites <= {self.node, *self.links} or vote.member != (node, self.links[node].instance):
            raise ValueError("it speaks of sites that there are not, or for another one")
        return state

    def _states(self) -> dict[int, SiteState]:
        """The latest state of each site that has said anything."""
        return {node: link.state for node, link in self.links.items() if link.state is not None}

    def _others(self) -> Iterator[tuple[int, SiteState]]:
        """The other members whose processes have said anything, and what they say."""
        states = self._states()
        for site, instance in self.view.members:
            if site in states and states[site].vote.member.instance == instance:
                yield site, states[site]

    # ------------------------------------------------------------ the agreement

    def _agree(self, heard: frozenset[int]) -> None:
        states = self._states()
        if self.mesh.modified(DROPPED) != self.drops_at:
            self._drop()
        votes = {node: state.vote for node, state in states.items()}
        here = [node for node in states if node in heard and self._may_take_part(node, states)]
        hears = {self.node: heard} | {node: states[node].hears for node in here}
        silence = {node: max(0, link.quiet - 1) * INTERVAL for node, link in self.links.items()}  # 1 is none: beats take turns
        self.agreement.update(time.monotonic(), votes, hears, silence)
        for node, state in states.items():
            self.links[node].outside = self.admits and state.vote.member not in self.vote.view.members

    def _may_take_part(self, node: int, states: dict[int, SiteState]) -> bool:
        """Whether that site may be in the next view: as a member of this one, or if it wants to join, and all let it."""
        view = self.vote.view
        if not view.number or states[node].vote.member in view.members:
            return True
        members = [states[member.site] for member in view.members if member.site in states]
        return states[node].joining and self.admits and all(state.admits for state in members)

    def _heard(self) -> set[int]:
        heard = {node for node in self.links if self.mesh.hears(node, self.timeout)}
        return {node for node in heard if not self._hangs(node)}

    def _hangs(self, node: int) -> bool:
        """Whether that site has done nothing for very long, while this one waits."""
        state, now = self.links[node].state, time.monotonic()
        exchanges = None if state is None else state.exchanges
        last, since = self.last_seen.get(node, (None, now))
        if exchanges is None or exchanges != last:
            since = now
        self.last_seen[node] = exchanges, since
        began = max(since, self.waits_since or now)
        return now > began + PATIENCE * self.timeout

    def _drop(self) -> None:
        """Count a site out that the operator has declared stopped since this process began."""
        self.drops_at, name = self.mesh.modified(DROPPED), b""
        with suppress(OSError):  # somebody may have removed it
            name = read_bytes(self.mesh.sites.keys / DROPPED)
        for node in self.links:
            if self.name(node).encode() == name:
                self.agreement.drop(node)

    # ------------------------------------------------------------ calls that all members make together

    def note(self, network: str, call: str) -> None:
        """This process now makes the next call of that network; all members must make the same one."""
        self.counts[network] += 1
        recent = [*self.calls.items(), (f"{network} {self.counts[network]}", call)]
        self.calls = dict(recent[-RECENT:])
        self.check()

    def next_call(self, network: str) -> str:
        """The call of the others after this process's last one; empty as long as there is none."""
        key = f"{network} {self.counts[network] + 1}"
        return next((state.calls[key] for _, state in self._others() if key in state.calls), "")

    def check(self, began: float | None = None) -> None:
        """Raise an error if the view no longer counts; warn if a wait has lasted for the timeout."""
        self._raise_fault()
        if self.mesh.closed.is_set():
            raise ProcessLost(f"{self.name(self.node)} has left the run.")
        if not self.counts_still():
            raise ProcessLost(f"The members meet in another view{self._left_out()}.")
        for node, state in self._others():
            self._compare_calls(node, state.calls)
        self.waits_since = began
        if began is None:
            return
        if time.monotonic() > self.stops_at:
            raise ProcessLost(f"{self.name(self.node)} was asked to stop.")
        if time.monotonic() > began + self.timeout and not self.warned:
            self.warned = True
            heard, others = self._heard(), [node for node, state in self._others() if not state.ended]
            silent = ", ".join(self.name(node) for node in others if node not in heard)
            who = f"{silent} (not heard).{self._quorum()}" if silent else f"{', '.join(map(self.name, others))}."
            waited = f"{self.name(self.node)} has waited {self.timeout:g} s in exchange {self.exchanges}"
            warnings.warn(f"{waited} for {who}", stacklevel=2)

    def counts_still(self) -> bool:
        """Whether the training may go on in its view."""
        vote = self.vote
        return vote.view == self.view and vote.trains

    def _left_out(self) -> str:
        """Names those that are not in the next view, as far as this site knows it."""
        vote = self.vote
        accepted = vote.accepted.members if vote.accepted else None
        members = accepted if vote.view == self.view else vote.view.members
        names = [self.name(member.site) for member in self.view.members if members and member not in members]
        return f" without {', '.join(names)}" if names else ""

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

    # ------------------------------------------------------------ entering views

    def begin(self) -> bool:
        """Enter the first view once all sites are here; returns False if the run has begun without this process."""
        return self._wait_for_view(lambda: self.vote.is_member, "start")

    def meet(self) -> None:
        """Enter the next view, as a member or, if the others went on without this process, once they let it in again."""

        def come_back() -> bool:
            if not self.vote.is_member and not self.joining:  # the others have gone on: this process needs their model
                if not self.admits and not self.returned:
                    raise RunError(f"{self.name(self.node)} was left behind, silent for {self.timeout:g} s: start it again.")
                self.admits, self.joining, self.returned = False, True, True
            return True

        self._wait_for_view(come_back, "meet")

    def join(self) -> None:
        """Enter the first view that the members let this process into."""
        self.joining = True
        deadline = time.monotonic() + PATIENCE * self.timeout
        if not self._wait_for_view(lambda: time.monotonic() < deadline, "join"):
            raise RunError(f"No site let {self.name(self.node)} in for {PATIENCE * self.timeout:g} s. {self._missing()}")

    def _wait_for_view(self, going: Callable[[], bool], what: str) -> bool:
        began, told = time.monotonic(), ""
        due = began + (self.timeout if self.view.number else min(SOON, self.timeout))
        while going():
            self._raise_fault()
            if time.monotonic() > self.stops_at:
                raise Interrupted(f"{self.name(self.node)} was asked to stop while it waited to {what}.")
            self.publish()
            if self.vote.view.number > self.view.number and self.vote.trains:
                self._enter(self.vote.view)
                return True
            reasons = [*self.mesh.conflicts.values(), *(state.stopped for state in self._states().values() if state.stopped)]
            if reasons and not self.view.number:
                self._stop(reasons[0])
            if time.monotonic() > due:
                due += self.timeout
                missing = self._missing()
                if missing != told:
                    told, waited = missing, time.monotonic() - began
                    warnings.warn(f"{self.name(self.node)} has waited {waited:.0f} s to {what}. {told}", stacklevel=2)
            self.mesh.wait(0.1)
        return False

    def _stop(self, reason: str) -> NoReturn:
        """End, once all others know why no run can begin, or the timeout is over: some may have met nobody who told them."""
        self.stopped, began, warned = reason, time.monotonic(), False
        self.publish()
        while (untold := self._untold()) and time.monotonic() < min(began + self.timeout, self.stops_at):
            if not warned and time.monotonic() > began + STOPPING:
                warned = True
                warnings.warn(f"{reason} Telling {untold}, for at most {self.timeout:g} s.", stacklevel=2)
            self.mesh.wait(0.1)
        self._say_goodbye()
        raise InputError(reason)

    def _untold(self) -> str:
        """Names the sites that may not know yet why this one stops."""
        knowing = {*self.mesh.conflicts, *(node for node, state in self._states().items() if state.stopped)}
        links = [link for node, link in self.links.items() if node not in knowing]
        return ", ".join(link.name for link in links if not (link.connected and link.drained))

    def _enter(self, view: View) -> None:
        self.view, self.joining = view, False
        self.counts, self.calls, self.warned, self.waits_since = Counter(), {}, False, None
        self.mesh.enter(view.number)
        self.publish()

    def opening(self, wanted: int) -> list[list[str | None]]:
        """How the run began, with at least this many exchanges of texts, as the members say."""
        deadline = time.monotonic() + PATIENCE * self.timeout
        while len(self.mesh.opening) < wanted:
            if time.monotonic() > deadline:
                raise RunError(f"No site of the run told {self.name(self.node)} how it began.")
            self.mesh.wait(0.1)
            self.mesh.opening = max((link.opening for link in self.links.values()), key=len)
        return self.mesh.opening

    def _missing(self) -> str:
        """Which sites are missing, and why as far as this one knows."""
        heard, states = self._heard(), self._states()
        missing = [f"{self.name(node)} ({self._absence(node)})" for node in self.links if node not in heard]
        apart = [node for node in heard if not self.links.keys() <= states[node].hears | {node}]
        missing += [f"{self.name(node)} (not connected with all others)" for node in apart if not missing]
        refused = f" Turned away: {self.mesh.door.refused}." if self.mesh.door and self.mesh.door.refused else ""
        who = f"Missing: {', '.join(missing)}" if missing else "All sites are here, and have not agreed yet"
        return f"{who}.{self._quorum()}{refused}"

    def _quorum(self) -> str:
        """What a run that has begun needs to go on."""
        count = len(self.vote.view.members)
        if not self.view.number:
            return f" {self.mark} says that this site's last run may go on elsewhere." if self.voted_before else ""
        return f" The run goes on with {count // 2 + 1} of the last {count} members; `dnasa sites drop` counts one out."

    def _absence(self, node: int) -> str:
        link, address = self.links[node], self.mesh.sites.sites[node].address
        if link.connected:
            return "connected, and not ready yet"
        reason = link.problem or "not connected yet"
        return f"{address}: {reason}" if address else reason

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        """End a wait soon, if this site is in one: it was asked to stop."""
        self.stops_at = time.monotonic() + STOPPING

    def leave(self, reason: str) -> None:
        """Leave the run with a last vote; the others go on."""
        if self.mesh.closed.is_set():
            return
        self.left = f"{self.name(self.node)} has left the run: {reason}"
        self._say_goodbye()

    def end(self) -> None:
        """Wait until all have ended, or the members change, or somebody sends more: it needs another view then."""
        if self.mesh.closed.is_set():
            return
        self.ended = True
        self.publish()
        while self.counts_still() and not (self.mesh.fault or self.mesh.inbox.early or self._all_ended()):
            time.sleep(0.1)
        with suppress(OSError):
            if self.counts_still() and self._all_ended() and read_bytes(self.mark) == VOTED_TEXT:
                self.mark.unlink()
        self._say_goodbye()

    def _all_ended(self) -> bool:
        ended = {node for node, state in self._others() if state.ended}
        return all(node in ended or node == self.node or not self.mesh.hears(node, self.timeout) for node in self.nodes)

    def _say_goodbye(self) -> None:
        with self.mesh.news:  # the thread of the connections votes, too
            self.agreement.leave()
        self.publish()
        self.mesh.drain()
        self.mesh.close()
