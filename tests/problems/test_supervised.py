"""Any torch model in the simulator: gradients, tests and runs are those of ordinary torch code."""

import copy
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.finetuning import fall_and_change, flip_and_shift, halved
from numpy.lib.stride_tricks import sliding_window_view
from thread_network import run_threads
from torch import nn

import dnasa
from dnasa import Result, topology
from dnasa.communication import Network
from dnasa.core import Array, InputError
from dnasa.data import Dataset, partition
from dnasa.problems import Supervised, executors
from dnasa.problems.executors import OneByOne, OnGpu, Stacked
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import gpt, resnet
from dnasa.problems.sharded import seeded
from dnasa.problems.supervised import STATISTICS
from dnasa.randomness import Streams
from dnasa.topology import Topology

NODES, BATCH = 3, 4
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images() -> Dataset:
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (44, 2, 6, 6)).astype(np.uint8)
    labels = generator.integers(0, 3, 44)
    return Dataset("images", inputs[:30], labels[:30], inputs[30:], labels[30:])


def text() -> Dataset:
    windows = sliding_window_view(np.random.default_rng(1).integers(0, 7, 60), 6)
    inputs, labels = windows[:, :-1], windows[:, 1:]
    return Dataset("text", inputs[:40], labels[:40], inputs[45:], labels[45:])


def table() -> Dataset:
    generator = np.random.default_rng(2)
    inputs = generator.standard_normal((40, 5))
    targets = inputs @ generator.standard_normal((5, 2))
    return Dataset("table", inputs[:30], targets[:30], inputs[30:], targets[30:])


class Tied(nn.Module):
    """One layer used twice, a frozen one, and a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.frozen, self.out = nn.Linear(5, 5), nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 2)
        self.unused, self.scale = nn.Parameter(torch.ones(3)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.out(self.frozen(torch.tanh(self.twice(torch.tanh(self.twice(x))))))


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))


MODELS: dict[str, Any] = {
    "batch norm": (lambda: resnet(2, 3, (8, 16)), cross_entropy, images),
    "group norm": (lambda: resnet(2, 3, (8, 16), "group"), cross_entropy, images),
    "gpt": (lambda: gpt(7, 2, 8, 2, 5), cross_entropy, text),
    "tied": (Tied, nn.functional.mse_loss, table),
    "perceptron": (perceptron, nn.MSELoss(), table),
}


def problem(
    name: str = "perceptron", ends: Sequence[int] = (7, 18), batch: int = BATCH, dtype: str = "float64", **options: Any
) -> Supervised:
    model, loss, data = MODELS[name]
    rows = data()
    shards = np.array_split(np.random.default_rng(3).permutation(len(rows.labels)), ends)
    return Supervised(model, loss, rows, shards, batch, dtype=dtype, **options)


def trained(module: nn.Module) -> list[Any]:
    return [part for part in module.parameters() if part.requires_grad]


def plain(array: Array, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What the model is to be given, converted by hand."""
    rows = torch.tensor(np.array(array))
    if rows.dtype is torch.uint8:
        return (rows.to(dtype) / 255 - 0.5) / 0.25
    return rows.to(dtype) if rows.is_floating_point() else rows.long()


def module_at(task: Supervised, point: torch.Tensor) -> Any:
    module = task._seeded(0)
    nn.utils.vector_to_parameters(point, trained(module))
    return module


def literal_gradient(
    task: Supervised, data: Dataset, loss: Callable[..., torch.Tensor], point: torch.Tensor, rows: Array, key: int
) -> torch.Tensor:
    module = module_at(task, point)
    with seeded(torch.device("cpu"), key):
        value = loss(module(plain(data.inputs[rows])), plain(data.labels[rows]))
    value.backward()
    zero = [torch.zeros_like(part) if part.grad is None else part.grad for part in trained(module)]
    return torch.cat([part.reshape(-1) for part in zero])


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd_node_by_node(name: str) -> None:
    task, (_, loss, data) = problem(name), MODELS[name]
    rows = data()
    d = sum(part.numel() for part in trained(task._seeded(0)))
    assert sum(int(np.prod(shape)) for _, shape in task.layout) == d == len(task.start(0))
    x = task.start(0) + 0.05 * torch.randn(2, 2, NODES, d, dtype=torch.double)
    g = task.gradient(x, range(NODES), [5, 6], 9)
    for v, (s, seed), k in itertools.product(range(2), enumerate([5, 6]), range(NODES)):
        drawn = task.samples.at([seed], [k], 9)[0, 0]
        key = int(Streams("dropout", rounded=True).states(seed, k, 9)[0])
        expected = literal_gradient(task, rows, loss, x[v, s, k], drawn, key)
        torch.testing.assert_close(g[v, s, k], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["batch norm", "gpt"])
