"""Which sites take part in a run that others may leave and join, agreed on without a server.

Every site tells all others its state: the view it is in, and the number of the view it has come to form. A view is a list of
members with a number and a random id. When a member notices that another is lost, or wants to join, it comes to form the next
view; the others see that and come too. As soon as every member of the last view has come, or is gone, or was silent for the
timeout, the first of those who came closes the list, and the others take it over from its state. Two sites that cannot
hear each other are never in one view: the later of them stays outside until they can. Sites that are cut off from most of the
others wait until they are back.

A site accuses another that sends what it must not send, and does not hear it any more. Of two sites that do not hear each
other, the one stays outside that does not hear more of the others, or has accused more sites so far; then the accused one, then
the later one. So a site whose neighbours accuse it is left out, whomever it accuses. One that accuses others falsely can push
out one of them; with the second it goes itself.
"""

import random
import time
import warnings
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from dnasa.checks import first_line
from dnasa.core import InputError, ProcessLost, RunError
from dnasa.networks.monitor import Monitor
from dnasa.networks.processes import Traffic
from dnasa.sites.file import Sites
from dnasa.sites.links import Link, Mesh

FURTHEST = 10**6  # numbers by which another site's views may be ahead
REASON = 200  # characters of an accusation
PATIENCE = 20  # how many timeouts a site that wants to join waits for the others
SOON = 10.0  # seconds after which a site that waits for the others to start says why
CHANGED = "The members of this network have changed: the current one is optimizer.network."


class View(NamedTuple):
    """A list of members: the process of each node that takes part. Views of one number with different ids are different."""

    number: int = 0
    id: int = 0
    members: dict[int, str] = {}  # noqa: RUF012 (never changed)


class SiteState(NamedTuple):
    """What a site says of itself.

    Attributes:
        view: The view it is in.
        coming: The number of the view that it has come to form.
        joining: Whether it needs the model of the others.
        admits: Whether others may join.
        hears: The sites it is connected with.
        report: What its process is doing (`ProcessReport`), as text.
        accused: The sites that it bars, and why.
    """

    view: View
    coming: int = 0
    joining: bool = False
    admits: bool = False
    hears: frozenset[int] = frozenset()
    report: str = ""
    time: float = 0.0
    accused: dict[int, str] = {}  # noqa: RUF012 (never changed)

    @classmethod
    def parse(cls, given: Any, sites: int = 2**16, furthest: int = 2**63) -> "SiteState":
        """Check the state of another of so many sites, with views up to this number; raises an error if it is not one."""
        number, identity, members = given["view"]
        nodes = {_number(int(node), sites): str(name)[:64] for node, name in members.items()}
        view = View(_number(number, furthest), _number(identity), nodes)
        hears = frozenset(_number(node, sites) for node in given["hears"])
        accused = {_number(int(node), sites): str(why)[:REASON] for node, why in given["accused"].items()}
        flags = bool(given["joining"]), bool(given["admits"])
        coming, report = _number(given["coming"], furthest), str(given["report"])
        return cls(view, coming, *flags, hears, report, float(given["time"]), accused)


def _number(value: Any, limit: int = 2**64) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{value!s:.30} is not a number below {limit}")
    return value


NOTHING = SiteState(View())


