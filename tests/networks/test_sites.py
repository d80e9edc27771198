"""Sites that are real processes, and real faults."""

import signal
from pathlib import Path

import pytest
from launching import wait_until
from site_processes import SiteProcesses

pytestmark = pytest.mark.xdist_group("processes")


def check_end(job: SiteProcesses, count: int) -> None:
    """All train together once more, and end by themselves."""
    job.end(job.latest().step + 30)
    reports = job.finish()
    assert [report["nodes"] for report in reports] == [list(range(count))] * count
    assert len({report["accuracy"] for report in reports}) == 1


@pytest.mark.long
def test_a_site_that_was_stopped_comes_back_by_itself(tmp_path: Path) -> None:
    with SiteProcesses(tmp_path, 3, {"pace": 0.02, "timeout": 2.0}, hidden=["lyon"]) as job:
        wait_until(lambda: job.train_with(0, 1, 2))
        job.signal(1, signal.SIGSTOP)
        wait_until(lambda: job.train_with(0, 2))
        job.signal(1, signal.SIGCONT)
        wait_until(lambda: job.train_with(0, 1, 2))
        check_end(job, 3)


def test_sites_that_are_stopped_say_goodbye_and_the_last_one_goes_on_alone(tmp_path: Path) -> None:
    with SiteProcesses(tmp_path, 3, {"pace": 0.02}) as job:
        wait_until(lambda: job.train_with(0, 1, 2))
        job.signal(1, signal.SIGTERM)
        wait_until(lambda: job.train_with(0, 2))
        job.signal(2, signal.SIGTERM)
        wait_until(lambda: job.train_with(0))
        assert [job.processes[site].exitcode for site in (1, 2)] == [128 + signal.SIGTERM] * 2
