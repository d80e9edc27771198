"""Any torch model and loss, trained on data that is divided among the nodes."""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.arrays import checksum
from dnasa.checks import UserCode, choose, positive
from dnasa.core import InputError, Layout
from dnasa.data import Dataset
from dnasa.data.partitions import class_table, label_difference, validation_name
from dnasa.problems.cuda_graphs import CudaGraphs
from dnasa.problems.losses import Loss, accuracy, stacked
from dnasa.problems.modules import FlatModule, check_number
from dnasa.problems.problem import function_name
from dnasa.problems.sharded import SEEDING, Sharded, Shards, seeded
from dnasa.problems.stack import Stack, as_stack
from dnasa.randomness import Streams

BUDGET = {"cpu": 1 << 29, "cuda": 1 << 34}  # bytes of activations in memory at a time
MAX_ROWS = 4096  # evaluated at a time
SMALL = 1 << 28  # bytes of activations up to which launching kernels costs a GPU more than running them
IGNORED = -100  # the label that torch's losses leave out
DIFFERENT = 0.45  # labels, for a warning about batch norm: 0.3 to 0.5 is dirichlet(0.5), from 0.5 on dirichlet(0.1)
STATISTICS = 16  # batches of each node from which the statistics of batch norm are computed for a test
Augment = Callable[[Tensor, torch.Generator], Tensor]
Batch = Callable[[Tensor], tuple[Tensor, Tensor]]  # the inputs and targets of these rows
Model = Callable[[], nn.Module] | nn.Module