class Members:
    """This site's view of the run; `view.number` is 0 until it takes part."""

    def __init__(self, sites: Sites, run: str, timeout: float, traffic: Traffic | None = None):
        self.node, self.timeout = sites.own, timeout
        self.view = View()
        self.coming, self.joining, self.admits = 1, False, False
        self.returned = False  # from outside, since the last view
        self.began = 0.0  # to meet
        self.report = ""
        self.charges: dict[int, set[int]] = {}  # the sites that each site has accused so far
        self._monitor: SitesMonitor | None = None
        self.traffic = traffic or Traffic()
        self.mesh = Mesh(sites, run, self._described, self._parsed, self._told)
        self.publish = self.mesh.publish
        self.mesh.open()

    @property
    def links(self) -> dict[int, Link]:
        return self.mesh.links

    def _described(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "coming": self.coming,
            "joining": self.joining,
            "admits": self.admits,
            "hears": sorted(self._heard()),
            "report": self.report,
            "accused": self._accused(self.node),
        }

    def _parsed(self, given: Any) -> SiteState:
        own = max(self.view.number, self.coming)
        return SiteState.parse(given, len(self.links) + 1, own + FURTHEST if self.view.number else 2**63)

    def _told(self, kind: str, node: int, size: int) -> None:
        self.traffic.add(kind, node, (), size)

    def name(self, node: int) -> str:
        return self.mesh.sites.sites[node].name

    # ------------------------------------------------------------ what the others say

    def _heard(self) -> set[int]:
        known = {node for node, link in self.links.items() if link.connected and not link.barred}
        return {node for node in known if not self.mesh.silent(node, self.timeout)}

    def state(self, node: int) -> SiteState:
        return self.links[node].state or NOTHING

    def _instance(self, node: int) -> str:
        return self.mesh.instance if node == self.node else self.links[node].instance

    def _states(self) -> dict[int, SiteState]:
        return {node: self.state(node) for node in self._heard()}

    def _accused(self, node: int) -> dict[int, str]:
        if node != self.node:
            return self.state(node).accused
        return {other: link.barred[:REASON] for other, link in self.links.items() if link.barred}

    def _views(self, without: Container[int] = ()) -> list[View]:
        """The views of other sites, the latest last; of two with one number, the one with the larger id counts."""
        views = (state.view for node, state in self._states().items() if node not in without)
        return sorted(views, key=lambda view: view[:2])

    def _includes(self, view: View) -> bool:
        return view.members.get(self.node) == self.mesh.instance

    def started(self) -> bool:
        """Whether others are in a view without this process."""
        latest = self._views()[-1:]
        return bool(latest and latest[0].number and not self._includes(latest[0]))

    # ------------------------------------------------------------ changes

    def changed(self, waiting: bool = False) -> str:
        """Why the members of this view must meet; empty if they need not. Who waits needs those that have ended, too."""
        for node, instance in self.view.members.items():
            if node == self.node:
                continue
            state = self.state(node)
            if self._instance(node) != instance or self.mesh.gone(node):
                if waiting or not self._ended(node, instance):
                    return f"{self.name(node)} is gone"
            elif state.coming > self.view.number or state.view[:2] > self.view[:2]:
                return f"{self.name(node)} calls the others together"
        if any(view[:2] > self.view[:2] for view in self._views()):
            return "some have formed another view"
        if self.admits and any(self._may_join(node) for node in self._heard() - self.view.members.keys()):
            return "another site wants to join"
        return ""

    def _ended(self, node: int, instance: str) -> bool:
        """Whether the process of a member has finished its script, and said so."""
        return self._instance(node) == instance and self._monitor is not None and self._monitor.has_ended(node)

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

    def _meet(self, going: Any, what: str) -> bool:
        self.began, told = time.monotonic(), ""
        due = self.began + (self.timeout if self.view.number else min(SOON, self.timeout))
        while going():
            self._raise_conflict()
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
        reason = link.barred or link.problem or "not connected yet"
        return f"{address}: {reason}" if address else reason

    def _raise_conflict(self) -> None:
        if self.mesh.conflicts and not self.view.number:
            raise InputError(next(iter(self.mesh.conflicts.values())))

    def _offered(self) -> View | None:
        """A view that others have formed with this process. If they formed one without it, it wants to join the next."""
        out = self._left_out(self._here() | {self.node})
        offered = [view for view in self._views(without=out) if view[:2] > self.view[:2]]
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
        """The sites that all hear each other, after those with the most conflicts have left one by one."""
        heard = {node: self._heard() if node == self.node else self.state(node).hears for node in here}
        members, accused = sorted(here), {node: self._charged(node) for node in here}

        def strangers(node: int) -> set[int]:
            return {m for m in members if m != node and not (m in heard[node] and node in heard[m])}

        def conflicts(node: int) -> tuple[int, int, int]:
            return len(strangers(node) | self.charges[node]), sum(node in accused[m] for m in members), node

        while divided := list(filter(strangers, members)):
            members.remove(max(divided, key=conflicts))
        return members

    def _charged(self, node: int) -> dict[int, str]:
        """The sites that this one accuses; each accusation is logged and remembered."""
        accused, known = self._accused(node), self.charges.setdefault(node, set())
        for other in accused.keys() - known - {node}:
            known.add(other)
            accuser, peer, reason = self.name(node), self.name(other), accused[other]
            line = f"{accuser} accuses {peer}: {reason}"
            self.mesh.events.warn("accused", line, accuser=accuser, peer=peer, reason=reason)
        return accused

    def _left_out(self, here: set[int]) -> set[int]:
        """The sites that others here accuse, and that have no place among them."""
        accused = {other for node in here for other in self._accused(node)}
        return accused - set(self._mutual(here | accused)) if accused else set()

    def _complete(self, here: set[int], members: list[int]) -> bool:
        if not self.view.number:
            return len(members) == len(self.links) + 1
        left = {node for node, instance in self.view.members.items() if not self._is_gone(node, instance)}
        out = self._left_out(here)
        absent = left - here - {self.node} - out
        present = left & set(members)
        if left & here - present - out and time.monotonic() < self.began + self.timeout / 2:
            return False  # two of them may hear each other again soon: who passed their bytes on may be gone
        most = 2 * len(present) > len(left) or (2 * len(present) == len(left) and min(left) in present)
        settled = all(self.mesh.silent(node, self.timeout) for node in absent)
        return settled and most and not self._defers(here, left, out)

    def _defers(self, here: set[int], left: set[int], out: set[int]) -> bool:
        """Whether most of the others hear an earlier member, which this one does not hear: it closes the list."""
        heard = [self.state(node).hears for node in here - {self.node}]
        earlier = [node for node in left - here - out if node < self.node]
        return any(2 * (1 + sum(node in hears for hears in heard)) > len(left) for node in earlier)

    def _is_gone(self, node: int, instance: str) -> bool:
        return node != self.node and (self._instance(node) != instance or self.mesh.gone(node))

    def _enter(self, view: View) -> None:
        previous = self._monitor
        self.view, self.coming, self.joining = view, view.number, False
        self.mesh.enter(view.id)
        self._monitor = SitesMonitor(self)
        self.publish()
        if previous is not None:
            previous.close()
            previous.problem = RunError(CHANGED)

    @property
    def rank(self) -> int:
        return sorted(self.view.members).index(self.node)

    @property
    def monitor(self) -> "SitesMonitor":
        """The monitor of the current view."""
        assert self._monitor is not None, "Only a member has a monitor."
        return self._monitor


