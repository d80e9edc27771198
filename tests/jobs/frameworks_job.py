"""What the processes of `test_frameworks.py` do: a function below, such as `accelerate`. Not a test."""

import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dnasa
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.optim import Decentralized

STEPS, ROWS = 12, 4
GRAPH = dnasa.topology.ring(2, weights="lazy")  # the nodes differ
RULES: dict[str, Any] = {"dnasa": {}, "adanasa": {"steps": STEPS}}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def dataset(node: int) -> TensorDataset:
    x = torch.randn(STEPS * ROWS, 5, generator=torch.Generator().manual_seed(node))
    return TensorDataset(x, x[:, :3].argmax(1))


def plain(network: Network, rule: str, batches: Iterable[Any]) -> tuple[nn.Module, Decentralized]:
    """The loop of docs/own-model.md."""
    net = model()
    optimizer = dnasa.optim.Decentralized(net, network, rule, **RULES[rule])
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, optimizer


def compare(network: Network, rule: str, net: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(net.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])[None]
    assert not torch.equal(*network.processes.gather(weights).split(1))  # the nodes have gradients of their own
    print(f"same {rule} at {network.rank}", flush=True)


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    network = dnasa.connect(GRAPH)
    assert network.nodes == 2
    common = TensorDataset(*(torch.cat(parts) for parts in zip(*(dataset(i).tensors for i in range(2)), strict=True)))
    for rule, options in RULES.items():
        net = model()
        optimizer = dnasa.optim.Decentralized(net, network, rule, **options)
        loader = DataLoader(common, batch_size=ROWS)
        wrapped, prepared, loader = accelerator.prepare(net, optimizer, loader)
        dnasa.optim.local_gradients(wrapped)
        for x, y in loader:
            prepared.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
            prepared.step()
        assert optimizer.t == STEPS
        batches = list(DataLoader(common, batch_size=ROWS))[network.rank :: 2]
        compare(network, rule, net, plain(network, rule, batches)[0])
    evaluate_the_mean(accelerator, wrapped, optimizer)
    refuse_averaged_gradients(accelerator, network, batches[0])


def evaluate_the_mean(accelerator: Any, wrapped: nn.Module, optimizer: Decentralized) -> None:
    """As in docs/own-model.md."""
    wrapped.eval()
    with optimizer.averaged(), torch.inference_mode():
        outputs = wrapped(torch.ones(2, 5))
    wrapped.train()
    assert torch.equal(*accelerator.gather(outputs[None]))
    print("evaluated the mean", flush=True)


def refuse_averaged_gradients(accelerator: Any, network: Network, batch: Any) -> None:
    net = model()
    optimizer = dnasa.optim.Decentralized(net, network)
    wrapped, prepared = accelerator.prepare(net, optimizer)
    nn.functional.cross_entropy(wrapped(batch[0]), batch[1]).backward()
    with pytest.raises(InputError, match="local_gradients"):
        prepared.step()

    def closure() -> torch.Tensor:  # as Lightning calls it: the first backward pass is inside the first step
        again.zero_grad()
        loss = nn.functional.cross_entropy(parallel(batch[0]), batch[1])
        loss.backward()
        return loss

    net = model()
    again = dnasa.optim.Decentralized(net, network)
    parallel = nn.parallel.DistributedDataParallel(net)
    with pytest.raises(InputError, match="local_gradients"):
        again.step(closure)
    print("refused averaged gradients", flush=True)


def lightning() -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, rule: str):
            super().__init__()
            self.net, self.rule = model(), rule

        def configure_optimizers(self) -> Decentralized:
            self.network = dnasa.connect(GRAPH)
            return dnasa.optim.Decentralized(self.net, self.network, self.rule, **RULES[self.rule])

        def on_fit_start(self) -> None:
            dnasa.optim.local_gradients(self.trainer.model)

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(dataset(self.global_rank), batch_size=ROWS)

        def on_train_end(self) -> None:
            expected, _ = plain(self.network, self.rule, DataLoader(dataset(self.global_rank), batch_size=ROWS))
            compare(self.network, self.rule, self.net, expected)
            with self.optimizers().optimizer.averaged():
                means = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])[None]
            assert torch.equal(*self.network.processes.gather(means).split(1))

    for rule in RULES:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo"),
            use_distributed_sampler=False,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(rule))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
