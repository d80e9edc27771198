"""The rows of a problem, divided among the nodes: which a node trains, validates and tests on."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from dnasa.arrays import checksum
from dnasa.checks import choose, whole
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.problems.problem import Problem
from dnasa.problems.stored import DeviceRows, as_inputs, as_targets
from dnasa.randomness import Samples, Streams

SAMPLE = 10_000  # training rows that an evaluation measures by default
SEEDING = threading.RLock()  # torch's own generator is one for all threads
Shards = Sequence[np.ndarray] | Callable[[int], Sequence[np.ndarray]]


class Sharded(Problem):
    """`shards[i]` are node i's rows (empty where another process holds them); a step draws `batch` with replacement.

    Where `shards` is a function, runs with a seed use `shards(seed)`: each seed has its own partition.

    `validation[i]`, where given, are rows that node i validates on. Where nodes test on rows of their own, `data.test_counts`
    are their numbers, and the test rows here are those of this process's nodes in order.
    """

    def __init__(self, data: Dataset, shards: Shards, batch: int, dtype: str, device: str, validation: Sequence[np.ndarray]):
        if not isinstance(data, Dataset):
            raise InputError(f"data must be a dnasa.data.Dataset, not {type(data).__name__}.")
        self.batch = whole("batch", batch)
        self.dtype = choose("dtype", dtype, {"float32": torch.float32, "float64": torch.float64})
        self.device = find_device(device)
        names = ("inputs", "labels", "test_inputs", "test_labels")
        stored = (DeviceRows(name, getattr(data, name), self.device, self.dtype) for name in names)
        self.inputs, self.labels, self.test_inputs, self.test_labels = stored
        self.baseline, self.test_counts = data.baseline, list(data.test_counts)
        self.test_total = sum(self.test_counts) or len(self.test_inputs)
        self._check_rows()
        self.by_seed, self.divide = callable(shards), shards
        self.divided: dict[int, list[np.ndarray]] = {}
        self.validation = [np.asarray(rows, dtype=np.int64) for rows in validation]
        self.shards = self.shards_of(0)
        self.nodes = len(self.shards)
        self.site_names = [site.name for site in data.sites] if len(data.sites) == self.nodes else []
        if self.validation and len(self.validation) != self.nodes:
            raise InputError(f"There are validation rows for {len(validation)} nodes and shards for {self.nodes}.")
        self.remaining: Sequence[int] = range(self.nodes)  # nodes that were not lost
        self.samples = Samples("batch", self._draw, self.batch)
        self.order = Streams("order")

    def _check_rows(self) -> None:
        for inputs, labels in ((self.inputs, self.labels), (self.test_inputs, self.test_labels)):
            if len(inputs) != len(labels) or not len(inputs):
                raise InputError(
                    f"There are {len(inputs)} rows of inputs and {len(labels)} labels: give as many, and at least one."
                )
        if self.inputs.shape != self.test_inputs.shape:
            raise InputError(
                f"Training rows have shape {self.inputs.shape}, test rows {self.test_inputs.shape}: give both the same."
            )

    # ------------------------------------------------------------ who holds what

    def shards_of(self, seed: int) -> list[np.ndarray]:
        """Each node's rows in the runs with this seed."""
        key = seed if self.by_seed else 0
        if key not in self.divided:
            self.divided[key] = self._checked(self.divide(seed) if callable(self.divide) else self.divide)
        return self.divided[key]

    def _checked(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = [np.asarray(shard, dtype=np.int64) for shard in shards]
        last = len(self.inputs) - 1
        within = all(rows.min() >= 0 and rows.max() <= last for rows in (*arrays, *self.validation) if len(rows))
        if not any(map(len, arrays)) or not within:
            raise InputError(f"The shards must hold row numbers from 0 to {last}, and not all be empty.")
        if len(arrays) != len(self.divided.get(0, arrays)):
            raise InputError("The shards of two seeds are those of different numbers of nodes.")
        return arrays

    def shard(self, node: int, seed: int = 0) -> np.ndarray:
        """The rows of a node of this process."""
        rows = self.shards_of(seed)[node]
        if not len(rows):
            raise InputError(f"Node {node} has no rows: every node of this process needs at least one.")
        return rows

    def rows(self, node: int, seeds: Sequence[int] | None = None) -> int | list[int]:
        return len(self.shards[node]) if seeds is None else [len(self.shards_of(seed)[node]) for seed in seeds]

    def node_fingerprint(self, node: int, seeds: Sequence[int] | None = None) -> str:
        """Identifies the node's rows in the partition of seed 0 and its own test rows, and the partitions of the seeds."""
        rows = np.concatenate([self.shards[node], *self.validation[node : node + 1]])
        parts = [(self.inputs, rows), (self.labels, rows)]
        if self.test_counts:
            tests = self.own_test_rows(node)
            parts += [(self.test_inputs, tests), (self.test_labels, tests)]
        sums = " ".join(stored.checksum(which) for stored, which in parts if len(which))
        fingerprint = f"{len(rows):,} rows, checksum {sums}" if len(rows) else ""
        if seeds is None:
            return fingerprint
        return f"{fingerprint}, divided {checksum(*(self.shards_of(seed)[node] for seed in seeds))}"

    @property
    def own_tests(self) -> bool:
        return bool(self.test_counts)

    def own_test_rows(self, node: int) -> np.ndarray:
        """The numbers of a node's own test rows, where each node tests on its own; none of a node in another process."""
        if not len(self.shards[node]):
            return np.empty(0, np.int64)
        before = sum(count for count, shard in zip(self.test_counts[:node], self.shards, strict=False) if len(shard))
        return np.arange(before, before + self.test_counts[node])

    def test_rows(self, nodes: Sequence[int]) -> Tensor:
        """The test rows are divided among the nodes as well, so that real processes divide the work."""
        if self.test_counts:
            return self.row_numbers(np.concatenate([self.own_test_rows(node) for node in nodes]))
        firsts = [self.remaining.index(node) for node in nodes]
        parts = [np.arange(first, self.test_total, len(self.remaining)) for first in firsts]
        return self.row_numbers(np.concatenate(parts))

    def continue_without(self, lost: Sequence[int]) -> None:
        """Divide the test rows among the remaining nodes."""
        self.remaining = [node for node in range(len(self.shards)) if node not in set(lost)]
        if self.test_counts:
            self.test_total = sum(self.test_counts[node] for node in self.remaining)

    # ------------------------------------------------------------ batches

    def _draw(self, generator: np.random.Generator, node: int, seed: int, length: int) -> np.ndarray:
        rows = self.shard(node, seed)
        return rows[generator.integers(len(rows), size=(length, self.batch))]

    def drawn(self, nodes: Sequence[int], seeds: Sequence[int], t: int) -> Tensor:
        """The rows of step t, `(seeds, nodes, batch)`."""
        return self.samples.at(seeds, nodes, t, ready=self.row_numbers)

    def shuffled(self, node: int, seed: int = 0) -> Tensor:
        """A node's rows in an order that is always the same."""
        rows = self.order.at(0, node, 0).permutation(self.shard(node, seed))
        return self.row_numbers(np.resize(rows, max(2, len(rows))))  # batch norm needs two rows

    def in_batches(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows into batches of at least `batch` if possible: statistics of fewer rows would differ from training."""
        return rows.tensor_split(max(1, len(rows) // self.batch))

    def row_numbers(self, rows: np.ndarray) -> Tensor:
        return torch.as_tensor(rows).to(self.device)

    def batch_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return as_inputs(self.inputs[rows], self.dtype), as_targets(self.labels[rows])

    def test_batch_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return as_inputs(self.test_inputs[rows], self.dtype), as_targets(self.test_labels[rows])


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
    choose("device", name, {"cpu": None, "cuda": None})
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device: use --device cpu.")
    return torch.device(name)
