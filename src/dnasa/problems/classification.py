"""A model trained on labelled data that is divided among the nodes."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnasa.arrays import checksum
from dnasa.core import Array, InputError, Layout, first_line
from dnasa.data.validation import validation_name
from dnasa.problems.cuda_graphs import CudaGraphs
from dnasa.problems.sharded import Model, Sharded, Shards
from dnasa.problems.stack import as_stack
from dnasa.problems.stored import as_tensor

SMALL = 1 << 28  # bytes of activations up to which launching kernels costs a GPU more than running them


class Classification(Sharded):
    """min (1/n) sum_i mean over node i's rows of the cross-entropy of `model`.

    All models of all nodes and runs are computed together, so the model is a sequence of known layers: linear ones,
    convolutions, activations and pools, all of them trained. `Supervised` takes any model.

    Args:
        model: A function that creates the module, with another initialization for each seed, the same at all nodes; or a
            module whose parameters every seed starts from.
        inputs: The training inputs, a row for each sample.
        labels: Their classes 0, 1, 2, ...
        shards: `shards[i]` are node i's rows (empty where another process holds them), or a function of the seed that returns
            all shards.
        test_inputs: The test inputs.
        test_labels: Their classes.
        batch: Rows that a node draws in each step, with replacement.
        loss_scale: Multiplies the training loss that the rules use (1/n in the paper); reported losses are not scaled.
        dtype: "float32" or "float64".
        device: The torch device, such as "cpu" or "cuda".
        train_metrics: Without them, an evaluation uses the test rows only and needs no pass over the training data.
        validation: `validation[i]` are further rows of `inputs` that node i validates on.
        test_counts: The number of test rows of each node, where every node tests on its own, as in `Dataset`.
        class_weight: Multiplies the training loss of the rows of each class; test and validation metrics have no weights.
    """

    def __init__(
        self,
        model: Model,
        inputs: Array,
        labels: Array,
        shards: Shards,
        test_inputs: Array,
        test_labels: Array,
        batch: int = 32,
        loss_scale: float = 1.0,
        dtype: str = "float32",
        device: str = "cpu",
        train_metrics: bool = True,
        validation: Sequence[np.ndarray] = (),
        test_counts: Sequence[int] = (),
        class_weight: Array | None = None,
    ):
        super().__init__(model, shards, batch, loss_scale, dtype, device, train_metrics, validation, test_counts)
        self.inputs, self.labels = self._tensors(inputs, labels)
        self.test_inputs, self.test_labels = self._tensors(test_inputs, test_labels)
        self._check_rows((len(self.inputs), len(self.labels)), (len(self.test_inputs), len(self.test_labels)))
        self._check_shapes(self.inputs.shape[1:], self.test_inputs.shape[1:])
        self.module = self._seeded(0)
        stack = as_stack(self.module)
        if stack is None:
            raise InputError(
                "Classification takes linear layers, convolutions, activations and pools in sequence, all of them trained, and "
                "this model has others: use dnasa.problems.Supervised with dnasa.problems.supervised.cross_entropy."
            )
        self.stack = stack
        self.replayed = CudaGraphs(self._gradient_of)
        self.footprint, classes = self._try()
        self._check_labels(torch.cat([self.labels, self.test_labels]), classes)
        self.class_weight = None if class_weight is None else torch.as_tensor(class_weight).to(self.device, self.dtype)

    def _tensors(self, inputs: Array, labels: Array) -> tuple[Tensor, Tensor]:
        x, y = as_tensor(inputs), as_tensor(labels)
        x = x.to(self.device, self.dtype if x.is_floating_point() else torch.long)
        return x, y.to(self.device, torch.long)

    def _try(self) -> tuple[int, int]:
        """About how many bytes the gradient of one model at one row needs, and the number of classes."""
        point, row = self.start(0)[None], self.inputs[None, :1]
        try:
            classes = self.stack.outputs(point, row).shape[-1]
            return self.stack.footprint(point, row) * point.element_size(), classes
        except RuntimeError as error:
            shape = tuple(self.inputs.shape[1:])
            raise InputError(f"This model does not take rows of shape {shape}: {first_line(error)}.") from error

    @cached_property
    def layout(self) -> Layout:
        return tuple((name, tuple(part.shape)) for name, part in self.module.named_parameters())

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the test data and the model; the nodes' rows may be in other processes."""
        kinds = [type(part).__name__ for part in self.module.modules()]
        tests = () if self.test_counts else (self.test_inputs, self.test_labels)
        weights = () if self.class_weight is None else (self.class_weight,)
        common = checksum(repr((self.test_counts, self.layout, kinds)), *tests, *weights)
        return f"classification, {self.nodes} shards, {self.test_total:,} test rows, checksum {common}"

    def _checksum_of(self, rows: np.ndarray, tests: np.ndarray) -> str:
        own_tests = (self.test_inputs[tests], self.test_labels[tests]) if len(tests) else ()
        return checksum(self.inputs[rows], self.labels[rows], *own_tests)

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        rows = self._drawn(nodes, seeds, t)
        if x.is_cuda and x.dim() > 3 and self.stack.shares:
            runs = x.flatten(0, -4).movedim(0, -2)  # runs with the same rows next to each other
            g = self._all_gradients(runs.reshape(-1, x.shape[-1]), rows.reshape(-1, self.batch))
            return g.view(runs.shape).movedim(-2, 0).reshape(x.shape)
        rows = rows.expand(*x.shape[:-1], -1).reshape(-1, self.batch)
        return self._all_gradients(x.reshape(-1, x.shape[-1]), rows).view_as(x)

    def _all_gradients(self, flat: Tensor, rows: Tensor) -> Tensor:
        """The gradients of all models. Each has its own rows, or equally many consecutive models share them."""
        sharing = len(flat) // len(rows)
        chunk = max(1, self._models_at_once(self.batch) // sharing)
        parts = [self._gradient(*part) for part in zip(flat.split(chunk * sharing), rows.split(chunk), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        small = len(flat) * self.batch * self.footprint <= SMALL
        return self.replayed(flat, rows).clone() if flat.is_cuda and small else self._gradient_of(flat, rows)

    def _gradient_of(self, flat: Tensor, rows: Tensor) -> Tensor:
        labels = self.labels[rows].repeat_interleave(len(flat) // len(rows), 0)
        weight = self._weighted(self.loss_scale / self.batch, labels)
        return self.stack.gradient(flat, self.inputs[rows], lambda outputs: slopes(outputs, labels, weight))

    def _weighted(self, weight: Any, labels: Tensor) -> Any:
        """How much the loss of a row counts, a number for all or one for each."""
        return weight if self.class_weight is None else weight * self.class_weight[labels]

    def evaluate(
        self,
        mean: Tensor,
        nodes: range,
        weights: Sequence[float] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """Nodes count the same, however many rows they have; test metrics are those on the nodes' part of the test rows.

        Args:
            mean: The mean iterates, `(variants, seeds, d)`.
            nodes: The nodes to average over.
            weights: How much each of `nodes` counts in the training loss.
            seeds: The seeds of the runs, where each has its own shards.
        """
        flat = mean.reshape(-1, mean.shape[-1])
        names = ("test_loss", "test_accuracy")
        out = dict(zip(names, self._test(flat, nodes), strict=True))
        if self.validation:
            out |= dict(zip(map(validation_name, names), self._validate(flat, nodes), strict=True))
        out = {name: value.view(mean.shape[:-1]) for name, value in out.items()}
        if not self.train_metrics:
            return out
        if seeds is None:
            loss, gradient = self._train(flat, nodes, self._node_weights(weights, nodes)[0], 0)
        else:
            own = self._node_weights(weights, nodes, seeds)
            each = [self._train(mean[:, s], nodes, own[s], seed) for s, seed in enumerate(seeds)]
            loss, gradient = (torch.stack(column, 1) for column in zip(*each, strict=True))
        return {"train_loss": loss.view(mean.shape[:-1])} | out | {"gradient": gradient.view_as(mean)}

    def _train(self, flat: Tensor, nodes: range, weights: Sequence[float], seed: int) -> tuple[Tensor, Tensor]:
        shards = [self._own(node, seed) for node in nodes]
        rows = torch.as_tensor(np.concatenate(shards)).to(self.device)
        factors = [w / (len(shard) * len(nodes)) for shard, w in zip(shards, weights, strict=True)]
        each = torch.as_tensor(np.repeat(factors, [len(shard) for shard in shards])).to(self.device, self.dtype)
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        for part in self._chunks(torch.arange(len(rows), device=self.device), len(flat)):
            x, y = self.inputs[rows[part]], self.labels[rows[part]]
            at_outputs = partial(_add_losses, loss, _for_each(flat, y), self._weighted(each[part], y))
            gradient += self.stack.gradient(flat, _for_each(flat, x), at_outputs)
        return loss, gradient

    def _test(self, flat: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = self._test_rows(nodes)
        each = torch.ones(len(rows), dtype=self.dtype, device=self.device)
        loss, accuracy = self._measure(flat, self.test_inputs, self.test_labels, rows, each)
        scale = len(self.remaining) / (len(nodes) * self.test_total)
        return loss * scale, accuracy * scale

    def _validate(self, flat: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows, weights = self._validation_rows(nodes)
        return self._measure(flat, self.inputs, self.labels, rows, weights)

    def _measure(
        self, flat: Tensor, inputs: Tensor, labels: Tensor, rows: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weighted sums of the rows' losses and of those that are classified correctly."""
        loss, correct = (flat.new_zeros(len(flat), dtype=torch.float64) for _ in range(2))
        for part in self._chunks(torch.arange(len(rows), device=self.device), len(flat)):
            x, y = _for_each(flat, inputs[rows[part]]), _for_each(flat, labels[rows[part]])
            logits = self.stack.outputs(flat, x)
            loss += (cross_entropies(logits, y) * weights[part]).sum(1)
            correct += ((logits.argmax(-1) == y) * weights[part]).sum(1)
        return loss, correct

    def accuracies(self, x: Tensor) -> Tensor:
        """The test accuracy of every model, such as that of each node.

        Args:
            x: The parameters of the models, `(..., d)`.
        """
        self._check_all_test_rows()
        parts = x.reshape(-1, x.shape[-1]).split(self._models_at_once(64))
        return torch.cat([self._test(part, self.remaining)[1] for part in parts]).view(x.shape[:-1])


def _for_each(flat: Tensor, rows: Tensor) -> Tensor:
    """The same rows for each model, as a view."""
    return rows.expand(len(flat), *rows.shape)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """(R, b): the loss of every row of every model."""
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


def slopes(logits: Tensor, labels: Tensor, weight: float | Tensor) -> Tensor:
    """The gradients at the logits of the weighted sums of all rows' losses."""
    slope = torch.softmax(logits, -1)
    slope.scatter_add_(-1, labels[..., None], slope.new_full((*labels.shape, 1), -1.0))
    return slope * (weight if isinstance(weight, float) else weight[..., None])


def _add_losses(total: Tensor, labels: Tensor, weight: Tensor, logits: Tensor) -> Tensor:
    """Add each model's loss to its total; returns the slopes."""
    total += (cross_entropies(logits, labels) * weight).sum(1)
    return slopes(logits, labels, weight)
