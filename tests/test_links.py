"""What `make links` computes, without its processes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import links, links_curves
from benchmarks.links_node import METHODS
from benchmarks.local_steps import DiLoCo, LocalSteps, NoLoCo, partners
from benchmarks.machines import NEEDS
from torch import Tensor, nn

import dnasa
from dnasa.problems import Custom


def made(kind: type[LocalSteps], average: object) -> LocalSteps:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [2.0]]))
    return kind(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, average)  # type: ignore[arg-type]


def take_steps(node: LocalSteps, *gradients: list[float]) -> Tensor:
    (weight,) = node.parameters
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)[:, None]
        node.step()
    return weight.detach().flatten()


def test_diloco_moves_the_shared_start_along_the_mean_of_all() -> None:
    others = torch.tensor([0.5, -0.5])
    node = made(DiLoCo, lambda row, k: (row + others) / 2)
    x = take_steps(node, [1.0, 0.0])
    torch.testing.assert_close(x, torch.tensor([0.9, 2.0]))  # a step of its own
    phi, momentum, theta = np.array([1.0, 2.0]), np.zeros(2), np.array([0.8, 2.0])
    for _ in range(2):
        outer = (phi - theta + others.numpy()) / 2
        momentum = 0.9 * momentum + outer
        phi = phi - 0.7 * (outer + 0.9 * momentum)
        x = take_steps(node, [1.0, 0.0]) if node.t % 2 else take_steps(node, [1.0, 0.0], [1.0, 0.0])
        np.testing.assert_allclose(x, phi, rtol=1e-6)
        theta = phi - [0.2, 0.0]


def test_noloco_steps_towards_the_partner() -> None:
    progress, start = (
        np.array([0.1, -0.3]),
        np.array([2.0, 0.0]),
    )  # theta - phi and phi of the partner, at each outer step
    other = torch.tensor(np.stack([progress, start]), dtype=torch.float32)
    node = made(NoLoCo, lambda rows, k: (rows + other) / 2)
    phi, delta = np.array([1.0, 2.0]), np.zeros(2)
    for _ in range(3):
        theta = phi - [0.2, 0.1]
        delta = 0.5 * delta + 0.7 * (theta - phi + progress) / 2 - 0.7 * (phi - (phi + start) / 2)
        phi = phi + delta
        np.testing.assert_allclose(take_steps(node, [1.0, 1.0], [1.0, 0.0]), phi, rtol=1e-5)


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_partners_meet_each_other_and_change(nodes: int) -> None:
    pairings = [partners(nodes, k) for k in range(20)]
    for pairing in pairings:
        assert all(pairing[pairing[i]] == i != pairing[i] for i in range(nodes))
    assert nodes == 2 or len({tuple(pairing) for pairing in pairings}) > 1


class Together:
    """The mean of what the nodes with these numbers give, each in a thread of its own."""

    def __init__(self, nodes: int, group: Callable[[int, int], Sequence[int]]):
        self.rows: list[Tensor] = [torch.empty(0)] * nodes
        self.barrier, self.group = threading.Barrier(nodes, timeout=60), group

    def average(self, node: int, row: Tensor, k: int) -> Tensor:
        self.rows[node] = row.clone()
        self.barrier.wait()
        mean = torch.stack([self.rows[other] for other in self.group(node, k)]).mean(0)
        self.barrier.wait()
        return mean


@pytest.mark.parametrize("kind", [DiLoCo, NoLoCo])
def test_local_steps_are_the_same_as_rules_of_the_simulator(kind: type[LocalSteps]) -> None:
    """AdamW of torch with outer steps, at four nodes with different targets, against the rule on its graph."""
    nodes, steps, targets = 4, 12, torch.arange(4.0)[:, None] * torch.tensor([1.0, -2.0, 0.5])
    models = [nn.Linear(3, 1, bias=False) for _ in range(nodes)]
    for model in models:
        nn.init.ones_(model.weight)
    together = Together(nodes, lambda i, k: range(nodes) if kind is DiLoCo else (i, partners(nodes, k)[i]))

    def train(i: int) -> None:
        inner = torch.optim.AdamW(models[i].parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(inner, steps)
        optimizer = kind(models[i], inner, 3, partial(together.average, i))
        for _ in range(steps):
            models[i].weight.grad = models[i].weight.detach() - targets[i]
            optimizer.step()
            schedule.step()

    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(train, range(nodes)))
    name = f"{kind.__name__.lower()}-10"
    options = links_curves.solve_options(METHODS[name]._replace(every=3), nodes, 0.1, steps)
    pull = Custom(lambda x, node, rng: x - targets[node].numpy(), start=np.ones(3), nodes=nodes)
    found = dnasa.solve(pull, steps=steps, progress=False, **options)
    np.testing.assert_allclose(found.x, torch.cat([model.weight.detach() for model in models]), rtol=1e-4)


def test_ddp_is_adamw_with_the_mean_gradient() -> None:
    targets, x = np.arange(6.0).reshape(2, 3), nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.AdamW([x], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(10):
        x.grad = x.detach() - torch.from_numpy(targets.mean(0))
        optimizer.step()
        schedule.step()
    pull = Custom(lambda x, node, rng: x - targets[node], start=np.ones(3), nodes=2)
    found = dnasa.solve(pull, steps=10, progress=False, **links_curves.solve_options(METHODS["ddp"], 2, 0.1, 10))
    np.testing.assert_allclose(found.x, [x.detach().numpy()] * 2)


def test_the_clock_is_asked_with_the_link_and_the_seconds_of_a_gradient() -> None:
    exchange = 2 * 0.02 + 3 * 4 * 1000 * 8e-6 * 1514 / 1448 / 100  # x, y and m in 32 bits
    found = links.predicted("adanasa", 4, links.Link(100, 20), 0.1, 1000)
    assert found == pytest.approx(0.1 + 2 * exchange, rel=0.01)
    rare = links.predicted("adanasa-5", 4, links.Link(100, 20), 0.1, 1000)
    assert rare == pytest.approx(0.1 + 2 * exchange / 5, rel=0.01)
    assert np.isnan(links.predicted("ddp", 4, links.Link(100, 20), 0.1, 1000))
    assert np.isnan(links.predicted("adanasa", 4, links.Link(100, 20), None, 1000))


def test_the_time_of_a_loss_lies_between_two_points() -> None:
    assert links.first_time([0, 10, 20], [3, 2, 1], 1.5) == 15
    assert links.first_time([0, 10, 20], [3, 2, 1], 0.5) == np.inf
    assert links.first_time([0, 10, 20, 30], [3, np.nan, 1, 2], 3) == 0


def test_the_target_is_the_last_loss_of_ddp() -> None:
    common = {"task": "gpt", "division": "iid", "nodes": 4, "lr": 0.0}
    curves = [
        {**common, "method": method, "step": step, "loss": loss}
        for method, losses in (("ddp", [4, 2, 1]), ("adanasa", [4, 1, 0.5]), ("diloco-10", [4, 3, 2]))
        for step, loss in zip((0, 10, 20), losses, strict=True)
    ]
    timed = [
        {"task": "gpt", "nodes": 4, "method": method, "rate": 10.0, "delay": 1.0, "seconds": s, "bytes": 1, "steps": 5}
        for method, s in (("ddp", 1.0), ("adanasa", 2.0), ("diloco-10", 0.1))
    ]
    table = links.targets(pd.DataFrame(curves), pd.DataFrame(timed), None).set_index("method")
    assert set(table.target) == {1}
    assert table.seconds_to_target.to_dict() == {"ddp": 20, "adanasa": 20, "diloco-10": np.inf}


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--methods", "ddp,adam"], "unknown methods: adam. Choose from: adanasa, "),
        (["--tasks", "vit"], "unknown tasks: vit. Choose from: gpt, resnet"),
        (["--links", "100"], "such as 100:20"),
        (["--nodes", "5"], "even numbers"),
        (["--steps", "25"], "a multiple of --evaluate"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        links.main(words)
    assert end.value.code == 2
    assert remedy in capsys.readouterr().err


def test_it_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(links, "permitted", lambda: False)
    links.main([])
    assert capsys.readouterr().out == f"Skipped: {NEEDS}.\n"
