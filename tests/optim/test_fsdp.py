"""FSDP2 inside a site, dnasa between sites."""

from pathlib import Path

import pytest
import torch
from launching import JOBS, launch_script

JOB = JOBS / "fsdp_job.py"
SAME = ["same adanasa", "same dnasa", "same gt_hsgd"]
pytestmark = pytest.mark.xdist_group("processes")


def lines(processes: int, *words: object) -> list[str]:
    done = launch_script("torch", processes, JOB, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sites_of_shards_equal_nodes_of_the_joint_batch_and_go_on_with_another_number_of_ranks(
    back: bool, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert lines(2, "cpu", 1, "", one) == SAME
    assert lines(4, "cpu", 2, one, two) == [*SAME, "half the memory", "skipped", "stopped", "small", "refused"]
    if back:
        assert lines(2, "cpu", 1, two, "") == SAME


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sites_of_one_rank_share_a_gpu(tmp_path: Path) -> None:
    assert lines(2, "cuda", 1, "", tmp_path / "one") == SAME
    assert lines(2, "cuda", 1, tmp_path / "one", "") == SAME
