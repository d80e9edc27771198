"""Any torch model and loss, trained on data that is divided among the nodes."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.arrays import checksum
from dnasa.core import InputError, Layout, choose, first_line
from dnasa.data import Dataset, class_table
from dnasa.data.partitions import label_difference
from dnasa.data.validation import validation_name
from dnasa.problems.cuda_graphs import CudaGraphs
from dnasa.problems.modules import FlatModule, Loss, check_number
from dnasa.problems.problem import function_name
from dnasa.problems.sharded import Model, Sharded, Shards, seeded
from dnasa.problems.stack import Stack, as_stack
from dnasa.problems.stored import DeviceRows, as_inputs, as_targets
from dnasa.randomness import Streams

IGNORED = -100  # the label that torch's losses leave out
DIFFERENT = 0.45  # labels, for a warning about batch norm: 0.3 to 0.5 is dirichlet(0.5), from 0.5 on dirichlet(0.1)
STATISTICS = 16  # batches of each node from which the statistics of batch norm are computed for a test
MEASURED = (
    *("train_loss", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy"),
    *("gradient", "grad_norm", "stationarity", "tracking"),
)
SLOPES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {  # the derivatives of losses that are means over all outputs
    nn.functional.mse_loss: lambda outputs, targets: 2 * (outputs - targets),
    nn.functional.binary_cross_entropy_with_logits: lambda outputs, targets: outputs.sigmoid() - targets,
}
Augment = Callable[[Tensor, torch.Generator], Tensor]
Batch = Callable[[Tensor], tuple[Tensor, Tensor]]  # the inputs and targets of these rows


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all targets, class numbers; the last axis of the outputs is that of the classes."""
    return nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


class WeightedCrossEntropy(nn.Module):
    """The mean over all rows of a row's cross-entropy times the weight of its class."""

    weight: Tensor

    def __init__(self, weight: np.ndarray):
        super().__init__()
        self.register_buffer("weight", torch.as_tensor(weight))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, self.weight, reduction="none").mean()


