"""A trial of each kind of fault; `make faults` runs hundreds."""

from collections import Counter

import pytest
from faults import KINDS, trial


@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_faults_lose_no_update(kind: str, seed: int) -> None:
    assert trial(kind, seed, Counter()) == 0