class SitesMonitor(Monitor):
    """A monitor of the members of one view that also notices when they must meet."""

    def __init__(self, members: Members):
        self.members, self.nodes = members, sorted(members.view.members)
        super().__init__(self, members.rank, len(self.nodes))

    def name(self, rank: int) -> str:
        return self.members.name(self.nodes[rank])

    def share(self, report: str) -> list[str]:
        """Publish this report; returns those of all members."""
        members = self.members
        if not self.stop.is_set():
            members.report = report
            members.publish()
        return ["" if node == members.node else members.state(node).report for node in self.nodes]

    def fail(self, reason: str) -> None:
        """The others go on without this process."""

    def diagnose(self) -> None:
        """Do nothing: sites go on without one that is lost."""

    def end(self) -> None:
        """The others go on without this process."""
        self.ended = True
        self._beat()

    def silent(self, rank: int, timeout: float) -> bool:
        return self.members.mesh.silent(self.nodes[rank], timeout)

    def has_ended(self, node: int) -> bool:
        return self._has_ended(self.nodes.index(node))

    def others_ended(self) -> bool:
        others = [rank for rank in range(len(self.reports)) if rank != self.rank]
        return all(self._has_ended(rank) or self._away(rank) for rank in others)

    def _away(self, rank: int) -> bool:
        return self.members.mesh.gone(self.nodes[rank]) or self.silent(rank, self.members.timeout)

    def others_call(self, network: str) -> str:
        """The call of the others after this process's last one; empty as long as there is none."""
        key = f"{network} {self.counts.get(network, 0) + 1}"
        return next((report.calls[key] for report in self.reports if report and key in report.calls), "")

    def _find_problem(self, calls: dict[str, str]) -> Exception | None:
        """If most members make this process's calls, accuse the others; what else they report does not stop this process."""
        others = {self.nodes[rank]: (rank, report) for rank, report in enumerate(self.reports) if report}
        wrong = {node: error for node, other in others.items() if (error := self._difference(calls, *other))}
        if 2 * len(wrong) >= len(self.nodes):
            return next(iter(wrong.values()))
        for node, error in wrong.items():
            self.members.mesh.accuse(node, first_line(error))
        return None

    def lost(self, began: float, timeout: float) -> list[int]:
        self._look(waiting=True)
        return super().lost(began, timeout)

    def _beat(self) -> None:
        super()._beat()
        self._look()

    def _look(self, waiting: bool = False) -> None:
        if self.problem is None and (why := self.members.changed(waiting)):
            self.problem = ProcessLost(f"The members must meet: {why}.")