class Supervised(Sharded):
    """min (1/n) sum_i mean over node i's rows of `loss(model(inputs), targets)`, the mean over a batch.

    Parameters with `requires_grad=False` are not trained; these, and buffers, are those of the first module created. Inputs of
    type uint8 are images: x becomes (x / 255 - 0.5) / 0.25. Batch norm trains with the statistics of the batch. Batches,
    augmentation and dropout depend on (seed, node, step) alone; on a GPU, dropout also depends on which nodes and runs are
    computed together.

    Args:
        model: A function that creates the module, with another initialization for each seed, the same at all nodes; or a
            module whose parameters every seed starts from.
        loss: A function of (outputs, targets), the mean over a batch.
        data: The training and test rows.
        shards: `shards[i]` are node i's rows (empty where another process holds them), or a function of the seed that returns
            all shards.
        batch: Rows that a node draws in each step, with replacement.
        augment: `augment(inputs, generator)` changes the inputs of a training batch.
        metrics: Functions of (outputs, targets) by name, averaged over the test rows.
        buffers: The batch norm statistics for tests: computed at the mean model from training rows of each node and averaged
            over the nodes ("mixed"), or each node tests with its own and the metrics are averaged ("local").
        loss_scale: Multiplies the training loss that the rules use; reported losses are not scaled.
        dtype: "float32" or "float64".
        device: The torch device, such as "cpu" or "cuda".
        autocast: "bfloat16" computes in mixed precision.
        train_metrics: Without them, an evaluation needs no pass over the training data.
        validation: `validation[i]` are further rows of `data.inputs` that node i validates on.
        test_loss: What tests and validation measure; by default `loss`.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        data: Dataset,
        shards: Shards,
        batch: int = 32,
        augment: Augment | None = None,
        metrics: Mapping[str, Loss] | None = None,
        buffers: str = "mixed",
        loss_scale: float = 1.0,
        dtype: str = "float32",
        device: str = "cpu",
        autocast: str | None = None,
        train_metrics: bool = True,
        validation: Sequence[np.ndarray] = (),
        test_loss: Loss | None = None,
    ):
        counts = data.test_counts if isinstance(data, Dataset) else ()
        super().__init__(model, shards, batch, loss_scale, dtype, device, train_metrics, validation, counts)
        self.local_buffers = choose("buffers", buffers, {"mixed": False, "local": True})
        mixed_precision = choose("autocast", str(autocast), {"None": False, "bfloat16": True})
        if not isinstance(data, Dataset):
            raise InputError(f"data must be a dnasa.data.Dataset, not {type(data).__name__}.")
        if self.local_buffers and self.test_counts:
            raise InputError('buffers="local" tests on all test rows, and here each node has its own: use "mixed".')
        self.augment, self.baseline = augment, data.baseline
        self.inputs, self.labels = self._stored("inputs", data.inputs), self._stored("labels", data.labels)
        self.test_inputs = self._stored("test_inputs", data.test_inputs)
        self.test_labels = self._stored("test_labels", data.test_labels)
        self._check_rows((len(self.inputs), len(self.labels)), (len(self.test_inputs), len(self.test_labels)))
        self._check_shapes(self.inputs.shape, self.test_inputs.shape)
        self.dropout = Streams("dropout", rounded=True)
        self.changes = Streams("augment", rounded=True)
        self.order = Streams("order")
        if isinstance(loss, nn.Module):  # it may hold weights
            loss = copy.deepcopy(loss).to(self.device, self.dtype)
        self.module = FlatModule(self._seeded(0), loss, mixed_precision)
        point = self.start(0)
        self.measures = {"test_loss": test_loss or loss} | self._check_model(point) | _checked_names(metrics or {})
        self._check_measures(point)
        self.stack = self._stack()
        self.replayed = CudaGraphs(self._many_on_gpu)
        self.capturable = True

    def _stored(self, name: str, array: np.ndarray) -> DeviceRows:
        return DeviceRows(name, array, self.device, self.dtype)

    # ------------------------------------------------------------ checks and identity

    def _check_model(self, point: Tensor) -> dict[str, Loss]:
        """Try the model on a batch; returns the accuracy where it is defined."""
        shard = next(shard for shard in self.shards if len(shard))
        x, y = self._batch(torch.as_tensor(np.resize(shard, self.batch)).to(self.device))
        with seeded(self.device, 0):
            self.footprint = self.module.check(point, self._check_augment(x), y)
        outputs = self.module.outputs(point, x, self._no_statistics())
        if not _are_classes(outputs, y):
            return {}
        labels = torch.cat([part.memory.flatten() for part in (self.labels, self.test_labels)])
        labels = labels[labels != getattr(self.module.loss, "ignore_index", IGNORED)]
        self._check_labels(labels, outputs.shape[-1])
        if self.module.norms and y.ndim == 1:
            self._warn_of_batch_norm(outputs.shape[-1])
        return {"test_accuracy": _accuracy}

    def _warn_of_batch_norm(self, classes: int) -> None:
        """Warn where nodes train with the statistics of different classes; rows in other processes are not looked at."""
        labels = self.labels.tensor.cpu().numpy()
        counted = [shard[labels[shard] >= 0] for shard in self.shards]  # others are ignored by the loss
        if label_difference(class_table(labels, counted, classes)) > DIFFERENT:
            warnings.warn(
                "The model has batch norm, and the nodes have different classes: each node normalizes with the statistics of "
                "its own, which can cost accuracy. dnasa.problems.models.replace_batch_norm(model) and --model resnet:16,group "
                "have group norm instead.",
                stacklevel=4,
            )

    def _stack(self) -> Stack | None:
        """Many models with known layers and a known loss are faster as one array."""
        return as_stack(self._seeded(0)) if self.module.loss in SLOPES and not self.module.autocast else None

    def _check_augment(self, inputs: Tensor) -> Tensor:
        """Check that augmented inputs have the shape and dtype of the inputs."""
        try:
            changed = self._augmented(inputs, 0, 0, 0)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(
                f"augment(inputs, generator) fails on {_described(inputs)}: {first_line(error)}."
            ) from error
        if _described(changed) != _described(inputs):
            raise InputError(f"augment returned {_described(changed)} for {_described(inputs)}: return the same kind.")
        return changed

    def _check_measures(self, point: Tensor) -> None:
        x, y = self._test_batch(torch.arange(min(2, len(self.test_inputs)), device=self.device))
        outputs = self.module.outputs(point, x, self._no_statistics())
        for name, measure in self.measures.items():
            value = measure(outputs, y)
            if not isinstance(value, (int, float)):
                check_number(f"metric '{name}'", value)

    def _no_statistics(self) -> Tensor:
        return torch.ones(sum(self.module.statistic_sizes.values()), dtype=self.dtype, device=self.device)

    @cached_property
    def layout(self) -> Layout:
        return self.module.layout

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the test data, the model and the loss; the nodes' rows may be in other processes."""
        every = np.arange(len(self.test_inputs))
        data = self.test_counts or (self.test_inputs.checksum(every), self.test_labels.checksum(every))
        constants, loss = self.module.constants(), self.module.loss
        if isinstance(loss, nn.Module):
            constants |= loss.state_dict()
        names = [
            repr(loss) if isinstance(loss, nn.Module) else function_name(loss),
            self.augment and function_name(self.augment),
        ]
        common = checksum(
            repr((data, self.layout, self.module.tested, self.module.autocast, names)), *constants.values()
        )
        return f"supervised, {self.nodes} shards, {self.test_total:,} test rows, checksum {common}"

    def _checksum_of(self, rows: np.ndarray, tests: np.ndarray) -> str:
        parts = [self.inputs.checksum(rows), self.labels.checksum(rows)]
        if len(tests):
            parts += [self.test_inputs.checksum(tests), self.test_labels.checksum(tests)]
        return " ".join(parts)

    # ------------------------------------------------------------ training

    def network(self, point: Tensor, statistics: Tensor | None = None) -> nn.Module:
        module, sizes = super().network(point), self.module.statistic_sizes
        if sizes and statistics is None:
            raise InputError("A model with batch norm needs its statistics: train it with this version of dnasa.")
        if statistics is not None:
            pieces = statistics.split(list(sizes.values()))
            module.load_state_dict(dict(zip(sizes, pieces, strict=True)), strict=False)
        return module

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        inputs, targets = self._batch(self._drawn(nodes, seeds, t).flatten(0, 1))
        if self.augment:
            pairs = ((seed, node) for seed in seeds for node in nodes)
            changed = [self._augmented(batch, *pair, t) for batch, pair in zip(inputs, pairs, strict=True)]
            inputs = torch.stack(changed)
        if self.stack is not None:
            return self._stacked(x.reshape(-1, x.shape[-1]), inputs, targets).view_as(x)
        keys = [int(words[0]) for seed in seeds for words in self.dropout.states(seed, np.asarray(nodes, np.uint64), t)]
        compute = self._on_gpu if x.is_cuda else self._one_by_one
        return compute(x.reshape(-1, x.shape[-1]), inputs, targets, keys).view_as(x)

    def _batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return as_inputs(self.inputs[rows], self.dtype), as_targets(self.labels[rows])

    def _augmented(self, inputs: Tensor, seed: int, node: int, t: int) -> Tensor:
        if not self.augment:
            return inputs
        generator = torch.Generator(self.device).manual_seed(int(self.changes.states(seed, node, t)[0]))
        return self.augment(inputs, generator)

    def _stacked(self, flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        variants, chunk = len(flat) // len(inputs), self._models_at_once(self.batch)
        x, y = (part.expand(variants, *part.shape).flatten(0, 1) for part in (inputs, targets))
        parts = zip(flat.split(chunk), x.split(chunk), y.split(chunk), strict=True)
        return torch.cat([self._gradients_of_stack(*part) for part in parts])

    def _gradients_of_stack(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        slope, scale = SLOPES[self.module.loss], self.loss_scale / y[0].numel()
        return self.stack.gradient(flat, x, lambda outputs: scale * slope(outputs, y))  # type: ignore[union-attr]

    def _one_by_one(self, flat: Tensor, inputs: Tensor, targets: Tensor, keys: list[int]) -> Tensor:
        """The gradients one by one, so that a node's bits are the same alone and with others."""
        out = torch.empty_like(flat)
        for i, point in enumerate(flat):
            pair = i % len(keys)
            with seeded(self.device, keys[pair]):
                self.module.gradient(point, inputs[pair].clone(), targets[pair].clone(), out[i], self.loss_scale)
        return out

    def _on_gpu(self, flat: Tensor, inputs: Tensor, targets: Tensor, keys: list[int]) -> Tensor:
        variants, chunk = len(flat) // len(keys), self._models_at_once(self.batch)
        x, y = (part.expand(variants, *part.shape).flatten(0, 1) for part in (inputs, targets))
        firsts = range(0, len(flat), chunk)
        parts = zip(flat.split(chunk), x.split(chunk), y.split(chunk), strict=True)
        done = [self._replayed(*part, key=keys[i % len(keys)]) for i, part in zip(firsts, parts, strict=True)]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _replayed(self, flat: Tensor, x: Tensor, y: Tensor, key: int) -> Tensor:
        with seeded(self.device, key):
            self._try_to_capture(flat, x, y)
        with seeded(self.device, key):  # again: capturing draws random numbers too
            return self.replayed(flat, x, y).clone() if self.capturable else self._many_on_gpu(flat, x, y)

    def _try_to_capture(self, *inputs: Tensor) -> None:
        try:
            if self.capturable:
                self.replayed.prepare(*inputs)
        except RuntimeError:  # such as a forward pass that waits for the GPU
            self.capturable = False

    def _many_on_gpu(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.module.gradients_on_streams(flat, x, y, self.loss_scale)

    # ------------------------------------------------------------ evaluation

    def statistics(self, mean: Tensor, nodes: range, seeds: Sequence[int] | None = None) -> Tensor | None:
        """The batch norm statistics of the mean models, averaged over the nodes.

        Args:
            mean: The mean iterates, `(variants, seeds, d)`.
            nodes: The nodes to average over.
            seeds: The seeds of the runs, where each has its own shards.
        """
        if not self.module.norms or self.local_buffers:
            return None
        each = [
            torch.stack([self._statistics_of(point, node, seed) for node in nodes]).mean(0)
            for point, seed in _with_seeds(mean, seeds)
        ]
        return torch.stack(each).view(*mean.shape[:-1], -1)

    def _statistics_of(self, point: Tensor, node: int, seed: int) -> Tensor:
        rows = self._shuffled(node, seed)[: STATISTICS * self.batch]
        return self.module.statistics(point, (self._batch(part)[0] for part in self._in_batches(rows)))

    def evaluate(
        self,
        mean: Tensor,
        nodes: range,
        weights: Sequence[float] | None = None,
        statistics: Tensor | None = None,
        seeds: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """Nodes count the same, however many rows they have; the train loss and its gradient are without dropout.

        Args:
            mean: The mean iterates, `(variants, seeds, d)`.
            nodes: The nodes to average over.
            weights: How much each of `nodes` counts in the training loss.
            statistics: Those of batch norm, averaged over all nodes.
            seeds: The seeds of the runs, where each has its own shards.
        """
        statistics = self.statistics(mean, nodes, seeds) if statistics is None else statistics
        points = _with_seeds(mean, seeds)
        given = [None] * len(points) if statistics is None else statistics.reshape(len(points), -1)
        tested = [self._test(point, nodes, its, seed) for (point, seed), its in zip(points, given, strict=True)]
        out = {name: torch.stack([one[name] for one in tested]).view(mean.shape[:-1]) for name in tested[0]}
        if not self.train_metrics:
            return out
        own = self._node_weights(weights, nodes, seeds)
        own = np.tile(own, (len(points) // len(own), 1))  # of each point
        each = [self._train(point, nodes, its, seed) for (point, seed), its in zip(points, own, strict=True)]
        losses, gradients = (torch.stack(column) for column in zip(*each, strict=True))
        return {"train_loss": losses.view(mean.shape[:-1])} | out | {"gradient": gradients.view_as(mean)}

    def _train(self, point: Tensor, nodes: range, weights: Sequence[float], seed: int) -> tuple[Tensor, Tensor]:
        loss = point.new_zeros((), dtype=torch.float64)
        gradient, part_of = torch.zeros_like(point), torch.empty_like(point)
        for node, weight in zip(nodes, weights, strict=True):
            rows = self._shuffled(node, seed)
            for part in self._in_batches(rows) if self.module.norms else self._chunks(rows):
                share = float(weight) * len(part) / (len(rows) * len(nodes))
                loss += share * self.module.gradient(point, *self._batch(part), part_of, dropout=False)
                gradient += share * part_of
        return loss, gradient

    def _test(self, point: Tensor, nodes: range, statistics: Tensor | None, seed: int) -> dict[str, Tensor]:
        if self.module.norms and self.local_buffers:
            every = torch.arange(self.test_total, device=self.device)
            own = [self._statistics_of(point, node, seed) for node in nodes]
            sums = [self._sums(point, its, every, self._test_batch) for its in own]
            scale = 1 / (len(nodes) * self.test_total)
        else:
            given = self._no_statistics() if statistics is None else statistics
            sums = [self._sums(point, given, self._test_rows(nodes), self._test_batch)]
            scale = len(self.remaining) / (len(nodes) * self.test_total)
        out = {name: scale * torch.stack([one[name] for one in sums]).sum(0) for name in self.measures}
        return out | self._validate(point, nodes, statistics, seed) if self.validation else out

    def _validate(self, point: Tensor, nodes: range, statistics: Tensor | None, seed: int) -> dict[str, Tensor]:
        local = self.module.norms and self.local_buffers
        given = self._no_statistics() if statistics is None else statistics
        out = {name: point.new_zeros((), dtype=torch.float64) for name in self.measures}
        for node in nodes:
            rows = torch.as_tensor(self.validation[node]).to(self.device)
            sums = self._sums(point, self._statistics_of(point, node, seed) if local else given, rows, self._batch)
            out = {name: total + sums[name] / (len(rows) * len(nodes)) for name, total in out.items()}
        return {validation_name(name): value for name, value in out.items()}

    def _sums(self, point: Tensor, statistics: Tensor, rows: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sums of the measures over the rows."""
        totals = {name: point.new_zeros((), dtype=torch.float64) for name in self.measures}
        for part in self._chunks(rows) if len(rows) else ():
            x, y = batch(part)
            outputs = self.module.outputs(point, x, statistics)
            for name, measure in self.measures.items():
                totals[name] += len(part) * measure(outputs, y)
        return totals

    def _test_batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return as_inputs(self.test_inputs[rows], self.dtype), as_targets(self.test_labels[rows])

    def _shuffled(self, node: int, seed: int = 0) -> Tensor:
        """A node's rows in an order that is always the same."""
        rows = self.order.at(0, node, 0).permutation(self._own(node, seed))
        return torch.as_tensor(np.resize(rows, max(2, len(rows)))).to(self.device)  # batch norm needs two rows

    def _in_batches(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows into batches of at least `batch` if possible: statistics of fewer rows would differ from training."""
        return rows.tensor_split(max(1, len(rows) // self.batch))


def _with_seeds(mean: Tensor, seeds: Sequence[int] | None) -> list[tuple[Tensor, int]]:
    """Each point of (variants, seeds, d) with its seed; without seeds, with that of the partition that all share."""
    points = mean.reshape(-1, mean.shape[-1])
    return list(zip(points, cycle(seeds or [0]), strict=False))


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _are_classes(outputs: object, targets: Tensor) -> bool:
    whole = not targets.is_floating_point() and targets.dtype is not torch.bool
    return whole and isinstance(outputs, Tensor) and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).double().mean()


def _checked_names(metrics: Mapping[str, Loss]) -> dict[str, Loss]:
    for name in metrics:
        if name in MEASURED:
            raise InputError(f"'{name}' is measured already: give your metric another name.")
    return dict(metrics)
