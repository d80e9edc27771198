"""How the gradients and outputs of many models are computed: all of them as one array, or each by itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from dnasa.problems.cuda_graphs import CudaGraphs
from dnasa.problems.losses import Loss, StackedLoss, accuracy, stacked
from dnasa.problems.modules import FlatModule
from dnasa.problems.sharded import Sharded, seeded
from dnasa.problems.stack import Stack
from dnasa.randomness import Streams

BUDGET = {"cpu": 1 << 29, "cuda": 1 << 34}  # bytes of activations in memory at a time
MAX_ROWS = 4096  # evaluated at a time
SMALL = 1 << 28  # bytes of activations up to which launching kernels costs a GPU more than running them
LARGE = 3 << 29  # bytes of activations from which a model has a GPU to itself
STREAMS = 4  # on which a GPU computes several models at the same time
AugmentAt = Callable[[Tensor, int, int, int], Tensor]  # the inputs of a batch, changed for this seed, node and step


class Executor(ABC):
    """Computes models whose parameters are the rows of `flat`, `(R, d)`.

    Args:
        data: The rows of the nodes.
        footprint: Bytes of activations that one model stores for each row.
    """

    def __init__(self, data: Sharded, footprint: int):
        self.data, self.footprint = data, footprint
        self.capacity = BUDGET[data.device.type] // footprint  # models times rows at a time

    @abstractmethod
    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        """The stochastic gradients at x `(variants, seeds, nodes, d)`, as in `Problem`."""

    @abstractmethod
    def outputs(self, flat: Tensor, inputs: Tensor, statistics: Tensor | None) -> Tensor:
        """What all models predict for the same inputs, `(R, b, ...)`; `statistics` are those of batch norm."""

    @abstractmethod
    def full_gradient(self, flat: Tensor, shards: Sequence[Tensor], weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """The loss on these rows of each node and its gradient, `(R,)` and `(R, d)`, without dropout and scale."""

    def chunks(self, rows: Tensor, models: int) -> Sequence[Tensor]:
        """Split rows into parts that fit into memory for so many models."""
        return rows.split(min(MAX_ROWS, max(1, self.capacity // models))) if len(rows) else ()

    def measure(self, metric: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of each model's outputs, `(R,)`."""
        return torch.stack([torch.as_tensor(metric(one, targets), device=outputs.device) for one in outputs])


