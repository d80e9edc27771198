"""A node of `benchmarks.links`: reads jobs, one in each line, times them with the others; rank 0 prints the results."""

import json
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dnasa
from benchmarks.local_steps import DiLoCo, LocalSteps, NoLoCo, over_all, over_pair
from dnasa.data import Dataset, local_files, partition
from dnasa.optim import Decentralized
from dnasa.problems.models import gpt, resnet
from dnasa.reproduce.network_tasks import GENERATED, TEXT, WITHOUT_DATA, Task, read

TIMEOUT = 300.0  # seconds; a report that a process is there may wait behind other messages on a slow link
CONTEXT = 64
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
REPORTS = 4_000  # bytes per node, more than the reports of 0.3 seconds, which all come from rank 0


class Trainer(NamedTuple):
    module: nn.Module  # is called
    optimizer: Any


# ---------------------------------------------------------------- methods


class Method(NamedTuple):
    title: str
    make: Callable[[nn.Module, int, float], Trainer]  # of the model, the number of steps and the learning rate
    every: int = 1  # steps from one exchange to the next
    tuned: bool = False  # whether it has a learning rate
    options: dict[str, Any] | None = None  # of `decentralized`, for ours
    local: type[LocalSteps] | None = None


def decentralized(model: nn.Module, steps: int, lr: float, rule: str = "adanasa", **options: Any) -> Trainer:
    network = dnasa.connect(timeout=TIMEOUT, **options)
    optimizer = Decentralized(model, network, rule=rule, steps=steps if rule == "adanasa" else None)
    return Trainer(model, optimizer)


def adamw(model: nn.Module, steps: int, lr: float) -> torch.optim.Optimizer:
    """AdamW with torch's constants; the learning rate goes to zero as a cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


def alone(model: nn.Module, steps: int, lr: float) -> Trainer:
    return Trainer(model, adamw(model, steps, lr))


def ddp(model: nn.Module, steps: int, lr: float) -> Trainer:
    return Trainer(DistributedDataParallel(model), adamw(model, steps, lr))


def local(kind: type[LocalSteps], average: Any, every: int, model: nn.Module, steps: int, lr: float) -> Trainer:
    return Trainer(model, kind(model, adamw(model, steps, lr), every, average))


def with_local_steps(kind: type[LocalSteps], average: Any, every: int) -> Method:
    return Method(f"{kind.__name__}, H = {every}", partial(local, kind, average, every), every, True, local=kind)


def ours(title: str, **options: Any) -> Method:
    return Method(title, partial(decentralized, **options), options.get("every", 1), options=options)


OURS = {"rule": "adanasa", "topology": "exact"}  # unless options say otherwise
BITS = "moniqua:8,4,8/8"  # of x, y and m
ALONE = "alone"  # only timed: what the gradients take
METHODS = {
    "adanasa": ours("AdaNASA"),
    "adanasa-1": ours("AdaNASA, one round", rounds=1),
    "adanasa-bits": ours("AdaNASA, 8, 4 and 1 bits", rounds=1, compress=BITS),
    "adanasa-5": ours("AdaNASA, every 5 steps", rounds="exact", every=5),
    "adanasa-5-bits": ours("AdaNASA, every 5 steps, 8 and 4 bits", rounds="exact", every=5, compress="moniqua:8,4"),
    "adanasa-ring": ours("AdaNASA, ring", topology="ring"),
    "adanasa-8bit": ours("AdaNASA, 8 bits, ring", topology="ring", compress="8bit"),
    "dnasa": ours("D-NASA, hidden", rule="dnasa"),
    "ddp": Method("DDP, AdamW", ddp, tuned=True),
    **{f"diloco-{h}": with_local_steps(DiLoCo, over_all, h) for h in (10, 25, 50)},
    **{f"noloco-{h}": with_local_steps(NoLoCo, over_pair, h) for h in (10, 25, 50)},
    ALONE: Method("no messages", alone),
}

# ---------------------------------------------------------------- tasks


class Case(NamedTuple):
    task: Task
    model: Callable[[Dataset], nn.Module]


def small_gpt(data: Dataset) -> nn.Module:
    return gpt(data.outputs, layers=2, width=96, heads=3, context=CONTEXT, dropout=0.0)


def small_resnet(data: Dataset) -> nn.Module:
    return resnet(data.inputs.shape[1], data.outputs, widths=(8, 16, 32, 64), norm="group")


def cases() -> dict[str, Case]:
    """A text and images, of which others take the place where $DNASA_DATA has none."""
    text = TEXT._replace(model=f"gpt:2,96,{CONTEXT}", batch=4, rows=100_000)
    images = Task("cifar10", different="dirichlet(0.1)", batch=4, rows=10_000)
    found = {name: bool(local_files(name)) for name in ("shakespeare", "cifar10")}
    return {
        "gpt": Case(text if found["shakespeare"] else text._replace(data=GENERATED), small_gpt),
        "resnet": Case(images if found["cifar10"] else WITHOUT_DATA["digits"]._replace(batch=4), small_resnet),
    }


@cache
def rows(name: str) -> Dataset:
    data = read(cases()[name].task)
    if data.inputs.ndim == 2 and not data.vocabulary:  # the digits
        shape = (-1, 1, 8, 8)
        data = data._replace(inputs=data.inputs.reshape(shape), test_inputs=data.test_inputs.reshape(shape))
    if data.vocabulary:
        return data
    return data._replace(inputs=data.inputs.copy(), test_inputs=data.test_inputs.copy())  # or all images stay in memory


def as_tensors(inputs: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(inputs)
    return (x.long() if inputs.dtype.kind in "iu" and inputs.ndim == 2 else x.float()), torch.from_numpy(labels).long()


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


class Training:
    """One node's training of a task with a method."""

    def __init__(self, task: str, method: str, lr: float, steps: int):
        self.data, self.case = rows(task), cases()[task]
        torch.manual_seed(0)
        self.model = self.case.model(self.data)
        self.shard = partition("iid", self.data.labels, dist.get_world_size())[dist.get_rank()]
        self.generator = np.random.default_rng((0, dist.get_rank()))
        self.trainer = METHODS[method].make(self.model, steps, lr)

    def steps(self, count: int) -> None:
        for _ in range(count):
            batch = self.generator.choice(self.shard, self.case.task.batch)
            x, y = as_tensors(self.data.inputs[batch], self.data.labels[batch])
            self.trainer.optimizer.zero_grad()
            loss_of(self.trainer.module(x), y).backward()
            self.trainer.optimizer.step()


