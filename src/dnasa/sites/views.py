"""Which sites take part in a run: numbered views, each decided by the members of the one before.

Single-decree Paxos decides each view; docs/agreement.md has the protocol, and why a run cannot split. Every site publishes a
`Vote` with all that it has promised and accepted, and sees those of the others, perhaps late, perhaps never. `advance` is the
whole protocol and has no clock; `Agreement` says when to propose, and whom.

A member that leaves says so with its last vote, and then neither promises nor accepts. It no longer counts for the majority
of a ballot unless it had promised a later one. A proposer reads what it had accepted from that vote, so nothing decided is
lost.
"""

import random
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """A process of a site: one that is started again has another instance."""

    site: int
    instance: str


class Ballot(NamedTuple):
    """The number of an attempt to decide a view; attempts of different sites differ."""

    round: int = 0
    site: int = -1


class View(NamedTuple):
    """The members of a run. View 0 has all sites, whatever their processes."""

    number: int
    members: tuple[Member, ...]


class Proposal(NamedTuple):
    """The members of the next view; None while the proposer still asks for promises."""

    ballot: Ballot
    members: tuple[Member, ...] | None


class Vote(NamedTuple):
    """What a site publishes about the next view.

    Attributes:
        member: The site and its process.
        view: The latest view that it knows.
        promised: It accepts nothing below this ballot.
        accepted: The last proposal that it accepted.
        proposed: Its own proposal.
        left: Whether this is its last vote.
        dropped: The processes that an operator has declared stopped for good.
        needs: How many sites must accept the first view for this vote to count.
    """

    member: Member
    view: View
    promised: Ballot = Ballot()
    accepted: Proposal | None = None
    proposed: Proposal | None = None
    left: bool = False
    dropped: frozenset[Member] = frozenset()
    needs: int = 0

    @property
    def is_member(self) -> bool:
        return self.view.number == 0 or self.member in self.view.members

    @property
    def trains(self) -> bool:
        """Whether this site may take steps in its view: it is a member, and has accepted no other view."""
        return self.view.number > 0 and self.is_member and self.accepted is None and not self.left


Votes = Mapping[int, Vote]


def first_vote(site: int, instance: str, sites: int, needs: int | None = None) -> Vote:
    """The vote of a process that has just started. By default it needs all sites for the first view."""
    members = tuple(Member(other, "") for other in range(sites))
    return Vote(Member(site, instance), View(0, members), needs=needs or sites)


def advance(own: Vote, others: Votes, wish: tuple[Member, ...] = ()) -> Vote:
    """The own vote, after all that follows from the others' votes; `wish` is proposed once a majority has promised."""
    if own.left:
        return own
    own = own._replace(dropped=own.dropped.union(_replaced(own, others), *(vote.dropped for vote in others.values())))
    latest = max((vote.view for vote in others.values()), key=lambda view: view.number, default=own.view)
    if latest.number > own.view.number:
        return _entered(own, latest)
    if not own.is_member:
        return own
    own = _accept(own, _votes(own, others))
    own = _propose(own, _votes(own, others), wish)
    own = _accept(own, _votes(own, others))
    members = _decided(own, _votes(own, others))
    return own if members is None else _entered(own, View(own.view.number + 1, members))


def new_ballot(own: Vote, others: Votes) -> Vote:
    """The own vote with a new proposal: it asks the members for promises."""
    votes = _votes(own, others).values()
    highest = max(vote.promised.round for vote in votes)
    return own._replace(proposed=Proposal(Ballot(highest + 1, own.member.site), None))


def _replaced(own: Vote, others: Votes) -> list[Member]:
    """Of two members, the other one if it was started again: nothing was decided without the own vote, which is at hand."""
    members = own.view.members if own.view.number and own.is_member and len(own.view.members) == 2 else ()
    return [member for member in members if member.site in others and others[member.site].member != member]


def _entered(own: Vote, view: View) -> Vote:
    return Vote(own.member, view, dropped=own.dropped.intersection(view.members))


def _votes(own: Vote, others: Votes) -> dict[int, Vote]:
    """The votes of members for the view after the own one."""
    return {
        **{site: vote for site, vote in others.items() if vote.view == own.view and vote.is_member},
        own.member.site: own,
    }


def _accept(own: Vote, votes: Votes) -> Vote:
    """Promise the highest ballot, and accept its members once they are proposed."""
    highest = max((vote.proposed for vote in votes.values() if vote.proposed), key=lambda p: p.ballot, default=None)
    if highest is None or highest.ballot < own.promised:
        return own
    return own._replace(promised=highest.ballot, accepted=own.accepted if highest.members is None else highest)


def _propose(own: Vote, votes: Votes, wish: tuple[Member, ...]) -> Vote:
    """Propose members once a majority has promised: those of the latest proposal that anybody accepted, or else the wish."""
    if own.proposed is None or own.proposed.members is not None or own.proposed.ballot != own.promised:
        return own
    if not _majority(own, votes, own.promised, lambda vote: vote.promised == own.promised):
        return own
    accepted = [vote.accepted for vote in votes.values() if vote.accepted]
    members = max(accepted, key=lambda p: p.ballot).members if accepted else wish
    return own._replace(proposed=own.proposed._replace(members=members or None))


def _decided(own: Vote, votes: Votes) -> tuple[Member, ...] | None:
    """The members that a majority has accepted with one ballot."""
    for ballot, members in {vote.accepted for vote in votes.values() if vote.accepted}:
        if _majority(own, votes, ballot, lambda vote, b=ballot: vote.accepted is not None and vote.accepted.ballot == b):  # type: ignore[misc]
            return members
    return None


