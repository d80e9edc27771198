"""FSDP2 or DistributedDataParallel inside a site, dnasa between sites."""

import re
from pathlib import Path

import pytest
import torch
from launching import JOBS, launch, launch_script, stdout_of

import dnasa
from dnasa.core import InputError

JOB = JOBS / "fsdp_job.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "sites.py"
SAME = ["same adanasa", "same dnasa", "same gt_hsgd"]
pytestmark = pytest.mark.xdist_group("processes")


def lines(processes: int, *words: object) -> list[str]:
    return stdout_of(launch_script("torch", processes, JOB, *words)).splitlines()


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sites_of_shards_equal_nodes_of_the_joint_batch_and_resume_on_other_ranks(back: bool, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert lines(2, "cpu", 1, "", one) == SAME
    assert lines(4, "cpu", 2, one, two) == [*SAME, "half the memory", "skipped", "stopped", "small", "replicated", "refused"]
    if back:
        assert lines(2, "cpu", 1, two, "") == SAME


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sites_of_one_rank_share_a_gpu(tmp_path: Path) -> None:
    assert lines(2, "cuda", 1, "", tmp_path / "one") == SAME
    assert lines(2, "cuda", 1, tmp_path / "one", "") == SAME


@pytest.mark.long
def test_the_example_of_sites_learns() -> None:
    out = stdout_of(launch("torch", 4, EXAMPLE, 200))
    assert float(re.findall(r"2 sites, test accuracy ([\d.]+)", out)[0]) > 85


def test_a_site_needs_torch_distributed() -> None:
    with pytest.raises(InputError, match="start the processes with torchrun"):
        dnasa.connect("ring", site=object())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="site is a process group"):
        dnasa.connect("ring", "torch", site=object())  # type: ignore[arg-type]
