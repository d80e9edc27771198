"""No two groups of sites train at once: every schedule of a small model, and random schedules of the code that sites run."""

import os
import random
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

import pytest

from dnasa.sites import views
from dnasa.sites.views import INTERVAL, Agreement, Member, View, Vote, advance, first_vote, new_ballot

LATER_STARTS = [  # the first is in `make views`
    pytest.param(0, 1000, 10**6, id="once-started", marks=pytest.mark.long),
    pytest.param(1, 10**4, 1e9, marks=pytest.mark.long),
]
SCHEDULES = int(os.environ.get("DNASA_SCHEDULES", "100"))


class World(NamedTuple):
    """The votes of each site that not all have seen, the latest last, and how many of them each site has seen of each other."""

    votes: tuple[tuple[Vote, ...], ...]
    seen: tuple[tuple[int, ...], ...]
    decided: tuple[View, ...]  # all views that anybody has entered
    attempts: int  # that may still be made
    restarts: int
    goodbyes: int

    def others(self, site: int) -> dict[int, Vote]:
        known = enumerate(self.seen[site])
        return {other: self.votes[other][count - 1] for other, count in known if count and other != site}

    def voted(self, site: int, vote: Vote) -> "World":
        if vote == self.votes[site][-1]:
            return self
        votes = put(self.votes, site, (*self.votes[site], vote))
        decided = self.decided if vote.view in self.decided or not vote.view.number else (*self.decided, vote.view)
        return self._replace(votes=votes, decided=decided)

    def trimmed(self) -> "World":
        """Without the votes that no site needs any more."""
        places = range(len(self.votes))
        old = [max(0, min([len(self.votes[p]), *(self.seen[q][p] for q in places if q != p)]) - 1) for p in places]
        votes = tuple(self.votes[place][old[place] :] for place in places)
        seen = tuple(tuple(0 if p == q else max(0, self.seen[q][p] - old[p]) for p in places) for q in places)
        return self._replace(votes=votes, seen=seen)