class Stacked(Executor):
    """Models of known layers with a known loss, as one array."""

    def __init__(self, data: Sharded, footprint: int, stack: Stack, loss: StackedLoss, loss_scale: float):
        super().__init__(data, footprint)
        self.stack, self.loss, self.loss_scale = stack, loss, loss_scale
        self.graphs = CudaGraphs(self._batch_gradient)

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        batch, models = self.data.batch, max(1, self.capacity // self.data.batch)
        rows = self.data.drawn(nodes, seeds, t).expand(*x.shape[:-1], batch).reshape(-1, batch)
        parts = zip(x.reshape(-1, x.shape[-1]).split(models), rows.split(models), strict=True)
        gradients = [self._part(*part) for part in parts]
        return (gradients[0] if len(gradients) == 1 else torch.cat(gradients)).view_as(x)

    def _part(self, flat: Tensor, rows: Tensor) -> Tensor:
        if flat.is_cuda and len(flat) * self.data.batch * self.footprint <= SMALL:
            return self.graphs(flat, rows).clone()
        return self._batch_gradient(flat, rows)

    def _batch_gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        inputs, targets = self.data.batch_of(rows)
        slopes = partial(self.loss.gradient, targets=targets, weight=self.loss_scale / targets[0].numel())
        return self.stack.gradient(flat, inputs, slopes)[0]

    def outputs(self, flat: Tensor, inputs: Tensor, statistics: Tensor | None) -> Tensor:
        return self.stack.outputs(flat, inputs.expand(len(flat), *inputs.shape))

    def measure(self, metric: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
        if metric is accuracy:
            return (outputs.argmax(-1) == targets).double().mean(1)
        known = stacked(metric)
        if known is None:
            return super().measure(metric, outputs, targets)
        return known.total(outputs, targets.expand(len(outputs), *targets.shape)) / targets.numel()

    def full_gradient(self, flat: Tensor, shards: Sequence[Tensor], weights: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = torch.cat(list(shards))
        factors = [weight / (len(shard) * len(shards)) for shard, weight in zip(shards, weights, strict=True)]
        row_weights = torch.as_tensor(np.repeat(factors, [len(shard) for shard in shards])).to(flat)
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        chunks = zip(self.chunks(rows, len(flat)), self.chunks(row_weights, len(flat)), strict=True)
        for chunk, chunk_weights in chunks:
            inputs, targets = (each.expand(len(flat), *each.shape) for each in self.data.batch_of(chunk))
            weight = chunk_weights / targets[0, 0].numel()
            g, outputs = self.stack.gradient(flat, inputs, partial(self.loss.gradient, targets=targets, weight=weight))
            loss += self.loss.total(outputs, targets, weight)
            gradient += g
        return loss, gradient


class OneByOne(Executor):
    """Any model and loss, through autograd, one model after the other: a node's bits are the same alone and with others."""

    def __init__(self, data: Sharded, footprint: int, module: FlatModule, loss_scale: float, augment: AugmentAt | None):
        super().__init__(data, footprint)
        self.module, self.loss_scale, self.augment = module, loss_scale, augment
        self.dropout = Streams("dropout", rounded=True)

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        inputs, targets = self.data.batch_of(self.data.drawn(nodes, seeds, t).flatten(0, 1))
        if self.augment:
            pairs = [(seed, node) for seed in seeds for node in nodes]
            inputs = torch.stack([self.augment(batch, *pair, t) for batch, pair in zip(inputs, pairs, strict=True)])
        keys = [int(words[0]) for seed in seeds for words in self.dropout.states(seed, np.asarray(nodes, np.uint64), t)]
        return self._gradients(x.reshape(-1, x.shape[-1]), inputs, targets, keys).view_as(x)

    def _gradients(self, flat: Tensor, inputs: Tensor, targets: Tensor, keys: list[int]) -> Tensor:
        """There is a batch, and a key of its dropout, for each seed and node; all variants use them."""
        out = torch.empty_like(flat)
        for i, point in enumerate(flat):
            pair = i % len(keys)
            with seeded(self.data.device, keys[pair]):
                self.module.gradient(point, inputs[pair].clone(), targets[pair].clone(), out[i], self.loss_scale)
        return out

    def outputs(self, flat: Tensor, inputs: Tensor, statistics: Tensor | None) -> Tensor:
        each = [None] * len(flat) if statistics is None else statistics
        return torch.stack([self.module.outputs(point, inputs, its) for point, its in zip(flat, each, strict=True)])

    def full_gradient(self, flat: Tensor, shards: Sequence[Tensor], weights: np.ndarray) -> tuple[Tensor, Tensor]:
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        of_part = torch.empty_like(flat[0])
        for rows, weight in zip(shards, weights, strict=True):
            for part in self.data.in_batches(rows) if self.module.norms else self.chunks(rows, len(flat)):
                share = float(weight) * len(part) / (len(rows) * len(shards))
                inputs, targets = self.data.batch_of(part)
                for i, point in enumerate(flat):
                    loss[i] += share * self.module.gradient(point, inputs, targets, of_part, dropout=False)
                    gradient[i] += share * of_part
        return loss, gradient

    def chunks(self, rows: Tensor, models: int) -> Sequence[Tensor]:
        return super().chunks(rows, 1)


class OnGpu(OneByOne):
    """Any model and loss, on several streams of a GPU: as a CUDA graph, unless the model cannot be captured."""

    capturable = True  # until a capture fails

    @cached_property
    def graphs(self) -> CudaGraphs:
        return CudaGraphs(self._on_streams)

    @cached_property
    def streams(self) -> list[torch.cuda.Stream]:
        return [torch.cuda.Stream() for _ in range(STREAMS)]

    def _gradients(self, flat: Tensor, inputs: Tensor, targets: Tensor, keys: list[int]) -> Tensor:
        variants, batch = len(flat) // len(keys), self.data.batch
        models = 1 if batch * self.footprint > LARGE else max(1, self.capacity // batch)
        x, y = (part.expand(variants, *part.shape).flatten(0, 1) for part in (inputs, targets))
        first_keys, out = (keys * variants)[::models], torch.empty_like(flat)
        parts = zip(*(part.split(models) for part in (flat, x, y, out)), first_keys, strict=True)
        for of_flat, of_x, of_y, of_out, key in parts:
            of_out.copy_(self._part(of_flat, of_x, of_y, key))
        return out

    def _part(self, flat: Tensor, x: Tensor, y: Tensor, key: int) -> Tensor:
        """The gradients of models that are computed together; a graph overwrites them in its next call."""
        if self.capturable:
            try:
                with seeded(self.data.device, key):
                    self.graphs.prepare(flat, x, y)
            except RuntimeError:  # such as a forward pass that waits for the GPU
                self.capturable = False
        with seeded(self.data.device, key):  # again: capturing draws random numbers too
            return self.graphs(flat, x, y) if self.capturable else self._on_streams(flat, x, y)

    def _on_streams(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients of models with a batch each, several at the same time."""
        out, current = torch.empty_like(flat), torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(current)
        for i in range(len(flat)):
            with torch.cuda.stream(self.streams[i % STREAMS]):
                self.module.gradient(flat[i], x[i], y[i], out[i], self.loss_scale)
        for stream in self.streams:
            current.wait_stream(stream)
        return out
