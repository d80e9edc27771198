"""The optimizer in the loops of Accelerate, Lightning and Hugging Face's Trainer, with the real packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ENVIRONMENT, PATIENCE, launch, launch_script
from torch import nn

import dnasa

pytestmark = pytest.mark.xdist_group("processes")
JOB = Path(__file__).with_name("frameworks_job.py")
EXAMPLE = Path(__file__).parents[1] / "examples" / "hf_trainer.py"
SAME = ["adanasa at 0", "adanasa at 1", "dnasa at 0", "dnasa at 1"]


def iterates_that_are_the_same(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(re.findall(r"same (\w+ at \d)", done.stdout))


def test_accelerate_prepares_model_optimizer_and_loader() -> None:
    """The iterates are those of a plain loop on the batches that Accelerate gives this process."""
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'dnasa[frameworks]'")
    assert iterates_that_are_the_same(launch_script("torch", 2, JOB, "accelerate")) == SAME


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "itself"])
def test_lightning_trains_with_processes_of_torchrun_and_with_its_own(launcher: str) -> None:
    """The iterates are those of a plain loop."""
    pytest.importorskip("lightning", reason="needs lightning: pip install 'dnasa[frameworks]'")
    command = [sys.executable, str(JOB), "lightning"]
    if launcher == "torchrun":
        done = launch("torch", 2, *command[1:])
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT)
    assert iterates_that_are_the_same(done) == SAME


@pytest.mark.long
def test_the_example_with_hugging_faces_trainer_learns(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'dnasa[frameworks]'")
    done = launch("torch", 2, EXAMPLE, 100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(re.findall(r"2 nodes, .* new sequences ([\d.]+)", done.stdout)[0]) < 2.5


def test_a_model_that_no_framework_has_wrapped_stays_as_it_is() -> None:
    net = nn.Linear(2, 1)
    before = dict(net.__dict__)
    dnasa.optim.local_gradients(net)
    assert net.__dict__ == before