def test_a_node_alone_has_the_same_bits(name: str) -> None:
    task = problem(name, dtype="float32", augment=lambda x, g: x if x.ndim == 2 else flip_and_shift(x, g, 1))
    x = task.start(0).expand(2, 1, NODES, -1) + 0.05 * torch.randn(2, 1, NODES, len(task.start(0)))
    both = task.gradient(x, range(NODES), [4], 2)
    alone = task.gradient(x[1:, :, 2:], range(2, 3), [4], 2)
    assert torch.equal(both[1:, :, 2:], alone)


def _cannot_capture(*inputs: object) -> NoReturn:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(("large", "together"), [(1 << 40, 5), (0, 1)])
def test_models_in_parts_are_each_of_them(large: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large models are computed one after another."""
    task = problem("tied")
    points = torch.randn(2, 2, NODES, len(task.start(0)), dtype=torch.double)
    one_by_one: Any = task.executor
    gpu = OnGpu(task, 1, task.module, task.loss_scale, None)
    gpu.capacity = 5 * task.batch
    monkeypatch.setattr(gpu.graphs, "prepare", _cannot_capture)
    memory = torch.empty_like(points[0, 0, :1]).expand(5, -1).clone()  # overwritten by each call, as a graph does

    def on_streams(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert len(flat) in (together, 4 * NODES % together)
        return memory[: len(flat)].copy_(one_by_one._gradients(flat, x, y, [0] * len(flat)))

    monkeypatch.setattr(executors, "LARGE", large)
    monkeypatch.setattr(gpu, "_on_streams", on_streams)
    expected = task.gradient(points, range(NODES), [0, 1], 3)
    torch.testing.assert_close(gpu.gradient(points, range(NODES), [0, 1], 3), expected, rtol=1e-9, atol=1e-11)
    assert not gpu.capturable


def literal_statistics(task: Supervised, data: Dataset, point: torch.Tensor, node: int) -> Any:
    """Batch norm with a cumulative average over the same batches."""
    module = module_at(task, point).eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()
            part.reset_running_stats()
            part.momentum = None
    rows = task.shuffled(node)[: STATISTICS * BATCH]
    with torch.no_grad():
        for part in task.in_batches(rows):
            module(plain(data.inputs[part]))
    return module.eval()


@pytest.mark.parametrize(
    ("how", "rows", "norm", "warned"),
    [
        ("by_label", 1400, "batch", True),
        ("dirichlet(0.1)", 1400, "batch", True),
        ("by_label", 1400, "group", False),
        ("dirichlet(1)", 1400, "batch", False),
        ("iid", 1400, "batch", False),
        ("iid", 40, "batch", False),  # with five rows, a node has at most half of the classes
    ],
)
def test_batch_norm_is_warned_about_where_classes_differ_beyond_chance(how: str, rows: int, norm: str, warned: bool) -> None:
    labels = np.random.default_rng(0).integers(10, size=rows)
    pictures = np.zeros((rows, 1, 2, 2), np.float32)
    data = Dataset("pictures", pictures, labels, pictures[:5], labels[:5])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(5):
            Supervised(lambda: resnet(1, 10, (8,), norm), cross_entropy, data, partition(how, labels, 8, seed), batch=2)
    advice = ("replace_batch_norm", "eval mode")
    ours = [str(one.message) for one in told if one.category is UserWarning]  # others may be about what earlier tests left
    assert [all(part in text for part in advice) for text in ours] == 5 * [True] * warned


@pytest.mark.parametrize("name", ["batch norm", "perceptron"])
def test_batch_norm_is_tested_with_statistics_of_the_nodes(name: str) -> None:
    (_, loss, data), task = MODELS[name], problem(name)
    rows, point = data(), task.start(3)
    modules = [literal_statistics(task, rows, point, node) for node in range(NODES)]
    average = {
        key: torch.stack([module.state_dict()[key].double() for module in modules]).mean(0) for key in modules[0].state_dict()
    }
    modules[0].load_state_dict(average)
    with torch.no_grad():
        expected = loss(modules[0](plain(rows.test_inputs)), plain(rows.test_labels))
    measured = task.evaluate(point[None, None], range(NODES))["test_loss"].item()
    assert measured == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("name", ["gpt", "tied", "group norm"])
def test_evaluation_is_that_of_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loss, data = MODELS[name]
    rows = data()
    task = problem(name, metrics={"largest": lambda outputs, targets: outputs.amax(-1).mean()})
    monkeypatch.setattr(executors, "MAX_ROWS", 3)
    mean = torch.stack([task.start(0), task.start(1)])[:, None]
    weights = [0.5, 1.0, 1.5]
    found = task.evaluate(mean, range(NODES), weights)
    for i, point in enumerate(mean[:, 0]):
        module = module_at(task, point).eval()
        losses = [loss(module(plain(rows.inputs[shard])), plain(rows.labels[shard])) for shard in task.shards]
        total = sum(w * value for w, value in zip(weights, losses, strict=True)) / NODES
        total.backward()
        gradient = [torch.zeros_like(part) if part.grad is None else part.grad for part in trained(module)]
        expected = torch.cat([part.reshape(-1) for part in gradient])
        torch.testing.assert_close(found["gradient"][i, 0], expected, rtol=1e-9, atol=1e-11)
        outputs, targets = module(plain(rows.test_inputs)).detach(), plain(rows.test_labels)
        assert found["train_loss"][i].item() == pytest.approx(total.item(), rel=1e-9)
        assert found["test_loss"][i].item() == pytest.approx(loss(outputs, targets).item(), rel=1e-9)
        assert found["largest"][i].item() == pytest.approx(outputs.amax(-1).mean().item(), rel=1e-9)
        if name == "tied":
            assert "test_accuracy" not in found
        else:
            right = (outputs.argmax(-1) == targets).double().mean().item()
            assert found["test_accuracy"][i].item() == pytest.approx(right)


@pytest.mark.parametrize(("make", "kind"), [(Tied, OneByOne), (lambda: nn.Sequential(nn.Linear(5, 2)), Stacked)])
def test_evaluations_measure_test_rows_and_one_training_sample(make: Any, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, shards, loss = table(), np.array_split(np.arange(30), (3, 12)), nn.functional.mse_loss
    task = Supervised(make, loss, rows, shards, BATCH, dtype="float64", train_metrics=15)
    seen, read = list[int](), task.batch_of

    def recorded(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend(numbers.tolist())
        return read(numbers)

    monkeypatch.setattr(task, "batch_of", recorded)
    first, again = (task.evaluate(task.start(0)[None, None], range(NODES))["train_loss"].item() for _ in range(2))
    assert isinstance(task.executor, kind)
    assert first == again
    sampled, repeated = seen[:13], seen[13:]
    assert sampled == repeated
    assert [len({*sampled} & {*shard.tolist()}) for shard in shards] == [3, 5, 5], "5 of each node that has them"
    module = module_at(task, task.start(0))
    parts = [np.intersect1d(sampled, shard) for shard in shards]
    losses = [loss(module(plain(rows.inputs[part])), plain(rows.labels[part])).item() for part in parts]
    assert first == pytest.approx(np.mean(losses), rel=1e-9)
    for enough in (30, True):
        whole = Supervised(make, loss, rows, shards, BATCH, dtype="float64", train_metrics=enough)
        expected = [loss(module(plain(rows.inputs[shard])), plain(rows.labels[shard])).item() for shard in shards]
        found = whole.evaluate(task.start(0)[None, None], range(NODES))["train_loss"].item()
        assert found == pytest.approx(np.mean(expected), rel=1e-9)


def test_the_full_gradient_with_batch_norm_is_of_batches_without_dropout() -> None:
    task, rows = problem(), table()
    point = task.start(0)
    found = task.evaluate(point[None, None], range(NODES))
    module = module_at(task, point)
    module[3].p = 0.0
    total = torch.zeros((), dtype=torch.double)
    for node in range(NODES):
        for part in task.in_batches(task.shuffled(node)):
            share = len(part) / (len(task.shards[node]) * NODES)
            total = total + share * nn.functional.mse_loss(module(plain(rows.inputs[part])), plain(rows.labels[part]))
    total.backward()
    assert found["train_loss"].item() == pytest.approx(total.item(), rel=1e-9)
    expected = torch.cat([part.grad.reshape(-1) for part in trained(module)])
    torch.testing.assert_close(found["gradient"][0, 0], expected, rtol=1e-9, atol=1e-11)


def test_batch_norm_in_eval_mode_keeps_its_statistics() -> None:
    frozen: Any = perceptron().eval()
    frozen[1].running_mean += 3
    task = Supervised(frozen, nn.functional.mse_loss, table(), [np.arange(30)], batch=BATCH)
    assert not task.module.norms
    g = task.gradient(task.start(0).expand(1, 1, 1, -1), range(1), [0], 0)
    rows = task.samples.at([0], [0], 0)[0, 0]
    x, y = (plain(part[rows], torch.float32) for part in (table().inputs, table().labels))
    module = copy.deepcopy(frozen)
    nn.functional.mse_loss(module(x), y).backward()
    torch.testing.assert_close(g.view(-1), torch.cat([part.grad.reshape(-1) for part in module.parameters()]))


def test_fine_tuning_begins_with_the_statistics_of_the_training_and_keeps_them() -> None:
    rows = images()
    first = Supervised(MODELS["batch norm"][0], cross_entropy, rows, [np.arange(30)], batch=BATCH)
    trained = dnasa.solve(first, topology.complete(1), "adanasa", steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that the nodes have different classes no longer matters
        shards = [np.flatnonzero(rows.labels[:30] == label) for label in range(3)]
        task = Supervised(first.network(trained.mean, trained.statistics), cross_entropy, rows, shards, batch=BATCH)
    tuned = dnasa.solve(task, topology.complete(3), "adanasa", steps=3, start=trained.mean)
    assert tuned.history.test_loss.iloc[0] == pytest.approx(trained.history.test_loss.iloc[-1], rel=1e-5)
    assert tuned.statistics is None
    buffers = task.network(tuned.mean).state_dict()
    assert trained.statistics is not None
    for name, part in first.module.split_statistics(trained.statistics).items():
        assert torch.equal(buffers[name], part)


def test_the_fall_is_of_the_first_50_steps() -> None:
    accuracy = pd.Series([80.0, 79.0, 79.5, 60.0, 70.0], index=[0, 25, 50, 75, 100])
    assert fall_and_change(accuracy) == (1, -10)


def test_halved_images_are_means_of_four_pixels() -> None:
    pictures = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    assert halved(pictures).tolist() == [[[[2, 4], [10, 12]]]]


def test_windows_of_one_array_take_the_memory_of_that_array() -> None:
    tokens = np.arange(100_000, dtype=np.uint16) % 7
    windows = sliding_window_view(tokens, 1001)
    data = Dataset("text", windows[:-10, :-1], windows[:-10, 1:], windows[-10:, :-1], windows[-10:, 1:])
    shards = np.array_split(np.arange(len(windows) - 10), 2)
    task = Supervised(lambda: gpt(7, 1, 4, 1, 1000), cross_entropy, data, shards, batch=2, train_metrics=False)
    for rows in (task.inputs, task.labels, task.test_inputs, task.test_labels):
        assert rows.tensor.untyped_storage().nbytes() <= 4 * 100_000
    some = torch.tensor([0, 7, 12_345])
    assert np.array_equal(task.labels[some], windows[some.numpy(), 1:])
    assert len({task.node_fingerprint(0), task.node_fingerprint(1)}) == 2
    tokens[60_000] = 6
    other = Supervised(lambda: gpt(7, 1, 4, 1, 1000), cross_entropy, data, shards, batch=2, train_metrics=False)
    assert other.node_fingerprint(0) == task.node_fingerprint(0)
    assert other.node_fingerprint(1) != task.node_fingerprint(1)


@pytest.mark.parametrize("mirrored", [True, False])
def test_flip_and_shift_moves_whole_images(mirrored: bool) -> None:
    pictures = torch.arange(1.0, 1 + 60 * 2 * 4 * 5).view(60, 2, 4, 5)
    changed = flip_and_shift(pictures, torch.Generator().manual_seed(0), 1, flip=mirrored)
    padded = nn.functional.pad(pictures, (1, 1, 1, 1))
    seen = set()
    for picture, result in zip(padded, changed, strict=True):
        found = [
            (flip, dy, dx)
            for flip, dy, dx in itertools.product((False, True), range(3), range(3))
            if torch.equal((picture.flip(-1) if flip else picture)[:, dy : dy + 4, dx : dx + 5], result)
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {flip for flip, _, _ in seen} == ({False, True} if mirrored else {False})
    assert {(dy, dx) for _, dy, dx in seen} == set(itertools.product(range(3), range(3)))


def test_augmentation_depends_on_seed_node_and_step_alone() -> None:
    drawn: list[float] = []

    def change(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        drawn.append(torch.rand(1, generator=generator).item())
        return inputs

    task = problem("group norm", augment=change)
    x = task.start(0).expand(1, 2, NODES, -1)
    drawn.clear()
    task.gradient(x, range(NODES), [0, 1], 3)
    first = list(drawn)
    assert len(set(first)) == 2 * NODES
    drawn.clear()
    task.gradient(x[:, :1, 1:2], range(1, 2), [1], 3)
    assert drawn == [first[NODES + 1]]


@pytest.mark.parametrize("name", ["batch norm", "gpt"])
def test_processes_have_the_bits_of_the_simulator(name: str) -> None:
    """By a rule and on a graph whose sums of two terms are the same in any order."""
    graph = topology.complete(2)

    def work(network: Network | Topology = graph) -> Result:
        task = problem(name, [18])
        return dnasa.solve(task, network, "dsgd", eta=0.1, steps=4, evaluate=4)

    simulated = work()
    for result in run_threads(graph, work):
        assert torch.equal(result.x, simulated.x)
        for column in ("train_loss", "test_loss", "grad_norm"):
            np.testing.assert_allclose(result.history[column], simulated.history[column], rtol=1e-9)


def test_the_test_loss_of_mixed_precision_is_computed_in_full() -> None:
    full, mixed = problem("gpt", dtype="float32"), problem("gpt", dtype="float32", autocast="bfloat16")
    exact, rounded = (task.evaluate(task.start(0), range(NODES))["test_loss"] for task in (full, mixed))
    assert abs(exact - rounded) < 1e-3 * exact  # a loss of bfloat16 numbers has a resolution of 0.4 %
    outputs = mixed.module.outputs(mixed.start(0), mixed.test_batch_of(torch.arange(2))[0])
    assert outputs.dtype is torch.float32


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("calls").add_(1)
        return self.layer(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Counter, "changes its buffer 'calls' in training"),
        (lambda: nn.Linear(6, 2), r"does not take inputs of shape \(4, 5\)"),
        (lambda: nn.Linear(5, 2).requires_grad_(False), "no parameters to train"),
        (lambda: nn.LazyLinear(2), "lazy layers"),
        (lambda: "model", "not str"),
    ],
)
def test_a_model_that_cannot_work_is_refused(model: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Supervised(model, nn.functional.mse_loss, table(), [np.arange(30)], batch=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": lambda outputs, targets: outputs - targets}, r"loss returned a tensor of shape \(4, 2\)"),
        ({"loss": lambda outputs, targets: 1.0}, "loss returned float"),
        ({"loss": lambda outputs, targets: targets.mean()}, "does not depend on the trained parameters"),
        ({"data": [1, 2]}, "must be a dnasa.data.Dataset, not list"),
        ({"data": table()._replace(labels=np.ones(7))}, "30 rows of inputs and 7 labels"),
        ({"data": table()._replace(test_inputs=np.ones((10, 4)))}, "test rows"),
        ({"data": table()._replace(labels=np.full(30, "a"))}, "labels must be an array of numbers"),
        ({"shards": [[0, 99]]}, "row numbers from 0 to 29"),
        ({"metrics": {"test_loss": nn.functional.mse_loss}}, "'test_loss' is measured already"),
        ({"metrics": {"all": lambda outputs, targets: outputs}}, "metric 'all' returned a tensor of shape"),
        ({"autocast": "float16"}, "Unknown autocast 'float16'"),
        ({"augment": lambda x: x}, r"augment\(inputs, generator\) raised TypeError"),
        ({"augment": lambda x, g: x[:2]}, r"augment must return a tensor like its inputs, \(4, 5\)"),
        ({"batch": 0}, "batch must be a positive"),
        ({"train_metrics": -1}, "train_metrics must be a whole number from 0 on"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], words: str) -> None:
    options = {"model": lambda: nn.Linear(5, 2), "loss": nn.functional.mse_loss, "data": table(), "shards": [np.arange(30)]}
    with pytest.raises(InputError, match=words):
        Supervised(**{**options, "batch": 4, **change})


def test_labels_beyond_the_outputs_are_refused() -> None:
    data = images()
    shard = np.flatnonzero(data.labels < 2)  # so that the first batch has none of them
    with pytest.raises(InputError, match="Labels run from 0 to 2, but the model has 2 outputs"):
        Supervised(lambda: resnet(2, 2, (8,)), cross_entropy, data, [shard], batch=2)
    with pytest.raises(InputError, match="Target 2 is out of bounds"):
        Supervised(lambda: resnet(2, 2, (8,)), cross_entropy, data, [np.arange(30)], batch=30)
    data.labels[shard[-1]] = -1
    with pytest.raises(InputError, match="Labels run from -1 to 2"):
        Supervised(lambda: resnet(2, 3, (8,)), cross_entropy, data, [shard], batch=2)
    data.labels[shard[-1]] = -100  # torch's losses leave these out
    Supervised(lambda: resnet(2, 3, (8,)), cross_entropy, data, [shard], batch=2)


@needs_gpu
@pytest.mark.parametrize("name", ["batch norm", "group norm", "tied"])
def test_the_gpu_has_the_gradients_of_the_cpu(name: str) -> None:
    cpu, gpu = problem(name), problem(name, device="cuda")
    x = cpu.start(0) + 0.05 * torch.randn(2, 1, NODES, len(cpu.start(0)), dtype=torch.double)
    for t in range(3):
        g = gpu.gradient(x.cuda(), range(NODES), [0], t).cpu()
        torch.testing.assert_close(g, cpu.gradient(x, range(NODES), [0], t), rtol=1e-6, atol=1e-9)
    assert isinstance(gpu.executor, OnGpu)
    assert gpu.executor.capturable


@needs_gpu
def test_dropout_on_the_gpu_is_repeatable_and_new_at_every_step() -> None:
    first, second = problem("gpt", device="cuda"), problem("gpt", device="cuda")
    x = first.start(0).expand(1, 1, NODES, -1)
    earlier = first.gradient(x, range(NODES), [0], 0)
    torch.testing.assert_close(second.gradient(x, range(NODES), [0], 0), earlier)
    second.samples.cached = (None, None)
    assert not torch.allclose(second.gradient(x, range(NODES), [0], 1), earlier)
    torch.testing.assert_close(second.gradient(x, range(NODES), [0], 0), earlier)


class Waiting(nn.Module):
    """Its forward pass waits for the GPU, which a CUDA graph cannot contain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, None]).flatten(1) * (1.0 if x.sum().item() > 0 else 2.0)


