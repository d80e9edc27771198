"""A neural network trained on labelled data that is divided among the nodes."""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.core import Array, InputError, Layout, choose, positive, whole
from dnasa.cuda_graphs import CudaGraphs
from dnasa.problems import Problem
from dnasa.problems.batched import Models, cross_entropy
from dnasa.problems.checksums import checksum
from dnasa.randomness import Samples

BUDGET = {"cpu": 1 << 29, "cuda": 1 << 34}  # bytes of activations in memory at a time
SMALL = 1 << 28  # bytes of activations up to which launching kernels costs a GPU more than running them
MAX_ROWS = 4096  # evaluated at a time


class Classification(Problem):
    """min (1/n) sum_i mean over node i's rows of the cross-entropy of `model`.

    `model` creates the network, with another initialisation for each seed, the same at all nodes; or it is a network whose
    parameters every seed starts from. `shards[i]` are node i's rows of `inputs` and `labels` (empty where another process
    holds them); a step draws `batch` of them with replacement. `loss_scale` multiplies the training loss that the rules use
    (the paper's framework has 1/n); reported losses are not scaled. All models of all nodes and runs are computed together.
    Without `train_metrics`, an evaluation uses the test rows only and needs no pass over the training data.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module] | nn.Module,
        inputs: Array,
        labels: Array,
        shards: Sequence[np.ndarray],
        test_inputs: Array,
        test_labels: Array,
        batch: int = 32,
        loss_scale: float = 1.0,
        dtype: str = "float32",
        device: str = "cpu",
        train_metrics: bool = True,
    ):
        batch = whole("batch", batch)
        positive("loss_scale", loss_scale)
        self.dtype = choose("dtype", dtype, {"float32": torch.float32, "float64": torch.float64})
        self.device = find_device(device)
        if loss_scale < torch.finfo(self.dtype).tiny * 1e6:
            raise InputError(f"A loss scale of {loss_scale:g} leaves nothing of a {dtype} gradient: use a larger one.")
        self.make = (lambda: copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        self.shards = [np.asarray(shard, dtype=np.int64) for shard in shards]
        self.batch, self.loss_scale, self.nodes = batch, loss_scale, len(shards)
        self.remaining: Sequence[int] = range(self.nodes)  # nodes that were not lost
        self.train_metrics = train_metrics
        self.inputs, self.labels = self._tensors(inputs, labels)
        self.test_inputs, self.test_labels = self._tensors(test_inputs, test_labels)
        self._check_rows()
        self.samples = Samples("batch", self._draw, batch)
        self.models = Models(self._seeded(0))
        self.replayed = CudaGraphs(self._gradient_of)
        self.footprint = self.models.footprint(self.start(0), self.inputs[:1])
        self._check_labels()

    def _tensors(self, inputs: Array, labels: Array) -> tuple[Tensor, Tensor]:
        x, y = (
            torch.as_tensor(np.require(part, requirements="W") if isinstance(part, np.ndarray) else part)
            for part in (inputs, labels)
        )
        if len(x) != len(y):
            raise InputError(f"There are {len(x)} rows of inputs but {len(y)} labels: give one label per row.")
        if not len(x):
            raise InputError("There are no rows: give at least one for training and one for testing.")
        x = x.to(self.device, self.dtype if x.is_floating_point() else torch.long)
        return x, y.to(self.device, torch.long)

    @cached_property
    def layout(self) -> Layout:
        return self.models.layout

    @cached_property
    def fingerprint(self) -> str:
        """Of the test data and the network: the nodes' rows may be in other processes."""
        kinds = [type(part).__name__ for part in self.models.module.modules()]
        common = checksum(self.test_inputs, self.test_labels, self.layout, kinds)
        return f"classification, {self.nodes} shards, {len(self.test_labels):,} test rows, checksum {common}"

    @cached_property
    def _node_fingerprints(self) -> list[str]:
        return [
            f"{len(rows):,} rows, checksum {checksum(self.inputs[rows], self.labels[rows])}" if len(rows) else ""
            for rows in self.shards
        ]

    def node_fingerprint(self, node: int) -> str:
        return self._node_fingerprints[node]

    def rows(self, node: int) -> int:
        return len(self.shards[node])

    def _check_rows(self) -> None:
        rows = np.concatenate(self.shards) if self.shards else np.empty(0)
        if not len(rows) or rows.min() < 0 or rows.max() >= len(self.labels):
            raise InputError(
                f"The shards must hold row numbers from 0 to {len(self.labels) - 1}, and not all be empty."
            )
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"Training rows have shape {tuple(self.inputs.shape[1:])}, test rows {tuple(self.test_inputs.shape[1:])}: "
                "give both the same shape."
            )

    def _check_labels(self) -> None:
        classes = self.models.logits(self.start(0)[None], self.inputs[None, :1]).shape[-1]
        labels = torch.cat([self.labels, self.test_labels])
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            low, high = int(labels.min()), int(labels.max())
            raise InputError(
                f"Labels run from {low} to {high}, but the network has {classes} outputs: they must be 0 to {classes - 1}."
            )

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().to(self.device, self.dtype)

    def _draw(self, generator: np.random.Generator, node: int, length: int) -> np.ndarray:
        rows = self._own(node)
        return rows[generator.integers(len(rows), size=(length, self.batch))]

    def _own(self, node: int) -> np.ndarray:
        if not len(self.shards[node]):
            raise InputError(f"Node {node} has no rows: every node of this process needs at least one.")
        return self.shards[node]

    def start(self, seed: int) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._seeded(seed).parameters()])

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        rows = self.samples.at(seeds, nodes, t, ready=lambda block: torch.as_tensor(block).to(self.device))
        rows = rows.expand(*x.shape[:-1], -1).reshape(-1, self.batch)
        flat = x.reshape(-1, x.shape[-1])
        chunk = self._models_in_budget(self.batch)
        parts = [self._gradient(*part) for part in zip(flat.split(chunk), rows.split(chunk), strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view_as(x)

    def _gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        small = rows.numel() * self.footprint <= SMALL
        if flat.is_cuda and small and self.models.stack:
            return self.replayed(flat, rows).clone()
        return self._gradient_of(flat, rows)

    def _gradient_of(self, flat: Tensor, rows: Tensor) -> Tensor:
        return self.models.gradient(flat, self.inputs[rows], self.labels[rows], self.loss_scale / self.batch)

    def _models_in_budget(self, rows: int) -> int:
        """How many models with so many rows each fit into the budget."""
        return max(1, BUDGET[self.device.type] // (self.footprint * rows))

    def evaluate(self, mean: Tensor, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Tensor]:
        """Nodes count the same, however many rows they have; test metrics are those on the nodes' part of the test rows."""
        flat = mean.reshape(-1, mean.shape[-1])
        test_loss, accuracy = self._test(flat, nodes)
        out = {"test_loss": test_loss.view(mean.shape[:-1]), "test_accuracy": accuracy.view(mean.shape[:-1])}
        if not self.train_metrics:
            return out
        loss, gradient = self._train(flat, nodes, [1.0] * len(nodes) if weights is None else weights)
        return {"train_loss": loss.view(mean.shape[:-1])} | out | {"gradient": gradient.view_as(mean)}

    def _chunks(self, rows: Tensor, models: int) -> Sequence[Tensor]:
        limit = BUDGET[self.device.type] // (self.footprint * models)
        return rows.split(max(1, min(MAX_ROWS, limit)))

    def _train(self, flat: Tensor, nodes: range, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
        shards = [self._own(node) for node in nodes]
        rows = torch.as_tensor(np.concatenate(shards)).to(self.device)
        factors = [w / (len(shard) * len(nodes)) for shard, w in zip(shards, weights, strict=True)]
        each = torch.as_tensor(np.repeat(factors, [len(shard) for shard in shards])).to(self.device, self.dtype)
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        for part in self._chunks(torch.arange(len(rows), device=self.device), len(flat)):
            x, y, weight = self.inputs[rows[part]], self.labels[rows[part]], each[part]
            losses: list[Tensor] = []
            gradient += self.models.gradient(flat, _for_each(flat, x), _for_each(flat, y), weight, losses)
            loss += (losses[0] * weight).sum(1)
        return loss, gradient

    def _test(self, flat: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The test rows are divided among the nodes as well, so that real processes divide the work."""
        total = len(self.test_labels)
        positions = [self.remaining.index(node) for node in nodes]
        rows = torch.cat([torch.arange(total)[first :: len(self.remaining)] for first in positions]).to(self.device)
        loss, correct = (flat.new_zeros(len(flat), dtype=torch.float64) for _ in range(2))
        for part in self._chunks(rows, len(flat)):
            logits = self.models.logits(flat, _for_each(flat, self.test_inputs[part]))
            labels = _for_each(flat, self.test_labels[part])
            loss += cross_entropy(logits, labels).sum(1)
            correct += (logits.argmax(-1) == labels).sum(1)
        scale = len(self.remaining) / (len(nodes) * total)
        return loss * scale, correct * scale

    def continue_without(self, lost: Sequence[int]) -> None:
        """The remaining nodes evaluate all test rows."""
        self.remaining = [node for node in self.remaining if node not in set(lost)]

    def accuracies(self, x: Tensor) -> Tensor:
        """The test accuracy of every model in `x` of shape (..., d), such as that of each node."""
        parts = x.reshape(-1, x.shape[-1]).split(self._models_in_budget(64))
        return torch.cat([self._test(part, self.remaining)[1] for part in parts]).view(x.shape[:-1])


def _for_each(flat: Tensor, rows: Tensor) -> Tensor:
    """The same rows for each model, as a view."""
    return rows.expand(len(flat), *rows.shape)


def find_device(name: str) -> torch.device:
    """The device, or an error if it does not exist."""
    if name not in ("cpu", "cuda"):
        raise InputError(f"Unknown device '{name}'. Choose from: cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device: use --device cpu.")
    return torch.device(name)
