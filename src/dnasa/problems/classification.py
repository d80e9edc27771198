"""A neural network trained on labelled data that is divided among the nodes."""

import copy
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dnasa.core import Array, InputError, choose, positive, whole
from dnasa.problems.batched import Stack, stack
from dnasa.randomness import Samples
from dnasa.replay import Replayed

BUDGET = {"cpu": 1 << 29, "cuda": 1 << 34}  # bytes of activations held at a time
SMALL = 1 << 28  # bytes of activations up to which launching kernels costs a GPU more than running them
MOST_ROWS = 4096  # evaluated at a time


class Classification:
    """min (1/n) sum_i mean over node i's rows of the cross-entropy of `model`.

    `model` makes the network, each seed from its own initialisation, the same at all nodes; or it is a network, whose
    parameters every seed starts from. `shards[i]` are node i's rows of `inputs` and `labels` (empty where another process
    holds them); a step draws `batch` of them with replacement. `loss_scale` multiplies the training loss that the rules see
    (the paper's framework has 1/n); what is reported is not scaled. All models of all nodes and runs go through
    the network together. Without `train_metrics`, an evaluation looks at the test rows only and costs no pass over the
    training data.
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
        self.members: Sequence[int] = range(self.nodes)  # that are still there
        self.train_metrics = train_metrics
        self.inputs, self.labels = self._tensors(inputs, labels)
        self.test_inputs, self.test_labels = self._tensors(test_inputs, test_labels)
        self._check_rows()
        self.epoch = float(np.mean([len(shard) for shard in self.shards if len(shard)]))
        self.samples = Samples("batch", self._draw, batch)
        self.fingerprint = self._fingerprint()
        self.models = Models(self._seeded(0))
        self.replayed = Replayed(self._gradient_of)
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

    def _fingerprint(self) -> str:
        """Of all data, or of the test labels alone where the nodes' rows are elsewhere: alike in all processes."""
        parts: list[Any] = [self.test_labels]
        if all(len(shard) for shard in self.shards):
            parts += [self.inputs, self.labels, self.test_inputs, *self.shards]
        checksum = 0
        for part in parts:
            data: Any = np.ascontiguousarray(part.cpu() if isinstance(part, Tensor) else part)
            checksum = zlib.crc32(data, checksum)
        return f"{self.nodes} shards, {len(self.labels):,} rows, checksum {checksum:08x}"

    def _check_rows(self) -> None:
        rows = np.concatenate(self.shards) if self.shards else np.empty(0)
        if not len(rows) or rows.min() < 0 or rows.max() >= len(self.labels):
            raise InputError(
                f"The shards must hold row numbers from 0 to {len(self.labels) - 1}, and not all be empty."
            )
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"Training rows have shape {tuple(self.inputs.shape[1:])}, test rows {tuple(self.test_inputs.shape[1:])}: "
                "they must be alike."
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
        at_once = self._at_once(self.batch)
        parts = [self._gradient(*part) for part in zip(flat.split(at_once), rows.split(at_once), strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view_as(x)

    def _gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        small = rows.numel() * self.footprint <= SMALL
        if flat.is_cuda and small and self.models.stack:
            return self.replayed(flat, rows).clone()
        return self._gradient_of(flat, rows)

    def _gradient_of(self, flat: Tensor, rows: Tensor) -> Tensor:
        return self.models.gradient(flat, self.inputs[rows], self.labels[rows], self.loss_scale / self.batch)

    def _at_once(self, rows: int) -> int:
        """How many models with so many rows each fit into the budget."""
        return max(1, BUDGET[self.device.type] // (self.footprint * rows))

    def evaluate(self, mean: Tensor, nodes: range) -> dict[str, Tensor]:
        """Over the rows of these nodes, each weighted so that all nodes count alike, and over their share of the test set."""
        flat = mean.reshape(-1, mean.shape[-1])
        test_loss, accuracy = self._test(flat, nodes)
        out = {"test_loss": test_loss.view(mean.shape[:-1]), "test_accuracy": accuracy.view(mean.shape[:-1])}
        if not self.train_metrics:
            return out
        loss, gradient = self._train(flat, nodes)
        return {"train_loss": loss.view(mean.shape[:-1])} | out | {"gradient": gradient.view_as(mean)}

    def _chunks(self, rows: Tensor, models: int) -> Sequence[Tensor]:
        most = BUDGET[self.device.type] // (self.footprint * models)
        return rows.split(max(1, min(MOST_ROWS, most)))

    def _train(self, flat: Tensor, nodes: range) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(np.concatenate([self.shards[node] for node in nodes])).to(self.device)
        sizes = [len(self._own(node)) for node in nodes]
        each = torch.as_tensor(np.repeat([1 / (size * len(nodes)) for size in sizes], sizes)).to(
            self.device, self.dtype
        )
        loss, gradient = flat.new_zeros(len(flat), dtype=torch.float64), torch.zeros_like(flat)
        for part in self._chunks(torch.arange(len(rows), device=self.device), len(flat)):
            x, y, weight = self.inputs[rows[part]], self.labels[rows[part]], each[part]
            losses: list[Tensor] = []
            gradient += self.models.gradient(flat, self._everyone(flat, x), self._everyone(flat, y), weight, losses)
            loss += (losses[0] * weight).sum(1)
        return loss, gradient

    @staticmethod
    def _everyone(flat: Tensor, rows: Tensor) -> Tensor:
        return rows.expand(len(flat), *rows.shape)

    def _test(self, flat: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The test rows are shared out to the nodes as well, so that real processes divide the work."""
        total = len(self.test_labels)
        places = [self.members.index(node) for node in nodes]
        rows = torch.cat([torch.arange(total)[place :: len(self.members)] for place in places]).to(self.device)
        loss, right = (flat.new_zeros(len(flat), dtype=torch.float64) for _ in range(2))
        for part in self._chunks(rows, len(flat)):
            logits = self.models.logits(flat, self._everyone(flat, self.test_inputs[part]))
            labels = self._everyone(flat, self.test_labels[part])
            loss += cross_entropy(logits, labels).sum(1)
            right += (logits.argmax(-1) == labels).sum(1)
        share = len(self.members) / (len(nodes) * total)
        return loss * share, right * share

    def continue_without(self, lost: Sequence[int]) -> None:
        """Nodes and their rows are gone; the others test on all test rows still."""
        self.members = [node for node in self.members if node not in set(lost)]

    def accuracies(self, x: Tensor) -> Tensor:
        """The test accuracy of every model in `x` of shape (..., d): of each node by itself, say."""
        flat = x.reshape(-1, x.shape[-1])
        everyone = self.members
        return torch.cat([self._test(some, everyone)[1] for some in flat.split(self._at_once(64))]).view(x.shape[:-1])


def find_device(name: str) -> torch.device:
    """The device, or a clear word that it is not there."""
    if name not in ("cpu", "cuda"):
        raise InputError(f"Unknown device '{name}'. Choose from: cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device here: use --device cpu.")
    return torch.device(name)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(R, b): the loss of every row of every model."""
    return logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]


class Models:
    """Many copies of one network, by hand where its layers are known and by torch's vmap where they are not."""

    def __init__(self, module: nn.Module):
        check(module)
        self.module = module
        self.stack: Stack | None = stack(module)
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.mapped = vmap(grad(self._loss, has_aux=True))

    def _call(self, flat: Tensor, x: Tensor) -> Tensor:
        pieces = [piece.view(shape) for piece, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]
        return functional_call(self.module, dict(zip(self.names, pieces, strict=True)), (x,))

    def _loss(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        each = cross_entropy(self._call(flat, x), y)
        return (each * weight).sum(), each

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(R, b, classes)"""
        if self.stack:
            return self.stack.logits(flat, x)
        with torch.no_grad():
            return vmap(self._call)(flat, x)

    def gradient(
        self, flat: Tensor, x: Tensor, y: Tensor, weight: float | Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """The gradients (R, d) of the weighted sums of all rows' losses; the losses (R, b) are appended to `losses`."""
        if not self.stack:
            g, each = self.mapped(flat, x, y, flat.new_ones(y.shape) * weight)
            if losses is not None:
                losses.append(each)
            return g

        def at_logits(logits: Tensor) -> Tensor:
            if losses is not None:
                losses.append(cross_entropy(logits, y))
            slope = torch.softmax(logits, -1)
            slope.scatter_add_(-1, y[..., None], slope.new_full((*y.shape, 1), -1.0))
            return slope * (weight if isinstance(weight, float) else weight[..., None])

        return self.stack.gradient(flat, x, at_logits)

    def footprint(self, point: Tensor, x: Tensor) -> int:
        """Bytes that the gradient of one model at one row keeps, roughly; also a first try whether the network works."""
        try:
            self.gradient(point[None], x[None], torch.zeros(1, 1, dtype=torch.long, device=x.device), 1.0)
            numbers = self.stack.footprint(point[None], x[None]) if self.stack else self._saved(point, x)
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise InputError(f"This network does not take rows of shape {tuple(x.shape[1:])}: {line}") from error
        return numbers * point.element_size()

    def _saved(self, point: Tensor, x: Tensor) -> int:
        """How many numbers autograd keeps."""
        kept = [x.numel()]

        def keep(saved: Tensor) -> Tensor:
            kept.append(saved.numel())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved), torch.enable_grad():
            self._call(point.detach().clone().requires_grad_(), x)
        return sum(kept)


NORMS, DROPOUT = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd
REFUSED = {
    NORMS: "keeps statistics of its batches: use nn.GroupNorm or nn.LayerNorm, or call .eval() on it",
    DROPOUT: "draws random numbers of its own: leave it out, or call .eval() on it",
    nn.RNNBase: "cannot be run for many models at once: write the recurrence with nn.Linear",
}


def check(module: nn.Module) -> None:
    """Refuse by name what cannot work for many models at once."""
    for name, part in module.named_modules():
        harmless = isinstance(part, (NORMS, DROPOUT)) and (not part.training or getattr(part, "p", 1) == 0)
        for kind, why in REFUSED.items():
            if isinstance(part, kind) and not harmless:
                raise InputError(f"Layer '{name or 'network'}' ({type(part).__name__}) {why}.")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise InputError(
            f"Parameter '{frozen[0]}' is frozen; all parameters are trained here: make it a buffer instead."
        )
    if not any(True for _ in module.parameters()):
        raise InputError("The network has no parameters to train.")
