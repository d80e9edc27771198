"""A trial of each kind of fault; `make faults` runs hundreds."""

from collections import Counter

import pytest
from faults import KINDS, trial

ALONE = [kind for kind in KINDS if not kind.startswith("MPI")]


@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ALONE)
def test_faults_lose_no_update(kind: str, seed: int) -> None:
    assert trial(kind, seed, Counter()) == 0


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_a_run_that_lost_its_processes_is_resumed_by_others() -> None:
    assert trial("MPI killed, resumed by other processes", 26, Counter()) == 0
