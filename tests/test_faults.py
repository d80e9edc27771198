"""A few trials of each kind of fault; `make faults` runs hundreds."""

from collections import Counter

import pytest
from faults import KINDS, trial

QUICK = {"MPI processes lost, survived": [1], "MPI killed, resumed by other processes": [0]}
TRIALS = [(kind, seed) for kind in KINDS for seed in QUICK.get(kind, range(100, 104))]


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("kind", "seed"), TRIALS)
def test_faults_leave_no_trace_in_the_result(kind, seed):
    trial(kind, seed, Counter())
