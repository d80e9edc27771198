"""`dnasa sites check`: who answers, and what a link carries."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local_sites import local_sites

from dnasa.networks.members import Members
from dnasa.sites import checking
from dnasa.sites.checking import ANSWERS, AWAY, CAME, THROUGH, check


def results(folder: Path, hidden: tuple[str, ...], seconds: float = 60.0) -> list[list[str]]:
    files = local_sites(folder, 3, hidden)
    with ThreadPoolExecutor(3) as pool:
        return [[each.result for each in answers] for answers in pool.map(lambda file: check(file, seconds), files)]


def test_sites_that_check_at_the_same_time_all_answer(tmp_path: Path) -> None:
    assert results(tmp_path, ()) == [[ANSWERS] * 2] * 3


def test_sites_that_accept_no_connections_are_seen_by_those_they_dial(tmp_path: Path) -> None:
    assert results(tmp_path, ("paris", "lyon")) == [[CAME, CAME], [ANSWERS, THROUGH], [ANSWERS, THROUGH]]


def test_alone_a_site_learns_that_nobody_answers(tmp_path: Path) -> None:
    answers = check(local_sites(tmp_path, 3, ("lyon",))[0], 0.1)
    assert [each.result for each in answers] == ["nothing listens there", AWAY]
    assert not any(each.good for each in answers)


def test_latency_rate_and_clock_are_measured(tmp_path: Path) -> None:
    one, two = local_sites(tmp_path, 2)
    door = checking.listen(two, lambda site: None)
    assert door is not None
    try:
        (answer,) = check(one, 0.1)
    finally:
        door.close()
    assert answer.good
    assert answer.latency is not None
    assert 0 < answer.latency < 5000
    assert answer.rate is not None
    assert answer.rate > 1
    assert answer.clock is not None
    assert abs(answer.clock) < 5


def test_a_run_answers_and_is_not_disturbed(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 2)
    members = [Members(file, "the same run", 60.0) for file in files]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Members.begin, members))
        link = members[1].links[0]
        connection = link.connection
        (answer,) = check(files[0], 5.0)  # as a second process of the first site
        assert answer.result == ANSWERS
        assert link.connection is connection
    finally:
        for each in members:
            each.monitor.close()
            each.mesh.close()


def test_a_site_that_checks_lets_no_run_in(tmp_path: Path) -> None:
    one, two = local_sites(tmp_path, 2)
    door = checking.listen(two, lambda site: None)
    assert door is not None
    member = Members(one, "a run", 5.0)
    time.sleep(1)
    assert not member.links[1].connected
    member.mesh.close()
    door.close()


def test_the_port_that_a_run_listens_on_is_left_to_it(tmp_path: Path) -> None:
    one, _ = local_sites(tmp_path, 2)
    door = checking.listen(one, lambda site: None)
    assert door is not None
    assert checking.listen(one, lambda site: None) is None
    door.close()
