"""Gradients with differential privacy."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from dnasa.arrays import to_numpy
from dnasa.checks import first_line
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.problems.executors import BUDGET, OneByOne
from dnasa.problems.losses import WeightedCrossEntropy, mistakes
from dnasa.problems.modules import FlatModule
from dnasa.problems.privacy import FLOOR, Noise, uniform
from dnasa.problems.sharded import Sharded, seeded

ROUNDED = 1 + 1e-4  # more than the rounding errors of a length


class Noisy(OneByOne):
    """(sum of m g / (1.0001 |g| + 1e-6) over drawn rows + sigma normal) / max(batch, L), drawn at the rate batch / rows.

    L is the length of the noise in the mean over nodes of these sums: divided by it, noise has the length of a row's gradient.
    """

    def __init__(self, data: Sharded, footprint: int, module: FlatModule):
        super().__init__(data, footprint, module, loss_scale=1.0, augment=None)
        self.checksums: dict[tuple[int, int], str] = {}
        memory = footprint + 3 * sum(module.sizes) * data.dtype.itemsize
        self.rows = max(1, BUDGET[data.device.type] // memory)  # whose gradients are in memory at a time

    def gradient(self, x: Tensor, nodes: range, seeds: Sequence[int], t: int) -> Tensor:
        out = torch.empty_like(x)
        for variant, s, k in np.ndindex(*x.shape[:-1]):
            out[variant, s, k] = self._noisy(x[variant, s, k], nodes[k], seeds[s], t)
        return out

    def _noisy(self, point: Tensor, node: int, seed: int, t: int) -> Tensor:
        key, sigma = self.key(point, node, seed, t), self.noise.budget.sigma[node]
        total = torch.as_tensor(sigma * ndtri(uniform(key, b"noise", len(point)))).to(point)
        with seeded(self.data.device, int.from_bytes(key[:7])):  # dropout, with other numbers for each row
            for part in self.drawn(key, node, seed).split(self.rows):
                total += self.unit_gradients(point, part).sum(0) if len(part) else 0
        return total / max(self.data.batch, self.noise.budget.length(len(point)))

    @property
    def noise(self) -> Noise:
        if self.data.private_noise is None:
            raise InputError("Gradients with differential privacy belong to a run, which has a budget: use solve.")
        return self.data.private_noise

    def key(self, point: Tensor, node: int, seed: int, t: int) -> bytes:
        if (node, seed) not in self.checksums:
            rows = self.data.shard(node, seed)
            self.checksums[node, seed] = f"{self.data.inputs.checksum(rows)} {self.data.labels.checksum(rows)}"
        return self.noise.key(seed, node, t, self.checksums[node, seed], to_numpy(point).tobytes())

    def drawn(self, key: bytes, node: int, seed: int) -> Tensor:
        shard = self.data.shard(node, seed)
        return self.data.row_numbers(shard[uniform(key, b"rows", len(shard)) < self.data.batch / len(shard)])

    def unit_gradients(self, point: Tensor, rows: Tensor) -> Tensor:
        """Those of single rows, below 1 in length whatever the row is: as long as the mistake."""
        g, outputs, slopes = self.module.row_gradients(point, *self.data.batch_of(rows))
        length = mistakes(self.module.loss, outputs, slopes) / (ROUNDED * g.norm(dim=1) + FLOOR)
        return (length[:, None] * g).nan_to_num(0, 0, 0)


def noisy(data: Sharded, rows: Dataset, point: Tensor, footprint: int, module: FlatModule, augment: object) -> Noisy:
    """Refuse what would tell of rows without noise, or change how much a row counts."""
    refused = {
        "validation rows and early stopping, since their loss would tell of them": len(data.validation),
        "batch norm, which mixes rows (use group norm)": module.norms,
        "augmentation": augment,
        "class weights, since each row counts the same": isinstance(module.loss, WeightedCrossEntropy),
        "texts, whose windows overlap": rows.vocabulary,
    }
    for what, there in refused.items():
        if there:
            raise InputError(f"Differential privacy (epsilon) does not allow {what}: leave it out.")
    made = Noisy(data, footprint, module)
    try:
        made.unit_gradients(point, data.row_numbers(np.resize(next(shard for shard in data.shards if len(shard)), 2)))
    except RuntimeError as error:
        reason = f"torch.func.vmap cannot compute it: {first_line(error)}"
        raise InputError(f"Differential privacy needs the gradient of each row, and {reason}.") from error
    return made
