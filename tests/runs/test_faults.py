"""A trial of each kind of fault; `make faults` runs hundreds."""

from collections import Counter

import pytest
from faults import KINDS, trial

ALONE = [kind for kind in KINDS if not kind.startswith("MPI")]


@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ALONE)
def test_faults_lose_no_update(kind: str, seed: int) -> None:
    assert trial(kind, seed, Counter()) == 0


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param("MPI processes lost, survived", 14, marks=pytest.mark.long),  # test_mpi_faults.py has a short one
        ("MPI killed, resumed by other processes", 26),
    ],
)
def test_lost_processes_lose_at_most_a_step_each(kind: str, seed: int) -> None:
    """A surviving process that was a step behind skips that step, to continue with the others."""
    assert trial(kind, seed, Counter()) <= 2 * 6
