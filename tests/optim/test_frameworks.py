"""The optimizer in the loops of Accelerate, Lightning and Hugging Face's Trainer, with the real packages."""

import copy
import csv
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ENVIRONMENT, JOBS, PATIENCE, launch, launch_script, stdout_of
from safetensors.torch import load_model, save_model
from thread_network import run_threads
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dnasa
from dnasa import topology
from dnasa.communication import Network
from dnasa.optim import Decentralized

pytestmark = pytest.mark.xdist_group("processes")
JOB = JOBS / "frameworks_job.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "hf_trainer.py"
SAME = ["adanasa at 0", "adanasa at 1", "dnasa at 0", "dnasa at 1"]


def iterates_that_are_the_same(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(re.findall(r"same (\w+ at \d)", done.stdout))


class Tied(nn.Module):
    """Its embedding is its head, too; the batch norm has buffers, the convolution another layout in memory."""

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.convolution = nn.Conv2d(2, 3, 2)
        self.convolution.weight.data = self.convolution.weight.to(memory_format=torch.channels_last)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens))) + self.convolution.weight.sum()


def trained(net: nn.Module, steps: int = 3) -> Decentralized:
    opt = Decentralized(net, dnasa.connect())
    train(net, opt, steps)
    return opt


def train(net: nn.Module, opt: Any, steps: int = 3) -> None:
    for t in range(steps):
        tokens = torch.randint(7, (8,), generator=torch.Generator().manual_seed(t))
        opt.zero_grad()
        nn.functional.cross_entropy(net(tokens), (tokens + 1) % 7).backward()
        opt.step()


def check_same(net: nn.Module, other: nn.Module) -> None:
    expected = net.state_dict()
    assert other.state_dict().keys() == expected.keys()
    for name, a in other.state_dict().items():
        assert torch.equal(a, expected[name]), name


def through_torch(net: Any, other: Any, folder: Path) -> None:
    torch.save(net.state_dict(), folder / "x.pt")
    other.load_state_dict(torch.load(folder / "x.pt"))


def through_safetensors(net: Any, other: Any, folder: Path) -> None:
    save_model(net, str(folder / "x.safetensors"))
    assert not any(load_model(other, folder / "x.safetensors"))


def through_accelerate(net: Any, other: Any, folder: Path) -> None:
    from accelerate import Accelerator, load_checkpoint_in_model

    Accelerator(cpu=True).save_model(net, folder)
    load_checkpoint_in_model(other, folder)


def through_copy(net: Any, other: Any, folder: Path) -> None:
    other.load_state_dict(copy.deepcopy(net).state_dict())


def through_pickle(net: Any, other: Any, folder: Path) -> None:
    other.load_state_dict(pickle.loads(pickle.dumps(net)).state_dict())


@pytest.mark.parametrize("way", [through_torch, through_safetensors, through_accelerate, through_copy, through_pickle])
def test_every_weight_of_a_trained_model_is_saved_and_loaded(way: Callable[..., None], tmp_path: Path) -> None:
    if way is through_accelerate:
        pytest.importorskip("accelerate", reason="needs accelerate: pip install 'dnasa[frameworks]'")
    net, other = Tied(), Tied(seed=1)
    opt = trained(net)
    way(net, other, tmp_path)
    check_same(net, other)
    assert other.head.weight is other.embedding.weight
    train(net, opt)  # and the model still trains
    assert not torch.equal(net.head.weight, other.head.weight)


def test_a_loaded_model_begins_where_it_was_saved(tmp_path: Path) -> None:
    """Also when it is loaded into a model that has its optimizer already."""
    net, other = Tied(), Tied(seed=1)
    trained(net)
    opt = Decentralized(other, dnasa.connect())
    through_safetensors(net, other, tmp_path)
    train(other, opt)
    train(net, Decentralized(net, dnasa.connect()))
    check_same(net, other)