class Supervised(Sharded):
    """min (1/n) sum_i mean over node i's rows of `loss(model(inputs), targets)`, the mean over a batch.

    Models of linear layers, convolutions, activations and pools in sequence, with a loss that `problems.losses` knows, are
    computed together, those of all nodes and runs; others one by one.

    Parameters with `requires_grad=False` are not trained; these, and buffers, are those of the first module created. Inputs of
    type uint8 are images: x becomes (x / 255 - 0.5) / 0.25. Batch norm trains with the statistics of the batch, and is tested
    with statistics of the mean model, averaged over the nodes. Batches, augmentation and dropout depend on (seed, node, step)
    alone; on a GPU, dropout also depends on which nodes and runs are computed together.

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
        loss_scale: Multiplies the training loss that the rules use (1/n in the paper); reported losses are not scaled.
        dtype: "float32" or "float64".
        device: The torch device, such as "cpu" or "cuda".
        autocast: "bfloat16" computes in mixed precision.
        train_metrics: Without them, an evaluation needs no pass over the training data.
        validation: `validation[i]` are further rows of `data.inputs` that node i validates on: every test metric is also
            measured there, as `validation_loss`, ..., averaged over the nodes, which count the same.
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
        loss_scale: float = 1.0,
        dtype: str = "float32",
        device: str = "cpu",
        autocast: str | None = None,
        train_metrics: bool = True,
        validation: Sequence[np.ndarray] = (),
        test_loss: Loss | None = None,
    ):
        super().__init__(data, shards, batch, dtype, device, validation)
        positive("loss_scale", loss_scale)
        mixed_precision = choose("autocast", str(autocast), {"None": False, "bfloat16": True})
        self.loss_scale, self.augment, self.train_metrics = loss_scale, augment, train_metrics
        self.make: Callable[[], nn.Module] = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        self.dropout = Streams("dropout", rounded=True)
        self.changes = Streams("augment", rounded=True)
        self.order = Streams("order")
        if isinstance(loss, nn.Module):  # it may hold weights
            loss = copy.deepcopy(loss).to(self.device, self.dtype)
        self.module = FlatModule(self._seeded(0), loss, mixed_precision)
        self.measures = {"test_loss": test_loss or loss} | self._check_model()
        self._add_metrics(metrics or {})
        self.stack = self._stack()
        self.replayed = CudaGraphs(self._many_on_gpu if self.stack is None else self._stack_gradient)
        self.capturable = True

    # ------------------------------------------------------------ checks and identity

    def _check_model(self) -> dict[str, Loss]:
        """Try the model on a batch; returns the accuracy where it is defined."""
        shard = next(shard for shard in self.shards if len(shard))
        x, y = self._batch(self._numbers(np.resize(shard, self.batch)))
        with seeded(self.device, 0):
            self.footprint = self.module.check(self.start(0), self._checked_augment(x), y)
        outputs = self.module.outputs(self.start(0), x, self._no_statistics())
        self.ignores = False  # whether the loss leaves some labels out
        whole = not y.is_floating_point() and y.dtype is not torch.bool
        if not (whole and isinstance(outputs, Tensor) and outputs.shape[:-1] == y.shape and outputs.shape[-1] > 1):
            return {}
        labels = torch.cat([part.memory.flatten() for part in (self.labels, self.test_labels)])
        counted = labels[labels != getattr(self.module.loss, "ignore_index", IGNORED)]
        low, high, classes = int(counted.min()), int(counted.max()), outputs.shape[-1]
        if low < 0 or high >= classes:
            raise InputError(
                f"Labels run from {low} to {high}, but the model has {classes} outputs: they must be 0 to {classes - 1}."
            )
        self.ignores = len(counted) < len(labels)
        if self.module.norms and y.ndim == 1:
            self._warn_of_batch_norm(classes)
        return {"test_accuracy": accuracy}

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

    def _checked_augment(self, inputs: Tensor) -> Tensor:
        with UserCode(lambda: "augment(inputs, generator)"):
            changed = self._augmented(inputs, 0, 0, 0)
        if not isinstance(changed, Tensor) or changed.shape != inputs.shape or changed.dtype != inputs.dtype:
            raise InputError(f"augment must return a tensor like its inputs, {tuple(inputs.shape)}, {inputs.dtype}.")
        return changed

    def _add_metrics(self, metrics: Mapping[str, Loss]) -> None:
        if already := sorted({*metrics} & {*self.measures, "train_loss", "gradient"}):
            raise InputError(f"'{already[0]}' is measured already: give your metric another name.")
        self.measures |= metrics
        x, y = self._test_batch(torch.arange(min(2, len(self.test_inputs)), device=self.device))
        outputs = self.module.outputs(self.start(0), x, self._no_statistics())
        for name, measure in self.measures.items():
            check_number(f"metric '{name}'", torch.as_tensor(measure(outputs, y)))

    def _no_statistics(self) -> Tensor:
        return torch.ones(sum(self.module.statistic_sizes.values()), dtype=self.dtype, device=self.device)

    def _stack(self) -> Stack | None:
        """Many models with known layers and a known loss are faster as one array."""
        self.stacked_loss = stacked(self.module.loss)
        if self.stacked_loss is None or self.module.autocast or self.augment or self.ignores:
            return None
        stack, row = as_stack(self._seeded(0)), self._batch(torch.zeros(1, 1, dtype=torch.long, device=self.device))[0]
        if stack is None or stack.outputs(self.start(0)[None], row).ndim != 3:
            return None
        self.footprint = stack.footprint(self.start(0)[None], row) * row.element_size()
        return stack

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
        parts = repr((data, self.layout, self.module.tested, self.module.autocast, names))
        common = checksum(parts, *constants.values())
        return f"supervised, {self.nodes} shards, {self.test_total:,} test rows, checksum {common}"

    # ------------------------------------------------------------ the model

    def _seeded(self, seed: int) -> nn.Module:
        with SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make()
        if not isinstance(module, nn.Module):
            raise InputError(f"model must be a torch module or a function that makes one, not {type(module).__name__}.")
        return module.to(self.device, self.dtype)

    def start(self, seed: int) -> Tensor:
        trained = [part for part in self._seeded(seed).parameters() if part.requires_grad]
        return torch.cat([part.detach().reshape(-1) for part in trained])

    def network(self, point: Tensor, statistics: Tensor | None = None) -> nn.Module:
        """The model with these trained parameters, as it is tested.

        Args:
            point: The trained parameters `(d,)`, such as `result.mean`.
            statistics: Those of batch norm, such as `result.statistics`.
        """
        module, sizes = self._seeded(0).eval(), self.module.statistic_sizes
        nn.utils.vector_to_parameters(point, [part for part in module.parameters() if part.requires_grad])
        if sizes and statistics is None:
            raise InputError("A model with batch norm needs its statistics: give result.statistics.")
        if statistics is not None:
            pieces = statistics.split(list(sizes.values()))
            module.load_state_dict(dict(zip(sizes, pieces, strict=True)), strict=False)
        return module

    def _models_at_once(self, rows: int) -> int:
        """How many models with `rows` rows each fit into the budget."""
        return max(1, BUDGET[self.device.type] // (self.footprint * rows))

    def _chunks(self, rows: Tensor, models: int = 1) -> Sequence[Tensor]:
        """Split rows into as many at a time as fit into the budget for that many models."""
        return rows.split(min(MAX_ROWS, self._models_at_once(models))) if len(rows) else ()

    # ------------------------------------------------------------ training

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        rows = self._drawn(nodes, seeds, t)
        if self.stack is None:
            return self._one_model_each(x.reshape(-1, x.shape[-1]), rows, nodes, seeds, t).view_as(x)
        if x.is_cuda and x.dim() > 3 and self.stack.shares:
            runs = x.flatten(0, -4).movedim(0, -2)  # runs with the same rows next to each other
            g = self._stacked(runs.reshape(-1, x.shape[-1]), rows.reshape(-1, self.batch))
            return g.view(runs.shape).movedim(-2, 0).reshape(x.shape)
        rows = rows.expand(*x.shape[:-1], -1).reshape(-1, self.batch)
        return self._stacked(x.reshape(-1, x.shape[-1]), rows).view_as(x)

    def _stacked(self, flat: Tensor, rows: Tensor) -> Tensor:
        """The gradients of all models. Each has its own rows, or equally many consecutive models share them."""
        sharing = len(flat) // len(rows)
        chunk = max(1, self._models_at_once(self.batch) // sharing)
        small = flat.is_cuda and min(len(flat), chunk * sharing) * self.batch * self.footprint <= SMALL
        parts = zip(flat.split(chunk * sharing), rows.split(chunk), strict=True)
        done = [self.replayed(*part).clone() if small else self._stack_gradient(*part) for part in parts]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _stack_gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        inputs, targets = self._batch(rows)
        y = targets.repeat_interleave(len(flat) // len(rows), 0)
        weight = self.loss_scale / y[0].numel()
        return self.stack.gradient(flat, inputs, lambda outputs: self.stacked_loss.gradient(outputs, y, weight))  # type: ignore[union-attr]

    def _one_model_each(self, flat: Tensor, rows: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        inputs, targets = self._batch(rows.flatten(0, 1))
        if self.augment:
            pairs = ((seed, node) for seed in seeds for node in nodes)
            changed = [self._augmented(batch, *pair, t) for batch, pair in zip(inputs, pairs, strict=True)]
            inputs = torch.stack(changed)
        keys = [int(words[0]) for seed in seeds for words in self.dropout.states(seed, np.asarray(nodes, np.uint64), t)]
        return (self._on_gpu if flat.is_cuda else self._one_by_one)(flat, inputs, targets, keys)

    def _augmented(self, inputs: Tensor, seed: int, node: int, t: int) -> Tensor:
        if not self.augment:
            return inputs
        generator = torch.Generator(self.device).manual_seed(int(self.changes.states(seed, node, t)[0]))
        return self.augment(inputs, generator)

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
        if self.capturable:
            try:
                with seeded(self.device, key):
                    self.replayed.prepare(flat, x, y)
            except RuntimeError:  # such as a forward pass that waits for the GPU
                self.capturable = False
        with seeded(self.device, key):  # again: capturing draws random numbers too
            return self.replayed(flat, x, y).clone() if self.capturable else self._many_on_gpu(flat, x, y)

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
        if not self.module.norms:
            return None
        partitions = seeds or [0]
        each = [
            torch.stack([self._statistics_of(point, node, partitions[i % len(partitions)]) for node in nodes]).mean(0)
            for i, point in enumerate(mean.reshape(-1, mean.shape[-1]))
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
        if statistics is None:
            statistics = self.statistics(mean, nodes, seeds)
        partitions = seeds or [0]
        points = mean.reshape(-1, len(partitions), mean.shape[-1])
        if statistics is None:
            statistics = self._no_statistics().expand(*points.shape[:2], -1)
        statistics = statistics.reshape(*points.shape[:2], -1)
        node_weights = np.broadcast_to(1.0 if weights is None else weights, (len(partitions), len(nodes)))
        each = [
            self._evaluated(points[:, s], statistics[:, s], nodes, node_weights[s], seed) for s, seed in enumerate(partitions)
        ]
        columns = {name: torch.stack([part[name] for part in each], 1) for name in each[0]}
        return {name: column.view(mean.shape[:-1] + column.shape[2:]) for name, column in columns.items()}

    def _evaluated(self, flat: Tensor, statistics: Tensor, nodes: range, weights: np.ndarray, seed: int) -> dict[str, Tensor]:
        """The metrics of the models in the partition of this seed."""
        scale = len(self.remaining) / (len(nodes) * self.test_total)
        out = self._measured(flat, statistics, [(self._test_rows(nodes), scale)], self._test_batch)
        if self.validation:
            rows = [self._numbers(self.validation[node]) for node in nodes]
            parts = [(part, 1 / (len(part) * len(nodes))) for part in rows if len(part)]
            measured = self._measured(flat, statistics, parts, self._batch)
            out |= {validation_name(name): value for name, value in measured.items()}
        if not self.train_metrics:
            return out
        loss, gradient = (self._train if self.stack is None else self._train_stack)(flat, nodes, weights, seed)
        return {"train_loss": loss} | out | {"gradient": gradient}

    def _measured(
        self, flat: Tensor, statistics: Tensor, parts: Iterable[tuple[Tensor, float]], batch: Batch
    ) -> dict[str, Tensor]:
        """The sums of the measures over the rows of all parts, each of which counts with the weight of its part."""
        totals = {name: flat.new_zeros(len(flat), dtype=torch.float64) for name in self.measures}
        for rows, weight in parts:
            for part in self._chunks(rows, len(flat) if self.stack else 1):
                x, y = batch(part)
                outputs = self._outputs(flat, x, statistics)
                for name, measure in self.measures.items():
                    totals[name] += weight * len(part) * self._each(measure, outputs, y)
        return totals

    def _each(self, measure: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
        """The measure of each model's outputs, (R,); for many models at once where there is a formula."""
        if self.stack is not None and measure is accuracy:
            return (outputs.argmax(-1) == targets).double().mean(1)
        if self.stack is not None and (known := stacked(measure)) is not None:
            return known.total(outputs, targets.expand(len(outputs), *targets.shape)) / targets.numel()
        return torch.stack([torch.as_tensor(measure(one, targets), device=outputs.device) for one in outputs])

    def _outputs(self, flat: Tensor, x: Tensor, statistics: Tensor) -> Tensor:
        """The outputs of all models on the same rows."""
        if self.stack is not None:
            return self.stack.outputs(flat, x.expand(len(flat), *x.shape))
        return torch.stack([self.module.outputs(point, x, its) for point, its in zip(flat, statistics, strict=True)])

    def _train(self, flat: Tensor, nodes: range, weights: np.ndarray, seed: int) -> tuple[Tensor, Tensor]:
        loss = flat.new_zeros(len(flat), dtype=torch.float64)
        gradient, part_of = torch.zeros_like(flat), torch.empty_like(flat[0])
        for node, weight in zip(nodes, weights, strict=True):
            rows = self._shuffled(node, seed)
            for part in self._in_batches(rows) if self.module.norms else self._chunks(rows):
                share, batch = float(weight) * len(part) / (len(rows) * len(nodes)), self._batch(part)
                for i, point in enumerate(flat):
                    loss[i] += share * self.module.gradient(point, *batch, part_of, dropout=False)
                    gradient[i] += share * part_of
        return loss, gradient

    def _train_stack(self, flat: Tensor, nodes: range, weights: np.ndarray, seed: int) -> tuple[Tensor, Tensor]:
        shards = [self._own(node, seed) for node in nodes]
        rows = self._numbers(np.concatenate(shards))
        factors = [w / (len(shard) * len(nodes)) for shard, w in zip(shards, weights, strict=True)]
        each = torch.as_tensor(np.repeat(factors, [len(shard) for shard in shards])).to(self.device, self.dtype)
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        for part in self._chunks(torch.arange(len(rows), device=self.device), len(flat)):
            x, y = (a.expand(len(flat), *a.shape) for a in self._batch(rows[part]))
            at_outputs = partial(self._add_losses, loss, y, each[part] / y[0, 0].numel())
            gradient += self.stack.gradient(flat, x, at_outputs)  # type: ignore[union-attr]
        return loss, gradient

    def _add_losses(self, total: Tensor, targets: Tensor, weight: Tensor, outputs: Tensor) -> Tensor:
        """Add each model's loss to its total; returns the slopes."""
        total += self.stacked_loss.total(outputs, targets, weight)  # type: ignore[union-attr]
        return self.stacked_loss.gradient(outputs, targets, weight)  # type: ignore[union-attr]

    def _shuffled(self, node: int, seed: int = 0) -> Tensor:
        """A node's rows in an order that is always the same."""
        rows = self.order.at(0, node, 0).permutation(self._own(node, seed))
        return self._numbers(np.resize(rows, max(2, len(rows))))  # batch norm needs two rows

    def _in_batches(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows into batches of at least `batch` if possible: statistics of fewer rows would differ from training."""
        return rows.tensor_split(max(1, len(rows) // self.batch))