@needs_gpu
def test_a_model_that_cannot_be_captured_runs_without() -> None:
    cpu, gpu = (
        Supervised(Waiting, nn.functional.mse_loss, table(), [np.arange(30)], dtype="float64", device=device)
        for device in ("cpu", "cuda")
    )
    x = cpu.start(0).expand(1, 1, 1, -1)
    for t in range(2):
        g = gpu.gradient(x.cuda(), range(1), [0], t).cpu()
        torch.testing.assert_close(g, cpu.gradient(x, range(1), [0], t), rtol=1e-6, atol=1e-9)
    assert isinstance(gpu.executor, OnGpu)
    assert not gpu.executor.capturable
    assert torch.rand(3, device="cuda").isfinite().all()  # torch refuses to draw while it waits for a capture to end


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_models_as_one_array_have_the_gradients_of_each_by_itself(task: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs = rng.normal(size=(60, 5)), 1 if task == "regression" else 3
    labels = rng.normal(size=(60, outputs)) if task == "regression" else rng.integers(0, 2, (60, outputs)).astype(float)
    data = Dataset("rows", inputs, labels, inputs[:5], labels[:5])
    loss = nn.functional.mse_loss if task == "regression" else nn.functional.binary_cross_entropy_with_logits
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs))
    options: Any = {"batch": 4, "dtype": "float64", "loss_scale": 0.5}
    problem = Supervised(module, loss, data, np.array_split(np.arange(60), 3), **options)
    assert isinstance(problem.executor, Stacked)
    x = torch.as_tensor(rng.normal(size=(2, 2, 3, len(problem.start(0)))))
    fast = problem.gradient(x, range(3), [0, 1], 7)
    problem.executor = OneByOne(problem, 1, problem.module, problem.loss_scale, None)
    torch.testing.assert_close(fast, problem.gradient(x, range(3), [0, 1], 7))


def test_models_with_layers_or_losses_that_are_not_known_are_computed_by_torch() -> None:
    inputs = np.random.default_rng(0).normal(size=(20, 5))
    data, shards = Dataset("rows", inputs, inputs[:, :1], inputs[:5], inputs[:5, :1]), [np.arange(20)]
    dropout = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 1))
    frozen = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1))
    frozen[0].requires_grad_(False)
    known = nn.functional.mse_loss
    for module, loss in ((dropout, known), (frozen, known), (nn.Linear(5, 1), nn.functional.l1_loss)):
        assert type(Supervised(module, loss, data, shards, batch=4).executor) is not Stacked