# ---------------------------------------------------------------- jobs


def timing(seconds: float, method: str, **options: Any) -> dict[str, float]:
    """Seconds per step of the slowest node, and the bytes that a node sends, from a few whole periods."""
    training, every = Training(steps=100_000, method=method, **options), METHODS[method].every
    training.steps(every + 2 * (every == 1))  # DDP arranges its messages after the first
    began = time.perf_counter()
    training.steps(every)
    estimate = slowest(time.perf_counter() - began)
    count = every * min(max(3 if every == 1 else 1, round(seconds / estimate)), 100)
    before = sent_bytes()
    training.steps(every)  # hidden messages are on their way now, as they are at the end
    began = time.perf_counter()
    training.steps(count)
    taken = slowest(time.perf_counter() - began)
    sent = over_all(torch.tensor([sent_bytes() - before], dtype=torch.float64))
    parameters = sum(p.numel() for p in training.model.parameters())
    return {"seconds": taken / count, "bytes": sent.item() / (every + count), "steps": count, "parameters": parameters}


def sent_bytes() -> int:
    """The bytes that this machine has sent, once no messages but the reports of being there are on their way."""
    reports = REPORTS * dist.get_world_size()
    before = -reports
    while (now := int(SENT.read_text())) - before >= reports:
        before = now
        time.sleep(0.3)
    return now


def slowest(value: float) -> float:
    out = torch.tensor([value])
    dist.all_reduce(out, dist.ReduceOp.MAX)
    return out.item()


def main() -> None:
    torch.set_num_threads(1)
    dnasa.connect(timeout=TIMEOUT)  # starts the process group
    for line in sys.stdin:
        result = timing(**json.loads(line))
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
