"""The base of problems whose rows are divided among the nodes and whose model is a torch module."""

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.arrays import checksum
from dnasa.core import InputError, choose, positive, whole
from dnasa.problems.problem import Problem
from dnasa.randomness import Samples

BUDGET = {"cpu": 1 << 29, "cuda": 1 << 34}  # bytes of activations in memory at a time
MAX_ROWS = 4096  # evaluated at a time
SEEDING = threading.RLock()  # torch's own generator is one for all threads
Model = Callable[[], nn.Module] | nn.Module
Shards = Sequence[np.ndarray] | Callable[[int], Sequence[np.ndarray]]


class Sharded(Problem):
    """`shards[i]` are node i's rows (empty where another process holds them); a step draws `batch` with replacement.

    Where `shards` is a function, runs with a seed use `shards(seed)`: each seed has its own partition.

    `validation[i]`, where given, are rows that node i validates on: every test metric is also measured there, as
    `validation_loss`, `validation_accuracy`, ..., averaged over the nodes, which count the same. Where nodes test on rows of
    their own, `test_counts` are their numbers, and the test rows here are those of this process's nodes in order.
    """

    total: int  # rows for training
    test_total: int
    footprint: int  # bytes that the gradient of one model at one row needs

    def __init__(
        self,
        model: Model,
        shards: Shards,
        batch: int,
        loss_scale: float,
        dtype: str,
        device: str,
        train_metrics: bool,
        validation: Sequence[np.ndarray],
        test_counts: Sequence[int] = (),
    ):
        self.batch = whole("batch", batch)
        positive("loss_scale", loss_scale)
        self.dtype = choose("dtype", dtype, {"float32": torch.float32, "float64": torch.float64})
        self.device = find_device(device)
        if loss_scale < torch.finfo(self.dtype).tiny * 1e6:
            raise InputError(f"A loss scale of {loss_scale:g} leaves nothing of a {dtype} gradient: use a larger one.")
        self.make: Callable[[], nn.Module] = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        self.by_seed, self.divide = callable(shards), shards
        self.divided: dict[int, list[np.ndarray]] = {}
        self.shards = self.shards_of(0)
        self.validation = [np.asarray(rows, dtype=np.int64) for rows in validation]
        self.loss_scale = loss_scale
        self.nodes = len(self.shards)
        self.train_metrics = train_metrics
        if self.validation and len(self.validation) != self.nodes:
            raise InputError(f"There are validation rows for {len(validation)} nodes and shards for {self.nodes}.")
        self.test_counts = list(test_counts)
        self.remaining: Sequence[int] = range(self.nodes)  # nodes that were not lost
        self.samples = Samples("batch", self._draw, self.batch, by_seed=True)

    def _check_rows(self, counts: tuple[int, int], test_counts: tuple[int, int]) -> None:
        """Check the numbers of inputs and labels, for training and for testing."""
        for inputs, labels in (counts, test_counts):
            if inputs != labels:
                raise InputError(f"There are {inputs} rows of inputs but {labels} labels: give one label per row.")
            if not inputs:
                raise InputError("There are no rows: give at least one for training and one for testing.")
        self.total, self.test_total = counts[0], sum(self.test_counts) or test_counts[0]
        self._check_shards(self.shards)

    def _check_shards(self, shards: Sequence[np.ndarray]) -> None:
        if len(shards) != self.nodes:
            raise InputError(f"The shards of one seed are those of {len(shards)} nodes, of another {self.nodes}.")
        rows = np.concatenate([*shards, *self.validation]) if shards else np.empty(0)
        if not any(map(len, shards)) or rows.min() < 0 or rows.max() >= self.total:
            raise InputError(f"The shards must hold row numbers from 0 to {self.total - 1}, and not all be empty.")

    def _check_labels(self, labels: Tensor, classes: int) -> None:
        if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
            raise InputError(
                f"Labels run from {int(labels.min())} to {int(labels.max())}, but the model has {classes} outputs: "
                f"they must be 0 to {classes - 1}."
            )

    def _check_shapes(self, shape: Sequence[int], test_shape: Sequence[int]) -> None:
        if tuple(shape) != tuple(test_shape):
            raise InputError(
                f"Training rows have shape {tuple(shape)}, test rows {tuple(test_shape)}: give both the same shape."
            )

    def shards_of(self, seed: int) -> list[np.ndarray]:
        """Each node's rows in the runs with this seed.

        Args:
            seed: The seed of the runs.
        """
        key = seed if self.by_seed else 0
        if key not in self.divided:
            shards = self.divide(seed) if callable(self.divide) else self.divide
            self.divided[key] = [np.asarray(shard, dtype=np.int64) for shard in shards]
            if self.divided.keys() > {key}:
                self._check_shards(self.divided[key])
        return self.divided[key]

    def rows(self, node: int, seeds: Sequence[int] | None = None) -> int | list[int]:
        return len(self.shards[node]) if seeds is None else [len(self.shards_of(seed)[node]) for seed in seeds]

    def node_fingerprint(self, node: int, seeds: Sequence[int] | None = None) -> str:
        its = self._node_fingerprints[node]
        return its if seeds is None else f"{its}, divided {checksum(*(self.shards_of(seed)[node] for seed in seeds))}"

    @cached_property
    def _node_fingerprints(self) -> list[str]:
        """The fingerprint of each node's rows in the partition of seed 0, and of its own test rows."""
        fingerprints = []
        for node, rows in enumerate(self._rows_by_node):
            tests = self.own_test_rows(node) if self.test_counts else np.empty(0, np.int64)
            its = f"{len(rows):,} rows, checksum {self._checksum_of(rows, tests)}" if len(rows) else ""
            fingerprints.append(its)
        return fingerprints

    @abstractmethod
    def _checksum_of(self, rows: np.ndarray, tests: np.ndarray) -> str:
        """The checksum of these training rows and, if there are any, these test rows."""

    def statistics(self, mean: Tensor, nodes: range, seeds: Sequence[int] | None = None) -> Tensor | None:
        return None

    def _own(self, node: int, seed: int = 0) -> np.ndarray:
        rows = self.shards_of(seed)[node]
        if not len(rows):
            raise InputError(f"Node {node} has no rows: every node of this process needs at least one.")
        return rows

    @property
    def _rows_by_node(self) -> list[np.ndarray]:
        """All rows that a node uses, for training and for validation."""
        if not self.validation:
            return self.shards
        return [np.concatenate(pair) for pair in zip(self.shards, self.validation, strict=True)]

    def _draw(self, generator: np.random.Generator, node: int, length: int, seed: int) -> np.ndarray:
        rows = self._own(node, seed)
        return rows[generator.integers(len(rows), size=(length, self.batch))]

    def _drawn(self, nodes: Sequence[int], seeds: Sequence[int], t: int) -> Tensor:
        """The rows of step t, (seeds, nodes, batch)."""
        return self.samples.at(seeds, nodes, t, ready=lambda block: torch.as_tensor(block).to(self.device))

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
        module = self._seeded(0).eval()
        nn.utils.vector_to_parameters(point, [part for part in module.parameters() if part.requires_grad])
        return module

    def _test_rows(self, nodes: Sequence[int]) -> Tensor:
        """The test rows are divided among the nodes as well, so that real processes divide the work."""
        if self.test_counts:
            return torch.as_tensor(np.concatenate([self.own_test_rows(node) for node in nodes])).to(self.device)
        positions = [self.remaining.index(node) for node in nodes]
        rows = torch.arange(self.test_total)
        return torch.cat([rows[first :: len(self.remaining)] for first in positions]).to(self.device)

    def own_test_rows(self, node: int) -> np.ndarray:
        """The numbers of a node's own test rows, where each node tests on its own; none of a node in another process.

        Args:
            node: The node.
        """
        if not len(self.shards[node]):
            return np.empty(0, np.int64)
        before = sum(count for count, shard in zip(self.test_counts[:node], self.shards, strict=False) if len(shard))
        return np.arange(before, before + self.test_counts[node])

    def _validation_rows(self, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The validation rows of these nodes, and how much each row counts."""
        parts = [self.validation[node] for node in nodes]
        weights = [np.full(len(part), 1 / (len(part) * len(nodes))) for part in parts if len(part)]
        return tuple(torch.as_tensor(np.concatenate(some)).to(self.device) for some in (parts, weights))  # type: ignore[return-value]

    def _node_weights(
        self, weights: Sequence[float] | None, nodes: Sequence[int], seeds: Sequence[int] | None = None
    ) -> np.ndarray:
        """How much each node counts in the training loss, a row for each seed or one for all."""
        return np.broadcast_to(1.0 if weights is None else weights, (len(seeds or [0]), len(nodes)))

    def _models_at_once(self, rows: int) -> int:
        """How many models with `rows` rows each fit into the budget."""
        return max(1, BUDGET[self.device.type] // (self.footprint * rows))

    def _chunks(self, rows: Tensor, models: int = 1) -> Sequence[Tensor]:
        """Split rows into as many at a time as fit into the budget for that many models."""
        return rows.split(min(MAX_ROWS, self._models_at_once(models)))

    def continue_without(self, lost: Sequence[int]) -> None:
        """Divide the test rows among the remaining nodes.

        Args:
            lost: The nodes that are lost.
        """
        self.remaining = [node for node in range(len(self.shards)) if node not in set(lost)]
        if self.test_counts:
            self.test_total = sum(self.test_counts[node] for node in self.remaining)


@contextmanager
def seeded(device: torch.device, key: int) -> Iterator[None]:
    """Seed torch's generator of this device by the key inside the block; afterwards it continues as before."""
    on_gpu = device.type == "cuda"
    generator = torch.cuda.default_generators[torch.cuda.current_device()] if on_gpu else torch.default_generator
    with SEEDING:
        state = generator.get_state()
        generator.manual_seed(key)
        try:
            yield
        finally:
            generator.set_state(state)


def find_device(name: str) -> torch.device:
    """The device, or an error if it does not exist."""
    if name not in ("cpu", "cuda"):
        raise InputError(f"Unknown device '{name}'. Choose from: cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device: use --device cpu.")
    return torch.device(name)
