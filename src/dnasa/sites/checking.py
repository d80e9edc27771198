"""What `dnasa sites check` finds out: who answers, whose clock is off, and how long a message takes."""

import asyncio
import statistics
import time
from contextlib import closing, suppress
from typing import NamedTuple

from dnasa.core import InputError
from dnasa.sites.connecting import CHECK, Door, Greeting, Refused, Wire, dial, explain
from dnasa.sites.file import Sites

PINGS = 5
PAUSE = 0.5  # seconds between two attempts
IN_STEP = 0.1  # seconds that clocks may differ


class Answer(NamedTuple):
    """What was found out about a site; numbers are None if it did not answer."""

    name: str
    address: str
    result: str
    latency: float | None = None  # ms, there and back
    clock: float | None = None  # seconds that its clock is ahead of this one; 0 if less than can be measured
    checking: bool = False  # whether it is about to check this site, too

    @property
    def good(self) -> bool:
        return self.result in (ANSWERS, CAME, BUSY)


ANSWERS, CAME, AWAY = "answers", "has dialed this site", "accepts no connections, and has not dialed this site"
BUSY = "accepts no connections: whether it dials this site, the run that listens here knows (its events)"


def check(sites: Sites, seconds: float) -> list[Answer]:
    """Check the other sites, and answer those that check this one, for at most this many seconds."""
    return asyncio.run(_check(sites, time.monotonic() + seconds))


async def _check(sites: Sites, deadline: float) -> list[Answer]:
    came = set[int]()
    others = {number: site for number, site in enumerate(sites.sites) if number != sites.own}
    dialed = [number for number, site in others.items() if site.reachable]
    door: Door | None = None
    with suppress(InputError):  # a run of this site answers already
        door = Door(sites, _refuse, came.add) if sites.listen else None
    accepting = door and asyncio.create_task(door.accept())
    answers = dict(zip(dialed, await asyncio.gather(*(_asked(sites, number, deadline) for number in dialed)), strict=True))
    expected = {number for number in others if number not in answers or answers[number].checking}
    while accepting and not expected <= came and time.monotonic() < deadline:
        await asyncio.sleep(PAUSE / 10)
    for number in others.keys() - answers.keys():
        known = CAME if number in came else AWAY if door else BUSY
        answers[number] = Answer(others[number].name, "", known)
    return [answers[number] for number in sorted(answers)]


async def _refuse(wire: Wire, greeting: Greeting) -> None:
    raise Refused("this site checks its connections, and does not train yet")


async def _asked(sites: Sites, number: int, deadline: float) -> Answer:
    site = sites.sites[number]
    while True:
        try:
            return Answer(site.name, site.address, ANSWERS, *await _measured(sites, number))
        except (Refused, InputError, OSError, EOFError) as error:
            problem = explain(error)
        if time.monotonic() + PAUSE > deadline:
            return Answer(site.name, site.address, problem)
        await asyncio.sleep(PAUSE)


async def _measured(sites: Sites, number: int) -> tuple[float, float, bool]:
    async def greeting() -> Greeting:
        return {CHECK: True}

    began = time.time()
    wire, answer = await dial(sites, number, greeting)
    with closing(wire):
        clock = ahead(float(answer.get("time", "nan")), began, time.time())
        trips = [await _trip(wire) for _ in range(PINGS)]
        return 1e3 * statistics.median(trips), clock, bool(answer.get("checking"))


def ahead(theirs: float, began: float, ended: float) -> float:
    """Seconds by which a clock is ahead that was read between these times of this one; 0 if it may be in step."""
    difference = theirs - (began + ended) / 2
    return 0.0 if abs(difference) < max(IN_STEP, (ended - began) / 2) else difference


async def _trip(wire: Wire) -> float:
    began = time.perf_counter()
    await wire.write(b"?")
    await wire.reader.readexactly(1)
    return time.perf_counter() - began