def _majority(own: Vote, votes: Votes, ballot: Ballot, agrees: Callable[[Vote], bool]) -> bool:
    """Whether a majority of the members agrees: of those that have not left, nor were dropped."""
    left = {vote.member for vote in votes.values() if vote.left and vote.promised <= ballot}
    counted = [member for member in own.view.members if member not in left | own.dropped]
    agreeing = [votes[member.site] for member in counted if member.site in votes and agrees(votes[member.site])]
    return 2 * len(agreeing) > len(counted) if own.view.number else are_enough(agreeing, own)


def are_enough(votes: Collection[Vote], own: Vote) -> bool:
    """Whether the run may begin with these votes. Those that need more do not count."""
    return sum(vote.needs <= len(votes) for vote in votes) >= own.needs


Hears = Mapping[int, Collection[int]]

INTERVAL = 0.5  # seconds after which a site says its vote again
ATTEMPT = 4 * INTERVAL  # seconds for an attempt to decide a view, before the next
SETTLE = INTERVAL  # seconds for which a site must want the same members: not all notice a loss at the same time
LONGEST = 64.0  # seconds for which a site that was left out waits


class Agreement:
    """When a site proposes a view, and whom: the processes that all hear each other.

    A member that is not heard is left out soon, since the others wait for it. A site that is left out again and again waits
    longer each time, up to `LONGEST`, so that a link that comes and goes does not stop the training all the time.
    """

    def __init__(self, site: int, instance: str, sites: int, seed: int | None = None, needs: int | None = None):
        self.vote = first_vote(site, instance, sites, needs)
        self.random = random.Random(seed)
        self.attempts = 0
        self.next_attempt = 0.0
        self.patience: dict[int, float] = {}  # of each site that was left out, in seconds
        self.admits_at: dict[int, float] = {}
        self.entered_at = 0.0
        self.wish: tuple[Member, ...] = ()
        self.wished_at = 0.0

    def update(self, now: float, others: Votes, hears: Hears, silence: Mapping[int, float]) -> None:
        """Take the votes of the others into account.

        Args:
            now: The time in seconds.
            others: The votes of the other sites.
            hears: Which other sites each site hears, this one too.
            silence: How long ago anything came from each of the others, in seconds.
        """
        before = self.vote
        wish = self._wish(now, others, hears, silence)
        if wish != self.wish:
            self.wish, self.wished_at = wish, now
        all_here = not before.view.number and len(wish) == len(before.view.members)
        settled = now >= self.wished_at + SETTLE or all_here
        self.vote = advance(before, others, wish)
        if self.vote.view != before.view:
            self._entered(now, before.view)
        elif self.vote.promised != before.promised:
            self.next_attempt = now + ATTEMPT * (1 + self.random.random())
        elif ((wish and settled) or self.vote.accepted) and self.vote.is_member and now >= self.next_attempt:
            self._attempt(now, others, wish)

    def leave(self) -> None:
        """Cast the last vote."""
        self.vote = self.vote._replace(left=True)

    def drop(self, site: int) -> None:
        """Count a member out that was stopped for good, as the operator says."""
        gone = frozenset(member for member in self.vote.view.members if member.site == site)
        self.vote = self.vote._replace(dropped=self.vote.dropped | gone)

    def _entered(self, now: float, before: View) -> None:
        for site in {member.site for member in before.members} - {member.site for member in self.vote.view.members}:
            patience = self.patience.get(site, 0.0)
            calm = now > self.admits_at.get(site, 0.0) + 10 * patience
            self.patience[site] = 2 * INTERVAL if calm else min(4 * patience, LONGEST)
            self.admits_at[site] = now + self.patience[site]
        self.attempts, self.entered_at, self.next_attempt = 0, now, now

    def _attempt(self, now: float, others: Votes, wish: tuple[Member, ...]) -> None:
        """Ask for promises. The first site begins; the others wait longer, so that they rarely disturb each other."""
        turn = sum(member.site < self.vote.member.site for member in wish) if not self.attempts else 0
        self.attempts += 1
        self.next_attempt = now + ATTEMPT * (1 + self.random.random() * self.attempts)
        if turn:
            self.next_attempt = now + turn * INTERVAL
        else:
            self.vote = advance(new_ballot(self.vote, others), others, wish)

    def _wish(self, now: float, others: Votes, hears: Hears, silence: Mapping[int, float]) -> tuple[Member, ...]:
        """The members that the next view should have; empty if they are those of this one."""
        votes = {**others, self.vote.member.site: self.vote}
        here = {votes[site].member for site in hears if site in votes and not votes[site].left} - self.vote.dropped
        members = set(self.vote.view.members)
        faults = {site: (self.patience.get(site, 0.0), silence.get(site, 0.0)) for site in hears}
        if self.vote.view.number == 0:
            group = mutual(here, hears, faults)
            return tuple(group) if are_enough([votes[member.site] for member in group], self.vote) else ()
        wanted = set(mutual(here & members, hears, faults))
        for member in sorted(here - members) if now >= self.entered_at + INTERVAL else ():
            patient = now >= self.admits_at.get(member.site, 0.0)
            if patient and len(mutual(wanted | {member}, hears, faults)) > len(wanted):  # it takes no member's place
                wanted.add(member)
        return tuple(sorted(wanted)) if wanted != members else ()


def mutual(members: Collection[Member], hears: Hears, faults: Mapping[int, tuple[float, float]]) -> list[Member]:
    """Those that all hear each other, after others were left out one by one: who hears the fewest, or has most faults."""
    rest = sorted(members)

    def strangers(one: Member) -> int:
        apart = [other for other in rest if other.site not in hears[one.site] or one.site not in hears[other.site]]
        return sum(other != one for other in apart)

    while rest and any(map(strangers, rest)):
        rest.remove(max(rest, key=lambda member: (strangers(member), faults[member.site], member)))
    return rest
