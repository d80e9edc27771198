"""`dnasa sites check`: who answers, how fast, and at what time."""

import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from launching import wait_until
from local_sites import local_sites

from dnasa.cli.sites import clock
from dnasa.core import InputError
from dnasa.networks.members import Members
from dnasa.sites.checking import ANSWERS, AWAY, BUSY, CAME, ahead, check
from dnasa.sites.connecting import explain


def results(folder: Path, hidden: tuple[str, ...], seconds: float = 60.0) -> list[list[str]]:
    files = local_sites(folder, 3, hidden)
    with ThreadPoolExecutor(3) as pool:
        return [[each.result for each in answers] for answers in pool.map(lambda file: check(file, seconds), files)]


def test_sites_that_check_at_the_same_time_all_answer(tmp_path: Path) -> None:
    assert results(tmp_path, ()) == [[ANSWERS] * 2] * 3


def test_a_site_that_accepts_no_connections_is_seen_by_those_it_dials(tmp_path: Path) -> None:
    assert results(tmp_path, ("lyon",)) == [[ANSWERS, CAME], [ANSWERS, CAME], [ANSWERS, ANSWERS]]


def test_alone_a_site_learns_that_nobody_answers(tmp_path: Path) -> None:
    answers = check(local_sites(tmp_path, 3, ("lyon",))[0], 0.1)
    assert [each.result for each in answers] == ["nothing listens there", AWAY]
    assert not any(each.good for each in answers)


def test_latency_and_clock_are_measured(tmp_path: Path) -> None:
    one, two = local_sites(tmp_path, 2)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check, two, 60.0)
        (answer,) = check(one, 60.0)
    assert answer.good
    assert answer.latency is not None
    assert 0 < answer.latency < 5000
    assert answer.clock == 0


def test_clocks_that_cannot_be_told_apart_are_in_step() -> None:
    assert [clock(ahead(10 + offset, 9.9, 10.1)) for offset in (0.09, -0.09)] == ["in step"] * 2
    assert clock(ahead(10.5, 8.0, 12.0)) == "in step"  # a slow connection
    assert [clock(ahead(10 + offset, 9.9, 10.1)) for offset in (0.5, -61)] == ["0.5 s ahead", "61.0 s behind"]
    assert clock(None) == "-"


def test_a_run_answers_and_is_not_disturbed(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 2)
    members = [Members(file, "the same run", 60.0) for file in files]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Members.begin, members))
        link = members[1].links[0]
        wire = link.wire
        (answer,) = check(files[0], 5.0)  # as a second process of the first site
        assert answer.result == ANSWERS
        assert link.wire is wire
    finally:
        for each in members:
            each.mesh.close()


def test_a_site_that_checks_lets_no_run_in(tmp_path: Path) -> None:
    one, two = local_sites(tmp_path, 2)
    member = Members(one, "a run", 5.0)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check, two, 3.0)
        wait_until(lambda: "this site checks its connections" in member.links[1].problem or checked.done())
        assert not member.links[1].connected
    member.mesh.close()


def test_the_port_that_a_run_listens_on_is_left_to_it(tmp_path: Path) -> None:
    one, _ = local_sites(tmp_path, 2, hidden=("paris",))
    with closing(Members(one, "a run", 5.0).mesh):
        (answer,) = check(one, 0.1)  # whether paris dials this site, only the run knows
        assert answer.result == BUSY
        with pytest.raises(InputError, match=r"Cannot listen on .* Stop what listens there"):
            Members(one, "another run", 5.0)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "it refuses this site's certificate: certificate revoked"),
        ("TLSV1_ALERT_UNKNOWN_CA", "it refuses this site's certificate: unknown ca"),
        ("WRONG_VERSION_NUMBER", "it closed the connection, as it does to certificates it refuses: what OpenSSL says"),
    ],
)
def test_what_the_other_site_has_against_this_one_is_told_in_words(reason: str, told: str) -> None:
    error = ssl.SSLError(1, "what OpenSSL says")
    error.reason = reason
    assert explain(error) == told
