"""Any torch model and loss, trained on data that is divided among the nodes."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.arrays import checksum
from dnasa.checks import UserCode, choose, positive, warn, whole
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.data.partitions import class_table, label_difference, validation_name
from dnasa.problems.executors import Executor, OneByOne, OnGpu, Stacked
from dnasa.problems.losses import Loss, accuracy, stacked
from dnasa.problems.modules import FlatModule, check_number
from dnasa.problems.noisy import noisy
from dnasa.problems.privacy import Privacy
from dnasa.problems.problem import function_name
from dnasa.problems.sharded import SAMPLE, SEEDING, Sharded, Shards, seeded
from dnasa.problems.shrinkage import Shrinkage
from dnasa.problems.stack import as_stack
from dnasa.randomness import Streams

IGNORED = -100  # the label that torch's losses leave out
DIFFERENT = 0.45  # labels, for a warning about batch norm: 0.3 to 0.5 is dirichlet(0.5), from 0.5 on dirichlet(0.1)
STATISTICS = 16  # batches of each node from which the statistics of batch norm are computed for a test
Augment = Callable[[Tensor, torch.Generator], Tensor]
Batch = Callable[[Tensor], tuple[Tensor, Tensor]]  # the inputs and targets of these rows
Parts = Iterable[tuple[Tensor, float | Tensor]]  # rows, and how much each of them counts in all runs or in each
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
        train_metrics: The training rows that an evaluation measures: True for all, False for none, or a number. Where there are
            more, it is shared equally by the nodes, and each measures the same of its rows every time.
        validation: `validation[i]` are further rows of `data.inputs` that node i validates on: every test metric is also
            measured there, as `validation_loss`, ...; nodes count as in the training, and the loss is that of the training.
        test_loss: What tests measure; by default `loss`.
        privacy: Differential privacy for each training row (docs/privacy.md): each is drawn in a step with probability batch /
            rows, and there are no train metrics.
        shrinkage: A penalty on the weights of the training loss, not on biases; reported losses are without it.
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
        train_metrics: bool | int = SAMPLE,
        validation: Sequence[np.ndarray] = (),
        test_loss: Loss | None = None,
        privacy: Privacy | None = None,
        shrinkage: Shrinkage | None = None,
    ):
        super().__init__(data, shards, batch, dtype, device, validation)
        positive("loss_scale", loss_scale)
        mixed_precision = choose("autocast", str(autocast), {"None": False, "bfloat16": True})
        if privacy is not None:
            privacy.check()
        self.loss_scale, self.augment, self.privacy = loss_scale, augment, privacy
        if not isinstance(train_metrics, bool):
            train_metrics = whole("train_metrics", train_metrics, low=0) >= data.training_rows or train_metrics
        self.train_metrics = train_metrics if privacy is None else False
        self.make: Callable[[], nn.Module] = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        self.augmentation = Streams("augment", rounded=True)
        if isinstance(loss, nn.Module):  # it may hold weights
            loss = copy.deepcopy(loss).to(self.device, self.dtype)
        module = self._seeded(0)
        self.module, point = FlatModule(module, loss, mixed_precision), trained_parameters(module)
        self.layout = self.module.layout
        self.shrinkage = shrinkage
        with seeded(self.device, 0):
            footprint = self._check_model(point)
        inputs, targets = self.test_batch_of(self.row_numbers(np.arange(len(self.test_inputs))[:2]))
        outputs = self.module.outputs(point, inputs)
        self.metrics: dict[str, Loss] = {"test_loss": test_loss or loss}
        ignores_labels = False
        if _are_classes(outputs, targets):
            ignores_labels = self._check_labels(outputs.shape[-1])
            self.metrics["test_accuracy"] = accuracy
        self._add_metrics(metrics or {}, outputs, targets)
        if privacy is None:
            self.executor = self._choose_executor(module, point, footprint, ignores_labels)
        else:
            self.executor = noisy(self, data, point, footprint, self.module, augment)

    def _choose_executor(self, module: nn.Module, point: Tensor, footprint: int, ignores_labels: bool) -> Executor:
        """All models as one array where their layers and the loss are known, since that is faster; otherwise each by itself."""
        loss, stack = stacked(self.module.loss), as_stack(module)
        special = self.module.autocast or self.augment or ignores_labels
        if loss is not None and stack is not None and not special:
            row, _ = self.batch_of(self.row_numbers(np.zeros((1, 1), np.int64)))
            if stack.outputs(point[None], row).ndim == 3:
                return Stacked(self, stack.footprint(point[None], row) * row.element_size(), stack, loss, self.loss_scale)
        kind = OnGpu if self.device.type == "cuda" else OneByOne
        return kind(self, footprint, self.module, self.loss_scale, self._augmented if self.augment else None)

    # ------------------------------------------------------------ checks and identity

    def _check_model(self, point: Tensor) -> int:
        """Try the model on a batch; returns about how many bytes it stores for each row."""
        shard = next(shard for shard in self.shards if len(shard))
        x, y = self.batch_of(self.row_numbers(np.resize(shard, self.batch)))
        if self.augment:
            with UserCode(lambda: "augment(inputs, generator)"):
                changed = self._augmented(x, 0, 0, 0)
            if not isinstance(changed, Tensor) or changed.shape != x.shape or changed.dtype != x.dtype:
                raise InputError(f"augment must return a tensor like its inputs, {tuple(x.shape)}, {x.dtype}.")
            x = changed
        return self.module.check(point, x, y)

    def _check_labels(self, classes: int) -> bool:
        """Refuse labels that have no output; returns whether the loss leaves some labels out."""
        labels = torch.cat([part.memory.flatten() for part in (self.labels, self.test_labels)])
        counted = labels[labels != getattr(self.module.loss, "ignore_index", IGNORED)]
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= classes:
            raise InputError(
                f"Labels run from {low} to {high}, but the model has {classes} outputs: they must be 0 to {classes - 1}."
            )
        if self.module.norms and self.labels.tensor.ndim == 1:
            self._warn_of_batch_norm(classes)
        return len(counted) < len(labels)

    def _warn_of_batch_norm(self, classes: int) -> None:
        """Warn where nodes train with the statistics of different classes; rows in other processes are not looked at."""
        labels = self.labels.tensor.cpu().numpy()
        counted = [shard[labels[shard] >= 0] for shard in self.shards]  # others are ignored by the loss
        if label_difference(class_table(labels, counted, classes)) > DIFFERENT:
            warn(
                "The model has batch norm, and the nodes have different classes: each node normalizes with the statistics of "
                "its own, which can cost accuracy. dnasa.problems.models.replace_batch_norm(model) and --model resnet:16,group "
                "have group norm instead; a trained model keeps its statistics if its batch norm layers are in eval mode."
            )

    def _add_metrics(self, metrics: Mapping[str, Loss], outputs: Tensor, targets: Tensor) -> None:
        taken = sorted({*metrics} & {*self.metrics, "train_loss", "gradient"})
        if taken:
            raise InputError(f"'{taken[0]}' is measured already: give your metric another name.")
        self.metrics |= metrics
        for name, metric in self.metrics.items():
            check_number(f"metric '{name}'", torch.as_tensor(metric(outputs, targets)))

    @cached_property
    def is_weight(self) -> Tensor:
        """1 for each trained parameter that is a weight, 0 for biases; made only for a penalty, since models may be large."""
        kinds = [torch.full((prod(shape),), float(len(shape) > 1)) for _, shape in self.layout]
        return torch.cat(kinds).to(self.device, self.dtype)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the test data, the model and the loss; the nodes' rows may be in other processes."""
        every = np.arange(len(self.test_inputs))
        data = self.test_counts or (self.test_inputs.checksum(every), self.test_labels.checksum(every))
        loss, constants = function_name(self.module.loss), self.module.constants()
        if isinstance(self.module.loss, nn.Module):
            loss, constants = repr(self.module.loss), constants | self.module.loss.state_dict()
        functions = [loss, self.augment and function_name(self.augment)]
        parts = repr((data, self.layout, self.module.tested, self.module.autocast, functions, self.shrinkage))
        common = checksum(parts, *constants.values())
        kind = function_name(self.module.loss)
        return f"supervised, {self.nodes} shards, {self.test_total:,} test rows, loss {kind}, checksum {common}"

    # ------------------------------------------------------------ the model

    def _seeded(self, seed: int) -> nn.Module:
        with SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make()
        if not isinstance(module, nn.Module):
            raise InputError(f"model must be a torch module or a function that makes one, not {type(module).__name__}.")
        return module.to(self.device, self.dtype)

    def start(self, seed: int) -> Tensor:
        return trained_parameters(self._seeded(seed))

    def network(self, point: Tensor, statistics: Tensor | None = None) -> nn.Module:
        """The model with these trained parameters, as it is tested; as `model` of another problem, it keeps the statistics.

        Args:
            point: The trained parameters `(d,)`, such as `result.mean`.
            statistics: Those of batch norm, such as `result.statistics`.
        """
        module = self._seeded(0).eval()
        nn.utils.vector_to_parameters(point, [part for part in module.parameters() if part.requires_grad])
        if self.module.norms and statistics is None:
            raise InputError("A model with batch norm needs its statistics: give result.statistics.")
        if statistics is not None:
            module.load_state_dict(self.module.split_statistics(statistics), strict=False)
        return module

    # ------------------------------------------------------------ training

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        gradient = self.executor.gradient(x, nodes, seeds, t)
        return gradient if self.shrinkage is None else gradient + self.loss_scale * self.shrinkage.gradient(x * self.is_weight)

    def _augmented(self, inputs: Tensor, seed: int, node: int, t: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(int(self.augmentation.states(seed, node, t)[0]))
        return self.augment(inputs, generator)  # type: ignore[misc]

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
            torch.stack([self._node_statistics(point, node, partitions[i % len(partitions)]) for node in nodes]).mean(0)
            for i, point in enumerate(mean.reshape(-1, mean.shape[-1]))
        ]
        return torch.stack(each).view(*mean.shape[:-1], -1)

    def _node_statistics(self, point: Tensor, node: int, seed: int) -> Tensor:
        rows = self.shuffled(node, seed)[: STATISTICS * self.batch]
        return self.module.statistics(point, (self.batch_of(part)[0] for part in self.in_batches(rows)))

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
            weights: How much each of `nodes` counts in training and validation.
            statistics: Those of batch norm, averaged over all nodes.
            seeds: The seeds of the runs, where each has its own shards.
        """
        if statistics is None:
            statistics = self.statistics(mean, nodes, seeds)
        flat = mean.reshape(-1, mean.shape[-1])
        flat_statistics = None if statistics is None else statistics.reshape(len(flat), -1)
        share = len(self.remaining) / (len(nodes) * self.test_total)
        out = self._measure(flat, flat_statistics, [(self.test_rows(nodes), share)], self.test_batch_of, self.metrics)
        if self.validation:
            rows = [self.row_numbers(self.validation[node]) for node in nodes]
            node_weights = np.broadcast_to(1.0 if weights is None else weights, (len(seeds or [0]), len(nodes)))
            of_runs = torch.as_tensor(np.tile(node_weights.T, len(flat) // len(node_weights)), device=flat.device)
            parts = [(part, of_runs[i] / (len(part) * len(nodes))) for i, part in enumerate(rows) if len(part)]
            out["validation_share"] = of_runs.new_zeros(len(flat)) + sum(weight * len(part) for part, weight in parts)
            metrics = self.metrics | {"test_loss": self.module.loss}
            measured = self._measure(flat, flat_statistics, parts, self.batch_of, metrics)
            out |= {validation_name(name): value for name, value in measured.items()}
        if self.train_metrics:
            loss, gradient = self._full_gradient(mean, nodes, weights, seeds or [0])
            out = {"train_loss": loss} | out | {"gradient": gradient}
        return {name: value.view(mean.shape[:-1] + value.shape[1:]) for name, value in out.items()}

    def derived(self, row: dict[str, Any]) -> dict[str, Any]:
        """Averages over the validation rows: nodes without any add nothing to the sums.

        Args:
            row: Averages over all nodes, by name.
        """
        share = row.pop("validation_share", 1.0)
        return {name: value / share if name.startswith("validation_") else value for name, value in row.items()}

    def _full_gradient(
        self, mean: Tensor, nodes: range, weights: Sequence[float] | None, seeds: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """The training loss and its gradient, of the measured rows of each seed."""
        points = mean.reshape(-1, len(seeds), mean.shape[-1])
        node_weights = np.broadcast_to(1.0 if weights is None else weights, (len(seeds), len(nodes)))
        of_seeds = [
            self.executor.full_gradient(points[:, s], [self._measured_rows(node, seed) for node in nodes], node_weights[s])
            for s, seed in enumerate(seeds)
        ]
        losses, gradients = zip(*of_seeds, strict=True)
        gradient = torch.stack(gradients, 1)
        if self.shrinkage is not None:
            gradient = gradient + self.shrinkage.gradient(points * self.is_weight)
        return torch.stack(losses, 1).flatten(), gradient.flatten(0, 1)

    def _measured_rows(self, node: int, seed: int) -> Tensor:
        shard = self.shard(node, seed)
        most = len(shard) if self.train_metrics is True else self.train_metrics // len(self.shards)
        if self.module.norms or most < len(shard):
            return self.shuffled(node, seed)[: max(2, most)]
        return self.row_numbers(shard)

    def _measure(
        self, flat: Tensor, statistics: Tensor | None, parts: Parts, batch_of: Batch, metrics: Mapping[str, Loss]
    ) -> dict[str, Tensor]:
        """The sums of the metrics over the rows of all parts, each of which counts with the weight of its part."""
        totals = {name: flat.new_zeros(len(flat), dtype=torch.float64) for name in metrics}
        for rows, weight in parts:
            for chunk in self.executor.chunks(rows, len(flat)):
                inputs, targets = batch_of(chunk)
                outputs = self.executor.outputs(flat, inputs, statistics)
                for name, metric in metrics.items():
                    totals[name] += weight * len(chunk) * self.executor.measure(metric, outputs, targets)
        return totals


def trained_parameters(module: nn.Module) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in module.parameters() if part.requires_grad])


def _are_classes(outputs: object, targets: Tensor) -> bool:
    """Whether the targets are class numbers, and the outputs have one number for each class."""
    whole = not targets.is_floating_point() and targets.dtype is not torch.bool
    return whole and isinstance(outputs, Tensor) and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1
