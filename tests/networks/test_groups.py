"""DistributedDataParallel inside a site, dnasa between sites."""

import re
from pathlib import Path

import pytest
from launching import JOBS, launch, launch_script

import dnasa
from dnasa.core import InputError

JOB = JOBS / "sites_job.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "sites.py"


@pytest.mark.xdist_group("processes")
def test_two_sites_of_two_processes_equal_two_nodes_of_the_joint_batch() -> None:
    done = launch_script("torch", 4, JOB)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.findall(r"^same (\w+)$", done.stdout, re.M) == ["adanasa", "dnasa", "dsgt"]
    assert done.stdout.count("different gradients: use DistributedDataParallel") == 4
    assert done.stdout.count("Every process must be in one site") == 4


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_the_example_of_sites_learns() -> None:
    done = launch("torch", 4, EXAMPLE, 200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(re.findall(r"2 sites, test accuracy ([\d.]+)", done.stdout)[0]) > 85


def test_a_site_needs_torch_distributed() -> None:
    with pytest.raises(InputError, match="start the processes with torchrun"):
        dnasa.connect("ring", site=object())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="site is a process group"):
        dnasa.connect("ring", "torch", site=object())  # type: ignore[arg-type]
