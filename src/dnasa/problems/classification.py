"""A neural network trained on labelled data that is divided among the nodes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from dnasa.core import Array
from dnasa.randomness import Samples

CHUNK = 4096  # rows evaluated at a time


class Classification:
    """min (1/n) sum_i mean over node i's rows of the cross-entropy of `model`.

    `model` makes the network; each seed starts from its own initialisation, the same at all nodes. `shards[i]` are node
    i's rows of `inputs` and `labels`; a step draws `batch` of them with replacement.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module],
        inputs: Array,
        labels: Array,
        shards: Sequence[np.ndarray],
        test_inputs: Array,
        test_labels: Array,
        batch: int = 32,
        dtype: torch.dtype = torch.float32,
    ):
        self.make, self.shards, self.batch, self.dtype = model, shards, batch, dtype
        self.nodes = len(shards)
        self.epoch = float(np.mean([len(shard) for shard in shards]))
        self.model = self._seeded(0)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.shapes = [parameter.shape for parameter in self.model.parameters()]
        self.sizes = [parameter.numel() for parameter in self.model.parameters()]
        self.inputs, self.labels = torch.as_tensor(inputs).to(dtype), torch.as_tensor(labels).long()
        self.test_inputs = torch.as_tensor(test_inputs).to(dtype)
        self.test_labels = torch.as_tensor(test_labels).long()
        self.samples = Samples("batch", self._draw, batch)
        self.gradients = vmap(grad(self._loss), in_dims=(0, 0, 0))

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().to(self.dtype)

    def _draw(self, generator: np.random.Generator, node: int, length: int) -> np.ndarray:
        return self.shards[node][generator.integers(len(self.shards[node]), size=(length, self.batch))]

    def start(self, seed: int) -> Array:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._seeded(seed).parameters()])

    def _logits(self, flat: Array, inputs: Array) -> Array:
        pieces = [piece.view(shape) for piece, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]
        return functional_call(self.model, dict(zip(self.names, pieces, strict=True)), (inputs,))

    def _loss(self, flat: Array, inputs: Array, labels: Array) -> Array:
        return nn.functional.cross_entropy(self._logits(flat, inputs), labels)

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        rows = self.samples.at(seeds, nodes, t, ready=torch.as_tensor).expand(*x.shape[:-1], -1)
        rows = rows.reshape(-1, self.batch)
        flat = x.reshape(-1, x.shape[-1])
        return self.gradients(flat, self.inputs[rows], self.labels[rows]).view_as(x)

    def evaluate(self, mean: Array, nodes: range) -> dict[str, Array]:
        """Over the rows of these nodes, each weighted so that all nodes count alike; the test set as a whole."""
        rows = np.concatenate([self.shards[node] for node in nodes])
        weights = np.concatenate([np.full(len(self.shards[node]), 1 / len(self.shards[node])) for node in nodes])
        flat = mean.reshape(-1, mean.shape[-1]).clone().requires_grad_()
        loss, gradient = mean.new_zeros(len(flat)), torch.zeros_like(flat)
        for part in torch.arange(len(rows)).split(CHUNK):
            chosen = torch.as_tensor(rows)[part]
            weight = torch.as_tensor(weights)[part].to(self.dtype) / len(nodes)
            losses = torch.stack([self._weighted(point, chosen, weight) for point in flat])
            gradient += torch.autograd.grad(losses.sum(), flat)[0]
            loss += losses.detach()
        test_loss, accuracy = self._test(flat.detach())
        shape = mean.shape[:-1]
        return {
            "train_loss": loss.view(shape),
            "test_loss": test_loss.view(shape),
            "test_accuracy": accuracy.view(shape),
            "gradient": gradient.view_as(mean),
        }

    def _weighted(self, point: Array, rows: Array, weight: Array) -> Array:
        each = nn.functional.cross_entropy(self._logits(point, self.inputs[rows]), self.labels[rows], reduction="none")
        return (each * weight).sum()

    def _test(self, flat: Array) -> tuple[Array, Array]:
        with torch.no_grad():
            logits = [self._logits(point, self.test_inputs) for point in flat]
            loss = torch.stack([nn.functional.cross_entropy(each, self.test_labels) for each in logits])
            right = torch.stack([(each.argmax(-1) == self.test_labels).double().mean() for each in logits])
        return loss, right