def put(values: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def wish(world: World, site: int) -> tuple[Member, ...]:
    """Every site wants to be rid of the next one, and to let in all others that it knows."""
    known = {**world.others(site), site: world.votes[site][-1]}
    unwanted = (site + 1) % len(world.votes) if known[site].view.number else None
    return tuple(sorted(vote.member for other, vote in known.items() if other != unwanted))


def successors(world: World) -> Iterator[World]:
    """What may happen next: a vote arrives, perhaps late; a site makes an attempt, starts again, or leaves."""
    for site, votes in enumerate(world.votes):
        own, others = votes[-1], world.others(site)
        for other, count in enumerate(world.seen[site]):
            for version in range(count + 1, len(world.votes[other]) + 1) if other != site else ():
                after = world._replace(seen=put(world.seen, site, put(world.seen[site], other, version)))
                yield after.voted(site, advance(own, after.others(site), wish(after, site)))
        if world.attempts and own.is_member and not own.left:
            after = world._replace(attempts=world.attempts - 1)
            yield after.voted(site, advance(new_ballot(own, others), others, wish(world, site)))
        if world.restarts:
            fresh = first_vote(site, own.member.instance + "'", len(world.votes))  # it needs all
            seen = put(world.seen, site, (0,) * len(world.votes))
            yield world._replace(seen=seen, restarts=world.restarts - 1).voted(site, fresh)
        if world.goodbyes and not own.left:
            yield world._replace(goodbyes=world.goodbyes - 1).voted(site, own._replace(left=True))


def check(world: World) -> None:
    assert len({view.number for view in world.decided}) == len(world.decided), "one number has two views"
    now = [votes[-1] for votes in world.votes]
    views = {vote.view for vote in now if vote.trains}
    active = [view for view in views if all(now[m.site][:2] == (m, view) and now[m.site].trains for m in view.members)]
    assert len(active) <= 1, "two groups train"


def explore(start: World, limit: int) -> int:
    """Check all worlds that can follow, up to a limit; returns how many there were."""
    known, todo = {hash(start)}, [start]
    while todo and len(known) < limit:
        for world in map(World.trimmed, successors(todo.pop())):
            if (key := hash(world)) not in known:
                check(world)
                known.add(key)
                todo.append(world)
    return len(known)


def running(sites: int) -> tuple[Vote, ...]:
    view = View(1, tuple(Member(site, "p") for site in range(sites)))
    return tuple(Vote(member, view) for member in view.members)


class Simulation:
    """Sites with votes that travel in simulated time; links are cut and mended, processes killed, started again and ended."""

    def __init__(
        self,
        sites: int,
        seed: int,
        timeout: float = 5.0,
        delays: tuple[float, ...] = (0.01, 0.01, 0.3, 0.7),
        needs: int | None = None,
    ):
        self.random, self.timeout, self.delays, self.now = random.Random(seed), timeout, delays, 0.0
        self.sites: list[Agreement | None] = [Agreement(site, "0", sites, seed, needs) for site in range(sites)]
        self.votes: list[dict[int, Vote]] = [{} for _ in range(sites)]
        self.heard: list[dict[int, float]] = [{} for _ in range(sites)]
        self.hears: list[dict[int, frozenset[int]]] = [{} for _ in range(sites)]
        self.cut: set[tuple[int, int]] = set()
        self.said: list[tuple[Vote, frozenset[int]] | None] = [None] * sites
        self.last: dict[tuple[int, int], float] = {}  # when the last message of each link arrives
        self.events: list[tuple[float, int, int, tuple[int, Vote, frozenset[int]] | None]] = []
        self.count = self.instances = 0
        self.decided = {0: first_vote(0, "", sites).view}
        for site in range(sites):
            self.plan(self.random.random() * INTERVAL, site, None)

    def alive(self) -> list[int]:
        return [site for site, agreement in enumerate(self.sites) if agreement is not None]

    def view(self, site: int) -> View:
        agreement = self.sites[site]
        assert agreement is not None
        return agreement.vote.view

    def survives(self, victim: int) -> bool:
        """Whether anybody would be left with the model."""
        latest, others = max(self.decided), (agreement for site, agreement in enumerate(self.sites) if site != victim)
        return latest == 0 or any(other and other.vote.view.number == latest and other.vote.is_member for other in others)

    def separate(self, side: list[int]) -> None:
        """Cut these off from the others."""
        sites = range(len(self.sites))
        self.cut |= {(a, b) for a in sites for b in sites if (a in side) != (b in side)}

    def groups(self) -> list[list[int]]:
        """The groups that train now."""
        votes = [agreement.vote for agreement in self.sites if agreement is not None]
        training = {(vote.member, vote.view) for vote in votes if vote.trains}
        complete = {view for _, view in training if all((member, view) in training for member in view.members)}
        return sorted([member.site for member in view.members] for view in complete)

    def kill(self, site: int) -> None:
        self.sites[site] = None

    def start(self, site: int) -> None:
        self.instances += 1
        self.sites[site] = Agreement(site, str(self.instances), len(self.sites), self.instances)
        self.votes[site], self.heard[site], self.hears[site] = {}, {}, {}

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.events[0][0] <= end:
            self.now, _, site, message = heappop(self.events)
            if message is None:
                self.update(site, again=True)
                self.plan(self.now + INTERVAL, site, None)
            else:
                self.receive(site, *message)
        self.now = end

    def plan(self, time: float, site: int, message: tuple[int, Vote, frozenset[int]] | None) -> None:
        self.count += 1
        heappush(self.events, (time, self.count, site, message))

    def receive(self, site: int, source: int, vote: Vote, hears: frozenset[int]) -> None:
        if self.sites[site] is None or (source, site) in self.cut:
            return
        self.heard[site][source] = self.now
        if (vote, hears) != (self.votes[site].get(source), self.hears[site].get(source)):
            self.votes[site][source], self.hears[site][source] = vote, hears
            self.update(site)

    def update(self, site: int, again: bool = False) -> None:
        """Vote, and tell the others if anything has changed, or again."""
        agreement = self.sites[site]
        if agreement is None:
            return
        heard = frozenset(other for other, last in self.heard[site].items() if self.now - last < self.timeout)
        hears = {other: self.hears[site][other] for other in heard} | {site: heard}
        silence = {other: self.now - last for other, last in self.heard[site].items()}
        agreement.update(self.now, self.votes[site], hears, silence)
        self.check()
        if again or (agreement.vote, heard) != self.said[site]:
            self.said[site] = agreement.vote, heard
            for other in range(len(self.sites)):
                if other != site and (site, other) not in self.cut:
                    when = max(self.last.get((site, other), 0.0), self.now + self.random.choice(self.delays))
                    self.last[site, other] = when  # messages stay in order
                    self.plan(when, other, (site, agreement.vote, heard))

    def check(self) -> None:
        for agreement in filter(None, self.sites):
            view = agreement.vote.view
            assert self.decided.setdefault(view.number, view) == view, "one number has two views"
        assert len(self.groups()) <= 1, "two groups train"


def disturb(world: Simulation) -> None:
    """One random fault."""
    sites, pick = range(len(world.sites)), world.random
    fault = pick.choice(["part", "link", "one way", "mend", "mend", "kill", "start", "start"])
    if fault == "part":
        world.separate(pick.sample(sites, pick.randrange(1, len(sites))))
    elif fault in ("link", "one way"):
        a, b = pick.sample(sites, 2)
        world.cut |= {(a, b)} if fault == "one way" else {(a, b), (b, a)}
    elif fault == "mend":
        world.cut.clear()
    elif fault == "kill":
        victim = pick.choice(sites)
        if world.survives(victim):
            world.kill(victim)
    elif dead := [site for site in sites if world.sites[site] is None]:
        world.start(pick.choice(dead))


def schedule(seed: int) -> Simulation:
    sites = 2 + seed % 5
    world = Simulation(sites, seed, needs=None if seed % 3 else sites // 2 + 1)
    world.run(5 if seed % 2 else world.random.random())  # or the first faults come before the run has begun
    for _ in range(world.random.randrange(1, 8)):
        disturb(world)
        world.run(world.random.choice([1, 3, 8, 15]))
    return world


def start_of(sites: int, attempts: int, restarts: int, goodbyes: int) -> World:
    votes = running(sites)
    seen = ((1,) * sites,) * sites
    return World(tuple((vote,) for vote in votes), seen, (votes[0].view,), attempts, restarts, goodbyes)


def before_start(sites: int, needs: int, attempts: int, restarts: int) -> World:
    votes = tuple((first_vote(site, "p", sites, needs),) for site in range(sites))
    return World(votes, ((0,) * sites,) * sites, (), attempts, restarts, 0)


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param((3, 1, 0, 0), id="3 sites"),
        pytest.param((2, 2, 1, 0), id="restart"),
        pytest.param((3, 1, 0, 1), id="goodbye", marks=pytest.mark.long),  # in `make views`
    ],
)
def test_whatever_is_late_or_lost_one_group_trains(budget: tuple[int, int, int, int]) -> None:
    assert 1000 < explore(start_of(*budget), 10**6) < 10**6