def test_a_saved_part_of_a_model_is_as_large_as_the_part(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(300, 300))
    Decentralized(net, dnasa.connect())
    torch.save(net[0].state_dict(), tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 10_000


def test_accelerate_saves_and_loads_model_and_optimizer(tmp_path: Path) -> None:
    """The run continues as if it had never stopped."""
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install 'dnasa[frameworks]'")

    def prepared(seed: int) -> tuple[Any, Any, Any]:
        net = Tied(seed)
        accelerator = accelerate.Accelerator(cpu=True)
        return accelerator, *accelerator.prepare(net, Decentralized(net, dnasa.connect()))

    accelerator, net, opt = prepared(0)
    train(net, opt)
    accelerator.save_state(tmp_path)
    train(net, opt)
    accelerator, other, opt = prepared(1)
    accelerator.load_state(tmp_path)
    train(other, opt)
    check_same(net, other)


def test_accelerate_prepares_model_optimizer_and_loader() -> None:
    """The iterates are those of a plain loop on the batches that Accelerate gives this process."""
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'dnasa[frameworks]'")
    done = launch_script("torch", 2, JOB, "accelerate")
    assert iterates_that_are_the_same(done) == SAME
    for claim in ("refused averaged gradients", "evaluated the mean"):
        assert done.stdout.count(claim) == 2, (claim, done.stdout)


def test_lightning_validates_the_mean_logs_the_stepsize_and_resumes(tmp_path: Path) -> None:
    """The answer of AdaNASA is an average of the iterates, so that also a node alone validates another model than it trains."""
    lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'dnasa[frameworks]'")
    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    tokens = torch.randint(7, (32,), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(tokens, (tokens + 1) % 7)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Tied()

        def configure_optimizers(self) -> Decentralized:
            return Decentralized(self, dnasa.connect())

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def on_validation_start(self) -> None:
            self.mean = self.optimizers().optimizer.averaged()
            self.mean.__enter__()

        def validation_step(self, batch: Any, index: int) -> None:
            opt = self.optimizers().optimizer
            assert torch.equal(opt.flat, opt.node.rule.result(opt.node.snapshot().state))
            self.log("loss", self.training_step(batch, index))

        def on_validation_end(self) -> None:
            self.mean.__exit__(None, None, None)

    def fit(epochs: int, start: str | None = None) -> nn.Module:
        module, options = Module(), {"save_on_train_epoch_end": False}  # but at the end of the validation, with the mean
        saved = ModelCheckpoint(tmp_path / str(epochs), monitor="loss", save_top_k=-1, filename="{epoch}", **options)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            callbacks=[saved, LearningRateMonitor("step")],
            logger=CSVLogger(tmp_path),
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8), ckpt_path=start)
        return module

    fit(1)
    saved = str(tmp_path / "1" / "epoch=0.ckpt")
    optimizer = torch.load(saved)["optimizer_states"][0]["decentralized"]
    assert optimizer["averaged"]
    assert optimizer["step"] == 4
    check_same(fit(2), fit(2, saved))
    rows = list(csv.DictReader((tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open()))
    rates = [float(row["lr-Decentralized"]) for row in rows if row["lr-Decentralized"]]
    assert len(rates) == 4
    assert rates[-1] > 0


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
    out = stdout_of(launch("torch", 2, EXAMPLE, 2, cwd=tmp_path))
    assert float(re.findall(r"2 nodes, .* new sequences ([\d.]+)", out)[0]) < 2.5


def test_adapters_of_peft_are_trained_sent_and_saved(tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    size: Any = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tokens = torch.arange(8).repeat(4, 1)

    torch.manual_seed(3)  # of some random models the loss falls by less than 0.1
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))

    def work(network: Network) -> tuple[float, float, int]:
        model = peft.get_peft_model(
            copy.deepcopy(base), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        ).train(False)
        before = model(input_ids=tokens, labels=tokens).loss.item()
        opt = Decentralized(model, network, steps=100)
        for _ in range(100):
            opt.zero_grad()
            model(input_ids=(tokens + network.rank) % 16, labels=(tokens + network.rank) % 16).loss.backward()
            opt.step()
        with opt.averaged():
            model.save_pretrained(tmp_path / str(network.rank))
        return before, model(input_ids=tokens, labels=tokens).loss.item(), opt.flat.numel()

    for before, after, numbers in run_threads(topology.ring(2), work):
        assert after < before - 0.1
        assert numbers == 2 * (16 + 48)
    first, other = (peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / str(rank)).state_dict() for rank in range(2))
    assert any("lora_B" in name and value.any() for name, value in first.items())
    assert all(torch.equal(value, other[name]) for name, value in first.items())


def test_a_model_that_no_framework_has_wrapped_stays_as_it_is() -> None:
    net = nn.Linear(2, 1)
    before = dict(net.__dict__)
    dnasa.optim.local_gradients(net)
    assert net.__dict__ == before
