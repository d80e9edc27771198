"""What `dnasa sites check` finds out: who answers, whose clock is off, and how long a message takes."""

import ssl
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from dnasa.core import InputError
from dnasa.sites.connecting import CHECK, Door, Greeting, Refused, dial, explain, read_exactly
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
    came, deadline = set[int](), time.monotonic() + seconds
    others = {number: site for number, site in enumerate(sites.sites) if number != sites.own}
    dialed = [number for number, site in others.items() if site.reachable]
    door = listen(sites, came.add)
    try:
        with ThreadPoolExecutor(max(1, len(dialed))) as pool:
            answers = dict(zip(dialed, pool.map(lambda number: _asked(sites, number, deadline), dialed), strict=True))
        expected = {number for number in others if number not in answers or answers[number].checking}
        while door is not None and not expected <= came and time.monotonic() < deadline:
            time.sleep(PAUSE / 10)
    finally:
        if door is not None:
            door.close()
    for number in others.keys() - answers.keys():
        known = CAME if number in came else AWAY if door else BUSY
        answers[number] = Answer(others[number].name, "", known)
    return [answers[number] for number in sorted(answers)]


def listen(sites: Sites, arrived: Callable[[int], None]) -> Door | None:
    """Answer other sites; None if this site has no address, or a run of this site answers already."""
    if sites.listen is None:
        return None

    def refuse(number: int, connection: ssl.SSLSocket, greeting: Greeting) -> None:
        raise Refused("this site checks its connections, and does not train yet")

    try:
        return Door(sites, refuse, arrived)
    except InputError:
        return None


def _asked(sites: Sites, number: int, deadline: float) -> Answer:
    site = sites.sites[number]
    while True:
        try:
            return Answer(site.name, site.address, ANSWERS, *_measured(sites, number))
        except (Refused, InputError, OSError) as error:
            problem = explain(error)
        if time.monotonic() + PAUSE > deadline:
            return Answer(site.name, site.address, problem)
        time.sleep(PAUSE)


def _measured(sites: Sites, number: int) -> tuple[float, float, bool]:
    began = time.time()
    connection, answer = dial(sites, number, lambda: {CHECK: True})
    with connection:
        clock = ahead(float(answer.get("time", "nan")), began, time.time())
        trips = [_trip(connection) for _ in range(PINGS)]
        return 1e3 * statistics.median(trips), clock, bool(answer.get("checking"))


def ahead(theirs: float, began: float, ended: float) -> float:
    """Seconds by which a clock is ahead that was read between these times of this one; 0 if it may be in step."""
    difference = theirs - (began + ended) / 2
    return 0.0 if abs(difference) < max(IN_STEP, (ended - began) / 2) else difference


def _trip(connection: ssl.SSLSocket) -> float:
    began = time.perf_counter()
    connection.sendall(b"?")
    read_exactly(connection, 1)
    return time.perf_counter() - began