@pytest.mark.long
@pytest.mark.parametrize("budget", [(3, 2, 0, 0), (3, 1, 1, 0)], ids=["two attempts", "restart"])
def test_whatever_is_late_or_lost_one_group_of_three_trains(budget: tuple[int, int, int, int]) -> None:
    assert explore(start_of(*budget), 2 * 10**6) > 10**4


@pytest.mark.parametrize(("restarts", "least", "most"), LATER_STARTS)
def test_a_run_that_two_of_three_may_begin_begins_once_also_after_a_restart(restarts: int, least: int, most: float) -> None:
    assert least < explore(before_start(3, 2, 1, restarts), 2 * 10**6) < most


def test_the_search_finds_a_majority_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_majority", lambda own, votes, ballot, agrees: any(map(agrees, votes.values())))
    with pytest.raises(AssertionError, match="one number has two views"):
        explore(start_of(3, 2, 0, 0), 10**5)


@pytest.mark.parametrize("block", range(10))
def test_one_group_trains_in_random_schedules_and_all_are_together_once_they_are_mended(block: int) -> None:
    """`Simulation` checks the first after every vote; the second takes long, so one schedule in ten checks it."""
    for seed in range(block * SCHEDULES // 10, (block + 1) * SCHEDULES // 10):
        world = schedule(seed)
        if seed % 10 == 0:
            check_recovery(world)


def check_recovery(world: Simulation) -> None:
    """If a majority of the latest view is alive, all sites are members once nothing is cut and everybody runs."""
    latest = world.decided[max(world.decided)]
    now = {agreement.vote.member for agreement in world.sites if agreement is not None}
    can_go_on = latest.number and 2 * len(now.intersection(latest.members)) > len(latest.members)
    world.cut.clear()
    for site in set(range(len(world.sites))) - set(world.alive()):
        world.start(site)
    world.run(150)
    assert not can_go_on or world.groups() == [list(range(len(world.sites)))]


def began(sites: int, timeout: float = 5.0) -> Simulation:
    world = Simulation(sites, 1, timeout, delays=(0.01, 0.05))
    world.run(5)
    assert world.groups() == [list(range(sites))]
    return world


def test_a_process_that_was_started_again_has_forgotten_its_vote_and_begins_no_second_run() -> None:
    world = Simulation(3, 1, needs=2)
    world.separate([2])
    world.run(5)
    assert world.groups() == [[0, 1]]
    world.kill(0)
    world.start(0)
    world.cut.clear()
    world.separate([1])
    world.run(30)
    assert world.groups() == []
    world.cut.clear()
    world.run(30)
    assert world.groups() == [[0, 1, 2]]


@pytest.mark.parametrize(("seconds", "groups"), [(9, [[1, 2]]), (12, [[0, 1]])])
def test_a_link_that_breaks_while_another_recovers_does_not_split_the_run(seconds: float, groups: list[list[int]]) -> None:
    """If the first two have decided to go on alone, they are two members that need each other, and wait."""
    world = began(3, timeout=10.0)
    world.separate([2])
    world.run(seconds)
    world.cut = {(0, 1), (1, 0)}
    world.run(60)
    assert world.groups() == groups
    world.cut.clear()
    world.run(10)
    assert world.groups() == [[0, 1, 2]]


def test_a_firewall_between_two_pairs_stops_both_until_it_is_gone() -> None:
    world = began(4)
    world.separate([0, 1])
    world.run(30)
    assert all(world.view(site).number == 1 for site in range(4))
    world.cut.clear()
    world.run(10)
    assert world.groups() == [[0, 1, 2, 3]]


def test_of_two_sites_the_second_waits_until_the_operator_drops_the_first() -> None:
    world = began(2)
    world.kill(0)
    world.run(60)
    assert world.view(1).number == 1
    last = world.sites[1]
    assert last is not None
    last.drop(0)
    world.run(5)
    assert world.groups() == [[1]]


def test_of_two_sites_one_that_was_started_again_joins_the_other() -> None:
    world = began(2)
    world.kill(0)
    world.run(7)
    world.start(0)
    world.run(10)
    assert world.groups() == [[0, 1]]


def test_a_link_that_comes_and_goes_changes_the_view_ever_more_rarely() -> None:
    world = began(6, timeout=1.0)
    for _ in range(40):
        world.cut = {(2, 5), (5, 2)}
        world.run(2)
        world.cut.clear()
        world.run(2)
    assert max(world.decided) <= 10
    world.run(70)
    assert world.groups() == [list(range(6))]


def test_the_majority_goes_on_within_two_seconds_after_the_timeout() -> None:
    for victims in ([0], [4], [0, 1]):
        world = began(5)
        world.separate(victims)
        world.run(5 + 2)
        assert world.groups() == [[site for site in range(5) if site not in victims]]


def test_a_member_that_says_goodbye_no_longer_counts() -> None:
    world = began(4)
    for site in (3, 2):
        leaving = world.sites[site]
        assert leaving is not None
        leaving.leave()
    world.run(0.6)  # their last votes arrive
    world.kill(3)
    world.kill(2)
    world.run(3)
    assert world.groups() == [[0, 1]]  # without goodbyes, two of four would wait
